"""Setup of a run: the config, and values derived from it once, such as devices and shards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import jax

from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.parallel import processes
from purejaxppo.parallel.shards import Shards, largest_divisor

if TYPE_CHECKING:
    from purejaxppo.learner import Parts
    from purejaxppo.runs.agent import Agent

MIN_ROWS = {"cpu": 64}
"""Smallest number of minibatch rows per shard for which more shards are faster, by platform."""
MIN_ROWS_ACCELERATED = 4096
"""This number for GPUs and TPUs, where smaller minibatches are not faster."""


@dataclass(frozen=True)
class Setup:
    """A config and the values derived from it.

    `resolve` checks the config and derives the values that do not need JAX. `divide` then assigns
    shards to devices. An evaluation sets `devices` instead.
    """

    config: Config
    on_host: bool
    """True if the simulator runs on the host. It then has one shard per process and cannot be
    restored."""
    calls_lapack: bool
    """True if the simulator calls LAPACK for batches of environments; see `parallel.lapack`."""
    members: tuple[Config, ...] = ()
    """Configs of agents that train in one program. They differ in seeds and tunable numbers only.
    (): one agent, without a leading axis of agents."""
    change: "Callable[[Parts], Parts] | None" = None
    """Function from the config's parts to the parts to train with; None: no change."""
    init: "Agent | None" = None
    """Agent that a new run starts from, instead of that of `config.init_from`."""
    devices: tuple[jax.Device, ...] = ()
    """Devices of all processes: the available ones or, after `divide`, those with shards. (): not
    set yet."""
    note: str = ""
    """Reason why some available devices are not used; "" if all are used."""

    @cached_property
    def shards(self) -> Shards:
        """Assignment of shards and agents to devices."""
        return Shards(self.config.num_shards, list(self.devices), len(self.members))


def resolve(
    config: Config,
    *,
    members: Sequence[Config] = (),
    change: "Callable[[Parts], Parts] | None" = None,
    init: "Agent | None" = None,
) -> Setup:
    """Derive a setup from a config, without starting JAX.

    Args:
        config: settings of the run.
        members: config of each agent, for a sweep or a population; empty: only seeds differ.
        change: function from the config's parts to the parts to train with.
        init: agent that a new run starts from.

    Raises:
        ValueError: settings that the simulator does not support.
    """
    other = "init_from" if config.init_from else "pretrain.teacher"
    if init is not None and (config.init_from or config.pretrain.teacher):
        raise ValueError(f"init and {other} exclude each other. Use one of them.")
    on_host = registry.on_host(config.env)
    check_vmappable(config, len(members) or config.num_seeds)
    if config.asynchronous and not on_host:
        raise ValueError(
            f"asynchronous = true needs a host simulator (envpool/, gymnasium/), but "
            f"{config.env.name} runs in JAX. Use asynchronous = false."
        )
    if config.ppo.reset_each_rollout and on_host:
        raise ValueError(
            f"ppo.reset_each_rollout = true needs a simulator in JAX, but {config.env.name} runs "
            f"on the host. Use ppo.reset_each_rollout = false."
        )
    lapack = registry.calls_lapack(config.env)
    return Setup(config, on_host, lapack, tuple(members), change, init)


def divide(setup: Setup, devices: Sequence[jax.Device]) -> Setup:
    """Divide the agents and shards of a run over devices, the same number per process.

    Args:
        setup: setup of the run.
        devices: devices of all processes.

    Raises:
        ValueError: see `resolve_shards`, or the shards cannot be divided among the processes.
    """
    platform = devices[0].platform
    config = resolve_shards(setup.config, len(devices), platform, on_host=setup.on_host)
    members = setup.members or seeds_of(config)
    used = processes.spread(list(devices), len(members) * config.num_shards)
    if setup.on_host and len(members) > 1:
        used = used[:1]  # one pool of simulators, stepped by one program
    return replace(setup, config=config, members=members, devices=tuple(used))


def check_vmappable(config: Config, num_members: int = 2) -> None:
    """Check that the settings support several seeds or trials in one program.

    Raises:
        ValueError: the settings do not support them.
    """
    if config.asynchronous and num_members > 1:
        raise ValueError(
            "asynchronous = true does not support several seeds or trials in one program. Use "
            "asynchronous = false, or train each seed in a separate run."
        )


def seeds_of(config: Config) -> tuple[Config, ...]:
    """Return the config of each seed of a run: `seed`, `seed` + 1 and so on."""
    return tuple(
        replace(config, seed=config.seed + i, num_seeds=1) for i in range(config.num_seeds)
    )


def resolve_shards(
    config: Config, num_devices: int, platform: str = "cpu", *, on_host: bool = False
) -> Config:
    """Return the config with a number of shards instead of `num_shards` = 0.

    This is the largest number that uses the devices, divides the sizes of the run, and leaves each
    shard enough minibatch rows. Several seeds are divided over devices first.

    Args:
        config: settings of the run.
        num_devices: number of devices of all processes.
        platform: platform of these devices, such as cpu.
        on_host: True if the simulator runs on the host.

    Raises:
        ValueError: a host simulator with a number of shards other than one per process, or settings
            that several processes do not support.
    """
    count = jax.process_count()
    if config.asynchronous and count > 1:
        raise ValueError(
            f"asynchronous = true supports only one process, but {count} were started. Use "
            f"asynchronous = false, or start one process."
        )
    if config.logging.video_interval and count > 1:
        raise ValueError(
            f"logging.video_interval = {config.logging.video_interval}: several processes cannot "
            f"record videos. Use 0, and purejaxppo evaluate --render after training."
        )
    if on_host:
        if config.num_shards not in (0, count):
            raise ValueError(
                f"num_shards = {config.num_shards}: {config.env.name} runs on the host, with one "
                f"shard per process (processes: {count}). Start {config.num_shards} processes, or "
                f"use num_shards = 0 in a new run."
            )
        if count > 1 and config.num_seeds > 1:
            raise ValueError(
                f"num_seeds = {config.num_seeds}: host simulators in several processes support "
                f"only num_seeds = 1. Train each seed in a separate run."
            )
        return replace(config, num_shards=count)
    if config.num_shards:
        return config
    if config.num_seeds % num_devices == 0:
        return replace(config, num_shards=1)
    num_devices //= largest_divisor(config.num_seeds, num_devices)
    rows = config.steps_per_update // config.ppo.num_minibatches
    max_shards = min(num_devices, rows // MIN_ROWS.get(platform, MIN_ROWS_ACCELERATED))
    for shards in range(max_shards - max_shards % count, 1, -count):
        try:
            return replace(config, num_shards=shards)
        except ValueError:
            continue
    return replace(config, num_shards=count)
