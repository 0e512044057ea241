"""The outer loop of a run: chunks of training, and between them logging, evaluation and saves."""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from purejaxppo.agents import optimizers, schedules
from purejaxppo.config.files import load_config
from purejaxppo.config.hints import number, short_path
from purejaxppo.envs.host.bridge import named_failures
from purejaxppo.envs.host.errors import SimulatorError
from purejaxppo.episodes import MOST_DIVERGED
from purejaxppo.evaluation import warning_of_cut
from purejaxppo.interrupts import Interrupt
from purejaxppo.parallel import processes
from purejaxppo.runs.callbacks import Moment, call, make_callbacks
from purejaxppo.runs.checkpoint import Checkpoints
from purejaxppo.runs.console import Console, Stopped, message_of
from purejaxppo.runs.curves import has_returns, plot_returns
from purejaxppo.runs.divergence import MOST_UPDATES, all_diverged, warning
from purejaxppo.runs.folder import CONFIG
from purejaxppo.runs.intervals import Intervals
from purejaxppo.runs.not_finite import NotFiniteError, what_was_lost
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.progress import Progress
from purejaxppo.runs.resume import changes, eval_settings
from purejaxppo.runs.rows import (
    COLUMNS,
    MEMBER_COLUMNS,
    Row,
    eval_row,
    mean_row,
    metrics_row,
    read_csv,
)
from purejaxppo.runs.sinks import CsvSink, Sink, open_sinks
from purejaxppo.types import AgentState, Hyperparams, Metrics, TrainState

log = logging.getLogger("purejaxppo")

CHUNK_SECONDS = 1.0
"""Target duration of one call of `train_chunk`: Ctrl-C and the progress bar wait this long."""
FIRST_CHUNK_UPDATES = 1
MOST_IDLE = 5
"""Updates in succession that may make no gradient step, all having been skipped."""


def beats(score: float, best: float | None) -> bool:
    """True if an evaluation replaces the best so far: the latest of equals does, NaN never."""
    return not math.isnan(score) and (best is None or score >= best)


def wide(x: np.ndarray) -> np.ndarray:
    """Convert counts to int64, since those of a row may exceed 2^31."""
    return x.astype(np.int64) if np.issubdtype(x.dtype, np.integer) else x


class TrainingLoop:
    """One training run in its folder, from its first or its last saved update to its end.

    Its agents, or the one, train side by side; metrics have a row for each.
    """

    def __init__(self, programs: Programs, run_dir: Path, console: Console) -> None:
        """Opens the folder's saves."""
        self.config = programs.config
        self.members = programs.members
        self.programs = programs
        self.run_dir = run_dir
        self.console = console
        self.intervals = Intervals(self.config, sparse=programs.spec.absent)
        self.checkpoints = Checkpoints(run_dir, self.config.checkpoint.keep)
        self.progress = Progress.of(len(self.members))
        self.best: AgentState | None = None
        """The best agent of each member so far; None before the first evaluation."""
        self.sinks: list[Sink] = []
        self.signal = 0
        """The signal that ended the run, 0 if none did."""
        self.callbacks = make_callbacks(self.config)
        self.stopped = ""
        """The reason for which a callback ended the run, "" if none did."""
        self.no_curve = ""
        self._pending: Metrics | None = None
        self._before = 0  # `intervals.done` before the last chunk
        self._gone: set[int] = set()  # members that are not finite any more
        # Successive updates without a gradient step, and those in which every step diverged.
        self._idle = np.zeros(len(self.members), int)
        self._diverging = np.zeros(len(self.members), int)
        self._most_diverging = min(MOST_UPDATES, self.config.num_updates)
        self._totals = [float(self.config.num_updates)] * len(self.members)
        self._warned = False  # True once a run has warned of diverged episodes
        self._warned_of_cut = False  # True once it has warned of episodes that evaluations cut
        self._sound = True  # False once the state is not finite: it is not saved then

    def train(self, state: TrainState, interrupt: Interrupt) -> TrainState:
        """Trains until the end or an interrupt, and saves."""
        p, every = self.progress, self.intervals
        every.begin(every.done(p))
        chunk, speed = FIRST_CHUNK_UPDATES, 0.0
        with self._between_chunks(state):
            self._call("on_start", state)
        ended = bool(self.stopped) or processes.interrupted(interrupt)
        while not (every.ended(p) or ended):
            updates = min(chunk, every.until_next(p.update))
            started = time.perf_counter()
            hp, self._before = self._hyperparams(), every.done(p)
            with self._host_failures(state):
                after, metrics = self.programs.train_chunk(state, hp, np.int32(updates))
                metrics = jax.device_get(metrics)
            state = after
            (seconds,) = processes.maximum(time.perf_counter() - started)
            chunk = max(1, int(CHUNK_SECONDS * updates / seconds))
            speed = self._count(metrics) / seconds
            p.update += updates
            p.train_seconds += seconds
            with self._between_chunks(state):
                self._after_chunk(state, metrics, speed)
                ended = bool(self.stopped) or processes.interrupted(interrupt)
                if not (every.ended(p) or ended):
                    self.programs.begin_evaluation()
        self._end(state)
        return state

    def _hyperparams(self) -> Hyperparams:
        """Return the tunable numbers of the next chunk.

        Schedules follow update / total_updates. Where agents may be absent, total_updates is set
        such that this ratio is decisions / total_timesteps.
        """
        p, hp = self.progress, self.programs.hp
        if not (self.intervals.sparse and p.update):
            return hp
        self._totals = [p.update * self.intervals.total / max(n, 1) for n in p.member_steps]
        return hp._replace(total_updates=np.asarray(self._totals, np.float32))

    def _end(self, state: TrainState) -> None:
        """Writes the last checkpoint, and waits until everything is on disk."""
        with self._between_chunks(state):
            self._save(state)
            self.checkpoints.wait()
            self._call("on_end", state)
            self._close_sinks()

    @contextlib.contextmanager
    def _host_failures(self, state: TrainState) -> Iterator[None]:
        """Saves `state` if a simulator on the host fails inside, and reports the failure."""
        try:
            with named_failures(self.config.env.name, self.programs):
                yield
        except SimulatorError as error:
            done = self._save_first(state)
            raise SimulatorError(f"{error}\n{done}") from error

    @contextlib.contextmanager
    def _between_chunks(self, state: TrainState) -> Iterator[None]:
        """Saves `state` if anything fails inside, such as a sink, and reports the failure.

        Among several processes `session.all_present` reports it.

        Raises:
            Stopped: in one sentence. One that comes from inside saves nothing.
        """
        try:
            with self._host_failures(state):
                yield
        except (SimulatorError, Stopped, NotFiniteError):
            raise
        except Exception as error:
            if processes.is_distributed():
                raise
            log.debug("between two chunks", exc_info=True)
            what = " ".join(message_of(error).split())
            if not isinstance(error, OSError):
                what = f"{type(error).__name__}: {what}"
            raise Stopped(f"{what.rstrip('.')}. {self._save_first(state)}") from error

    def _save_first(self, state: TrainState) -> str:
        """Saves after a failure if possible; returns a sentence about the last checkpoint."""
        try:
            if self._sound and not processes.is_distributed():
                self._store(state)
                self.checkpoints.wait()
        except Exception:
            log.debug("saving failed, too", exc_info=True)
        steps, saved = self.progress.env_steps, self.checkpoints.finished()
        if saved is None:
            done, then = f"Nothing could be saved in {short_path(self.run_dir)}", "start again"
        elif saved == steps:
            done, then = f"Saved at {steps:,} steps in {short_path(self.run_dir)}", "resume"
        else:
            folder = short_path(self.run_dir)
            done, then = f"The checkpoint at {saved:,} steps in {folder} is intact", "resume"
        return f"{done}. Fix the cause, then run the same command to {then}."

    def _after_chunk(self, state: TrainState, metrics: Metrics, speed: float) -> None:
        p, every = self.progress, self.intervals
        self._idle = np.where(metrics.learned, 0, self._idle + metrics.updates)
        diverging = self._diverging + metrics.updates * (metrics.episodes.diverged > 0)
        self._diverging = np.where(metrics.env_steps > 0, 0, diverging)
        metrics = jax.tree.map(wide, metrics)
        pending, p.unlogged = self._pending or p.restored_metrics(metrics), {}
        if pending is not None:
            metrics = jax.tree.map(np.add, pending, metrics)
        self._pending = metrics
        rows = self._rows(metrics)
        for row, idle, diverging in zip(rows, self._idle, self._diverging, strict=True):
            row["charts/finite"] *= idle < MOST_IDLE and diverging < self._most_diverging
        lost = self._lost(rows)
        self._sound = not lost
        evaluate = every.due(every.eval, p, self._before) and not lost
        if evaluate:
            scores = self._evaluate(state)
            rows = [row | score for row, score in zip(rows, scores, strict=True)]
        done = min(every.done(p), every.total)
        left = p.train_seconds * (every.total / max(done, 1) - 1)
        shown = done * every.unit * len(self.members)
        self.console.progress(shown, p.env_steps, speed, mean_row(rows), left)
        if lost or evaluate or every.due(every.log, p, self._before):
            if not lost:
                self._warn(rows, state)
            common = {"update": p.update, "seconds": p.train_seconds, "charts/SPS": speed}
            self._write([row | common for row in rows], state, evaluated=evaluate)
            self._pending = None
        if lost:
            with processes.raise_together():
                raise NotFiniteError(self._reason(state))
        (age,) = processes.maximum(every.age())
        # While all agents skip their gradient steps, the last save is not replaced.
        if every.save_due(every.done(p), age) and not self._idle.all():
            self._save(state)

    def _write(self, rows: list[Row], state: TrainState, *, evaluated: bool) -> None:
        """Writes a row of each member, with what callbacks add to it; also if one raises."""
        try:
            for event in ["on_evaluation"] * evaluated + ["on_log"]:
                added = self._call(event, state, rows)
                rows = [row | more for row, more in zip(rows, added, strict=True)]
        finally:
            for row in rows:
                for sink in self.sinks:
                    sink.write(row)
                log.debug("%s", row)

    def _call(self, event: str, state: TrainState, rows: Sequence[Row] = ()) -> list[Row]:
        """Calls the callbacks, in the first process alone; returns each member's new metrics."""
        added: list[Row] = [{} for _ in self.members]
        if not self.callbacks:
            return added
        p, writers = self.progress, [getattr(sink, "writer", None) for sink in self.sinks]
        writer = next((writer for writer in writers if writer), None)
        moment = Moment(
            self.config,
            self.run_dir,
            p.update,
            p.env_steps,
            state,
            self.members,
            rows,
            writer,
            self.programs.parts.env,
        )
        if processes.is_main():
            added = call(self.callbacks, event, moment)
        (stop,) = processes.maximum(float(bool(moment.reason)))
        if stop:
            self.stopped = moment.reason or "as the first process says"
        return added

    def _reason(self, state: TrainState) -> str:
        """The message about a run with no agent left to train."""
        saved = self.checkpoints.latest()
        if any(count < self._most_diverging for count in self._diverging):
            return what_was_lost(self.config, self.progress.env_steps, saved)
        value = self.programs.diverged_value(state, 0)
        return all_diverged(value, int(self._diverging.min()), saved)

    def _warn(self, rows: list[Row], state: TrainState) -> None:
        """Warns of the first agent with too many diverged episodes, once per run."""
        for i, row in enumerate(rows):
            diverged = row["charts/diverged"]
            few = diverged <= MOST_DIVERGED * (row["charts/episodes"] + diverged)
            if self._warned or few or not row["charts/finite"]:  # the agent's actions may be NaN
                continue
            name = f"agent {i} (seed {self.members[i].seed}): " if len(rows) > 1 else ""
            self.console.say(name + warning(row, self.programs.diverged_value(state, i)))
            self._warned = True

    def _lost(self, rows: list[Row]) -> bool:
        """True if no agent is left to train; reports agents that have no score from now on."""
        gone = {i for i, row in enumerate(rows) if not row["charts/finite"]}
        if gone - self._gone and len(gone) < len(rows):
            names = ", ".join(f"{i} (seed {self.members[i].seed})" for i in sorted(gone))
            steps = f"{self.progress.env_steps:,} steps"
            self.console.say(
                f"no score from {steps} on, because numbers are not finite or every step diverges: "
                f"agent {names}"
            )
        self._gone = gone
        return len(gone) == len(rows)

    def _count(self, metrics: Metrics) -> int:
        """Adds the steps of a chunk to the counters; returns its environment steps in all."""
        p, steps = self.progress, np.asarray(metrics.env_steps)
        p.member_steps = [old + int(new) for old, new in zip(p.member_steps, steps, strict=True)]
        return int(steps.sum())

    def _rows(self, metrics: Metrics) -> list[Row]:
        """Rows of metrics, one per member, for the updates that `metrics` sums up."""
        each = [
            metrics_row(jax.tree.map(lambda x, i=i: x[i], metrics))
            for i in range(len(self.members))
        ]
        rates = self._rates()
        return [
            {
                "member": i,
                "seed": member.seed,
                "global_step": self.progress.member_steps[i],
                "charts/learning_rate": self._learning_rate(rates[i], row, self._totals[i]),
                **row,
            }
            for i, (member, row) in enumerate(zip(self.members, each, strict=True))
        ]

    def _rates(self) -> list[float]:
        """Each member's learning rate before schedules."""
        return [member.ppo.learning_rate for member in self.members]

    def _learning_rate(self, rate: float, row: Row, total: float) -> float:
        """Scales `rate` by its schedule at the last update, and by the row's adapted factor."""
        ppo, stride = self.config.ppo, 1.0 / total
        progress = (self.progress.update - 1) * stride
        schedule, warmup = ppo.learning_rate_schedule, ppo.learning_rate_warmup
        scheduled = float(schedules.factor(schedule, progress, warmup, stride))
        return rate * scheduled * row.get(optimizers.RATE_FACTOR, 1.0)

    def _evaluate(self, state: TrainState) -> list[Row]:
        """Evaluates each member; returns their numbers, and stores those that are better."""
        p = self.progress
        self._update_best()
        rows = self._eval_rows(state.agent)
        scores = [row["eval/return_mean"] for row in rows]
        better = [beats(score, best) for score, best in zip(scores, p.member_best, strict=True)]
        for i in np.flatnonzero(better):
            p.member_best[i], p.member_best_steps[i] = scores[i], p.member_steps[i]
        best_so_far = state.agent if self.best is None else self.best
        self.best = self.programs.keep_better(np.asarray(better), best_so_far, state.agent)
        return rows

    def _eval_rows(self, agent: AgentState) -> list[Row]:
        """Evaluate each member of `agent` on the episodes of the current update."""
        key = self.programs.eval_key(self.progress.update)
        returns, lengths, cut = jax.device_get(self.programs.evaluate(agent, key))
        warning = warning_of_cut(returns, cut, self.config.eval.max_steps)
        if warning and not self._warned_of_cut:
            self.console.say(warning)
            self._warned_of_cut = True
        above = self.programs.success_above
        return [
            eval_row(*each, success_above=above) for each in zip(returns, lengths, cut, strict=True)
        ]

    def _update_best(self) -> None:
        """Evaluate the best agents again if the evaluation settings have changed.

        A best agent without a new score is replaced by the next agent with a score.
        """
        p, settings = self.progress, eval_settings(self.config)
        changed, before = changes(p.eval_settings, settings), p.best_return
        if self.best is None or before is None or not changed:
            p.eval_settings = settings
            return
        scores = [row["eval/return_mean"] for row in self._eval_rows(self.best)]
        p.eval_settings = settings  # not before: a simulator may fail, and then these are saved
        p.member_best = [
            None if best is None else (-math.inf if math.isnan(score) else score)
            for best, score in zip(p.member_best, scores, strict=True)
        ]
        after = "too many diverged episodes for a mean return"
        if all(score != -math.inf for score in p.member_best):
            assert p.best_return is not None
            after = f"return {number(p.best_return)}"
        self.console.say(
            f"{changed}: the best agent so far was evaluated again, with {after} (before: "
            f"{number(before)})"
        )

    def _save(self, state: TrainState) -> None:
        """Begins a save, and tells the callbacks; neither if these steps are saved already."""
        if self._store(state):
            self._call("on_save", state)

    def _store(self, state: TrainState) -> bool:
        """Begins a save, unless these steps are saved already; True if it did."""
        best = None if self.progress.best_return is None else self.best
        self.intervals.begin(self.intervals.done(self.progress))
        progress = self.progress
        if self._pending is not None:
            progress = progress.with_unlogged(self._pending)
        return self.checkpoints.save(self._savable(state), progress, best)

    def _savable(self, state: TrainState) -> TrainState:
        """The state to save: without the rollout if its simulator cannot be restored."""
        return state if self.restorable else state.replace(rollout=None)

    @property
    def finished(self) -> bool:
        """True if the last save is that of the run's end."""
        if self.checkpoints.latest() is None:
            return False
        return self.intervals.ended(self.checkpoints.progress())

    @property
    def restorable(self) -> bool:
        """True if resuming continues the environments, too, and not only the agent."""
        return self.programs.spec.restorable

    def restore(self, template: TrainState) -> TrainState:
        """Continues from the last save; simulators on the host start afresh."""
        state, self.best, self.progress = self.checkpoints.restore(self._savable(template))
        if self.best is not None and not self.progress.eval_settings:  # saved by version 0.2
            saved = load_config(self.run_dir / CONFIG, saved=True)
            self.progress.eval_settings = eval_settings(saved)
        return state if self.restorable else state.replace(rollout=template.rollout)

    def open_sinks(self) -> None:
        """Opens the sinks that rows are written to."""
        if processes.is_main():
            steps, saved = self.progress.member_steps, self.checkpoints.finished
            table = CsvSink(self.run_dir / "metrics.csv", self.progress.update, self.columns)
            self.sinks = [table, *open_sinks(self.config, self.run_dir, self.members, steps, saved)]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of metrics.csv."""
        return (*MEMBER_COLUMNS, *COLUMNS, *self.programs.columns)

    def close(self) -> None:
        """Finishes saves, closes simulators and sinks, even if one of these fails, and draws."""
        with contextlib.ExitStack() as closing:  # in reverse order
            closing.callback(self._close_sinks)
            closing.callback(self.programs.close)
            closing.callback(self.checkpoints.close)
        if processes.is_main():
            self._draw()

    def _close_sinks(self) -> None:
        """Closes each sink once, even if others fail."""
        with contextlib.ExitStack() as closing:  # in reverse order
            while self.sinks:
                closing.callback(self.sinks.pop().close)

    def _draw(self) -> None:
        """Draws the learning curve, or stores the reason for its absence in `no_curve`."""
        path, evaluated = self.run_dir / "learning_curve.png", self.config.eval.policy
        alike = len({member.ppo for member in self.members}) == 1
        size, seed = len(self.members), self.config.seed
        what = f"{size} seeds from {seed}" if alike else f"{size} agents of several settings"
        title = f"{self.config.env.name}, {what if size > 1 else f'seed {seed}'}"
        try:
            rows = read_csv(self.run_dir / "metrics.csv")
            if has_returns(rows):
                plot_returns(rows, path, title, evaluated=evaluated, band=alike)
            else:
                self.no_curve = "no episode ended"
        except Exception as error:  # the run has ended, and its results are saved
            log.debug("no learning curve", exc_info=True)
            self.no_curve = f"{type(error).__name__}: {error}"
