"""The platform that a program is traced for.

Some functions have one implementation for CPUs, where arithmetic and memory are expensive, and one
for GPUs and TPUs, where kernel launches are. Both give the same numbers up to rounding. The choice
is made while tracing, so a compiled program contains only one of them.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax

from purejaxppo.aliases import T

_TRACED_FOR: ContextVar[str] = ContextVar("platform", default="")
_COPIES: ContextVar[int] = ContextVar("copies", default=1)


def platform() -> str:
    """Return the platform of the program that is traced: cpu, gpu or tpu.

    It is the one of `tracing_for` or, outside of it, that of JAX's default device.
    """
    config: Any = jax.config
    device = config.jax_default_device
    default = device if isinstance(device, str) else getattr(device, "platform", "")
    return _TRACED_FOR.get() or default or jax.default_backend()


def is_accelerated() -> bool:
    """Return True if the program that is traced is for a GPU or TPU."""
    return platform() != "cpu"


def computed_apart(sums: T) -> T:
    """Return sums over many rows, arrays in any tree; a GPU computes each in kernels of its own.

    Otherwise XLA computes some of them inside the kernel that uses them, such as a concatenation of
    gradients, where one thread adds all rows of a sum. On an H100, this was half of an update of
    hopper.yaml.
    """
    return jax.lax.optimization_barrier(sums) if is_accelerated() else sums


def copies() -> int:
    """Return how many agents and shards a device computes in one batch, see `tracing_for`."""
    return _COPIES.get()


@contextlib.contextmanager
def tracing_for(name: str, copies: int = 1) -> Iterator[None]:
    """Trace a program of one shard of one agent inside the block.

    Args:
        name: platform; "" does not change it.
        copies: number of agents and shards that a device computes in one batch.
    """
    tokens = _TRACED_FOR.set(name or _TRACED_FOR.get()), _COPIES.set(copies)
    try:
        yield
    finally:
        _TRACED_FOR.reset(tokens[0])
        _COPIES.reset(tokens[1])
