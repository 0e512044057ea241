"""`python -m purejaxppo.train --config hopper.yaml`: train, log, save, resume."""

import dataclasses
import importlib.util
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import tyro

from purejaxppo import cli, configio, reporting
from purejaxppo.asynchronous import AsynchronousPrograms, AsynchronousRun
from purejaxppo.config import Config
from purejaxppo.envs import registry
from purejaxppo.envs.host import SimulatorError
from purejaxppo.loop import Interrupt, Programs, Run, resolve_shards
from purejaxppo.members import MemberPrograms, MembersRun, seeds_of
from purejaxppo.runfolder import CONFIG, record_run, run_folder
from purejaxppo.sharding import use_compilation_cache, use_cpu_cores

DESCRIPTION = """Train PPO.

The config is read first, flags replace single fields of it. Running the same command again
resumes; Ctrl-C saves and ends."""


@dataclasses.dataclass(frozen=True)
class Flags:
    """What to do besides the config's own fields."""

    config: str = "hopper.yaml"
    """A YAML file, or the bare name of a config that comes with the library."""
    clobber: tyro.conf.FlagCreatePairsOff[bool] = False
    """Delete the run folder of an earlier run of this name and start afresh."""
    list_envs: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print every environment that can be trained, and end."""
    list_configs: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the configs that come with the library, and end."""


@dataclasses.dataclass(frozen=True)
class Command(Config, Flags):
    """A config, and what to do with it."""


def parse(args: Sequence[str]) -> Command:
    """The command line over its config file.

    Raises:
        ValueError: one sentence.
        SystemExit: --help.
    """
    return cli.parse_over_config(
        Command, args, prog="python -m purejaxppo.train", description=DESCRIPTION
    )


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        command = parse(sys.argv[1:] if args is None else args)
        if command.list_envs:
            return list_envs()
        if command.list_configs:
            return list_configs()
        return train(command)
    except (ValueError, OSError, SimulatorError) as error:
        return reporting.fail(error)
    except KeyboardInterrupt:
        return reporting.fail("interrupted; what was saved before is as it was", code=130)


def list_envs() -> int:
    """Prints one environment per line."""
    for family, entry in registry.FAMILIES.items():
        try:
            for name in registry.task_names(family):
                print(f"{name:42} {entry.about}")
        except ValueError as error:
            print(f"{family + '/...':42} {error}")
    return 0


def list_configs() -> int:
    """Prints one config per line, with its first comment."""
    for name, comment in configio.list_configs().items():
        print(f"{name + '.yaml':32} {comment}")
    return 0


def train(command: Command) -> int:
    """Trains what `command` says, in its run folder, from scratch or from the last save."""
    config = Config(**{f.name: getattr(command, f.name) for f in dataclasses.fields(Config)})
    if config.logging.wandb_project and importlib.util.find_spec("wandb") is None:
        raise ValueError("wandb is not installed: pip install 'purejaxppo[wandb]'")
    run_dir = Path(config.run_dir or f"runs/{run_name(command.config, config)}")
    notes: list[str] = []
    if not command.clobber:
        config, notes = continue_config(config, run_dir)
    devices = start_jax(config)
    config = resolve_shards(config, len(devices))
    programs, run_kind = programs_of(config, devices)
    with run_folder(run_dir, clobber=command.clobber):
        if not (run_dir / CONFIG).is_file():
            record_run(config, run_dir, programs.members)  # first: so it is known as a run
        console = reporting.Console(config.num_updates * programs.steps_per_update)
        run = run_kind(programs, run_dir, console)
        if finished(run, notes):
            run.checkpoints.close()
            return 0
        for note in notes:
            console.say(note)
        return execute(run)


def run_name(name: str, config: Config) -> str:
    """hopper-s0, or hopper-s0x32 for 32 seeds from 0 on."""
    seeds = f"x{config.num_seeds}" if config.num_seeds > 1 else ""
    return f"{Path(name).stem}-s{config.seed}{seeds}"


def programs_of(config: Config, devices: list[jax.Device]) -> tuple[Programs, Any]:
    """What a run compiles, and the loop that drives it."""
    if config.num_seeds > 1:
        return MemberPrograms(config, devices, seeds_of(config)), MembersRun
    if config.asynchronous:
        return AsynchronousPrograms(config, devices), AsynchronousRun
    return Programs(config, devices), Run


def continue_config(config: Config, run_dir: Path) -> tuple[Config, list[str]]:
    """The config with which an existing run goes on, and what to say about it.

    Raises:
        ValueError: a structural field differs from what the run was trained with.
    """
    if not (run_dir / CONFIG).is_file():
        return config, []
    old = configio.load_config(run_dir / CONFIG)
    if not config.num_shards:
        old = dataclasses.replace(old, num_shards=0)
    structural, tunable = configio.compare(old, config)
    before, after = configio.flatten(old), configio.flatten(config)
    if structural:
        key = structural[0]
        more = f" (and {', '.join(structural[1:])})" if structural[1:] else ""
        raise ValueError(
            f"{run_dir} was trained with {key} = {_show(before[key])}, not {_show(after[key])}"
            f"{more}; --run_dir NAME trains beside it, --clobber deletes it and starts afresh"
        )
    if not config.num_shards:
        shards = configio.load_config(run_dir / CONFIG).num_shards
        config = dataclasses.replace(config, num_shards=shards)
    return config, [
        f"{key} changes from {_show(before[key])} to {_show(after[key])}" for key in tunable
    ]


def _show(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def start_jax(config: Config) -> list[jax.Device]:
    """Sets JAX up before its first use, and returns the devices to train on.

    Raises:
        ValueError: fewer devices than asked for.
    """
    use_compilation_cache()
    use_cpu_cores(config.devices)
    devices = jax.devices()
    if config.devices > len(devices):
        raise ValueError(f"devices = {config.devices}, but JAX sees {len(devices)}")
    return devices[: config.devices or None]


def finished(run: Run, notes: list[str]) -> bool:
    """Whether the run has nothing left to do; says so, and what would have changed."""
    if not run.finished:
        return False
    saved = run.checkpoints.progress()
    best = "" if saved.best_return is None else f", best evaluation {saved.best_return:.1f}"
    changes = f" Not trained: {'; '.join(notes)}; --run_dir NAME trains beside it." * bool(notes)
    run.console.say(
        f"{run.run_dir} is finished: {saved.env_steps:,} steps{best}. A larger --total_timesteps "
        f"continues it, --clobber starts afresh.{changes}"
    )
    return True


def execute(run: Run) -> int:
    """Compiles, trains and reports; returns the exit code."""
    config, console, run_dir = run.config, run.console, run.run_dir
    set_up_log(config, run_dir)
    devices = run.programs.devices
    used = run.programs.shards.num_devices
    members = len(run.programs.members)
    agents = f"{members} agents of " if members else ""
    shards = "one shard" if config.num_shards == 1 else f"{config.num_shards} shards"
    console.say(
        f"{config.env.name} on {used} x {devices[0].device_kind} ({devices[0].platform}), "
        f"{agents}{config.env.num_envs} environments in {shards}, into {run_dir}"
    )
    started = time.perf_counter()
    state = run.programs.init()
    if run.checkpoints.latest() is not None:
        state = run.restore(state)
        afresh = "" if run.restorable else ", with the simulator started afresh"
        console.say(f"resuming at {run.progress.env_steps:,} steps{afresh}")
    # The save fits it: only now may it replace what is there.
    record_run(config, run_dir, run.programs.members)
    init_seconds = time.perf_counter() - started
    run.open_sinks()
    run.programs.compile(state)
    console.say(f"init {init_seconds:.1f} s, compile {run.programs.compile_seconds:.1f} s")
    interrupt = Interrupt()
    console.start()
    started = time.perf_counter()
    try:
        run.train(state, interrupt)
    finally:
        console.stop()
        run.close()
        interrupt.restore()
    return conclude(run, interrupt, time.perf_counter() - started)


def conclude(run: Run, interrupt: Interrupt, seconds: float) -> int:
    """Says how the run ended; the exit code is 0, or 128 + the signal that ended it."""
    p, console = run.progress, run.console
    total = sum(p.member_steps) or p.env_steps
    speed = reporting.short(total / max(p.train_seconds, 1e-9))
    each = f" of each of {len(p.member_steps)} agents" if p.member_steps else ""
    if interrupt.signal and p.update < run.intervals.total:
        console.say(
            f"{interrupt.signal}: saved at {p.env_steps:,} steps{each} in {run.run_dir}; "
            f"the same command resumes"
        )
        return 128 + int(signal.Signals[interrupt.signal])
    console.say(
        f"run {reporting.duration(seconds)}: {p.env_steps:,} steps{each}, {speed} steps/s in "
        f"training"
    )
    if p.member_steps and p.best_return is not None:
        console.say(f"best evaluation {p.best_return:.1f}, the mean of each agent's best")
    elif p.best_return is not None:
        console.say(f"best evaluation {p.best_return:.1f} at {p.best_env_steps:,} steps")
    console.say(f"curve: {run.run_dir / 'learning_curve.png'}")
    console.say(f"evaluate: python -m purejaxppo.evaluate --run {run.run_dir}")
    return 0


def set_up_log(config: Config, run_dir: Path) -> None:
    """Sends debug detail to the log file, if one is asked for."""
    if not config.logging.log_file:
        return
    path = run_dir / config.logging.log_file
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("purejaxppo")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)


if __name__ == "__main__":
    sys.exit(main())
