"""A run from its config to its end: folder, devices, compiled programs, training, summary."""

import contextlib
import importlib.util
import logging
import math
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import jax

from purejaxppo import __version__
from purejaxppo.config.checks import without_effect
from purejaxppo.config.files import for_platform, load_config
from purejaxppo.config.hints import number, short_path
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.interrupts import NOTHING_LOST, Interrupt
from purejaxppo.learner import Parts
from purejaxppo.parallel import awake, places, processes
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.parallel.settings import IN_RUNS, check_settings
from purejaxppo.parallel.shards import use_compilation_cache, use_cpu_cores
from purejaxppo.runs import devices, pretraining
from purejaxppo.runs.asynchronous import AsynchronousLoop, AsynchronousPrograms
from purejaxppo.runs.command_line import command_line
from purejaxppo.runs.console import Console, duration, fail, say, short
from purejaxppo.runs.divergence import REMEDY, first_obs_value
from purejaxppo.runs.folder import CONFIG, check_outside, imports, placed, record_run, run_folder
from purejaxppo.runs.intervals import Intervals
from purejaxppo.runs.logs import logs
from purejaxppo.runs.loop import TrainingLoop
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.progress import Progress
from purejaxppo.runs.resume import continue_config, moved_schedules, unknown_objects
from purejaxppo.setup import Setup, divide, resolve
from purejaxppo.types import TrainState

log = logging.getLogger("purejaxppo")


INTERRUPTED = f"interrupted; {NOTHING_LOST}"


def run_name(name: str, config: Config) -> str:
    """The name of a run: hopper-s0, or hopper-s0x32 for 32 seeds from 0 on.

    `name` is that of the config file; without one, the run is named after its task.
    """
    seeds = f"x{config.num_seeds}" if config.num_seeds > 1 else ""
    return f"{base_name(name, config)}-s{config.seed}{seeds}"


def base_name(name: str, config: Config) -> str:
    """The stem of a config file or, without one, the task: cartpole-v1, walk for walk.py:Walk."""
    if name:
        return Path(name).stem
    task = str(config.env.name).partition("/")[2].rpartition(":")[2]
    return re.sub(r"[^a-z0-9_.]+", "-", task.lower()).strip("-.") or "run"


def start_jax(setup: Setup, place: places.Place = places.ALONE) -> list[jax.Device]:
    """Set JAX up before its first use; return the devices to train on, of all processes.

    Raises:
        ValueError: fewer devices than asked for, or others; see `runs.devices`. Or a setting of JAX
            cannot be used.
    """
    config = setup.config
    check_settings(IN_RUNS)
    use_compilation_cache()
    # One process alone may use more devices than it has cores.
    most = config.devices if place == places.ALONE else min(config.devices, cpu_cores())
    use_cpu_cores(most or place.cores, calls_host=setup.on_host)
    found = devices.found(calls_lapack=setup.calls_lapack)
    if config.devices > len(found[0]):
        raise ValueError(f"devices = {config.devices}, but JAX sees {len(found[0])}")
    devices.check_cpu(setup, found[0][0])
    if config.keep_cores_awake:
        awake.check()
    return [device for own in found for device in own[: config.devices or None]]


@contextlib.contextmanager
def writing(
    config: Config, run_dir: Path, members: Sequence[Config], *, clobber: bool
) -> Iterator[list[str]]:
    """Locks the run's folder in process 0, and checks that all processes can read it.

    Yields lines to print about a new run's copies of custom code.

    Raises:
        ValueError: as `run_folder`, or a process does not see it.
    """
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        with processes.raise_together():
            if processes.is_main():
                if clobber:
                    check_outside(config, run_dir)
                stack.enter_context(run_folder(run_dir, clobber=clobber))
                if not (run_dir / CONFIG).is_file():
                    # Written early: config.yaml marks a run folder.
                    notes = record_run(config, run_dir, members)
        with processes.raise_together():
            if not (run_dir / CONFIG).is_file():
                raise ValueError(f"{run_dir} must be in a file system that all processes share")
        yield notes


def train(
    config: Config,
    run_dir: Path,
    *,
    clobber: bool = False,
    quiet: bool = False,
    change: Callable[[Parts], Parts] | None = None,
    place: places.Place = places.ALONE,
) -> int:
    """Trains a config in its run folder, from scratch or from the last save.

    Args:
        config: of the run.
        run_dir: its folder.
        clobber: delete an earlier run there.
        quiet: print nothing.
        change: the parts that the config names -> those to train with.
        place: of this process among those that train together.

    Returns:
        The exit code: 0, or 128 + the signal that ended the run.

    Raises:
        ValueError, OSError, SimulatorError, Stopped: one sentence on what is wrong.
    """
    if config.logging.wandb_project and importlib.util.find_spec("wandb") is None:
        raise ValueError("wandb is not installed: pip install 'purejaxppo[wandb]'")
    notes: list[str] = []
    quiet = quiet or place.index > 0
    named, config, run_dir = run_dir, placed(config), run_dir.absolute()
    with processes.raise_together():
        setup = resolve(config, change=change)
        used = start_jax(setup, place)
    command = config, str(named), clobber, place.count
    processes.check_equal(repr((command, __version__, jax.__version__)))
    with processes.raise_together():
        config = for_platform(config, used[0].platform)
        if not clobber:
            config, notes = continued(config, run_dir)
            for line in [*imports(named), *unknown_objects(config, run_dir)] * (not quiet):
                say(line)
        setup = divide(replace(setup, config=config), used)
        config = setup.config
        programs: Programs
        run_kind: type[TrainingLoop]
        if config.asynchronous:
            programs, run_kind = AsynchronousPrograms(setup), AsynchronousLoop
        else:
            programs, run_kind = Programs(setup), TrainingLoop
        if config.pretrain.teacher and not (run_dir / CONFIG).is_file():
            pretraining.load_teacher(config, programs.parts.policy)
    if processes.is_distributed():
        programs.avoid_hang()
    with writing(config, run_dir, programs.members, clobber=clobber) as copied:
        run = run_kind(programs, run_dir, make_console(programs, quiet=quiet))
        if finished(run, notes):
            run.checkpoints.close()
            return 0
        # Parts that replace the config's may use any of its settings.
        unused = without_effect([config]) if change is None else []
        for note in [*copied, *notes, *unused]:
            run.console.say(note)
        return execute(run)


def continued(config: Config, run_dir: Path) -> tuple[Config, list[str]]:
    """The config with which a run continues; see `continue_config`."""
    try:
        return continue_config(config, run_dir)
    except ValueError:
        registry.resolve(config.env)  # a wrong name is no change of an earlier run
        raise


def make_console(programs: Programs, *, quiet: bool) -> Console:
    """The terminal output of a run, of the first process alone."""
    every = Intervals(programs.config, sparse=programs.spec.absent)
    steps = every.total * every.unit * len(programs.members)
    quiet = quiet or not processes.is_main()
    # mpirun gives its processes terminals, even if its own output goes to a file.
    return Console(steps, quiet=quiet, lines=processes.is_distributed())


def best_evaluation(p: Progress) -> str:
    """Return the best evaluation in words; "" if no agent has a score."""
    score = p.best_return
    return "" if score is None or score == -math.inf else f"best evaluation {number(score)}"


def finished(run: TrainingLoop, notes: list[str]) -> bool:
    """True if the run has nothing left to do; prints this, and the changes not trained."""
    if not run.finished:
        return False
    saved = run.checkpoints.progress()
    best = f", {text}" if (text := best_evaluation(saved)) else ""
    changes = f" Not trained: {'; '.join(notes)}; --run_dir NAME trains beside it." * bool(notes)
    run.console.say(
        f"{short_path(run.run_dir)} is finished: {saved.env_steps:,} steps{best}. A larger "
        f"--total_timesteps continues it, --clobber starts afresh.{changes}"
    )
    return True


def execute(run: TrainingLoop) -> int:
    """Compiles, trains and reports; returns the exit code."""
    with logs(run.config, run.run_dir):
        return train_and_report(run)


def train_and_report(run: TrainingLoop) -> int:
    """Compiles, trains and reports, without a log file."""
    config, console, run_dir = run.config, run.console, run.run_dir
    device = run.programs.setup.devices[0]
    shards = run.programs.shards
    stay_awake = config.keep_cores_awake and shards.platform == "cpu"
    kept = " kept awake" if stay_awake else ""
    members = len(run.programs.members)
    agents = f"{members} agents of " if members > 1 else ""
    parts = "one shard" if config.num_shards == 1 else f"{config.num_shards} shards"
    apart = f" in {jax.process_count()} processes" * processes.is_distributed()
    console.say(
        f"{config.env.name} on {shards.num_devices} x {device.device_kind} ({device.platform})"
        f"{kept}{apart}, {agents}{config.env.num_envs} environments in {parts}, into "
        f"{short_path(run_dir)}"
    )
    if run.programs.setup.note:
        console.say(run.programs.setup.note)
    with watched(run):
        state = prepare(run)
    interrupt = Interrupt()
    console.start()
    started = time.perf_counter()
    try:
        with watched(run), awake.kept_awake(stay_awake):
            run.train(state, interrupt)
        console.stop()
        run.close()
    finally:
        console.stop()
        interrupt.restore()
    run.signal = int(signal.Signals[interrupt.signal]) if interrupt.signal else 0
    return conclude(run, interrupt, time.perf_counter() - started)


def prepare(run: TrainingLoop) -> TrainState:
    """Initialises or restores the state, opens the sinks and compiles the programs."""
    config, console = run.config, run.console
    started = time.perf_counter()
    resumes = run.checkpoints.latest() is not None
    if resumes:
        saved, every = run.checkpoints.progress(), run.intervals
        run.programs.continue_at(saved.update, every.done(saved) / every.total)
    state = run.programs.init()
    with processes.raise_together():
        if value := first_obs_value(state):
            raise ValueError(f"env.name = {config.env.name}: reset returned {value}. {REMEDY}")
    if resumes:
        with processes.raise_together():
            state = run.restore(state)
        afresh = "" if run.restorable else ", with the simulator started afresh"
        console.say(f"resuming at {run.progress.env_steps:,} steps{afresh}")
        before = load_config(run.run_dir / CONFIG, saved=True)
        if moved := moved_schedules(before, config, run.progress, sparse=run.intervals.sparse):
            console.say(moved)
    if config.pretrain.teacher and not resumes:
        state = run.programs.pretrain(state)
        console.say(f"imitated {config.pretrain.teacher} for {config.pretrain.updates} updates")
    if processes.is_main():
        # The save fits this config: only now may it replace the one on disk.
        record_run(config, run.run_dir, run.programs.members)
    init_seconds = time.perf_counter() - started
    run.open_sinks()
    run.programs.compile(state)
    console.say(f"init {init_seconds:.1f} s, compile {run.programs.compile_seconds:.1f} s")
    return state


@contextlib.contextmanager
def watched(run: TrainingLoop) -> Iterator[None]:
    """Closes the run on a failure inside, ends other processes, and says it in a sentence."""
    with closed_after_failure(run), all_present(run), devices.enough_memory(run.config):
        yield


@contextlib.contextmanager
def closed_after_failure(run: TrainingLoop) -> Iterator[None]:
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
def all_present(run: TrainingLoop) -> Iterator[None]:
    """Ends a process of several that fails inside, with its reason: the others would wait."""
    try:
        yield
    except processes.DistributedError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if not processes.is_distributed():
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
        processes.abort(code)


def loss(run: TrainingLoop, error: Exception) -> str:
    """The message after another process has ended, or cannot be reached any more."""
    saved = run.checkpoints.finished()
    state = (
        f"the last save, at {saved:,} steps, is whole, and the same command resumes there"
        if saved
        else "nothing had been saved yet, and the same command starts again"
    )
    return (
        f"process {jax.process_index()} of {jax.process_count()} has lost another one after "
        f"{run.progress.env_steps:,} steps into {short_path(run.run_dir)} "
        f"({processes.reason(error)}): {state}"
    )


def conclude(run: TrainingLoop, interrupt: Interrupt, seconds: float) -> int:
    """Prints how the run ended; returns 0, or 128 + the signal that ended it."""
    p, console = run.progress, run.console
    many = len(p.member_steps) > 1
    speed = short(sum(p.member_steps) / max(p.train_seconds, 1e-9))
    each = f" of each of {len(p.member_steps)} agents" * many
    if interrupt.signal and not run.intervals.ended(p):
        console.say(
            f"{interrupt.signal}: saved at {p.env_steps:,} steps{each} in "
            f"{short_path(run.run_dir)}; the same command resumes"
        )
        return 128 + int(signal.Signals[interrupt.signal])
    if run.stopped:
        console.say(f"stopped by a callback: {run.stopped}; the same command goes on")
    console.say(
        f"run {duration(seconds)}: {p.env_steps:,} steps{each}, {speed} steps/s in training"
    )
    if run.intervals.ended(p) and run.intervals.done(p) < run.intervals.total:
        rows = p.update * run.config.steps_per_update
        console.say(
            f"total_timesteps = {run.config.total_timesteps}: agents decide too rarely, and the "
            f"run ends after {run.intervals.done(p):,} decisions in {rows:,} rows{each}. Increase "
            f"total_timesteps to continue it."
        )
    if text := best_evaluation(p):
        where = (
            ", the mean of each agent's best" if many else f" at {p.member_best_steps[0]:,} steps"
        )
        console.say(f"{text}{where}")
    folder = short_path(run.run_dir)
    curve = folder / "learning_curve.png"
    console.say(f"no learning curve: {run.no_curve}" if run.no_curve else f"curve: {curve}")
    console.say(f"evaluate: {command_line('evaluate', '--run', folder)}")
    return 0
