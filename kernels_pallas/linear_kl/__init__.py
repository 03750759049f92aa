"""KL divergences of two models' token distributions straight from their hidden states.

api        checks the arguments, chooses an implementation, and differentiates it
reference  plain jnp, the definition
xla        block by block in plain XLA
"""

from kernels_pallas.linear_kl.api import linear_kl

__all__ = ["linear_kl"]
