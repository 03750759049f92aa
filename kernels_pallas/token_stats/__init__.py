"""Statistics of token distributions on logits that already exist.

api        checks the arguments, chooses an implementation, and differentiates it
reference  plain jnp, the definition
xla        block by block in plain XLA
"""

from kernels_pallas.token_stats.api import token_stats

__all__ = ["token_stats"]
