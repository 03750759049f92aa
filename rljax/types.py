"""Records and function bundles that cross borders; read this first to see how rljax fits together.

    Env, VectorEnv  --Transition-->  Rollout  --Algo.update-->  (AlgoState, metrics)

Records hold arrays and are pytrees. Bundles hold functions and settings and are never traced.
Every function that takes a `key` consumes it: the caller must not use that key again.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

Array = jax.Array
Key = jax.Array  # a typed PRNG key, `jax.random.key(0)`
Params = Any  # nested dicts of arrays
PyTree = Any
Metrics = dict[str, jax.Array]  # flat: {"loss/policy": float32 scalar, ...}


class Discrete(NamedTuple):
    """Actions 0 ... num_actions - 1, int32."""

    num_actions: int


class Box(NamedTuple):
    """Real actions of shape [A] between `low` and `high` (float32 arrays [A], may be infinite)."""

    low: np.ndarray
    high: np.ndarray


class EnvSpec(NamedTuple):
    """What an algorithm may know of an environment before it has seen one step."""

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: Any
    action_space: Discrete | Box
    max_episode_steps: int  # the episode is truncated after this many steps


class Step(NamedTuple):
    """What one environment returns for one action, before any reset."""

    observation: Array
    reward: Array  # float32 []
    terminated: Array  # bool []: the task itself has ended; nothing is worth anything afterwards
    truncated: Array  # bool []: cut by a time limit; the value of `observation` still counts


class Env(NamedTuple):
    """One pure-JAX environment. `state` is a pytree of all there is, the step counter included."""

    reset: Callable[[Key], tuple[PyTree, Array]]  # key -> (state, observation)
    step: Callable[[Key, PyTree, Array], tuple[PyTree, Step]]  # key, state, action -> (state, step)
    spec: EnvSpec


class Transition(NamedTuple):
    """One step of B environments; the environments that ended have been reset already.

    `episode_return` and `episode_length` are those of the episode that this step ended, and count
    only where `terminated | truncated`. `mask` is 0 where no step was taken: some host
    environments spend a call on the reset. None: every call is a step.
    """

    observation: Array  # [B, ...] to act on next, after the reset
    next_observation: Array  # [B, ...] before the reset: the one to bootstrap from
    reward: Array  # float32 [B]
    terminated: Array  # bool [B]
    truncated: Array  # bool [B]
    episode_return: Array  # float32 [B]
    episode_length: Array  # int32 [B]
    mask: Array | None  # bool [B]


class VectorEnv(NamedTuple):
    """B pure-JAX environments stepped together.

    All that is random is drawn ahead: random bits are cheap in bulk and dear one at a time.
    """

    reset: Callable[[Key], tuple[PyTree, Array]]  # key -> (state, observation [B, ...])
    draw: Callable[[Key, int], PyTree]  # key, T -> all that is random in T steps, [T, B, ...]
    # what was drawn for one step, state, actions -> (state, transition)
    step: Callable[[PyTree, PyTree, Array], tuple[PyTree, Transition]]
    spec: EnvSpec
    num_envs: int


class HostVectorEnv(NamedTuple):
    """B environments outside JAX: functions of NumPy arrays, with side effects."""

    # one seed for all, or one for each -> observation [B, ...]
    reset: Callable[[int | Sequence[int]], np.ndarray]
    step: Callable[[np.ndarray], Transition]  # actions [B] or [B, A] -> Transition of NumPy arrays
    snapshot: Callable[[], PyTree]  # everything there is, as arrays of fixed shape and dtype
    restore: Callable[[PyTree], np.ndarray]  # snapshot -> observation; all goes on from there
    close: Callable[[], None]
    spec: EnvSpec
    num_envs: int
    exact: bool = True  # False: `restore` cannot go on with the episodes and begins fresh ones


class Rollout(NamedTuple):
    """T steps of B environments under one policy, time first."""

    observations: Array  # [T, B, ...]
    actions: Array  # [T, B] int32, or [T, B, A] float32
    behaviour_log_probs: Array  # float32 [T, B]
    rewards: Array  # float32 [T, B]
    terminated: Array  # bool [T, B]
    truncated: Array  # bool [T, B]
    next_observations: Array  # [T, B, ...] before the reset
    episode_returns: Array  # float32 [T, B], of the episode that the step ended; as in `Transition`
    episode_lengths: Array  # int32 [T, B]
    mask: Array | None  # bool [T, B]; None keeps everything


class Experience(NamedTuple):
    """One step as a replay keeps it, [B, ...] when it is added."""

    observation: Array  # what was acted on
    action: Array  # int32 [B], or [B, A] float32
    reward: Array  # float32 [B]
    terminated: Array  # bool [B]
    truncated: Array  # bool [B]
    next_observation: Array  # before the reset


class NStepBatch(NamedTuple):
    """k <= n steps as one; the target is reward + discount · value of next_observation."""

    observation: Array  # [N, ...]
    action: Array
    reward: Array  # float32 [N]: the discounted sum of k rewards
    discount: Array  # float32 [N]: γ^k, 0 where terminated
    next_observation: Array  # [N, ...] of the last of the k steps, as both flags are
    terminated: Array  # bool [N]
    truncated: Array  # bool [N]


class Distribution(NamedTuple):
    """A family of distributions over actions; `params` is whatever the policy network returns."""

    # key, [*S, A] -> float32 [*S, A]: all that is random in a sample
    noise: Callable[[Key, tuple[int, ...]], Array]
    sample: Callable[[Array, PyTree], Array]  # noise, params -> actions
    log_prob: Callable[[PyTree, Array], Array]
    entropy: Callable[[PyTree], Array]
    kl: Callable[[PyTree, PyTree], Array]  # KL(p || q)
    mode: Callable[[PyTree], Array]


class Net(NamedTuple):
    """A network as two pure functions over a nested dict of arrays."""

    init: Callable[[Key], Params]
    apply: Callable[..., PyTree]  # params, inputs -> outputs


class LanguageNet(NamedTuple):
    """A decoder-only language model as pure functions over a nested dict of arrays.

    `forward` is what the others are made of: tokens and positions [B, T], and
    attend(query [B, T, KV, g, K], key [B, T, KV, K], value [B, T, KV, K], memory, layer)
    -> (attended [B, T, KV, g, K], memory), which every layer calls with its number.
    """

    init: Callable[[Key], Params]
    # params, tokens [B, L], *, positions=None, mask=None -> logits [B, L, V] float32; causal, mask
    # marks real tokens, positions are max(cumsum(mask) - 1, 0) unless given
    apply: Callable[..., Array]
    hidden: Callable[..., Array]  # the same -> [B, L, D], what `unembed` takes
    unembed: Callable[[Params, Array], Array]  # params, hidden [*S, D] -> logits [*S, V] float32
    # params -> [V, D], of hidden's dtype: unembed is the product with it, [V, D] also where D = V
    unembedding: Callable[[Params], Array]
    # params, tokens, positions, attend, memory -> hidden [B, T, D], memory
    forward: Callable[..., tuple[Array, PyTree]]
    config: Any  # sizes, hashable: vocab_size, num_layers, num_kv_heads, head_size, dtypes


class Completions(NamedTuple):
    """What a sampler generated for each of P prompts, G times; at most N tokens."""

    tokens: Array  # int32 [P, G, N]; after the stop token, which is kept, there is padding
    mask: Array  # bool [P, G, N]: generated, the stop token included
    log_probs: Array  # float32 [P, G, N] under the distribution that was sampled; 0 where not mask
    lengths: Array  # int32 [P, G]
    finished: Array  # bool [P, G]: stopped, rather than cut off at N


class Algo(NamedTuple):
    """An algorithm as pure functions over its state."""

    init: Callable[[Key], PyTree]  # key -> state
    # key, shape -> noise [*shape, ...]: all that is random in `act`, drawn ahead for many steps
    draw: Callable[[Key, tuple[int, ...]], PyTree]
    # noise, state, observations [B, ...] -> (actions, log_probs)
    act: Callable[[PyTree, PyTree, Array], tuple[Array, Array]]
    act_greedy: Callable[[PyTree, Array], Array]  # state, observations -> the policy's mode
    # key, state, batch -> (state, metrics)
    update: Callable[[Key, PyTree, Any], tuple[PyTree, Metrics]]


class OffPolicyAlgo(NamedTuple):
    """An algorithm that learns from a replay, as pure functions over its state.

    What exploration carries from one step of an environment to the next is its memory, a pytree
    [B, ...] (or none at all); every episode begins with that of `begin`. Counts of steps and of
    updates are int32 [] and the same for all seeds that run side by side.
    """

    init: Callable[[Key], PyTree]  # key -> state
    # key, shape -> noise [*shape, ...]: all that is random in `act`, drawn ahead for many steps
    draw: Callable[[Key, tuple[int, ...]], PyTree]
    begin: Callable[[int], PyTree]  # B -> memory
    # noise, memory, state, observations [B, ...], environment steps done -> (actions, memory)
    act: Callable[[PyTree, PyTree, PyTree, Array, Array], tuple[Array, PyTree]]
    act_greedy: Callable[[PyTree, Array], Array]  # state, observations -> actions
    # key, state, batch, updates done -> (state, metrics): one gradient step of everything
    update: Callable[[Key, PyTree, NStepBatch, Array], tuple[PyTree, Metrics]]
