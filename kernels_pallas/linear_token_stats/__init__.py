"""Statistics of token distributions straight from hidden states.

api                  checks the arguments and chooses an implementation
differentiate        gradients, the same for all implementations, and shards of the vocabulary
reference            plain jnp, the meaning against which every other implementation is tested
xla                  block by block in plain XLA
policy_loss          sums of losses of tokens
gradient_in_forward  how those get their gradient without a second look at the logits
elementwise          which losses can, and are refused otherwise
tile                 logits of a block, for what is written in XLA
"""

from kernels_pallas.linear_token_stats.api import linear_token_stats
from kernels_pallas.linear_token_stats.policy_loss import linear_policy_loss
from kernels_pallas.records import TokenStats

__all__ = ["TokenStats", "linear_policy_loss", "linear_token_stats"]
