"""Logical shards: the parts of a run, and their assignment to devices.

A run's environments are divided into `num_shards` parts with keys of their own. Each device holds
one shard or several (then under `vmap`), so that the curve depends on the number of shards and not
on the number of devices. The functions that a `Shards` maps see one shard and communicate
through `psum` and `pmax` alone. Agents that train side by side, `members`, form one more axis,
outside of the shards.
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
"""A prefix pytree of 0, for arrays with an axis of their own for each shard (or member), and None,
for those that all have in common."""


def use_cpu_cores(devices: int, *, calls_host: bool = False) -> None:
    """Makes CPU cores visible as devices; only before JAX's first use of a back end.

    XLA's CPU runtime gains next to nothing from a second core on this kind of work, but does from
    a second device. `devices` 0 takes every core that the process may run on.

    It also hands operations that do not depend on each other to threads, and then a call of the
    host waits for one to wake up: programs that call the host do without, unless XLA_FLAGS say
    otherwise.
    """
    # In a notebook JAX may be in use already: then its devices stay.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", devices or cpu_cores())
        flags = os.environ.get("XLA_FLAGS", "")
        if calls_host and THREADS_FLAG not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {THREADS_FLAG}=false".strip()


def use_compilation_cache() -> None:
    """Store compiled programs in JAX's cache folder, by default ~/.cache/purejaxppo/xla.

    Loading a compiled program runs its code. So a folder that is created here is private to the
    user, and a folder that other users can write to is not used. Without a folder that can be
    written, each process compiles its programs.
    """
    named = jax.config.values["jax_compilation_cache_dir"]
    if not named or "://" not in named:
        folder = _cache_folder(named)
        jax.config.update("jax_compilation_cache_dir", folder and str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _cache_folder(named: str | None) -> Path | None:
    """Create the folder of compiled programs; None if it cannot be used."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path(named or base / "purejaxppo" / "xla")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not named:
            with tempfile.TemporaryFile(dir=folder):
                pass
        found = folder.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: home folder not found
        log.debug("compiled programs are not stored: %s", error)
        return None
    if os.name == "posix" and (found.st_uid not in (0, os.getuid()) or found.st_mode & 0o022):
        log.warning(
            "%s: compiled programs are not cached, because other users can write to this folder. "
            "Delete it, or set JAX_COMPILATION_CACHE_DIR to another folder.",
            folder,
        )
        return None
    return folder


class Shards:
    """Maps functions of one shard of one agent over all shards, and over all agents if asked for.

    Devices form a mesh ("seed", "env"): agents that train side by side (members) are spread first,
    since they do not communicate; the shards of each use the devices that are left.

    Args:
        num_shards: logical shards D.
        devices: to spread them over; the largest numbers of them that divide members and D are
            used.
        num_members: agents M that train side by side, on a leading axis of arrays; 0: one, without
            an axis for it.
    """

    def __init__(
        self, num_shards: int, devices: list[jax.Device] | None = None, num_members: int = 0
    ) -> None:
        """Assigns members and shards to devices."""
        devices = devices or []
        across = largest_divisor(num_members or 1, len(devices))
        along = largest_divisor(num_shards, len(devices) // across)
        self.num_members = num_members
        self.num_shards = num_shards
        self.num_devices = across * along
        self.per_device = num_shards // along
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
        """Sums a pytree over all shards, inside a mapped function."""
        return jax.lax.psum(x, self.axes) if self.axes else x

    def pmax(self, x: T) -> T:
        """The maximum of a pytree over all shards, inside a mapped function."""
        return jax.lax.pmax(x, self.axes) if self.axes else x

    def any_member(self, x: jax.Array) -> jax.Array:
        """True if a bool [] holds for any agent on this device, inside a mapped function."""
        return jax.lax.psum(x.astype(int), MEMBER_AXIS) > 0 if self.num_members > 1 else x

    def in_turn(self, function: Callable[..., T]) -> Callable[..., T]:
        """`function` as mapped functions use it; on a CPU, members compute it one after another.

        The arrays of one agent's minibatch stay in a core's cache where those of all do not. Where
        shards add up, members do so together, in one sum; and accelerators compute all at once.
        """
        together = self.num_members < 2 or self.axes or platforms.is_accelerated()
        return function if together else sequential_vmap(function)

    def map(
        self,
        function: Callable[..., T],
        in_axes: Axes,
        out_axes: Axes,
        members: tuple[Axes, Axes] = (0, 0),
    ) -> Callable[..., T]:
        """Runs `function` on every shard, and for every member where there are members.

        `in_axes` and `out_axes` are `Axes` of shards: 0 for an axis D, which the function does not
        see. `members` gives the same for members' arguments
        and results: a tuple with an entry per argument, or one for all; a member axis M leads.
        """
        in_members, out_members = members
        if not isinstance(in_members, tuple):
            in_members = (in_members,) * len(in_axes)

        @functools.wraps(function)
        def traced(*args: Any) -> T:
            with platforms.tracing_for(self.platform):
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
        """The shardings of arrays with such axes, as a prefix pytree (None: one device)."""
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
        """The sharding of arrays that are replicated on every device (None: one device)."""
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    def _specs(self, axes: Axes, members: int | None) -> Tree:
        leading = () if members is None or not self.num_members else (MEMBER_DEVICES,)

        def spec(axis: int | None) -> PartitionSpec:
            return PartitionSpec(*leading, *(() if axis is None else (SHARD_DEVICES,)))

        return jax.tree.map(spec, axes, is_leaf=lambda x: x is None)


def largest_divisor(n: int, limit: int) -> int:
    """The largest divisor of n that is not above a limit; 1 if the limit is 0."""
    return max((k for k in range(1, limit + 1) if n % k == 0), default=1)


def _squeezed(function: Callable, in_axes: Axes, out_axes: Axes) -> Callable:
    """`function` with a length-1 axis taken off its inputs and put on its outputs."""

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
