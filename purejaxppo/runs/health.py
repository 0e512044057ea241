"""Detection of agents that cannot be trained further, and messages about them."""

import numpy as np

from purejaxppo.config.schema import Config
from purejaxppo.parallel import processes
from purejaxppo.runs.divergence import REMEDY, find_value
from purejaxppo.runs.episodes import MOST_DIVERGED
from purejaxppo.runs.rows import Row
from purejaxppo.runs.training import Hook, Training
from purejaxppo.spaces import LARGEST, short_number

MOST_IDLE = 5
"""Number of successive updates without a gradient step after which an agent has no score."""
MOST_UPDATES = 5
"""Number of successive updates with only diverging steps after which a run stops."""


class CheckAgents(Hook):
    """A hook that finds agents with values that are not finite, or with only diverging steps.

    Such agents get no scores from then on. If no other agents are left, the run is lost.
    """

    def __init__(self, config: Config, num_members: int) -> None:
        """Start all counts at 0."""
        self._most_diverging = min(MOST_UPDATES, config.num_updates)
        # Successive updates without a gradient step, and with only diverging steps.
        self._idle = np.zeros(num_members, int)
        self._diverging = np.zeros(num_members, int)
        self._failed: set[int] = set()

    def act(self, run: Training) -> None:
        """Set `charts/finite` in each row, and print the agents that get no more scores."""
        chunk = run.chunk
        assert chunk is not None
        self._idle = np.where(chunk.learned, 0, self._idle + chunk.updates)
        diverging = self._diverging + chunk.updates * (chunk.episodes.diverged > 0)
        self._diverging = np.where(chunk.env_steps > 0, 0, diverging)
        for row, idle, updates in zip(run.rows, self._idle, self._diverging, strict=True):
            row["charts/finite"] *= idle < MOST_IDLE and updates < self._most_diverging
        run.learns = not self._idle.all()
        failed = {i for i, row in enumerate(run.rows) if not row["charts/finite"]}
        run.lost = len(failed) == len(run.rows)
        if failed - self._failed and not run.lost:
            names = ", ".join(f"{i} (seed {run.members[i].seed})" for i in sorted(failed))
            run.console.warn(
                f"agents without a score after {run.progress.env_steps:,} steps: {names}. Their "
                f"parameters or outputs are not finite, or all their steps diverge."
            )
        self._failed = failed

    def reason(self, run: Training) -> str:
        """Return the message about a run with no agent left to train."""
        saved = run.checkpoints.latest()
        if any(count < self._most_diverging for count in self._diverging):
            return not_finite_message(run.config, run.progress.env_steps, saved)
        return all_diverged_message(diverged_value(run, 0), int(self._diverging.min()), saved)


class StopIfLost:
    """A hook that ends a run with no agent left to train, after it has written its last rows."""

    def __init__(self, check: CheckAgents) -> None:
        """Take the hook that finds such agents."""
        self._check = check

    def due(self, run: Training) -> bool:
        """Return True if no agent can be trained further; the hook then stops the run."""
        return run.lost

    def act(self, run: Training) -> None:
        """Raise NotFiniteError in all processes."""
        with processes.raise_together():
            raise NotFiniteError(self._check.reason(run))


class WarnOfDivergence:
    """A hook that warns of the first agent with too many diverged episodes, once per run."""

    def __init__(self) -> None:
        """Start without a warning."""
        self._warned = False

    def due(self, run: Training) -> bool:
        """Return True when rows are written, until the first warning."""
        return run.rows_due and not (run.lost or self._warned)

    def act(self, run: Training) -> None:
        """Print the warning."""
        for i, row in enumerate(run.rows):
            diverged = row["charts/diverged"]
            few = diverged <= MOST_DIVERGED * (row["charts/episodes"] + diverged)
            if few or not row["charts/finite"]:  # the agent's actions may be NaN
                continue
            name = f"agent {i} (seed {run.members[i].seed}): " if len(run.rows) > 1 else ""
            run.console.warn(name + warning(row, diverged_value(run, i)))
            self._warned = True
            return


def diverged_value(run: Training, member: int) -> str:
    """Describe a value that diverged in the environments of an agent; "" if unknown."""
    assert run.state is not None
    return find_value(run.programs.parts, run.programs.envs, run.state, member)


class NotFiniteError(ValueError):
    """No agent is left to train: values are not finite, or all steps diverge."""


def not_finite_message(config: Config, env_steps: int, saved: int | None) -> str:
    """Return the message about agents whose values are no longer finite.

    This state is not saved.

    Args:
        config: config of the run.
        env_steps: environment steps now.
        saved: environment steps of the last finite checkpoint; None without one.
    """
    ppo = config.ppo
    checkpoint = (
        f"The checkpoint at {saved:,} steps is finite, but the same command would fail again."
        if saved
        else "Nothing was saved."
    )
    limit = (
        f"or ppo.max_grad_norm (now {ppo.max_grad_norm:g})"
        if ppo.max_grad_norm
        else "and ppo.max_grad_norm > 0 (now 0: no limit)"
    )
    return (
        f"after {env_steps:,} steps the agent's parameters, outputs or gradients "
        f"are not finite. {checkpoint} Try a smaller ppo.learning_rate (now {ppo.learning_rate:g}) "
        f"{limit}."
    )


def warning(row: Row, value: str) -> str:
    """Return the warning about a row with too many diverged episodes.

    Args:
        row: metrics of one agent.
        value: a value that diverged; "" if unknown.
    """
    diverged = int(row["charts/diverged"])
    episodes = f"{diverged:,} of {diverged + int(row['charts/episodes']):,} episodes"
    return f"{episodes} diverged: {_reason(value)}. {REMEDY}"


def all_diverged_message(value: str, updates: int, saved: int | None) -> str:
    """Return the error message of a run in which all steps diverge.

    Args:
        value: a value that diverged; "" if unknown.
        updates: number of successive updates with only diverging steps.
        saved: environment steps of the last checkpoint; None without one.
    """
    checkpoint = f"The last checkpoint is at {saved:,} steps." if saved else "Nothing was saved."
    return f"all steps of {updates} updates diverged: {_reason(value)}. {checkpoint} {REMEDY}"


def _reason(value: str) -> str:
    beyond = f"values are NaN, infinite or beyond ±{short_number(LARGEST)}, or the simulator failed"
    return value or beyond
