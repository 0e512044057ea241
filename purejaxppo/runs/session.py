"""A run from its config to its end: folder, devices, compiled programs, training, summary."""

import contextlib
import dataclasses
import logging
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from purejaxppo.agents import schedules
from purejaxppo.config.files import compare, flatten, load_config
from purejaxppo.config.schema import Config
from purejaxppo.interrupts import NOTHING_LOST, Interrupt
from purejaxppo.parallel import processes
from purejaxppo.parallel.shards import cpu_cores, use_compilation_cache, use_cpu_cores
from purejaxppo.runs.asynchronous import AsynchronousPrograms, AsynchronousRun
from purejaxppo.runs.console import duration, fail, short
from purejaxppo.runs.folder import CONFIG, record_run, run_folder
from purejaxppo.runs.loop import Run
from purejaxppo.runs.members import MemberPrograms, MembersRun, seeds_of
from purejaxppo.runs.programs import Programs
from purejaxppo.types import TrainState

log = logging.getLogger("purejaxppo")


INTERRUPTED = f"interrupted; {NOTHING_LOST}"


def run_name(name: str, config: Config) -> str:
    """The name of a run: hopper-s0, or hopper-s0x32 for 32 seeds from 0 on."""
    seeds = f"x{config.num_seeds}" if config.num_seeds > 1 else ""
    return f"{Path(name).stem}-s{config.seed}{seeds}"


def spread(devices: list[jax.Device], config: Config) -> list[jax.Device]:
    """The devices that seeds and shards are divided over, equally many of every process."""
    return processes.spread(devices, config.num_seeds * config.num_shards)


@contextlib.contextmanager
def writing(
    config: Config, run_dir: Path, members: Sequence[Config], *, clobber: bool
) -> Iterator[None]:
    """Locks the run's folder in process 0, and checks that all processes can read it.

    Raises:
        ValueError: as `run_folder`, or a process does not see it.
    """
    with contextlib.ExitStack() as stack:
        with processes.together():
            if processes.is_main():
                stack.enter_context(run_folder(run_dir, clobber=clobber))
                if not (run_dir / CONFIG).is_file():
                    record_run(config, run_dir, members)  # first, so that it is a run folder
        with processes.together():
            if not (run_dir / CONFIG).is_file():
                raise ValueError(f"{run_dir} must be in a file system that all processes share")
        yield


def programs_of(config: Config, devices: list[jax.Device]) -> tuple[Programs, Any]:
    """The programs of a run, and the class of its outer loop."""
    if config.num_seeds > 1:
        return MemberPrograms(config, devices, seeds_of(config)), MembersRun
    if config.asynchronous:
        return AsynchronousPrograms(config, devices), AsynchronousRun
    return Programs(config, devices), Run


def continue_config(config: Config, run_dir: Path) -> tuple[Config, list[str]]:
    """The config with which an existing run continues, and a sentence per tunable change.

    Raises:
        ValueError: a structural field differs from what the run was trained with.
    """
    if not (run_dir / CONFIG).is_file():
        return config, []
    old = load_config(run_dir / CONFIG)
    if not config.num_shards:
        old = dataclasses.replace(old, num_shards=0)
    structural, tunable = compare(old, config)
    before, after = flatten(old), flatten(config)
    if structural:
        key = structural[0]
        more = f" (and {', '.join(structural[1:])})" if structural[1:] else ""
        raise ValueError(
            f"{run_dir} was trained with {key} = {_show(before[key])}, not {_show(after[key])}"
            f"{more}; --run_dir NAME trains beside it, --clobber deletes it and starts afresh"
        )
    if not config.num_shards:
        shards = load_config(run_dir / CONFIG).num_shards
        config = dataclasses.replace(config, num_shards=shards)
    return config, [
        f"{key} changes from {_show(before[key])} to {_show(after[key])}" for key in tunable
    ]


def moved_schedules(old: Config, new: Config, update: int) -> str:
    """Describes how another total_timesteps changes schedules after `update`; '' if not at all.

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
    # One process alone may use more devices than it has cores.
    most = config.devices if place == processes.ALONE else min(config.devices, cpu_cores())
    use_cpu_cores(most or place.cores)
    devices = processes.devices()
    if config.devices > len(devices[0]):
        raise ValueError(f"devices = {config.devices}, but JAX sees {len(devices[0])}")
    return [device for own in devices for device in own[: config.devices or None]]


def finished(run: Run, notes: list[str]) -> bool:
    """True if the run has nothing left to do; prints this, and the changes not trained."""
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
    """Initialises or restores the state, opens the sinks and compiles the programs."""
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
        before = load_config(run.run_dir / CONFIG)
        if moved := moved_schedules(before, config, run.progress.update):
            console.say(moved)
    else:
        run.checkpoints.clear_best()
    if config.imitate.teacher and not resumes:
        state = run.programs.taught(state)
        console.say(f"imitated {config.imitate.teacher} for {config.imitate.updates} updates")
    if processes.is_main():
        # The save fits this config: only now may it replace the one on disk.
        record_run(config, run.run_dir, run.programs.members)
    init_seconds = time.perf_counter() - started
    run.open_sinks()
    run.programs.compile(state)
    console.say(f"init {init_seconds:.1f} s, compile {run.programs.compile_seconds:.1f} s")
    return state


@contextlib.contextmanager
def closed_after_failure(run: Run) -> Iterator[None]:
    """Closes a run that fails inside, above all its simulators; errors of closing are logged."""
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
    """Ends a process of several that fails inside, with its reason: the others would wait."""
    try:
        yield
    except processes.Agreed:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if not processes.several():
            raise
        run.console.stop()
        if isinstance(error, KeyboardInterrupt):
            code = fail(INTERRUPTED, code=130)
        elif processes.is_loss(error):
            code = fail(loss(run, error))
        elif isinstance(error, ValueError | OSError):
            code = fail(f"process {jax.process_index()}: {error}")
        else:
            traceback.print_exc()
            code = 1
        processes.leave(code)


def loss(run: Run, error: Exception) -> str:
    """The message after another process has ended, or cannot be reached any more."""
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
    """Prints how the run ended; returns 0, or 128 + the signal that ended it."""
    p, console = run.progress, run.console
    total = sum(p.member_steps) or p.env_steps
    speed = short(total / max(p.train_seconds, 1e-9))
    each = f" of each of {len(p.member_steps)} agents" if p.member_steps else ""
    if interrupt.signal and p.update < run.intervals.total:
        console.say(
            f"{interrupt.signal}: saved at {p.env_steps:,} steps{each} in {run.run_dir}; "
            f"the same command resumes"
        )
        return 128 + int(signal.Signals[interrupt.signal])
    console.say(
        f"run {duration(seconds)}: {p.env_steps:,} steps{each}, {speed} steps/s in training"
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
