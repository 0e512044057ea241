"""Gradients of dense layers' weights and shuffles on one core, beside their plain forms.

    python benchmarks/products.py

The plain gradient is that of `jax.lax.dot_general`, the other one is of `agents.products` without
its limit of a weight's size, which is chosen by this table. The plain shuffle is an argsort of
random bits, the other one `agents.sequences.shuffled`.
"""

import argparse
import os
import time
from collections.abc import Callable

SHAPES = [
    *((rows, width, width) for width in (64, 128, 256) for rows in (128, 256, 512)),
    *((rows, width, outputs) for rows, width in ((256, 64), (128, 128)) for outputs in (1, 2, 6)),
]
"""(rows B, inputs I, outputs O)."""
LENGTHS = [1024, 4096, 16_384, 65_536]


def main() -> None:
    """Prints two tables of microseconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print("gradient of a weight     plain   transposed   ratio")
    for shape in SHAPES:
        show("{} x {} x {}".format(*shape), *gradients(*shape, args.repeats))
    print("shuffle                  plain       packed   ratio")
    for length in LENGTHS:
        show(f"{length}", *shuffles(length, args.repeats))


def gradients(rows: int, inputs: int, outputs: int, repeats: int) -> list[float]:
    """Microseconds of a weight's gradient, plain and transposed."""
    import jax
    import jax.numpy as jnp

    from purejaxppo.agents import products

    x, dy = (
        jax.random.normal(jax.random.key(i), (rows, n)) for i, n in enumerate((inputs, outputs))
    )
    weight = jnp.zeros((inputs, outputs))

    def repeated(product: Callable) -> Callable:
        def step(carried, _):
            x, weight = carried
            gradient = jax.grad(lambda w: jnp.sum(product(x, w) * dy))(weight)
            # The next gradient is of other rows: it is not computed once for all.
            return (x.at[0, 0].add(1e-9 * gradient[0, 0]), weight - 1e-9 * gradient), None

        return lambda: jax.lax.scan(step, (x, weight), None, length=500)[0]

    each = (
        lambda x, w: jax.lax.dot_general(x, w, (((1,), (0,)), ((), ()))),
        lambda x, w: products._product(x, w, None),
    )
    return [best(repeated(product), repeats) / 500 for product in each]


def shuffles(length: int, repeats: int) -> list[float]:
    """Microseconds of a shuffle, by argsort and packed."""
    import jax
    import jax.numpy as jnp

    from purejaxppo.agents import sequences

    key = jax.random.key(0)
    return [
        best(lambda: jnp.argsort(jax.random.bits(key, (length,))), repeats),
        best(lambda: sequences.shuffled(key, length), repeats),
    ]


def best(function: Callable, repeats: int) -> float:
    """Microseconds of the fastest of some calls of a compiled function."""
    import jax

    compiled = jax.jit(function).lower().compile()
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        jax.block_until_ready(compiled())
        times.append(time.perf_counter() - started)
    return 1e6 * min(times)


def show(what: str, plain: float, ours: float) -> None:
    """Prints a line."""
    print(f"{what:20} {plain:9.1f} {ours:12.1f} {ours / plain:7.2f}", flush=True)


if __name__ == "__main__":
    main()
