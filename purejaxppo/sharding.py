"""Logical shards on devices: which part of a run lives where.

A run's environments are divided into `num_shards` parts with keys of their own. Each device holds
one shard or several (then under `vmap`), so that the curve depends on the number of shards and not
on the number of devices. The functions that a `Shards` maps see one shard and talk to the others
through `psum` alone.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

DEVICE_AXIS = "device"
LOCAL_AXIS = "shard"


def cpu_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_cpu_cores(devices: int) -> None:
    """Makes CPU cores visible as devices; only before JAX's first use of a back end.

    XLA's CPU runtime gains next to nothing from a second core on this kind of work, two devices
    do. `devices` 0 takes every core that the process may run on.
    """
    # In a notebook JAX may be in use already: then its devices stay.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", devices or cpu_cores())


def use_compilation_cache() -> None:
    """Keeps compiled programs in the user's cache folder, or in JAX_COMPILATION_CACHE_DIR."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(base / "purejaxppo" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class Shards:
    """Maps functions of one shard over all shards.

    Args:
        num_shards: logical shards D.
        devices: to spread them over; the largest number of them that divides D is used.
    """

    def __init__(self, num_shards: int, devices: list[jax.Device] | None = None) -> None:
        """Lays the shards out."""
        devices = devices or []
        count = max((n for n in range(1, len(devices) + 1) if num_shards % n == 0), default=1)
        self.num_shards = num_shards
        self.num_devices = count
        self.per_device = num_shards // count
        self.mesh = None
        if count > 1:
            self.mesh = jax.make_mesh(
                (count,), (DEVICE_AXIS,), axis_types=(AxisType.Auto,), devices=devices[:count]
            )
        names = [DEVICE_AXIS] * (count > 1) + [LOCAL_AXIS] * (self.per_device > 1)
        self.axes = tuple(names)

    def psum(self, x: Any) -> Any:
        """Sum over all shards of a pytree, inside a mapped function."""
        return jax.lax.psum(x, self.axes) if self.axes else x

    def map(self, function: Callable, in_axes: Any, out_axes: Any) -> Callable:
        """Runs `function` on every shard.

        `in_axes` and `out_axes` are prefix pytrees of 0 (local: a leading axis D, which the
        function does not see) and None (the same for all shards).
        """
        if self.per_device > 1:
            inner = jax.vmap(function, in_axes, out_axes, axis_name=LOCAL_AXIS)
        else:
            inner = _squeezed(function, in_axes, out_axes)
        if self.mesh is not None:
            inner = jax.shard_map(
                inner,
                mesh=self.mesh,
                in_specs=_specs(in_axes),
                out_specs=_specs(out_axes),
                check_vma=False,
            )
        return functools.wraps(function)(inner)

    def shardings(self, axes: Any) -> Any:
        """Where arrays of such axes live, as a prefix pytree of shardings (None: one device)."""
        if self.mesh is None:
            return None
        mesh = self.mesh
        return jax.tree.map(
            lambda axis: NamedSharding(mesh, _spec(axis)), axes, is_leaf=lambda x: x is None
        )


def _spec(axis: int | None) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(DEVICE_AXIS)


def _specs(axes: Any) -> Any:
    return jax.tree.map(_spec, axes, is_leaf=lambda x: x is None)


def _squeezed(function: Callable, in_axes: Any, out_axes: Any) -> Callable:
    """`function` with the length-1 shard axis taken off its inputs and put on its outputs."""

    def on_local(change: Callable, axes: Any, tree: Any) -> Any:
        return jax.tree.map(
            lambda axis, part: part if axis is None else jax.tree.map(change, part),
            axes,
            tree,
            is_leaf=lambda x: x is None,
        )

    @functools.wraps(function)
    def squeezed(*args):
        out = function(*on_local(lambda x: x[0], in_axes, args))
        return on_local(lambda x: jnp.expand_dims(x, 0), out_axes, out)

    return squeezed
