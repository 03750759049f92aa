"""The whole state of one Gymnasium environment as a few arrays, put back bit for bit.

    tree = env.snapshot      # of any environment whose outermost wrapper is `Snapshot`
    other.snapshot = tree    # `other` now goes on as `env` does, in another process too

What is state, in the environment and in each of its wrappers:

1. Plain attributes: None, Python's and NumPy's numbers, flat tuples of these, arrays of numbers.
   All are saved, whether they ever change or not: `state`, `last_u`, `TimeLimit._elapsed_steps` ...
2. The generator `np_random`.
3. With MuJoCo, `mj_getState(mjSTATE_INTEGRATION)` and `mujoco.DERIVED`, but not the model.
4. Any other attribute must be a constant. Spaces, specs and functions are; another object is if its
   pickle has stayed as it was when the wrapper was put on. Otherwise `snapshot` raises.

So an environment that lives in lists or in another engine is refused, never half saved.
"""

import hashlib
import pickle
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import PassiveEnvChecker

from rljax.envs import mujoco

NUMBERS = (
    *(type(None), bool, int, float, np.bool_, np.int8, np.int16, np.int32, np.int64),
    *(np.uint8, np.uint16, np.uint32, np.uint64, np.float16, np.float32, np.float64),
)
SINGLE, TUPLE, ARRAY = 0, 100, 200  # added to an index into NUMBERS
WIDE = {"b": np.uint64, "u": np.uint64, "i": np.int64, "f": np.float64}  # dtype.kind -> 8 bytes
# What is handled elsewhere or only describes: the seed says nothing of where the generator stands,
# and older vector environments write their mode into the metadata.
LINKS = ("env", "_np_random", "_np_random_seed", "_cached_spec", "metadata", "_metadata")
LOW_64 = (1 << 64) - 1


def encode(value: Any) -> np.ndarray | None:
    """A plain value as uint64 [2, n]: bits and type of each of its n numbers. None if not plain.

    >>> encode((1, None)).shape
    (2, 2)
    """
    if isinstance(value, np.ndarray):
        if value.dtype.type not in NUMBERS:
            return None
        bits = value.ravel().astype(WIDE[value.dtype.kind]).view(np.uint64)
        return np.stack([bits, np.full_like(bits, ARRAY + NUMBERS.index(value.dtype.type))])
    container, parts = (TUPLE, value) if type(value) is tuple else (SINGLE, (value,))
    if any(type(x) not in NUMBERS or (type(x) is int and abs(x) >= 2**63) for x in parts):
        return None
    arrays = [np.asarray(0 if x is None else x) for x in parts]
    bits = [x.astype(WIDE[x.dtype.kind]).view(np.uint64) for x in arrays]
    return np.array([bits, [container + NUMBERS.index(type(x)) for x in parts]], np.uint64)


def decode(encoded: np.ndarray, shape: tuple[int, ...]) -> Any:
    """What `encode` was given; `shape` is that of an array, which `encode` does not keep.

    >>> decode(encode((1, None)), (2,))
    (1, None)
    """
    bits, codes = encoded
    if codes[0] >= ARRAY:
        dtype = np.dtype(NUMBERS[int(codes[0]) - ARRAY])
        return bits.view(WIDE[dtype.kind]).astype(dtype).reshape(shape)
    kinds = [NUMBERS[int(code) % 100] for code in codes]
    parts = tuple(
        None
        if kind is type(None)
        else kind(bits[i : i + 1].view(WIDE[np.dtype(kind).kind])[0].item())
        for i, kind in enumerate(kinds)
    )
    return parts if codes[0] >= TUPLE else parts[0]


class Snapshot(gymnasium.Wrapper):
    """Gives an environment the property `snapshot`; it must be the outermost wrapper.

    If the episode had ended when the snapshot was taken, the first step after restoring ignores its
    action, resets and returns reward 0 and no flags: a vector environment in NEXT_STEP mode would
    have done so itself, but does not remember.

    >>> env = Snapshot(gymnasium.make("Pendulum-v1"))
    >>> _, tree = env.reset(seed=0), env.snapshot
    >>> first = env.step([0.5])
    >>> env.snapshot = tree
    >>> bool((env.step([0.5])[0] == first[0]).all())
    True
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self._started = self._ended = self._reset_due = False
        self._mujoco = mujoco.is_mujoco(env.unwrapped)
        self._constants = {name: _fingerprint(value) for name, value in self._others()}
        self._sizes: dict[str, int] = {}  # of the attributes in the first snapshot

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._started, self._ended, self._reset_due = True, False, False
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any):
        if self._reset_due:
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._ended = bool(terminated or truncated)
        return observation, reward, terminated, truncated, info

    @property
    def snapshot_problem(self) -> str:
        """Why no exact snapshot can be taken, in one line; empty if it can.

        To be asked first where `snapshot` is read in a worker process: errors end the worker.
        """
        who = f"{type(self.unwrapped).__name__} cannot be saved exactly"
        if not self._started:
            return f"{who}: it has not been reset"
        generator = getattr(self.unwrapped.np_random, "bit_generator", None)
        if not isinstance(generator, np.random.PCG64):
            return f"{who}: np_random is of kind {type(generator).__name__}, allowed is PCG64"
        for name, value in self._others():
            fingerprint = _fingerprint(value)
            if not fingerprint or self._constants.get(name) != fingerprint:
                kind = type(value).__name__
                return f"{who}: {name} ({kind}) is neither plain numbers nor a constant"
        sizes = _sizes(dict(self._plain()))
        for name in sorted(sizes.keys() | self._sizes.keys()) if self._sizes else ():
            if sizes.get(name) != self._sizes.get(name):
                return f"{who}: {name} had {self._sizes.get(name)} numbers, has {sizes.get(name)}"
        return ""

    @property
    def snapshot(self) -> dict[str, np.ndarray]:
        """The state; setting it restores it.

        Returns:
          `attributes` uint64 [2, N], `layout` uint64 [], `generator` uint64 [6], `ended` bool []
          and, with MuJoCo, `physics` float64 [M].

        Raises:
          ValueError: one line, `snapshot_problem`, if this would not be exact.
        """
        if problem := self.snapshot_problem:
            raise ValueError(problem)
        plain = dict(self._plain())
        self._sizes = _sizes(plain)
        tree = {
            "attributes": np.concatenate(list(plain.values()), axis=1),
            "layout": _layout(plain),
            "generator": _read_generator(self.unwrapped.np_random),
            "ended": np.array(self._ended),
        }
        if self._mujoco:
            tree["physics"] = mujoco.read_physics(self.unwrapped)
        return tree

    @snapshot.setter
    def snapshot(self, tree: dict[str, np.ndarray]) -> None:
        self.reset()  # so that every wrapper and attribute is there, even if nothing has run yet
        plain = dict(self._plain())
        if tree["layout"] != _layout(plain):
            who = type(self.unwrapped).__name__
            raise ValueError(
                f"this snapshot is not of a {who} with the same wrappers and attributes"
            )
        ends = np.cumsum([part.shape[1] for part in plain.values()])
        saved = dict(zip(plain, np.split(np.asarray(tree["attributes"]), ends[:-1], axis=1)))
        for name, attributes, key in self._attributes():
            if name in saved:
                attributes[key] = decode(saved[name], np.shape(attributes[key]))
        _write_generator(self.unwrapped.np_random, np.asarray(tree["generator"]))
        if self._mujoco:
            mujoco.write_physics(self.unwrapped, np.asarray(tree["physics"]))
        self._ended = self._reset_due = bool(tree["ended"])

    def _attributes(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """(name, dict that holds it, key in that dict), from the wrapper below this one inwards."""
        layer, depth = self.env, 0
        while True:
            skip = LINKS + mujoco.LINKS if self._mujoco and layer is self.unwrapped else LINKS
            if not isinstance(layer, PassiveEnvChecker):  # it only remembers what it has checked
                for key in sorted(vars(layer).keys() - set(skip)):
                    yield f"{depth}.{type(layer).__name__}.{key}", vars(layer), key
            if not isinstance(layer, gymnasium.Wrapper):
                return
            layer, depth = layer.env, depth + 1

    def _plain(self) -> Iterator[tuple[str, np.ndarray]]:
        for name, attributes, key in self._attributes():
            encoded = encode(attributes[key])
            if encoded is not None and encoded.size:  # an empty tuple or array holds nothing
                yield name, encoded

    def _others(self) -> Iterator[tuple[str, Any]]:
        for name, attributes, key in self._attributes():
            if encode(attributes[key]) is None:
                yield name, attributes[key]


def _fingerprint(value: Any) -> bytes:
    """Equal as long as the object has not changed; empty if that cannot be known."""
    if callable(value) or isinstance(value, gymnasium.Space | EnvSpec):
        return b"constant"
    try:
        return hashlib.sha256(pickle.dumps(value)).digest()
    except Exception:  # whatever an object's own __reduce__ raises
        return b""


def _sizes(plain: dict[str, np.ndarray]) -> dict[str, int]:
    return {name: encoded.shape[1] for name, encoded in plain.items()}


def _layout(plain: dict[str, np.ndarray]) -> np.ndarray:
    """A hash of the names and sizes of the attributes: only equal ones fit each other."""
    digest = hashlib.sha256(repr(sorted(_sizes(plain).items())).encode()).digest()
    return np.array(int.from_bytes(digest[:8], "little"), np.uint64)


def _read_generator(generator: np.random.Generator) -> np.ndarray:
    state = generator.bit_generator.state
    wide = (state["state"]["state"], state["state"]["inc"])  # 128 bits each
    halves = [half for x in wide for half in (x >> 64, x & LOW_64)]
    return np.array([*halves, state["has_uint32"], state["uinteger"]], np.uint64)


def _write_generator(generator: np.random.Generator, saved: np.ndarray) -> None:
    state_high, state_low, inc_high, inc_low, has_uint32, uinteger = (int(x) for x in saved)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": state_high << 64 | state_low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
