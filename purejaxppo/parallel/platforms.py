"""The platform that a program is traced for, and the number of agents in it.

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
_VMAPPED: ContextVar[int] = ContextVar("vmapped", default=1)


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


def in_separate_kernels(sums: T) -> T:
    """Return sums over many rows unchanged, but compute them before their use on GPUs and TPUs.

    XLA would compute some of them inside a kernel that uses them, for example a concatenation of
    gradients, where one thread adds all rows of a sum. On an H100, this took half the time of an
    update of hopper.yaml.

    Args:
        sums: arrays in any tree.
    """
    return jax.lax.optimization_barrier(sums) if is_accelerated() else sums


def num_vmapped() -> int:
    """Return agents times shards that one device computes together, see `tracing_for`."""
    return _VMAPPED.get()


@contextlib.contextmanager
def tracing_for(name: str, num_vmapped: int = 1) -> Iterator[None]:
    """Set the platform, and the number of vmapped agents and shards, while a program is traced.

    Args:
        name: platform; "" does not change it.
        num_vmapped: agents times shards that one device computes together.
    """
    tokens = _TRACED_FOR.set(name or _TRACED_FOR.get()), _VMAPPED.set(num_vmapped)
    try:
        yield
    finally:
        _TRACED_FOR.reset(tokens[0])
        _VMAPPED.reset(tokens[1])
