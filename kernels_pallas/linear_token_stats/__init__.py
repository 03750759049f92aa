"""Statistics of token distributions straight from hidden states.

api        checks the arguments and chooses an implementation
reference  plain jnp, the meaning against which every other implementation is tested
"""

from kernels_pallas.linear_token_stats.api import linear_token_stats
from kernels_pallas.linear_token_stats.reference import TokenStats

__all__ = ["TokenStats", "linear_token_stats"]
