"""A run from start to end: config, folder, devices, programs, training, summary."""

import contextlib
import math
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import jax

from purejaxppo import __version__
from purejaxppo.config.checks import short_run, without_effect
from purejaxppo.config.files import for_platform, load_config
from purejaxppo.config.hints import format_number, short_path
from purejaxppo.config.installation import require
from purejaxppo.config.references import OBJECT
from purejaxppo.config.run_files import code_refs
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.interrupts import Interrupt
from purejaxppo.learner import Parts
from purejaxppo.parallel import awake, places, processes
from purejaxppo.runs import pretraining, warm_start
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.command_line import command_line
from purejaxppo.runs.console import Console, format_duration, format_short, print_line
from purejaxppo.runs.devices import start_jax
from purejaxppo.runs.divergence import REMEDY, first_obs_value
from purejaxppo.runs.failures import saving_on_failure
from purejaxppo.runs.folder import (
    CONFIG,
    INIT,
    VIDEO,
    check_not_deleted,
    check_not_replaced,
    has_started,
    imports,
    imports_of,
    record_run,
    run_folder,
    steps_of,
    with_absolute_paths,
)
from purejaxppo.runs.hooks import hooks_of
from purejaxppo.runs.intervals import Intervals
from purejaxppo.runs.loggers import CsvLogger, Opening, open_loggers
from purejaxppo.runs.logs import logs
from purejaxppo.runs.loop import loop
from purejaxppo.runs.programs import Programs, without_hang
from purejaxppo.runs.progress import Progress
from purejaxppo.runs.resume import continue_config, schedule_changes, uncompared_objects
from purejaxppo.runs.rows import COLUMNS, MEMBER_COLUMNS, SUCCESS, check_names, env_columns
from purejaxppo.runs.training import Hook, Training, open_training
from purejaxppo.setup import Setup, divide, resolve
from purejaxppo.types import TrainState
from purejaxppo.video import video

COMPILING = "compiling the training program ... (large simulators take a few minutes)"
VERSIONS = (__version__, jax.__version__)
"""Versions that all processes of a run must have."""


def run_name(name: str, config: Config) -> str:
    """Return the name of a run: hopper-s0, or hopper-s0x32 for 32 seeds from 0.

    `name` is the name of the config file. Without one, the run is named after its task.
    """
    seeds = f"x{config.num_seeds}" if config.num_seeds > 1 else ""
    return f"{base_name(name, config)}-s{config.seed}{seeds}"


def base_name(name: str, config: Config) -> str:
    """Return the stem of a config file or, without one, of the task: walk for walk.py:Walk."""
    if name:
        return Path(name).stem
    task = str(config.env.name).partition("/")[2].rpartition(":")[2]
    return re.sub(r"[^a-z0-9_.]+", "-", task.lower()).strip("-.") or "run"


@contextlib.contextmanager
def locked_folder(setup: Setup, run_dir: Path, *, clobber: bool) -> Iterator[list[str]]:
    """Lock the run folder in process 0, and check that all processes can read it.

    Yields lines to print about copies of custom code in a new run.

    Raises:
        ValueError: see `run_folder`, or the folder is not visible to a process.
    """
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        with processes.raise_together():
            if processes.is_main():
                if clobber:
                    check_not_deleted(setup.config, run_dir)
                stack.enter_context(run_folder(run_dir, clobber=clobber))
                if not steps_of(run_dir):
                    check_not_replaced(setup.config, run_dir)
                    (run_dir / INIT).unlink(missing_ok=True)  # left by an interrupted start
                    # Written early: config.yaml marks a run folder.
                    notes = record_run(setup.config, run_dir, setup.members)
        with processes.raise_together():
            if not (run_dir / CONFIG).is_file():
                raise ValueError(
                    f"{run_dir} is not visible to all processes. Use a --run_dir on a shared file "
                    f"system."
                )
        yield notes


def check_restart(setup: Setup, run_dir: Path, named: Path, *, quiet: bool) -> None:
    """Print the code that a run without a checkpoint executes when it starts again.

    Args:
        setup: setup of the new run.
        run_dir: absolute path of the run folder, which has a config.yaml.
        named: path of the run folder for messages.
        quiet: print nothing.

    Raises:
        ValueError: the config.yaml of the earlier start cannot be read, so the folder is kept.
    """
    if has_started(run_dir):
        load_config(run_dir / CONFIG, saved=True)
    if not quiet:
        for line in imports_of(named, [setup.config, *setup.members], copied=False):
            print_line(line)


def train(
    config: Config,
    run_dir: Path,
    *,
    clobber: bool = False,
    quiet: bool = False,
    change: Callable[[Parts], Parts] | None = None,
    init: Agent | None = None,
    place: places.Place = places.ALONE,
) -> int:
    """Train in a run folder, from scratch or from the last checkpoint.

    Args:
        config: config of the run.
        run_dir: the run folder.
        clobber: delete an earlier run in this folder.
        quiet: print nothing.
        change: a function from the parts that the config selects to the parts to train with.
        init: agent that a new run starts from.
        place: rank of this process and number of processes that train together.

    Returns:
        The exit code: 0, or 128 + the signal that ended the run.

    Raises:
        ValueError, OSError, SimulatorError, Stopped: one sentence about the problem.
    """
    check_logging(config, run_dir)
    quiet = quiet or place.index > 0
    named, config, run_dir = run_dir, with_absolute_paths(config), run_dir.absolute()
    with processes.raise_together():
        setup = resolve(config, change=change, init=init)
        devices = start_jax(setup, place)
    processes.check_equal(repr((config, str(named), clobber, place.count, VERSIONS)))
    with processes.raise_together():
        setup = replace(setup, config=for_platform(config, devices[0].platform))
        notes: list[str] = []
        resumes = not clobber and bool(steps_of(run_dir))
        if resumes:
            setup, notes = resumed_setup(setup, named, quiet=quiet)
        elif not clobber and (run_dir / CONFIG).is_file():
            check_restart(setup, run_dir, named, quiet=quiet)
        setup = divide(setup, devices)
        programs = Programs(setup)
        if not resumes:
            check_start(programs)
        elif init is not None:
            warm_start.check_resumed(init, run_dir)
    programs = without_hang(programs)
    with locked_folder(programs.setup, run_dir, clobber=clobber) as copied:
        run = open_training(programs, run_dir, make_console(programs, quiet=quiet))
        if run.finished:
            report_finished(run, notes)
            run.checkpoints.close()
            return 0
        warnings = short_run(setup.config)
        if change is None:  # custom parts may use any setting
            warnings += without_effect([warm_start.with_source(setup)])
        changes = [f"note: {note} for the rest of the run" for note in notes]
        for line in [*copied, *changes]:
            run.console.print_line(line)
        for warning in warnings:
            run.console.warn(warning)
        code = execute(run)
        if run.progress.stopped:
            run.console.print_line("To continue, run the same command.")
        return code


def check_start(programs: Programs) -> None:
    """Check the update of a new run, and the agent that it starts from, or its teacher.

    Raises:
        ValueError: see `Programs.check_custom_code`, `warm_start.load` and
            `pretraining.load_teacher`.
    """
    programs.check_custom_code()
    if programs.setup.config.pretrain.teacher:
        pretraining.load_teacher(programs.setup.config, programs.parts.policy)
    if warm_start.is_set(programs.setup):
        warm_start.print_imports(programs.setup.config)
        warm_start.load(programs.setup, programs.parts)


def check_logging(config: Config, run_dir: Path) -> None:
    """Raise ValueError if W&B or videos need a package that is not installed."""
    if config.logging.video_interval:
        video.check_packages(run_dir / VIDEO)
    if config.logging.wandb_project:
        require("wandb", extra="wandb")


def resumed_setup(setup: Setup, run_dir: Path, *, quiet: bool) -> tuple[Setup, list[str]]:
    """Return the setup with which a run resumes, and lines about changes; see `continue_config`.

    Print the custom code that the run folder names.
    """
    folder = run_dir.absolute()
    try:
        config, notes = continue_config(setup.config, folder)
    except ValueError:
        registry.resolve(setup.config.env)  # an unknown name is not reported as a change of the run
        raise
    if not quiet:
        for line in [*imports(run_dir), *uncompared_objects(config, folder)]:
            print_line(line)
    return replace(setup, config=config), notes


def make_console(programs: Programs, *, quiet: bool) -> Console:
    """Make the terminal output of a run. Only process 0 prints."""
    every = Intervals(programs.setup.config, sparse=programs.spec.absent)
    steps = every.total * every.unit * len(programs.setup.members)
    quiet = quiet or not processes.is_main()
    # mpirun gives its processes terminals, even if its own output goes to a file.
    return Console(steps, quiet=quiet, lines=processes.is_distributed())


def execute(run: Training, first: Sequence[Hook] = (), columns: Sequence[str] = ()) -> int:
    """Compile, train and report; return the exit code.

    Args:
        run: an unfinished run.
        first: hooks that add to the run's rows before the other hooks act.
        columns: columns of metrics.csv that these hooks add.
    """
    config, platform = run.config, run.programs.shards.platform
    stay_awake = config.keep_cores_awake and platform == "cpu"
    with logs(config, run.run_dir):
        announce(run, stay_awake=stay_awake)
        for warning in registry.warnings_of(config.env, run.programs.spec):
            run.console.warn(warning)
        with saving_on_failure(run), run.console.announced(COMPILING):
            run.state = prepare(run, columns)
        started = time.perf_counter()
        with Interrupt() as interrupt:
            with saving_on_failure(run), run.console, awake.kept_awake(stay_awake):
                loop(run, hooks_of(run, first), interrupt)
            run.close()
        run.signal = int(signal.Signals[interrupt.signal]) if interrupt.signal else 0
        return conclude(run, time.perf_counter() - started)


def announce(run: Training, *, stay_awake: bool) -> None:
    """Print the task, the devices and the run folder."""
    config, setup, shards = run.config, run.programs.setup, run.programs.shards
    device = setup.devices[0]
    awake_note = " kept awake" if stay_awake else ""
    members = len(run.members)
    kind = "seeds" if config.num_seeds > 1 else "agents"
    agents = f"{members} {kind} with " if members > 1 else ""
    each = " each" if members > 1 else ""
    parts = "1 shard" if config.num_shards == 1 else f"{config.num_shards} shards"
    in_processes = f" in {jax.process_count()} processes" if processes.is_distributed() else ""
    run.console.print_line(
        f"training {config.env.name} on {shards.num_devices} x {device.device_kind} "
        f"({device.platform}){awake_note}{in_processes}: {agents}{config.env.num_envs} "
        f"environments{each} in {parts}. Run folder: {short_path(run.run_dir)}"
    )
    if setup.note:
        run.console.print_line(setup.note)


def prepare(run: Training, columns: Sequence[str] = ()) -> TrainState:
    """Initialise or restore the state, open the loggers and compile the programs.

    `columns` are further columns of metrics.csv.
    """
    config, console, programs = run.config, run.console, run.programs
    columns = columns_of(programs, columns)
    restorable = programs.spec.restorable
    resumes = run.checkpoints.latest() is not None
    if resumes and not restorable:
        saved, every = run.checkpoints.progress(), run.intervals
        done = min(every.done(saved) / every.total, 1.0)
        programs.parts.env.continue_at(saved.update, done)
    state, started = programs.init(), time.perf_counter()
    with processes.raise_together():
        if value := first_obs_value(state):
            raise ValueError(f"env.name = {config.env.name}: reset returned {value}. {REMEDY}")
    if resumes:
        with processes.raise_together():
            state = run.restore(state)
        restarted = "" if restorable else ". The simulator starts new episodes; the agent is kept."
        console.print_line(f"resuming at {run.progress.env_steps:,} steps{restarted}")
        before = load_config(run.run_dir / CONFIG, saved=True)
        if moved := schedule_changes(before, config, run.progress, sparse=run.intervals.sparse):
            console.print_line(f"note: {moved}")
    init_seconds = programs.init_seconds + time.perf_counter() - started
    if config.pretrain.teacher and not resumes:
        change = programs.setup.change
        console.print_line(f"pretraining for {config.pretrain.updates} updates ...")
        state, line = pretraining.teach(programs.parts, programs.key, programs.hp, state, change)
        run.warm = True
        console.print_line(line)
    if warm_start.is_set(programs.setup) and not resumes:
        with processes.raise_together():
            main, parts = processes.is_main(), programs.parts
            state, line = warm_start.begin(programs.setup, parts, state, run.run_dir, record=main)
        run.warm = True
        console.print_line(line)
    if processes.is_main():
        # Only now may this config replace the one on disk, because the checkpoint matches it.
        record_run(config, run.run_dir, run.members)
        open_all_loggers(run, columns)
    programs.compile(state)
    console.print_line(
        f"initialised in {init_seconds:.1f} s, compiled in {programs.compile_seconds:.1f} s"
    )
    return state


def columns_of(programs: Programs, extra_columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of metrics.csv.

    Args:
        programs: programs of the run.
        extra_columns: further columns.

    Raises:
        ValueError: two metrics have the same name.
    """
    success = () if programs.success_above is None else (SUCCESS,)
    of_env = env_columns(programs.spec.metrics)
    of_parts = programs.parts.metric_names
    columns = (*MEMBER_COLUMNS, *COLUMNS, *success, *of_env, *of_parts, *extra_columns)
    check_names(columns)
    return columns


def open_all_loggers(run: Training, columns: Sequence[str]) -> None:
    """Open metrics.csv and the loggers of the config."""
    p = run.progress
    # Rows of an earlier start without a checkpoint are written again, also row 0.
    update = -1 if run.checkpoints.latest() is None else p.update
    update -= p.before_failure is not None  # a chunk whose hooks failed
    run.loggers.loggers.append(CsvLogger(run.run_dir / "metrics.csv", update, columns))
    opening = Opening(
        run.config, run.run_dir, run.members, p.member_steps, run.checkpoints.finished
    )
    open_loggers(run.loggers, opening, run.custom_loggers)


def best_evaluation(p: Progress) -> str:
    """Describe the best evaluation; "" if no agent has a score."""
    score = p.best_return
    return "" if score is None or score == -math.inf else f"best evaluation {format_number(score)}"


def report_finished(run: Training, notes: Sequence[str]) -> None:
    """Print that a run is finished, and list the changes that were not applied."""
    saved = run.checkpoints.progress()
    best = f", {text}" if (text := best_evaluation(saved)) else ""
    changes = (
        f" Not applied: {'; '.join(notes)}. Use another --run_dir to train with this."
        if notes
        else ""
    )
    run.console.print_line(
        f"{short_path(run.run_dir)} is finished: {saved.env_steps:,} steps{best}. Increase "
        f"--total_timesteps to continue it, or use --clobber to start from scratch.{changes}"
    )


def conclude(run: Training, seconds: float) -> int:
    """Print how the run ended; return 0, or 128 + the signal that ended it."""
    p, console, every = run.progress, run.console, run.intervals
    many = len(p.member_steps) > 1
    kind = "seed" if run.config.num_seeds > 1 else "agent"
    each = f" per {kind}" if many else ""
    if run.signal and not every.ended(p):
        console.print_line(
            f"{signal.Signals(run.signal).name}: saved at {p.env_steps:,} steps{each} in "
            f"{short_path(run.run_dir)}. Run the same command to resume."
        )
        return 128 + run.signal
    if p.stopped:
        console.print_line(f"stopped by a callback: {p.stopped}")
    speed = format_short(sum(p.member_steps) / max(p.train_seconds, 1e-9))
    console.print_line(
        f"run time {format_duration(seconds)} after compilation, now at {p.env_steps:,} "
        f"steps{each}, {speed} steps/s in training"
    )
    if every.ended(p) and every.done(p) < every.total:
        rows = p.update * run.config.steps_per_update
        console.print_line(
            f"total_timesteps = {run.config.total_timesteps}: the agents decide too rarely. The "
            f"run ended after {every.done(p):,} decisions in {rows:,} rows{each}. Increase "
            f"total_timesteps to continue it."
        )
    if text := best_evaluation(p):
        suffix = f" (mean over the {kind}s)" if many else f" at {p.member_best_steps[0]:,} steps"
        console.print_line(f"{text}{suffix}")
    folder = short_path(run.run_dir)
    curve = folder / "learning_curve.png"
    console.print_line(
        f"no learning curve: {run.no_curve}" if run.no_curve else f"learning curve: {curve}"
    )
    if any(ref.text.startswith(OBJECT) for ref in code_refs(run.config)):  # no command can open it
        console.print_line("evaluate: purejaxppo.evaluate(run, episodes=100) in Python")
    else:
        console.print_line(f"evaluate: {command_line('evaluate', '--run', folder)}")
    return 0
