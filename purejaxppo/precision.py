"""The precision of matrix products, told to JAX wherever a run's programs are traced.

A product, and its gradient, keeps the precision that it was traced with. So the numbers follow from
the config and not from what a back end takes for itself: TF32 on NVIDIA's GPUs, bfloat16 on TPUs.
"""

import functools
from collections.abc import Callable

import jax


def at_matmul_precision(method: Callable) -> Callable:
    """A method that is traced with products of its object's `config.matmul_precision`."""

    @functools.wraps(method)
    def traced(self, *args, **kwargs):
        with jax.default_matmul_precision(self.config.matmul_precision):
            return method(self, *args, **kwargs)

    return traced
