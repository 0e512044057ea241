"""The platform that a program is traced for, by which parts with two forms choose one.

A CPU pays for arithmetic and memory, an accelerator for every kernel that it launches: where both
matter, a part has a form for each, with the same numbers up to rounding. The choice is made while
a program is traced, so that a compiled program has one form and no branch.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax

_TRACED_FOR: ContextVar[str] = ContextVar("platform", default="")


def platform() -> str:
    """The platform of the program that is traced: cpu, gpu or tpu.

    That of `tracing_for`; outside of it the device that JAX computes on.
    """
    config: Any = jax.config
    device = config.jax_default_device
    chosen = device if isinstance(device, str) else getattr(device, "platform", "")
    return _TRACED_FOR.get() or chosen or jax.default_backend()


def is_accelerated() -> bool:
    """True if the program that is traced is for a GPU or a TPU."""
    return platform() != "cpu"


@contextlib.contextmanager
def tracing_for(name: str) -> Iterator[None]:
    """Traces for this platform inside; "" leaves it as it is."""
    token = _TRACED_FOR.set(name or _TRACED_FOR.get())
    try:
        yield
    finally:
        _TRACED_FOR.reset(token)
