"""Parameters that grow over a run, for `benchmarks/ablations.py`."""

import jax.numpy as jnp


def memory_length(progress):
    """MemoryChain's length: 5 to 40 steps in the first 60 % of a run, whole numbers."""
    return jnp.round(5 + 35 * jnp.minimum(progress / 0.6, 1.0))
