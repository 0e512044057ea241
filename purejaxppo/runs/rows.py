"""Rows of metrics: dicts from the names of columns to numbers."""

import csv
import itertools
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from purejaxppo.runs.episodes import has_agent, num_cut, of_undiverged, success_rate
from purejaxppo.types import Metrics

log = logging.getLogger("purejaxppo")

COLUMNS = (
    "global_step",
    "update",
    "seconds",
    "charts/episodic_return",
    "charts/episodic_length",
    "charts/episodes",
    "charts/diverged",
    "charts/finite",
    "charts/SPS",
    "charts/learning_rate",
    "charts/lag",
    "losses/policy_loss",
    "losses/value_loss",
    "losses/entropy",
    "losses/approx_kl",
    "losses/clipfrac",
    "losses/explained_variance",
    "losses/grad_norm",
    "losses/epochs",
    "losses/skipped",
    "eval/return_mean",
    "eval/return_std",
    "eval/return_min",
    "eval/return_max",
    "eval/length_mean",
    "eval/diverged",
    "eval/cut",
)
SUCCESS = "eval/success_rate"
"""Column of tasks whose `EnvSpec` defines success."""


MEMBER_COLUMNS = ("member", "seed")
"""Columns that identify the agent of a row."""
IDENTIFIERS = {"global_step", "update"}
"""Columns of every row."""
DAMAGED_METRICS = "metrics.csv.damaged"
"""Copy of a metrics.csv with corrupt rows."""


COUNTS = ("epochs", "skipped")
"""Fields of `Losses` that are counts per update. The others are means over gradient steps."""
Row = dict[str, float]


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError if two metrics have the same name."""
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"two metrics are named {duplicates[0]}. Rename the custom metric: an auxiliary loss "
            f"in ppo.terms, or a name in metric_names of your intrinsic.kind or ppo.learner."
        )


def env_columns(metrics: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the columns of `EnvSpec.metrics`."""
    return tuple(f"{section}/{name}" for section in ("env", "eval") for name, _ in metrics)


def metrics_row(metrics: Metrics, declared: Sequence[tuple[str, str]] = ()) -> Row:
    """Compute means over updates and episodes from sums.

    Args:
        metrics: sums over updates, without an axis of agents.
        declared: `EnvSpec.metrics` of the environment.
    """
    updates = max(int(metrics.updates), 1)
    episodes = metrics.episodes
    row: Row = {
        "charts/episodes": int(episodes.count),
        "charts/diverged": int(episodes.diverged),
        "charts/finite": int(is_finite(metrics)),
    }
    if metrics.explained:
        row["losses/explained_variance"] = float(metrics.explained_variance) / int(
            metrics.explained
        )
    if episodes.count:
        row["charts/episodic_return"] = float(episodes.return_sum) / int(episodes.count)
        row["charts/episodic_length"] = int(episodes.length_sum) / int(episodes.count)
    if episodes.metrics is not None:
        sums = zip(declared, *episodes.metrics, strict=True)
        row |= {f"env/{name}": float(x) / int(n) for (name, _), x, n in sums if n}
    for name in metrics.losses._fields[:-1]:  # the last field is among the extras
        count = updates if name in COUNTS else int(metrics.trained)
        if count:
            row[f"losses/{name}"] = float(getattr(metrics.losses, name)) / count
    for name, value in metrics.extras.items():
        row[name] = float(value) / updates
    return row


def is_finite(metrics: Metrics) -> bool:
    """Return True if the agent's parameters, statistics and outputs were finite in all updates."""
    return int(metrics.finite) == int(metrics.updates)


def eval_row(
    returns: np.ndarray,
    lengths: np.ndarray,
    cut: np.ndarray | np.bool = np.False_,
    metrics: Mapping[str, np.ndarray] = MappingProxyType({}),
    *,
    success_above: float | None = None,
) -> Row:
    """Compute statistics of evaluation episodes.

    Args:
        returns: float [episodes]; NaN if the episode diverged, or the slot had no agent.
            Statistics are over the other episodes, or NaN if too many diverged; see
            `of_undiverged`.
        lengths: int [episodes].
        cut: bool [episodes]; see `Outcome`.
        metrics: float [episodes] each, by name; see `Outcome`. Without values, there is no column.
        success_above: see `EnvSpec`. An episode that diverged is not a success.
    """
    undiverged = of_undiverged(returns, returns, cut)
    success = {}
    if success_above is not None:
        success[SUCCESS] = success_rate(returns, cut, success_above)
    means = metric_means(returns, cut, metrics)
    return {**success, **{f"eval/{name}": mean for name, mean in means.items()}} | {
        "eval/diverged": int(np.isnan(returns[has_agent(returns, cut)]).sum()),
        "eval/cut": num_cut(returns, cut),
        "eval/return_mean": float(undiverged.mean()),
        "eval/return_std": float(undiverged.std()),
        "eval/return_min": float(undiverged.min()),
        "eval/return_max": float(undiverged.max()),
        "eval/length_mean": float(of_undiverged(lengths, returns, cut).mean()),
    }


def metric_means(
    returns: np.ndarray, cut: np.ndarray | np.bool, metrics: Mapping[str, np.ndarray]
) -> Row:
    """Return the mean of each metric over the episodes that did not diverge and have a value.

    The arguments are those of `eval_row`.
    """
    undiverged = {name: of_undiverged(x, returns, cut) for name, x in metrics.items()}
    return {name: float(np.nanmean(x)) for name, x in undiverged.items() if not np.isnan(x).all()}


def mean_row(rows: Sequence[Row]) -> Row:
    """Return the mean of each column over the rows that have it."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: float(np.mean([row[key] for row in rows if key in row])) for key in keys}


def csv_cells(row: Row) -> dict[str, str]:
    """Format the numbers of a row for metrics.csv."""
    return {key: _cell(float(value)) for key, value in row.items()}


def _cell(value: float) -> str:
    """Format whole numbers with all digits, and others with ten."""
    is_exact = value.is_integer() and abs(value) < 2**53
    return f"{value:.0f}" if is_exact else f"{value:.10g}"


def read_csv(path: Path, *, copied: bool = False) -> list[Row]:
    """Read the rows of a metrics.csv without empty cells; [] if the file is missing.

    Incomplete or corrupt rows, for example after a full disk, are skipped with a warning.

    Args:
        path: the file.
        copied: copy a file with corrupt rows, other than a last one that is cut off, to
            metrics.csv.damaged, .damaged2 and so on.
    """
    rows: list[Row] = []
    corrupt: list[int] = []
    lines: list[str] = []
    if path.is_file():
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
        lines = text.splitlines(keepends=True)
    names = next(csv.reader(lines[:1]), [])
    for number, line in enumerate(lines[1:], 2):
        try:
            rows.append(_row(names, line))
        except (ValueError, csv.Error):
            corrupt.append(number)
    if corrupt:
        count, rows_text = len(corrupt), "row" if len(corrupt) == 1 else "rows"
        problem = f"skipped {count} corrupt {rows_text}, the first on line {corrupt[0]}"
        if not set(names) >= IDENTIFIERS:
            problem = f"the header on line 1 is damaged, so {count} {rows_text} cannot be read"
        copy_note = ""
        if copied and (corrupt != [len(lines)] or lines[-1].endswith("\n")):
            copy = next(path for path in _copies(path) if not path.exists())
            shutil.copyfile(path, copy)
            copy_note = f". The old file is kept as {copy.name}"
        log.warning("%s: %s%s", path, problem, copy_note)
    return rows


def _copies(path: Path) -> Iterator[Path]:
    """Yield the paths for copies of a damaged metrics.csv."""
    yield path.with_name(DAMAGED_METRICS)
    yield from (path.with_name(f"{DAMAGED_METRICS}{number}") for number in itertools.count(2))


def _row(names: Sequence[str], line: str) -> Row:
    """Parse a line; raise ValueError or csv.Error unless it is a complete row of numbers."""
    if not line.endswith("\n"):
        raise ValueError("cut off")
    (cells,) = csv.reader([line])
    row = {name: float(cell) for name, cell in zip(names, cells, strict=True) if cell}
    if not row.keys() >= IDENTIFIERS:
        raise ValueError("incomplete")
    return row
