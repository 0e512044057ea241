"""What a function costs, without running it."""

import jax


def flops(function, *arguments):
    """Of a function before XLA's optimisations, each scan's body counted once."""
    return jax.jit(function).lower(*arguments).cost_analysis()["flops"]
