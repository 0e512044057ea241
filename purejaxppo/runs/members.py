"""Many agents that train side by side in one program: seeds, hyperparameters, or both.

Every array of a run's state gains a leading axis of members, every tunable number becomes one per
member, and `Shards` spreads members over devices. Structural settings are the same for all.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.files import flatten
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.runs.console import Console
from purejaxppo.runs.curves import plot_members
from purejaxppo.runs.loop import Run, beats
from purejaxppo.runs.programs import Programs, evaluation_key
from purejaxppo.runs.rows import MEMBER_COLUMNS, Row, eval_row, metrics_row
from purejaxppo.runs.sinks import MeanOfMembers, PerMember, Sink, TensorBoardSink
from purejaxppo.types import Metrics, TrainState

MOST_WRITERS = 64
"""Largest number of members that get TensorBoard runs of their own."""


def seeds_of(config: Config) -> list[Config]:
    """The members of a run of `config.num_seeds` seeds: `seed`, `seed` + 1 and so on."""
    return [
        dataclasses.replace(config, seed=config.seed + i, num_seeds=1)
        for i in range(config.num_seeds)
    ]


def check_vmappable(config: Config) -> None:
    """Raises ValueError for settings that only an agent that trains alone supports."""
    for name in ("asynchronous", "env.double_buffer"):
        if flatten(config)[name]:
            raise ValueError(
                f"{name} is for an agent that trains alone, and not for many in one program: "
                f"switch it off, or train seeds in runs of their own"
            )


class MemberPrograms(Programs):
    """The compiled functions of agents that train side by side.

    Raises:
        ValueError: the run is one that cannot be vmapped.

    Args:
        config: of the run, with `num_shards` resolved.
        devices: to run on.
        members: each agent's own config; they differ in seeds and tunable numbers alone.
    """

    def __init__(
        self, config: Config, devices: list[jax.Device], members: Sequence[Config]
    ) -> None:
        """Builds the parts; nothing is compiled yet."""
        check_vmappable(config)
        if registry.on_host(config.env):
            devices = devices[:1]  # one pool, which one program steps for all
        super().__init__(config, devices, len(members))
        self.members = list(members)
        seeds = [member.seed for member in members]
        self.key = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
        self.hp = stack([make_hyperparams(m) for m in members])
        self.keep_better = jax.jit(keep_better, out_shardings=self.shards.shardings(None))

    def eval_key(self, update: int):
        """Each member's key of the evaluation after `update` updates, as if it trained alone."""
        return jax.vmap(lambda key: evaluation_key(key, update))(self.key)


class MembersRun(Run):
    """A run of many agents in its folder, with one row of metrics per agent."""

    programs: MemberPrograms

    def __init__(self, programs: MemberPrograms, run_dir: Path, console: Console) -> None:
        """Opens the folder's saves."""
        super().__init__(programs, run_dir, console)
        self.members = programs.members
        self._gone: set[int] = set()
        size = len(self.members)
        self.progress.member_steps = [0] * size
        self.progress.member_best = [None] * size
        self.progress.member_best_steps = [0] * size

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of metrics.csv."""
        return (*MEMBER_COLUMNS, *super().columns)

    def _count(self, metrics: Metrics) -> int:
        p, steps = self.progress, np.asarray(metrics.env_steps)
        p.member_steps = [old + int(new) for old, new in zip(p.member_steps, steps, strict=True)]
        p.env_steps = sum(p.member_steps) // len(p.member_steps)
        return int(steps.sum())

    def _rows(self, metrics: Metrics) -> list[Row]:
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
                "charts/learning_rate": self._learning_rate(rates[i], row),
                **row,
            }
            for i, (member, row) in enumerate(zip(self.members, each, strict=True))
        ]

    def _rates(self) -> list[float]:
        """Each member's learning rate before schedules."""
        return [member.ppo.learning_rate for member in self.members]

    def _evaluate(self, state: TrainState) -> list[Row]:
        p = self.progress
        returns, lengths = jax.device_get(
            self.programs.evaluate(state.agent, self.programs.eval_key(p.update))
        )
        rows = [eval_row(*pair) for pair in zip(returns, lengths, strict=True)]
        scores = [row["eval/return_mean"] for row in rows]
        better = [beats(score, best) for score, best in zip(scores, p.member_best, strict=True)]
        for i in np.flatnonzero(better):
            p.member_best[i], p.member_best_steps[i] = scores[i], p.member_steps[i]
        best_so_far = state.agent if self.best is None else self.best
        self.best = self.programs.keep_better(np.asarray(better), best_so_far, state.agent)
        best = [score for score in p.member_best if score is not None]
        if best:
            p.best_return, p.best_env_steps = float(np.mean(best)), p.env_steps
        return rows

    def _lost(self, rows: list[Row]) -> bool:
        """True if no agent is left to train; reports agents that are no longer finite."""
        gone = {i for i, row in enumerate(rows) if not row["charts/finite"]}
        if gone - self._gone and len(gone) < len(rows):
            names = ", ".join(f"{i} (seed {self.members[i].seed})" for i in sorted(gone))
            steps = f"{self.progress.env_steps:,} steps"
            self.console.say(
                f"after {steps} not finite any more, and without a score: agent {names}"
            )
        self._gone = gone
        return len(gone) == len(rows)

    def restore(self, template: TrainState) -> TrainState:
        """Continues from the last save; simulators on the host start afresh."""
        state = super().restore(template)
        if self.progress.best_return is not None:
            self.best = self.checkpoints.restore_best(template.agent)
        return state

    def _wandb(self) -> Sink:
        return MeanOfMembers(super()._wandb(), len(self.members))

    def _tensorboard(self, folder: Path) -> Sink:
        """A TensorBoard run per member; of many members the mean alone: each run opens a file."""
        size = len(self.members)
        if size > MOST_WRITERS:
            mean = TensorBoardSink(folder / "mean", self.progress.env_steps)
            return MeanOfMembers(mean, size)
        names = [f"member_{i}_seed_{member.seed}" for i, member in enumerate(self.members)]
        return PerMember(
            [
                TensorBoardSink(folder / name, steps)
                for name, steps in zip(names, self.progress.member_steps, strict=True)
            ]
        )

    def _draw(self, rows: list[Row]) -> None:
        alike = len({member.ppo for member in self.members}) == 1
        what = f"seeds from {self.config.seed}" if alike else "agents of several settings"
        title = f"{self.config.env.name}, {len(self.members)} {what}"
        path, evaluated = self.run_dir / "learning_curve.png", self.config.eval.policy
        plot_members(rows, path, title, evaluated=evaluated, band=alike)


def keep_better(better, best: Any, new: Any) -> Any:
    """Selects `new` where `better` (bool [M]), else `best`; trees of arrays [M, ...]."""

    def choose(old, new):
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, best, new)


def stack(trees: Sequence[Any]) -> Any:
    """Stacks trees of arrays into one tree with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
