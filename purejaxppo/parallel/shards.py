"""Logical shards of a run, and their assignment to devices.

A run's environments are divided into `num_shards` shards, each with separate keys. A device
computes one or several shards (with `vmap`). Results therefore depend on the number of shards, not
of devices.
Functions that `Shards` maps see one shard, and communicate only through `psum` and `pmax`. Several
agents (seeds, trials or population members) form one more axis, outside of the shards.
"""

import contextlib
import functools
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from purejaxppo.aliases import T, Tree
from purejaxppo.parallel import platforms
from purejaxppo.parallel.cores import cpu_cores

log = logging.getLogger("purejaxppo")

MEMBER_DEVICES = "seed"
SHARD_DEVICES = "env"
LOCAL_AXIS = "shard"
THREADS_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler"
MEMBER_AXIS = "member"


Axes = Any
"""A prefix pytree of 0, for arrays with a leading axis of shards (or agents), and None, for arrays
that all share."""


def use_cpu_cores(devices: int, *, calls_host: bool = False) -> None:
    """Make CPU cores visible as devices. This has no effect after JAX's first use of a backend.

    XLA gains almost nothing from a second core in these programs, but much from a second device.

    Args:
        devices: number of devices; 0: all cores that the process may run on.
        calls_host: True for programs that call the host. XLA runs independent operations in
            threads, and a host call would wait for one to wake up. This turns the threads off,
            unless XLA_FLAGS sets them.
    """
    # In a notebook, JAX may have started already. Then its devices stay.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", devices or cpu_cores())
        flags = os.environ.get("XLA_FLAGS", "")
        if calls_host and THREADS_FLAG not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {THREADS_FLAG}=false".strip()


def use_compilation_cache() -> None:
    """Store compiled programs in JAX's cache folder, by default ~/.cache/purejaxppo/xla.

    Loading a compiled program runs its code. Therefore a new folder is private to the user, and a
    folder that other users can write to is not used. Without a writable folder, each process
    compiles its programs.
    """
    configured = jax.config.values["jax_compilation_cache_dir"]
    if not configured or "://" not in configured:
        folder = _cache_folder(configured)
        jax.config.update("jax_compilation_cache_dir", folder and str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _cache_folder(configured: str | None) -> Path | None:
    """Create the folder of compiled programs; return None if it cannot be used."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path(configured or base / "purejaxppo" / "xla")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not configured:
            with tempfile.TemporaryFile(dir=folder):
                pass
        status = folder.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: home folder not found
        log.debug("compiled programs are not cached: %s", error)
        return None
    if os.name == "posix" and (status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022):
        log.warning(
            "%s: compiled programs are not cached, because other users can write to this folder. "
            "Delete it, or set JAX_COMPILATION_CACHE_DIR to another folder.",
            folder,
        )
        return None
    return folder


class Shards:
    """Maps functions of one shard of one agent over all shards and agents.

    Devices form a mesh ("seed", "env"). Agents are spread over devices first, since they do not
    communicate. The shards of each agent use the remaining devices.

    Args:
        num_shards: number of logical shards D.
        devices: available devices. The largest numbers that divide M and D are used.
        num_members: number of agents M, on a leading axis of arrays; 0: one agent without the axis.
    """

    def __init__(
        self, num_shards: int, devices: list[jax.Device] | None = None, num_members: int = 0
    ) -> None:
        """Assign agents and shards to devices."""
        devices = devices or []
        across = largest_divisor(num_members or 1, len(devices))
        along = largest_divisor(num_shards, len(devices) // across)
        self.num_members = num_members
        self.num_shards = num_shards
        self.num_devices = across * along
        self.per_device = num_shards // along
        self.num_vmapped = self.per_device * max(num_members, 1) // across
        self.devices = devices[: self.num_devices]
        self.platform = devices[0].platform if devices else ""
        self.mesh = None
        if self.num_devices > 1:
            self.mesh = jax.make_mesh(
                (across, along),
                (MEMBER_DEVICES, SHARD_DEVICES),
                axis_types=(AxisType.Auto, AxisType.Auto),
                devices=self.devices,
            )
        names = [SHARD_DEVICES] * (along > 1) + [LOCAL_AXIS] * (self.per_device > 1)
        self.axes = tuple(names)

    def psum(self, x: T) -> T:
        """Return the sum of a pytree over all shards, inside a mapped function."""
        return jax.lax.psum(x, self.axes) if self.axes else x

    def pmax(self, x: T) -> T:
        """Return the maximum of a pytree over all shards, inside a mapped function."""
        return jax.lax.pmax(x, self.axes) if self.axes else x

    def any_member(self, x: jax.Array) -> jax.Array:
        """Return True if `x`, a bool scalar, is True for any agent on this device."""
        return jax.lax.psum(x.astype(int), MEMBER_AXIS) > 0 if self.num_members > 1 else x

    def in_turn(self, function: Callable[..., T]) -> Callable[..., T]:
        """Return a function that agents compute one after another on a CPU.

        The arrays of one agent's minibatch fit into a core's cache, those of all do not. With
        communication between shards, and on GPUs and TPUs, agents still compute together.
        """
        is_joint = self.num_members < 2 or self.axes or platforms.is_accelerated()
        return function if is_joint else sequential_vmap(function)

    def map(
        self,
        function: Callable[..., T],
        in_axes: Axes,
        out_axes: Axes,
        members: tuple[Axes, Axes] = (0, 0),
    ) -> Callable[..., T]:
        """Return a function that runs `function` on every shard of every agent.

        Args:
            function: function of one shard of one agent.
            in_axes: one entry per argument, as for `jax.vmap`: 0 if its leading axis is the axis
                of shards, D; None if all shards get the same argument.
            out_axes: the same for the result.
            members: (in_axes, out_axes) of the axis of agents, M, which is before D. An int or None
                as in_axes applies to all arguments.
        """
        in_members, out_members = members
        if not isinstance(in_members, tuple):
            in_members = (in_members,) * len(in_axes)

        @functools.wraps(function)
        def traced(*args: Any) -> T:
            with platforms.tracing_for(self.platform, self.num_vmapped):
                return function(*args)

        inner: Callable[..., T]
        if self.per_device > 1:
            inner = jax.vmap(traced, in_axes, out_axes, axis_name=LOCAL_AXIS)
        else:
            inner = _squeezed(traced, in_axes, out_axes)
        if self.num_members == 1:
            inner = _squeezed(inner, in_members, out_members)
        elif self.num_members:
            inner = jax.vmap(inner, in_members, out_members, axis_name=MEMBER_AXIS)
        if self.mesh is not None:
            inner = jax.shard_map(
                inner,
                mesh=self.mesh,
                in_specs=tuple(map(self._specs, in_axes, in_members)),
                out_specs=self._specs(out_axes, out_members),
                check_vma=False,
            )
        return functools.wraps(function)(inner)

    def shardings(self, axes: Axes) -> Tree:
        """Return the shardings of arrays with these axes, a prefix pytree; None for one device."""
        if self.mesh is None:
            return None
        mesh = self.mesh
        specs = self._specs(axes, 0)
        return jax.tree.map(
            lambda spec: NamedSharding(mesh, spec),
            specs,
            is_leaf=lambda x: isinstance(x, PartitionSpec),
        )

    def everywhere(self) -> NamedSharding | None:
        """Return the sharding of arrays replicated on all devices; None for one device."""
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    def _specs(self, axes: Axes, members: int | None) -> Tree:
        leading = () if members is None or not self.num_members else (MEMBER_DEVICES,)

        def spec(axis: int | None) -> PartitionSpec:
            return PartitionSpec(*leading, *(() if axis is None else (SHARD_DEVICES,)))

        return jax.tree.map(spec, axes, is_leaf=lambda x: x is None)


def largest_divisor(n: int, limit: int) -> int:
    """Return the largest divisor of n that is at most `limit`; 1 if the limit is 0."""
    return max((k for k in range(1, limit + 1) if n % k == 0), default=1)


def _squeezed(function: Callable, in_axes: Axes, out_axes: Axes) -> Callable:
    """Return `function` with a length-1 axis removed from its inputs and added to its outputs."""

    def on_local(change: Callable, axes: Axes, tree: Tree) -> Tree:
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
