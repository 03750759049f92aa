"""From an NNX module to two pure functions over a nested dict of arrays."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from rljax.types import Key, Net, Params


def pure(make_module: Callable[[nnx.Rngs], nnx.Module]) -> Net:
    """Splits a module once and runs it as `Net(init, apply)`.

    The module may hold parameters only: no batch statistics, no dropout state. Whatever else
    changes during a run belongs to the run's state, where checkpoints and vmap see it.

    Args:
      make_module: builds the module from its random streams.

    Returns:
      `init(key)` gives the parameters as nested dicts of arrays; `apply(params, *inputs)` calls
      the module.

    >>> net = pure(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
    >>> params = net.init(jax.random.key(0))
    >>> net.apply(params, jax.numpy.ones((5, 3))).shape
    (5, 2)
    """
    graph, _ = nnx.split(nnx.eval_shape(lambda: make_module(nnx.Rngs(0))))

    def init(key: Key) -> Params:
        _, state = nnx.split(make_module(nnx.Rngs(params=key)))
        return nnx.to_pure_dict(state)

    def apply(params: Params, *inputs: Any) -> Any:
        return nnx.merge(graph, nnx.State(params))(*inputs)

    return Net(init, apply)
