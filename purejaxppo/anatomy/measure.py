"""Measure the anatomy of a config."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from purejaxppo.anatomy import simulators, stages
from purejaxppo.anatomy.advice import NO_TIME, Search, more_environments
from purejaxppo.anatomy.report import Anatomy, Piece, words
from purejaxppo.anatomy.simulators import Workers, WorkerSpeed
from purejaxppo.anatomy.timing import (
    ROUND_SECONDS,
    WORTHWHILE,
    Budget,
    Spread,
    Work,
    in_turns,
    seconds_of,
)
from purejaxppo.anatomy.trainer import Trainer, measured_config
from purejaxppo.config.files import for_platform
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.host.callbacks import CallbackPool
from purejaxppo.envs.host.workers.pool import WorkerPool
from purejaxppo.interrupts import Interrupt
from purejaxppo.parallel import awake, places
from purejaxppo.runs.console import print_line
from purejaxppo.runs.devices import start_jax
from purejaxppo.runs.folder import with_absolute_paths
from purejaxppo.runs.library import config_of, python_messages
from purejaxppo.setup import resolve

NOTICE = "stopping after the current measurement; press Ctrl-C again to exit immediately"
PIECES_SHARE = 0.35
"""Part of the seconds that the pieces may take."""
WORKERS_SHARE = 0.25
"""Part of the seconds that comparisons of workers may take."""

SIMULATOR = "simulator"
PIPES = "pipes, shared memory"
TRANSFER = "transfer to the program"
INFERENCE = "inference, sampling"
STATISTICS = "statistics"
VALUES = "values, advantages (GAE)"
UPDATE = "update"
LOGGING = "logging"


def anatomy(
    config: str | Path | Config | None = None,
    *,
    env: Any = None,
    workers: Sequence[int] = (),
    seconds: float = 120.0,
    quiet: bool = False,
    **changes: Any,
) -> Anatomy:
    """Measure where the time of training goes, and which settings make it faster.

        result = anatomy("hopper.yaml", env="gymnasium/Hopper-v5")
        print(result)
        train("hopper.yaml", env="gymnasium/Hopper-v5", **result.changes)

    The pieces of an update are switched off one at a time: simulator, pipes and shared memory,
    transfer, inference, statistics, advantages, update and logging. Then training is repeated with
    other workers, with and without `asynchronous`, and with more environments. Evaluations,
    checkpoints and W&B are not measured. Ctrl-C returns the measurements so far.

    Args:
        config: a `Config`, a YAML file, or the name of a config that comes with the library.
        env: an environment instead of the config's; see `train`.
        workers: numbers of workers to compare, for Gymnasium, PettingZoo and EnvPool. Empty: powers
            of two up to twice the cores (EnvPool: the number is not changed).
        seconds: time for everything. The pieces are measured in at least three rounds.
        quiet: print nothing.
        changes: other values of config fields; see `train`.

    Raises:
        ValueError, OSError, SimulatorError: one sentence about the problem.
        KeyboardInterrupt: you pressed Ctrl-C before the pieces were measured.
    """
    with python_messages():
        full = config_of(config, env, changes)
        return measure(full, workers, seconds, (lambda line: None) if quiet else print_line)


def measure(
    config: Config, workers: Sequence[int], seconds: float, say: Callable[[str], None]
) -> Anatomy:
    """Measure a config; see `anatomy`. `say` prints a line of progress."""
    check(config, workers, seconds)
    config = measured_config(with_absolute_paths(config))
    with contextlib.ExitStack() as stack:
        budget = Budget(seconds, stack.enter_context(Interrupt(NOTICE)))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="purejaxppo-")))
        setup = resolve(config)
        devices = start_jax(setup)
        config = for_platform(config, devices[0].platform)
        on_cpu = devices[0].platform == "cpu"
        stack.enter_context(awake.kept_awake(config.keep_cores_awake and on_cpu))
        say(f"anatomy of {config.env.name}: compiling and starting ...")
        search = Search(Trainer(config, devices, folder / "training"), devices, folder, budget)
        stack.callback(search.close)
        measured = measure_pieces(search.trainer, budget, say)
        speeds = compare_settings(measured, search, workers, say)
        return replace(
            measured.result,
            worker_speeds=tuple(speeds),
            advice=tuple(search.results),
            interrupted=budget.interrupted,
        )


def check(config: Config, workers: Sequence[int], seconds: float) -> None:
    """Check the arguments, before JAX starts.

    Raises:
        ValueError: an argument is invalid, or the process is one of several of a launcher.
    """
    if any(number < 1 for number in workers):
        raise ValueError(f"workers = {list(workers)}: each number must be at least 1.")
    if seconds <= 0:
        raise ValueError(f"seconds = {seconds:g}: must be greater than 0.")
    if config.ppo.learner != "ppo":
        raise ValueError(
            f"ppo.learner = {config.ppo.learner}: anatomy measures PPO's update and does not "
            f"support custom learners. Set ppo.learner = ppo."
        )
    if places.launched(os.environ, config.devices) != places.ALONE:
        raise ValueError(
            "anatomy does not support several processes. Start it without mpirun or srun."
        )
    family = registry.family_of(config.env)  # importing its simulator could start JAX
    if workers and family and not family.workers_option:
        where = "is one game per environment" if family.on_host else "runs in JAX"
        raise ValueError(
            f"workers are for gymnasium/, pettingzoo/ and envpool/, but {config.env.name} {where}. "
            f"Remove --workers."
        )


@dataclass
class Measured:
    """The pieces of training with a config, and what later measurements need."""

    result: Anatomy
    pool: CallbackPool[Any] | None
    actions: list[Any]
    """Actions of a rollout, as the pool takes them; empty without a pool."""

    def seconds(self, *names: str) -> float:
        """Return the sum of the medians of pieces."""
        pieces = self.result.pieces
        return sum(max(p.seconds.median, 0.0) for p in pieces if p.name in names)


def measure_pieces(trainer: Trainer, budget: Budget, say: Callable[[str], None]) -> Measured:
    """Measure training and its pieces in turns."""
    programs, hp = trainer.programs, trainer.hp
    parts, state, members = programs.parts, programs.init(), len(programs.setup.members)
    pool = simulators.callback_pool(parts.env, members)
    masked = stages.has_mask(parts)
    started = time.perf_counter()
    actions = () if masked else (stages.actions_of(parts, state),)
    stage = stages.steps_with_policy if masked else stages.steps_alone
    step = stages.Repeated(parts, stage, state, hp, actions)
    real = stages.compile_all({"real": step})["real"]
    with contextlib.ExitStack() as stack:
        pool_actions = stack.enter_context(simulators.recording(pool)) if pool else []
        state, rows = jax.block_until_ready(real(state, np.int32(1)))
    replay, replay_state = stages.recorded(parts, state, rows)
    pieces_of_ppo = {
        name: stages.Repeated(replay, stage, replay_state, hp)
        for name, stage in stages.PIECES_OF_PPO.items()
    }
    if not masked:
        pieces_of_ppo["loop"] = stages.Repeated(
            replay, stages.steps_alone, replay_state, hp, actions
        )
    works: dict[str, Work] = {"whole": trainer.work}
    for name, program in stages.compile_all(pieces_of_ppo).items():
        works[name] = stages.work_of(program, replay_state)
    works["real"] = stages.work_of(real, state)
    with contextlib.ExitStack() as stack:
        if pool and not masked:
            works["pool"] = simulators.stepping(pool.envs, pool_actions)
            if isinstance(pool.envs, WorkerPool):
                present = simulators.workers_of(pool.envs)
                noop = stack.enter_context(simulators.started(pool.envs, present, noop=True))
                works["noop"] = simulators.stepping(noop, pool_actions)
        compile_seconds = trainer.compile_seconds + time.perf_counter() - started
        say(f"compiled and started in {compile_seconds:.1f} s; measuring the pieces ...")
        times = in_turns(works, budget, min(PIECES_SHARE * budget.seconds, budget.left))
    logging = [seconds_of(trainer.log) / trainer.updates_per_row for _ in times["whole"]]
    pieces = pieces_of(times | {"logging": logging}, on_host=programs.setup.on_host)
    result = Anatomy(
        config=trainer.config,
        description=describe(trainer, pool),
        steps_per_update=trainer.steps_per_update,
        pieces=tuple(Piece(name, Spread.of(values)) for name, values in pieces.items()),
        whole=Spread.of(times["whole"]),
        rounds=len(times["whole"]),
        compile_seconds=compile_seconds,
        workers=workers_in(pool),
    )
    return Measured(result, pool, [] if masked else pool_actions)


def pieces_of(times: Mapping[str, Sequence[float]], *, on_host: bool) -> dict[str, list[float]]:
    """Return the seconds of each piece in each round, from those of the stages.

    Args:
        times: seconds per update in each round. "train", "no update", "no values" and
            "no statistics" replay recorded steps, and "loop" without the policy. "real" steps the
            simulator in the program, "pool" from Python, "noop" in workers without a simulator.
            Without "loop", "real" acts with the policy.
        on_host: True for a host simulator.
    """
    acting = times["no statistics"]
    if "loop" in times:
        loop, inference = times["real"], difference(acting, times["loop"])
    else:
        loop, inference = difference(times["real"], acting), list(acting)
    pieces: dict[str, list[float]] = {}
    if "noop" in times:
        pieces[SIMULATOR] = difference(times["pool"], times["noop"])
        pieces[PIPES] = list(times["noop"])
        pieces[TRANSFER] = difference(loop, times["pool"])
    elif "pool" in times:
        pieces[SIMULATOR] = list(times["pool"])
        pieces[TRANSFER] = difference(loop, times["pool"])
    else:
        pieces[f"{SIMULATOR}, {TRANSFER}" if on_host else SIMULATOR] = list(loop)
    return pieces | {
        INFERENCE: inference,
        STATISTICS: difference(times["no values"], acting),
        VALUES: difference(times["no update"], times["no values"]),
        UPDATE: difference(times["train"], times["no update"]),
        LOGGING: list(times["logging"]),
    }


def difference(longer: Sequence[float], shorter: Sequence[float]) -> list[float]:
    """Return the seconds of a piece in each round: those with it minus those without it."""
    return [x - y for x, y in zip(longer, shorter, strict=True)]


def workers_in(pool: CallbackPool[Any] | None) -> Workers | None:
    """Return the workers of a pool; None without workers."""
    is_pool = pool is not None and isinstance(pool.envs, WorkerPool)
    return simulators.workers_of(pool.envs) if pool is not None and is_pool else None


def describe(trainer: Trainer, pool: CallbackPool[Any] | None) -> str:
    """Describe environment, sizes, workers and devices in one line."""
    config, setup, shards = trainer.config, trainer.programs.setup, trainer.programs.shards
    agents = f"{len(setup.members)} seeds of " if len(setup.members) > 1 else ""
    workers = workers_in(pool)
    where = f" in {workers}" if workers else ""
    mode = ", asynchronous" if config.asynchronous else ""
    device = f"{shards.num_devices} x {setup.devices[0].device_kind}"
    return (
        f"{config.env.name}: {agents}{config.env.num_envs} environments{where} x "
        f"{config.ppo.rollout_length} steps, on {device}{mode}"
    )


def compare_settings(
    measured: Measured, search: Search, numbers: Sequence[int], say: Callable[[str], None]
) -> list[WorkerSpeed]:
    """Compare settings in training, and return the speeds of the simulator in other workers."""
    config, result = search.config, measured.result
    if registry.is_editor(config.env):
        search.skip({"env.num_envs": 1}, "not compared: the editor runs one game.")
        return []
    family, _ = registry.resolve(config.env)
    speeds: list[WorkerSpeed] = []
    if measured.actions and result.workers:
        speeds = compare_workers(measured, search, numbers, say)
        if (best := fastest(speeds)) is not None:
            saved = Spread.of(best.gain.before).median - Spread.of(best.gain.after).median
            setting = simulators.options_of(best.workers)
            bound = result.whole.median / max(result.whole.median - saved, 1e-9)
            compare_if_possible(search, setting, bound, say)
    else:
        for number in numbers:
            compare_if_possible(search, {f"env.options.{family.workers_option}": number}, 99, say)
    if family.on_host and config.num_seeds == 1:
        learner = measured.seconds(STATISTICS, VALUES, UPDATE, LOGGING)
        whole = max(result.total, learner)
        bound = whole / max(learner, whole - learner)
        setting = {"asynchronous": not config.asynchronous}
        compare_if_possible(search, setting, 99 if config.asynchronous else bound, say)
    for setting in more_environments(search.config):
        if not compare_if_possible(search, setting, 99, say):
            break
    return speeds


def compare_if_possible(
    search: Search, setting: dict[str, Any], bound: float, say: Callable[[str], None]
) -> bool:
    """Compare a setting in training, unless the pieces show that it cannot be worth it.

    Args:
        search: training with the present settings.
        setting: new values of config fields.
        bound: largest possible gain.
        say: prints a line of progress.
    """
    if bound < WORTHWHILE:
        search.skip(setting, f"not measured: it can gain at most {bound:.2f}x")
        return False
    say(f"training with {words(setting)} ...")
    return search.compare(setting)


def compare_workers(
    measured: Measured, search: Search, numbers: Sequence[int], say: Callable[[str], None]
) -> list[WorkerSpeed]:
    """Measure the simulator alone in other workers, while the budget lasts."""
    budget, speeds = search.budget, []
    assert measured.pool is not None
    envs, actions = measured.pool.envs, measured.actions
    updates = ROUND_SECONDS / max(measured.seconds(SIMULATOR, PIPES), 1e-9)
    few = actions[: max(1, round(updates * len(actions)))]  # a slow simulator needs fewer steps
    others = simulators.candidates(envs, numbers)
    end = budget.left - WORKERS_SHARE * budget.seconds
    say(f"stepping the simulator alone in {', '.join(map(str, others))} ...")
    for workers in others:
        if budget.ended or budget.left < end:
            break
        share = WORKERS_SHARE * budget.seconds / len(others)
        with contextlib.suppress(KeyboardInterrupt):
            gain = simulators.compare_workers(envs, few, workers, budget, share)
            speeds.append(WorkerSpeed(workers, gain.times(len(actions) / len(few))))
    if not budget.interrupted:
        for workers in others[len(speeds) :]:
            search.skip(simulators.options_of(workers), NO_TIME)
    return speeds


def fastest(speeds: Sequence[WorkerSpeed]) -> WorkerSpeed | None:
    """Return the fastest workers that are clearly faster than those of the config."""
    clear = [speed for speed in speeds if speed.gain.is_clear]
    return max(clear, key=lambda speed: speed.gain.spread.median, default=None)
