"""KL divergences of categorical distributions on logits that already exist.

api        checks the arguments, chooses an implementation, and differentiates it
reference  plain jnp, the definition
xla        block by block in plain XLA
"""

from kernels_pallas.categorical_kl.api import categorical_kl

__all__ = ["categorical_kl"]
