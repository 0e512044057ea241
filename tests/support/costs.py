"""Floating-point operations of functions, without running them."""

import jax


def flops(function, *arguments):
    """Count the operations before the optimisations of XLA; the body of a scan counts once."""
    return jax.jit(function).lower(*arguments).cost_analysis()["flops"]
