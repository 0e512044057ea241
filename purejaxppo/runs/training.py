"""The state of a run in progress, which its loop, hooks and failure handling share."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from purejaxppo.agents import optimizers, schedules
from purejaxppo.config.files import load_config
from purejaxppo.config.schema import Config
from purejaxppo.parallel import processes
from purejaxppo.runs.callbacks import Callback, CallbackContext, call, make_callbacks
from purejaxppo.runs.checkpoint import Checkpoints
from purejaxppo.runs.console import Console
from purejaxppo.runs.curves import draw_curve
from purejaxppo.runs.folder import CONFIG
from purejaxppo.runs.intervals import Intervals
from purejaxppo.runs.loggers import AgentLoggers, Loggers, custom_loggers
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.progress import Progress
from purejaxppo.runs.resume import eval_settings
from purejaxppo.runs.rows import Row, metrics_row
from purejaxppo.types import Hyperparams, LearnedState, Metrics, TrainState


@dataclass
class Training:
    """A run in progress. Lists and arrays [M] have one entry per agent."""

    programs: Programs
    run_dir: Path
    console: Console
    checkpoints: Checkpoints
    intervals: Intervals
    progress: Progress
    callbacks: list[Callback] = field(default_factory=list)
    custom_loggers: list[AgentLoggers] = field(default_factory=list)
    """Custom loggers before they are opened; see `loggers.custom_loggers`."""
    loggers: Loggers = field(default_factory=Loggers)
    state: TrainState | None = None
    """State after the last chunk; None before training starts."""
    best: LearnedState | None = None
    """Best agent of each seed so far; None before the first evaluation."""
    warm: bool = False
    """True if the run starts now, from a trained agent."""
    before: int = 0
    """`intervals.done` before the last chunk."""
    chunk: Metrics | None = None
    """Metrics of the last chunk, sums [M]."""
    metrics: Metrics | None = None
    """Metrics since the last written rows, sums [M]; None before the first update after them."""
    rows: list[Row] = field(default_factory=list)
    """Means of `metrics`, to which hooks add columns."""
    total_updates: Sequence[float] = ()
    """Number of updates of the whole run [M], for schedules."""
    speed: float = 0.0
    """Environment steps of all agents per second in the last chunk."""
    evaluated: bool = False
    """True if `rows` contain an evaluation."""
    learns: bool = True
    """False while all agents skip their gradient steps."""
    lost: bool = False
    """True if no agent is left to train. The state is then not saved."""
    in_hooks: bool = False
    """True while hooks act."""
    no_curve: str = ""
    """Reason why the learning curve was not drawn; "" otherwise."""
    signal: int = 0
    """Number of the signal that ended the run; 0 otherwise."""

    @property
    def config(self) -> Config:
        """Config of the run."""
        return self.programs.setup.config

    @property
    def members(self) -> tuple[Config, ...]:
        """Config of each agent."""
        return self.programs.setup.members

    @property
    def finished(self) -> bool:
        """Whether the last checkpoint is from the end of the run, and its hooks did not fail."""
        if self.checkpoints.latest() is None:
            return False
        saved = self.checkpoints.progress()
        return self.intervals.ended(saved) and saved.before_failure is None

    @property
    def was_stopped(self) -> bool:
        """Whether a callback ended the run at its last checkpoint."""
        return self.checkpoints.latest() is not None and bool(self.checkpoints.progress().stopped)

    @property
    def rows_due(self) -> bool:
        """Whether rows are written after this chunk."""
        every = self.intervals
        logged = every.due(every.log, self.progress, self.before)
        return self.lost or self.evaluated or logged

    def hyperparams(self) -> Hyperparams:
        """Return the tunable numbers of the next chunk.

        Schedules depend on update / total_updates. If agents may be absent, total_updates is
        chosen such that this ratio is decisions / total_timesteps.
        """
        p, hp = self.progress, self.programs.hp
        if not (self.intervals.sparse and p.update):
            return hp
        totals = [p.update * self.intervals.total / max(n, 1) for n in p.member_steps]
        self.total_updates = totals
        on_host: Any = np.asarray(totals, np.float32)
        return hp._replace(total_updates=on_host)

    def learning_rate(self, rate: float, row: Row, member: int) -> float:
        """Scale `rate` by the schedule at the last update and the row's adaptive factor."""
        ppo, stride = self.config.ppo, 1.0 / self.total_updates[member]
        progress = (self.progress.update - 1) * stride
        schedule, warmup = ppo.learning_rate_schedule, ppo.learning_rate_warmup
        scheduled = float(schedules.factor(schedule, progress, warmup, stride))
        return rate * scheduled * row.get(optimizers.RATE_FACTOR, 1.0)

    def add(self, metrics: Metrics) -> None:
        """Add a chunk's metrics [M] to those since the last rows, and make rows of the means."""
        self.chunk, wider = metrics, jax.tree.map(widen, metrics)
        pending = self.metrics or self.progress.restored_metrics(wider)
        self.progress.unlogged = {}
        if pending is not None:
            wider = jax.tree.map(np.add, pending, wider)
        self.metrics, self.evaluated = wider, False
        self.rows = [self._row(wider, i) for i in range(len(self.members))]

    def _row(self, metrics: Metrics, i: int) -> Row:
        """Return the row of one agent."""
        row = metrics_row(jax.tree.map(lambda x: x[i], metrics), self.programs.spec.metrics)
        member = self.members[i]
        return {
            "member": i,
            "seed": member.seed,
            "global_step": self.progress.member_steps[i],
            "charts/learning_rate": self.learning_rate(member.ppo.learning_rate, row, i),
            **row,
        }

    def call(self, event: str, rows: Sequence[Row] = ()) -> list[Row]:
        """Call custom callbacks in process 0, and return the metrics that they add."""
        added: list[Row] = [{} for _ in self.members]
        if not self.callbacks:
            return added
        assert self.state is not None
        context = CallbackContext(
            self.config,
            self.run_dir,
            self.progress.update,
            self.progress.env_steps,
            self.state,
            self.members,
            rows,
            self.loggers.tensorboard,
            self.programs.parts.env,
            tuple(self.progress.member_steps),
        )
        if processes.is_main():
            added = call(self.callbacks, event, context)
        (stop,) = processes.maximum(float(bool(context.reason)))
        if stop:
            self.progress.stopped = context.reason or "see the output of process 0"
        return added

    def save(self, *, replace: bool = False) -> bool:
        """Start a checkpoint; return False if one of these steps exists and is not replaced."""
        assert self.state is not None
        best = None if self.progress.best_return is None else self.best
        self.intervals.begin(self.intervals.done(self.progress))
        progress = self.progress
        progress.env_metrics = self._env_metrics
        if self.metrics is not None:
            progress = progress.with_unlogged(self.metrics)
        return self.checkpoints.save(self._savable(self.state), progress, best, replace=replace)

    def restore(self, template: TrainState) -> TrainState:
        """Return the state of the last checkpoint. Host simulators start from scratch.

        Args:
            template: the state before the first update.
        """
        state, self.best, self.progress = self.checkpoints.restore(self._savable(template))
        if self.progress.env_metrics not in (None, self._env_metrics):
            self.progress.unlogged = {}
            if state.rollout is not None:
                fresh = template.rollout.episode_metrics
                unknown = fresh and fresh.replace(total=fresh.total + np.nan)
                state = state.replace(rollout=state.rollout.replace(episode_metrics=unknown))
        if self.best is not None and not self.progress.eval_settings:  # saved by version 0.2
            saved = load_config(self.run_dir / CONFIG, saved=True)
            self.progress.eval_settings = eval_settings(saved)
        if self.programs.spec.restorable:
            return state
        return state.replace(rollout=template.rollout)

    @property
    def _env_metrics(self) -> list[list[str]]:
        return [list(metric) for metric in self.programs.spec.metrics]

    def _savable(self, state: TrainState) -> TrainState:
        """Return the state to save, without the rollout if the simulator cannot be restored."""
        return state if self.programs.spec.restorable else state.replace(rollout=None)

    def close(self) -> None:
        """Finish checkpoints, close simulators and loggers, and plot the learning curve.

        Each is closed even if another one fails.
        """
        with contextlib.ExitStack() as closing:  # in reverse order
            closing.callback(self.loggers.close)
            closing.callback(self.programs.close)
            closing.callback(self.checkpoints.close)
        if processes.is_main():
            self.no_curve = draw_curve(self.config, self.members, self.run_dir)


class Hook(Protocol):
    """An action of a run between two chunks of training."""

    def due(self, run: Training) -> bool:
        """Return True to call `act` after this chunk; by default, after every chunk."""
        return True

    def act(self, run: Training) -> None:
        """Act on the run: add to its rows, write, save or stop it."""
        ...


def open_training(programs: Programs, run_dir: Path, console: Console) -> Training:
    """Open the checkpoints of a run, and make its callbacks and custom loggers.

    Raises:
        ValueError: a callback or logger cannot be made, or all checkpoints are corrupt.
    """
    setup = programs.setup
    return Training(
        programs,
        run_dir,
        console,
        Checkpoints(run_dir, setup.config.checkpoint.keep),
        Intervals(setup.config, sparse=programs.spec.absent),
        Progress.of(len(setup.members)),
        make_callbacks(setup.config),
        custom_loggers(setup.config, len(setup.members)),
        total_updates=[float(setup.config.num_updates)] * len(setup.members),
    )


def widen(x: np.ndarray) -> np.ndarray:
    """Convert counts to int64, because the counts of a row may exceed 2^31."""
    return x.astype(np.int64) if np.issubdtype(x.dtype, np.integer) else x
