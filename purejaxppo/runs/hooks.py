"""Hooks: the actions of a run between two chunks of training."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from purejaxppo.config.hints import format_number
from purejaxppo.parallel import processes
from purejaxppo.runs.console import message_of
from purejaxppo.runs.evaluation import warning_of_cut
from purejaxppo.runs.folder import VIDEOS
from purejaxppo.runs.health import CheckAgents, StopIfLost, WarnOfDivergence
from purejaxppo.runs.programs import evaluation_keys, select_better
from purejaxppo.runs.recording import Recorder
from purejaxppo.runs.resume import changes, eval_settings
from purejaxppo.runs.rows import Row, eval_row, mean_row
from purejaxppo.runs.training import Hook, Training
from purejaxppo.types import AgentState

log = logging.getLogger("purejaxppo")


def hooks_of(run: Training, first: Sequence[Hook] = ()) -> list[Hook]:
    """Return the hooks of a run. Those in `first` add to its rows before the others act."""
    check = CheckAgents(run.config, len(run.members))
    return [
        *first,
        check,
        Evaluate(run),
        ShowProgress(),
        WarnOfDivergence(),
        WriteRows(),
        StopIfLost(check),
        *([RecordVideo()] if run.intervals.video and processes.is_main() else []),
        Save(),
    ]


class Evaluate:
    """A hook that evaluates each agent and keeps, for each seed, the best agent so far."""

    def __init__(self, run: Training) -> None:
        """Prepare the selection of the best agents."""
        out = run.programs.shards.shardings(None)
        self._select_better = jax.jit(select_better, out_shardings=out)
        self._warned_of_cut = False

    def due(self, run: Training) -> bool:
        """Return True at each evaluation interval."""
        every = run.intervals
        return every.due(every.eval, run.progress, run.before) and not run.lost

    def act(self, run: Training) -> None:
        """Add the columns of an evaluation."""
        assert run.state is not None
        p, agent = run.progress, run.state.agent
        self.update_best(run)
        evaluated = self._rows(run, agent)
        scores = [row["eval/return_mean"] for row in evaluated]
        better = [beats(score, best) for score, best in zip(scores, p.member_best, strict=True)]
        for i in np.flatnonzero(better):
            p.member_best[i], p.member_best_steps[i] = scores[i], p.member_steps[i]
        best_so_far = run.state.learned if run.best is None else run.best
        run.best = self._select_better(np.asarray(better), best_so_far, run.state.learned)
        run.rows = [row | score for row, score in zip(run.rows, evaluated, strict=True)]
        run.evaluated = True

    def _rows(self, run: Training, agent: AgentState) -> list[Row]:
        """Evaluate each agent on the episodes of the current update."""
        programs, max_steps = run.programs, run.config.eval.max_steps
        keys = evaluation_keys(programs.key, run.progress.update)
        with run.console.announced("compiling the evaluation ..."):
            evaluate = programs.evaluate
        started = time.perf_counter()
        outcome = jax.device_get(evaluate(agent, keys))
        seconds, shape = time.perf_counter() - started, list(np.shape(outcome.returns))
        log.debug("evaluation: %s episodes in %.2f s", shape, seconds)
        warning = warning_of_cut(outcome.returns, outcome.cut, max_steps)
        if warning and not self._warned_of_cut:
            run.console.warn(warning)
            self._warned_of_cut = True
        above = programs.success_above
        members = [jax.tree.map(itemgetter(i), outcome) for i in range(len(run.members))]
        return [eval_row(*member, success_above=above) for member in members]

    def update_best(self, run: Training) -> None:
        """Evaluate the best agents again if the evaluation settings have changed.

        A best agent without a new score is replaced by the next agent with a score.
        """
        p, settings = run.progress, eval_settings(run.config)
        changed, before = changes(p.eval_settings, settings), p.best_return
        if run.best is None or before is None or not changed:
            p.eval_settings = settings
            return
        scores = [row["eval/return_mean"] for row in self._rows(run, run.best.agent)]
        p.eval_settings = settings  # only now, because a simulator may fail before
        p.member_best = [
            None if best is None else (-math.inf if math.isnan(score) else score)
            for best, score in zip(p.member_best, scores, strict=True)
        ]
        after = "too many diverged episodes for a mean return"
        if all(score != -math.inf for score in p.member_best):
            assert p.best_return is not None
            after = f"return {format_number(p.best_return)}"
        run.console.print_line(
            f"{changed}. The best agent so far was evaluated again: {after} (before: "
            f"{format_number(before)})"
        )


def evaluate_start(run: Training) -> None:
    """Evaluate the agents of a warm start before the first update, and write a row for each.

    The best agent of the run is therefore at least as good as the agent that it started from.
    """
    run.rows = [
        {"member": i, "seed": member.seed, "global_step": 0, "update": 0}
        for i, member in enumerate(run.members)
    ]
    Evaluate(run).act(run)
    run.loggers.write(run.rows)
    score = run.progress.best_return
    if score is not None:
        run.console.print_line(f"evaluation before training: return {format_number(score)}")


def beats(score: float, best: float | None) -> bool:
    """Return True if a score replaces the best so far. Equal scores do, NaN does not."""
    return not math.isnan(score) and (best is None or score >= best)


class ShowProgress(Hook):
    """A hook that shows the progress in the terminal.

    The time left is estimated from the whole time since the first evaluation or, before it, since
    the first call. It includes evaluations, which may take longer than training. The first call and
    the first evaluation also compile, so after them only training counts.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start without a first call. `clock` returns seconds."""
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._has_evaluated = False

    def act(self, run: Training) -> None:
        """Update the bar, or print a line from time to time."""
        p, every = run.progress, run.intervals
        done = min(every.done(p), every.total)
        now = self._clock()
        if run.evaluated and not self._has_evaluated:
            self._has_evaluated, self._first = True, None
        self._first = self._first or (now, done)
        seconds, since = now - self._first[0], done - self._first[1]
        if not since:
            seconds, since = p.train_seconds, max(done, 1)
        left = seconds / since * (every.total - done)
        shown = done * every.unit * len(run.members)
        run.console.progress(shown, p.env_steps, run.speed, mean_row(run.rows), left)


class WriteRows:
    """A hook that writes a row of metrics per agent, including those that callbacks add."""

    def due(self, run: Training) -> bool:
        """Return True at each logging interval, after an evaluation, and if the run is lost."""
        return run.rows_due

    def act(self, run: Training) -> None:
        """Write the rows of metrics to all loggers, even if a callback raises."""
        p = run.progress
        common = {"update": p.update, "seconds": p.train_seconds, "charts/SPS": run.speed}
        run.rows = [row | common for row in run.rows]
        try:
            for event in ["on_evaluation"] * run.evaluated + ["on_log"]:
                added = run.call(event, run.rows)
                run.rows = [row | more for row, more in zip(run.rows, added, strict=True)]
        finally:
            run.loggers.write(run.rows)
            run.metrics = None  # a checkpoint after an error must not count them again
            if run.config.logging.log_file:
                log_state(run)


def log_state(run: Training) -> None:
    """Log the rows, and the shapes and ranges of observations and parameters.

    Parameters share a line, unless one is not finite.
    """
    assert run.state is not None
    for i, row in enumerate(run.rows):
        log.debug("row of agent %d: %s", i, ", ".join(f"{k} {x:.6g}" for k, x in row.items()))
    if not processes.is_distributed():  # each process has only a part of the state
        params: Any = jax.device_get(run.state.agent.params)
        flat = np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)])
        trees = {"rollout: obs": jax.device_get(run.state.rollout.obs)}
        trees["update: params"] = flat if np.isfinite(flat).all() else params
        for name, tree in trees.items():
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                log.debug("%s%s %s", name, jax.tree_util.keystr(path), describe(np.asarray(leaf)))


def describe(x: np.ndarray) -> str:
    """Describe an array: float32 [2, 3] from -1 to 1, mean 0, 0 not finite."""
    if not x.size or not np.issubdtype(x.dtype, np.number):
        return f"{x.dtype} {list(x.shape)}"
    finite, values = x[np.isfinite(x)].astype(np.float64), ""
    if finite.size:
        values = f"from {finite.min():.4g} to {finite.max():.4g}, mean {finite.mean():.4g}, "
    return f"{x.dtype} {list(x.shape)} {values}{x.size - finite.size} not finite"


class RecordVideo:
    """A hook that records a video of the current agent, until a recording fails."""

    def __init__(self) -> None:
        """Start without an environment, which the first video makes."""
        self._recorder: Recorder | None = None
        self._failed = False

    def due(self, run: Training) -> bool:
        """Return True at each video interval."""
        every = run.intervals
        return every.due(every.video, run.progress, run.before) and not self._failed

    def act(self, run: Training) -> None:
        """Write the video of an episode, and pass it to the loggers. Warn if this fails."""
        start = time.perf_counter()
        path = run.run_dir / VIDEOS / f"{run.progress.env_steps}.mp4"
        try:
            self._record(run, path)
        except Exception as error:  # such as missing OpenGL; training does not depend on it
            log.debug("recording a video failed", exc_info=True)
            reason = " ".join(message_of(error).split()).rstrip(".")
            run.console.warn(f"no more videos: {reason}. Training continues.")
            self._failed = True
            return
        log.debug("video: %s in %.2f s", path.name, time.perf_counter() - start)
        run.loggers.video(path, tuple(run.progress.member_steps))

    def _record(self, run: Training, path: Path) -> None:
        assert run.state is not None
        path.parent.mkdir(exist_ok=True)
        member = run.members[0]
        recorder = self._recorder or Recorder(member, run.programs.parts.policy, member.seed)
        # Host simulators record only one episode, and their windows stay open.
        self._recorder = recorder if recorder.reusable else None
        try:
            agent = jax.device_get(jax.tree.map(lambda x: x[0], run.state.agent))
            recorder.write(agent, path)
        finally:
            if not recorder.reusable:
                recorder.close()


class Save:
    """A hook that saves the run in the background."""

    def due(self, run: Training) -> bool:
        """Return True at each checkpoint interval, unless all agents skip gradient steps."""
        every = run.intervals
        (age,) = processes.maximum(every.age())
        return every.save_due(every.done(run.progress), age) and run.learns

    def act(self, run: Training) -> None:
        """Start a checkpoint and call the callbacks, unless a checkpoint of these steps exists."""
        if run.save():
            run.call("on_save")
