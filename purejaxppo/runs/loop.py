"""The outer loop of a run: chunks of training, and between them logging, evaluation and saves."""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from purejaxppo.agents import optimizers, schedules
from purejaxppo.config.files import flatten
from purejaxppo.config.schema import Config
from purejaxppo.envs.host.bridge import SimulatorError, named_failures
from purejaxppo.interrupts import Interrupt
from purejaxppo.parallel import processes
from purejaxppo.runs.checkpoint import Checkpoints, Progress
from purejaxppo.runs.console import Console, Stopped
from purejaxppo.runs.curves import plot_curve
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.rows import COLUMNS, Row, eval_row, mean_row, metrics_row, read_csv
from purejaxppo.runs.sinks import CsvSink, HeldBack, Sink, TensorBoardSink, WandbSink
from purejaxppo.types import AgentState, Metrics, TrainState

log = logging.getLogger("purejaxppo")

CHUNK_SECONDS = 1.0
"""Target duration of one call of `train_chunk`: Ctrl-C and the progress bar wait this long."""
FIRST_CHUNK_UPDATES = 1
MOST_IDLE = 5
"""Updates in succession that may make no gradient step, all having been skipped."""


class Intervals:
    """Intervals, in updates, of logging, evaluation and saves."""

    def __init__(self, config: Config) -> None:
        """Converts steps to whole updates; 0 selects a share of the run."""
        self.total = config.num_updates
        self.log = self._updates(config, config.logging.interval, 100)
        self.eval = self._updates(config, config.eval.interval, 20)
        self.save = self._updates(config, config.checkpoint.interval, 10)
        if not config.eval.num_episodes:
            self.eval = 0

    @staticmethod
    def _updates(config: Config, steps: int, share: int) -> int:
        if steps:
            return max(1, round(steps / config.steps_per_update))
        return max(1, round(config.num_updates / share))

    def due(self, every: int, update: int) -> bool:
        """True if something done `every` updates is due after `update` of them."""
        return bool(every) and (update % every == 0 or update == self.total)

    def until_next(self, update: int) -> int:
        """Number of updates until anything is due."""
        return min(
            [every - update % every for every in (self.log, self.eval, self.save) if every]
            + [self.total - update]
        )


class NotFiniteError(ValueError):
    """Training has produced an agent whose numbers are not finite."""


def beats(score: float, best: float | None) -> bool:
    """True if an evaluation replaces the best so far: the latest of equals does, NaN never."""
    return not math.isnan(score) and (best is None or score >= best)


class Run:
    """One training run in its folder, from its first or its last saved update to its end."""

    def __init__(self, programs: Programs, run_dir: Path, console: Console) -> None:
        """Opens the folder's saves."""
        self.config = programs.config
        self.programs = programs
        self.run_dir = run_dir
        self.console = console
        self.intervals = Intervals(self.config)
        self.checkpoints = Checkpoints(run_dir, self.config.checkpoint.keep)
        self.progress = Progress()
        self.best: AgentState | None = None  # used only by runs of many agents
        self.sinks: list[Sink] = []
        self.signal = 0
        """The signal that ended the run, 0 if none did."""
        self._pending: Metrics | None = None
        self._idle = np.zeros((), int)  # updates in succession without a gradient step; [M]
        self._sound = True  # False once the state is not finite: it is not saved then
        self._saved_at = time.perf_counter()

    def train(self, state: TrainState, interrupt: Interrupt) -> TrainState:
        """Trains until the end or an interrupt, and saves."""
        p, every = self.progress, self.intervals
        self._saved_at = time.perf_counter()
        chunk, speed = FIRST_CHUNK_UPDATES, 0.0
        while p.update < every.total and not processes.interrupted(interrupt):
            updates = min(chunk, every.until_next(p.update))
            started = time.perf_counter()
            with self._host_failures(state):
                after, metrics = self.programs.train_chunk(
                    state, self.programs.hp, np.int32(updates)
                )
                metrics = jax.device_get(metrics)
            state = after
            (seconds,) = processes.maximum(time.perf_counter() - started)
            chunk = max(1, int(CHUNK_SECONDS * updates / seconds))
            speed = self._count(metrics) / seconds
            p.update += updates
            p.train_seconds += seconds
            with self._between_chunks(state):
                self._after_chunk(state, metrics, speed)
        with self._between_chunks(state):
            self._save(state)
            self.checkpoints.wait()
        return state

    @contextlib.contextmanager
    def _host_failures(self, state: TrainState) -> Iterator[None]:
        """Saves `state` if a simulator on the host fails inside, and reports the failure."""
        try:
            with named_failures(self.config.env.name, self.programs):
                yield
        except SimulatorError as error:
            done = self._save_first(state)
            raise SimulatorError(f"{error}\n{done[0].upper()}{done[1:]}") from error

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
            if processes.several():
                raise
            log.debug("between two chunks", exc_info=True)
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise Stopped(f"{what}; {self._save_first(state)}") from error

    def _save_first(self, state: TrainState) -> str:
        """Saves after a failure, as far as one process can; returns a sentence on what is saved."""
        try:
            if self._sound and not processes.several():
                self._save(state)
                self.checkpoints.wait()
        except Exception:
            log.debug("saving failed, too", exc_info=True)
        steps, saved = self.progress.env_steps, self.checkpoints.finished()
        if saved == steps:
            done = f"saved at {steps:,} steps in {self.run_dir}"
        elif saved is None:
            done = f"nothing could be saved in {self.run_dir}"
        else:
            done = f"not saved at {steps:,} steps, only at {saved:,} before, in {self.run_dir}"
        return f"{done}; once that is mended, the same command resumes"

    def _after_chunk(self, state: TrainState, metrics: Metrics, speed: float) -> None:
        p, every = self.progress, self.intervals
        self._idle = np.where(metrics.learned, 0, self._idle + metrics.updates)
        if self._pending is not None:
            metrics = jax.tree.map(np.add, self._pending, metrics)
        self._pending = metrics
        rows = self._rows(metrics)
        done = p.update * self.programs.steps_per_update
        self.console.progress(done, p.env_steps, speed, mean_row(rows))
        for row, idle in zip(rows, np.atleast_1d(self._idle), strict=True):
            row["charts/finite"] *= idle < MOST_IDLE
        lost = self._lost(rows)
        self._sound = not lost
        evaluate = every.due(every.eval, p.update) and not lost
        if evaluate:
            scores = self._evaluate(state)
            rows = [row | score for row, score in zip(rows, scores, strict=True)]
        if lost or evaluate or every.due(every.log, p.update):
            common = {"update": p.update, "seconds": p.train_seconds, "charts/SPS": speed}
            for row in rows:
                for sink in self.sinks:
                    sink.write(row | common)
                log.debug("%s", row | common)
            self._pending = None
        if lost:
            with processes.together():
                raise NotFiniteError(self._what_was_lost())
        (age,) = processes.maximum(time.perf_counter() - self._saved_at)
        late = age > self.config.checkpoint.max_seconds
        # While all agents skip their gradient steps, the last save is not replaced.
        if (every.due(every.save, p.update) or late) and not self._idle.all():
            self._save(state)

    def _lost(self, rows: list[Row]) -> bool:
        """True if the agent is not finite, so that nothing is left to train."""
        return not rows[0]["charts/finite"]

    def _what_was_lost(self) -> str:
        """The message for an agent that is no longer finite; nothing of it is saved."""
        saved, ppo = self.checkpoints.latest(), self.config.ppo
        kept = (
            f"the last finite save, at {saved:,} steps, is kept, from where the same command "
            "would break again"
            if saved
            else "nothing had been saved before"
        )
        limit = (
            f"or ppo.max_grad_norm (now {ppo.max_grad_norm:g})"
            if ppo.max_grad_norm
            else "and a ppo.max_grad_norm (now 0, which is no limit)"
        )
        return (
            f"after {self.progress.env_steps:,} steps the agent's parameters, outputs or gradients "
            f"are not finite: {kept}; try a smaller ppo.learning_rate (now {ppo.learning_rate:g}) "
            f"{limit}"
        )

    def _count(self, metrics: Metrics) -> int:
        """Adds the steps of a chunk to the counters; returns its environment steps in all."""
        steps = int(metrics.env_steps)
        self.progress.env_steps += steps
        return steps

    def _rows(self, metrics: Metrics) -> list[Row]:
        """Rows of metrics for the updates that `metrics` sums up."""
        row = metrics_row(metrics)
        rate = self._learning_rate(self.config.ppo.learning_rate, row)
        return [{"global_step": self.progress.env_steps, "charts/learning_rate": rate, **row}]

    def _learning_rate(self, rate: float, row: Row) -> float:
        """Scales `rate` by its schedule at the last update, and by the row's adapted factor."""
        ppo, stride = self.config.ppo, 1.0 / self.intervals.total
        progress = (self.progress.update - 1) * stride
        schedule, warmup = ppo.learning_rate_schedule, ppo.learning_rate_warmup
        scheduled = float(schedules.factor(schedule, progress, warmup, stride))
        return rate * scheduled * row.get(optimizers.RATE_FACTOR, 1.0)

    def _evaluate(self, state: TrainState) -> list[Row]:
        p = self.progress
        key = self.programs.eval_key(p.update)
        row = eval_row(*jax.device_get(self.programs.evaluate(state.agent, key)))
        score = row["eval/return_mean"]
        if beats(score, p.best_return):
            found = dataclasses.replace(p, best_return=score, best_env_steps=p.env_steps)
            self.checkpoints.save_best(state.agent, found)
            p.best_return, p.best_env_steps = score, p.env_steps
        return [row]

    def _save(self, state: TrainState) -> None:
        self.checkpoints.save(self._savable(state), self.progress, self.best)
        self._saved_at = time.perf_counter()

    def _savable(self, state: TrainState) -> TrainState:
        """The state to save: without the rollout if its simulator cannot be restored."""
        return state if self.restorable else state.replace(rollout=None)

    @property
    def finished(self) -> bool:
        """True if the last save is that of the run's end."""
        if self.checkpoints.latest() is None:
            return False
        return self.checkpoints.progress().update >= self.config.num_updates

    @property
    def restorable(self) -> bool:
        """True if resuming continues the environments, too, and not only the agent."""
        return self.programs.parts.env.spec.restorable

    def restore(self, template: TrainState) -> TrainState:
        """Continues from the last save; simulators on the host start afresh."""
        state, self.progress = self.checkpoints.restore(self._savable(template))
        return state if self.restorable else state.replace(rollout=template.rollout)

    def open_sinks(self) -> None:
        """Opens the sinks that rows are written to."""
        if not processes.is_main():
            return
        config, table = self.config.logging, self.run_dir / "metrics.csv"
        self.sinks.append(CsvSink(table, self.progress.update, self.columns))
        if config.tensorboard:
            self.sinks.append(self._tensorboard(self.run_dir / "tensorboard"))
        if config.wandb_project:
            self.sinks.append(self._wandb())

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of metrics.csv."""
        return (*COLUMNS, *self.programs.parts.figures)

    def _tensorboard(self, folder: Path) -> Sink:
        return TensorBoardSink(folder, self.progress.env_steps)

    def _wandb(self) -> Sink:
        settings = flatten(self.config)
        wandb = WandbSink(self.config.logging.wandb_project, self.run_dir, settings)
        return HeldBack(wandb, self.checkpoints.finished)

    def close(self) -> None:
        """Finishes saves, closes simulators and sinks, even if one of these fails, and draws."""
        with contextlib.ExitStack() as closing:  # in reverse order
            for sink in reversed(self.sinks):
                closing.callback(sink.close)
            closing.callback(self.programs.close)
            closing.callback(self.checkpoints.close)
        rows = read_csv(self.run_dir / "metrics.csv") if processes.is_main() else []
        if rows:
            self._draw(rows)

    def _draw(self, rows: list[Row]) -> None:
        title = f"{self.config.env.name}, seed {self.config.seed}"
        plot_curve(
            rows, self.run_dir / "learning_curve.png", title, evaluated=self.config.eval.policy
        )
