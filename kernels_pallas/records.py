"""What the parts of a kernel hand each other."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from jax import Array

NEVER = -1e4  # a log-probability whose exp is 0; log p is cut here, so that 0 · log 0 is 0


class TokenStats(NamedTuple):
    """Of each row's distribution over the vocabulary; all float32 [N]."""

    log_probs: Array  # of the row's token
    entropy: Array | None  # None if it was not asked for
    logsumexp: Array  # of the logits after softcap and temperature


class ShardStats(NamedTuple):
    """What the forward pass of an implementation gives, of one shard; [N] float32.

    logsumexp = peak + log_sum. The two stay apart because their sum would round: near -1e4 a
    float32 has steps of 1e-3, and log-probabilities are differences of such numbers.
    A row without any finite logit has log_sum = -inf. Masked rows are 0 in every field.
    """

    peak: Array  # about max_v z_v
    log_sum: Array  # log Σ_v exp(z_v - peak)
    chosen: Array  # z of the row's token, 0 where it is not in this shard
    entropy: Array | None  # of this shard's own distribution; None if it was not asked for


class KLStats(NamedTuple):
    """What the forward pass of an implementation of a divergence gives; [N] float32."""

    peak_p: Array
    log_sum_p: Array
    peak_q: Array
    log_sum_q: Array
    kl: Array  # KL(p‖q); +inf where p > 0 and q = 0 for some token


class Static(NamedTuple):
    """What an implementation must know when it is traced."""

    transposed: bool  # the unembedding is [V, D]
    softcap: float | None
    entropy: bool
    config: Any  # block sizes, of a type that the implementation defines; None: its own choice
    interpret: Any  # bool, or Pallas's InterpretParams


class KLStatic(NamedTuple):
    """The same for divergences."""

    transposed_p: bool
    transposed_q: bool
    config: Any
    interpret: Any
    sides: str = "pq"  # those whose gradients are wanted: "p", "q" or both

    def wanted(self, both: Iterable[Any]) -> list[Any]:
        """Of a pair, what belongs to these sides."""
        return [x for side, x in zip("pq", both) if side in self.sides]

    def paired(self, wanted: Iterable[Any]) -> tuple[Any, Any]:
        """The pair again, with None for a side that is held fixed."""
        found = dict(zip(self.sides, wanted))
        return found.get("p"), found.get("q")


class Blocks(NamedTuple):
    """Block sizes of the chunked XLA implementations."""

    rows: int
    vocabulary: int
