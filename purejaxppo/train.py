"""`python -m purejaxppo.train --config hopper.yaml`: train, log, save, resume."""

from purejaxppo import interrupts

if __name__ == "__main__":
    interrupts.listen()

import argparse
import contextlib
import dataclasses
import importlib.util
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import tyro

from purejaxppo.agents import schedules
from purejaxppo.config import files as configio
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.host.bridge import SimulatorError
from purejaxppo.interrupts import NOTHING_LOST, Interrupt
from purejaxppo.parallel import processes
from purejaxppo.parallel.shards import cpu_cores, use_compilation_cache, use_cpu_cores
from purejaxppo.runs import cli, imitation, reporting
from purejaxppo.runs.asynchronous import AsynchronousPrograms, AsynchronousRun
from purejaxppo.runs.folder import CONFIG, imports, record_run, run_folder
from purejaxppo.runs.loop import Programs, Run, resolve_shards
from purejaxppo.runs.members import MemberPrograms, MembersRun, seeds_of
from purejaxppo.types import TrainState

DESCRIPTION = """Train PPO.

The config is read first, flags replace single fields of it. Running the same command again
resumes; Ctrl-C saves and ends."""
log = logging.getLogger("purejaxppo")
INTERRUPTED = f"interrupted; {NOTHING_LOST}"


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
    coordinator: str = ""
    """HOST:PORT at which process 0 of several can be reached; empty: as mpirun or srun says."""
    num_processes: int = 0
    """How many processes train together; 0: as many as mpirun or srun started, else one."""
    process_id: int = -1
    """This process's number, from 0; -1: as mpirun or srun says."""
    wait_seconds: float = 120.0
    """How long processes wait for each other when they start."""


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
    words = sys.argv[1:] if args is None else args
    try:
        place, command = start(words)
        if command.list_envs:
            return list_envs()
        if command.list_configs:
            return list_configs()
        code = train(command, place)
    except processes.Agreed as error:
        code = 2 if error.quiet else reporting.fail(error)
    except (ValueError, OSError, SimulatorError, reporting.Stopped) as error:
        return processes.leave(reporting.fail(error))
    except KeyboardInterrupt:
        return processes.leave(reporting.fail(INTERRUPTED, code=130))
    except Exception:
        if not processes.several():
            raise
        traceback.print_exc()
        processes.leave(1)
    processes.finish()
    return code


def start(words: Sequence[str]) -> tuple[processes.Place, Command]:
    """Reads the command line, and meets the other processes if there are any."""
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    kinds = {"coordinator": str, "num_processes": int, "process_id": int, "wait_seconds": float}
    for name, kind in kinds.items():
        spellings = sorted({f"--{name}", f"--{name.replace('_', '-')}"})
        peek.add_argument(*spellings, dest=name, type=kind, default=getattr(Flags, name))
    try:
        flags = peek.parse_known_args(list(words))[0]
    except argparse.ArgumentError:  # `parse` says it better
        flags = peek.parse_args([])

    def find(place: processes.Place) -> processes.Place:
        return processes.place_of(place, flags.coordinator, flags.num_processes, flags.process_id)

    def prepare() -> Command:
        return dataclasses.replace(parse(words), process_id=-1)

    return processes.start(
        processes.launched(os.environ), find, prepare, seconds=flags.wait_seconds
    )


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


def train(command: Command, place: processes.Place = processes.ALONE) -> int:
    """Trains what `command` says, in its run folder, from scratch or from the last save."""
    config = Config(**{f.name: getattr(command, f.name) for f in dataclasses.fields(Config)})
    if config.logging.wandb_project and importlib.util.find_spec("wandb") is None:
        raise ValueError("wandb is not installed: pip install 'purejaxppo[wandb]'")
    run_dir = Path(config.run_dir or f"runs/{run_name(command.config, config)}")
    notes: list[str] = []
    with processes.together():
        if not command.clobber:
            config, notes = continue_config(config, run_dir)
            for line in imports(run_dir) * (place.index == 0):
                print(line, flush=True)
        devices = start_jax(config, place)
        config = resolve_shards(config, len(devices))
        programs, run_kind = programs_of(config, spread(devices, config))
        if config.imitate.teacher and not (run_dir / CONFIG).is_file():
            imitation.load_teacher(config, programs.parts.policy)
    with writing(config, run_dir, programs.members, clobber=command.clobber):
        steps = config.num_updates * programs.steps_per_update
        # mpirun hands its processes terminals, even if its own output goes to a file.
        console = reporting.Console(steps, quiet=not processes.is_main(), lines=processes.several())
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


def spread(devices: list[jax.Device], config: Config) -> list[jax.Device]:
    """The devices that seeds and shards are divided over: of every process equally many."""
    return processes.spread(devices, config.num_seeds * config.num_shards)


@contextlib.contextmanager
def writing(
    config: Config, run_dir: Path, members: Sequence[Config], *, clobber: bool
) -> Iterator[None]:
    """The run's folder, held by process 0 and seen by all.

    Raises:
        ValueError: as `run_folder`, or a process does not see it.
    """
    with contextlib.ExitStack() as stack:
        with processes.together():
            if processes.is_main():
                stack.enter_context(run_folder(run_dir, clobber=clobber))
                if not (run_dir / CONFIG).is_file():
                    record_run(config, run_dir, members)  # before all else: so it is a run
        with processes.together():
            if not (run_dir / CONFIG).is_file():
                raise ValueError(f"{run_dir} must be in a file system that all processes share")
        yield


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


def moved_schedules(old: Config, new: Config, update: int) -> str:
    """Says what another total_timesteps does to a run after so many updates; '' if nothing.

    Schedules and curricula follow the part of the run that is done, update / num_updates.
    """
    before, after = (min(update / config.num_updates, 1.0) for config in (old, new))
    ppo = new.ppo
    scheduled = {
        "learning_rate": (ppo.learning_rate_schedule, ppo.learning_rate_warmup),
        "clip_eps": (ppo.clip_schedule, 0.0),
        "ent_coef": (ppo.ent_schedule, 0.0),
        "intrinsic_coef": (ppo.intrinsic_schedule, 0.0),
    }
    moved = [f"env.curriculum's {name}" for name in new.env.curriculum] * (before != after)
    for name, (kind, warmup) in scheduled.items():
        value = getattr(ppo, name) * (name != "intrinsic_coef" or new.intrinsic.kind != "none")
        here, there = (
            value * float(schedules.factor(kind, done, warmup, 1 / config.num_updates))
            for done, config in ((before, old), (after, new))
        )
        if here != there:
            moved.append(f"ppo.{name} from {here:.3g} to {there:.3g}")
    if not moved:
        return ""
    return (
        f"total_timesteps changes from {old.total_timesteps:,} to {new.total_timesteps:,}, so that "
        f"{after:.0%} of the run is done and no longer {before:.0%}, which moves "
        f"{', '.join(moved)}"
    )


def _show(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def start_jax(config: Config, place: processes.Place = processes.ALONE) -> list[jax.Device]:
    """Sets JAX up before its first use, and returns the devices to train on, of all processes.

    Raises:
        ValueError: fewer devices than asked for.
    """
    use_compilation_cache()
    # One process alone may pretend to have more cores than it has.
    most = config.devices if place == processes.ALONE else min(config.devices, cpu_cores())
    use_cpu_cores(most or place.cores)
    devices = processes.devices()
    if config.devices > len(devices[0]):
        raise ValueError(f"devices = {config.devices}, but JAX sees {len(devices[0])}")
    return [device for own in devices for device in own[: config.devices or None]]


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
    log_file = set_up_log(config, run_dir)
    devices = run.programs.devices
    used = run.programs.shards.num_devices
    members = len(run.programs.members)
    agents = f"{members} agents of " if members else ""
    shards = "one shard" if config.num_shards == 1 else f"{config.num_shards} shards"
    apart = f" in {jax.process_count()} processes" * processes.several()
    console.say(
        f"{config.env.name} on {used} x {devices[0].device_kind} ({devices[0].platform}){apart}, "
        f"{agents}{config.env.num_envs} environments in {shards}, into {run_dir}"
    )
    with closed_after_failure(run), all_present(run):
        state = prepare(run)
    interrupt = Interrupt()
    console.start()
    started = time.perf_counter()
    try:
        with closed_after_failure(run), all_present(run):
            run.train(state, interrupt)
        console.stop()
        run.close()
    finally:
        console.stop()
        interrupt.restore()
        if log_file:
            logging.getLogger("purejaxppo").removeHandler(log_file)
            log_file.close()
    run.signal = int(signal.Signals[interrupt.signal]) if interrupt.signal else 0
    return conclude(run, interrupt, time.perf_counter() - started)


def prepare(run: Run) -> TrainState:
    """The state to train from, and everything compiled and open."""
    config, console = run.config, run.console
    started = time.perf_counter()
    resumes = run.checkpoints.latest() is not None
    if resumes:
        run.programs.parts.env.continue_at(run.checkpoints.progress().update)
    state = run.programs.init()
    if resumes:
        with processes.together():
            state = run.restore(state)
        afresh = "" if run.restorable else ", with the simulator started afresh"
        console.say(f"resuming at {run.progress.env_steps:,} steps{afresh}")
        before = configio.load_config(run.run_dir / CONFIG)
        if moved := moved_schedules(before, config, run.progress.update):
            console.say(moved)
    else:
        run.checkpoints.clear_best()
    if config.imitate.teacher and not resumes:
        state = run.programs.taught(state)
        console.say(f"imitated {config.imitate.teacher} for {config.imitate.updates} updates")
    if processes.is_main():
        # The save fits it: only now may it replace what is there.
        record_run(config, run.run_dir, run.programs.members)
    init_seconds = time.perf_counter() - started
    run.open_sinks()
    run.programs.compile(state)
    console.say(f"init {init_seconds:.1f} s, compile {run.programs.compile_seconds:.1f} s")
    return state


@contextlib.contextmanager
def closed_after_failure(run: Run) -> Iterator[None]:
    """Closes a run that fails inside, its simulators above all; that may fail without a word."""
    try:
        yield
    except BaseException:
        try:
            run.close()
        except Exception:
            log.debug("closing failed, too", exc_info=True)
        raise


@contextlib.contextmanager
def all_present(run: Run) -> Iterator[None]:
    """Among several processes, one that fails inside says why and ends: all else would wait."""
    try:
        yield
    except processes.Agreed:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if not processes.several():
            raise
        run.console.stop()
        if isinstance(error, KeyboardInterrupt):
            code = reporting.fail(INTERRUPTED, code=130)
        elif processes.is_loss(error):
            code = reporting.fail(loss(run, error))
        elif isinstance(error, ValueError | OSError):
            code = reporting.fail(f"process {jax.process_index()}: {error}")
        else:
            traceback.print_exc()
            code = 1
        processes.leave(code)


def loss(run: Run, error: Exception) -> str:
    """What is said when another process has ended, or cannot be reached any more."""
    saved = run.checkpoints.finished()
    state = (
        f"the last save, at {saved:,} steps, is whole, and the same command resumes there"
        if saved
        else "nothing had been saved yet, and the same command starts again"
    )
    return (
        f"process {jax.process_index()} of {jax.process_count()} has lost another one after "
        f"{run.progress.env_steps:,} steps into {run.run_dir} ({processes.reason(error)}): {state}"
    )


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


def set_up_log(config: Config, run_dir: Path) -> logging.Handler | None:
    """Sends debug detail to the log file, if one is asked for and this process writes."""
    if not config.logging.log_file or not processes.is_main():
        return None
    path = run_dir / config.logging.log_file
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("purejaxppo")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    return handler


if __name__ == "__main__":
    sys.exit(main())
