"""Elo ratings by maximum likelihood, as a table and a plot."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from purejaxppo.interrupts import atomic_write
from purejaxppo.runs.curves import figure_over_steps, save_figure

POINTS = 400 / math.log(10)
"""Elo points per unit of the log-odds of winning."""
CONFIDENT = 1.96
"""Half the width of a 95 % interval, in standard deviations."""


@dataclass(frozen=True)
class Ratings:
    """Elo ratings of P players. The first player's rating is 0."""

    elo: np.ndarray  # [P] points
    error: np.ndarray  # [P] standard error of the distance to the first player
    bounded: bool
    """False if the likelihood had no maximum and a draw was added to every pair."""


def ratings(score: np.ndarray) -> Ratings:
    """Compute Elo ratings by maximum likelihood in the Bradley-Terry model.

    P[i beats j] = σ(xᵢ - xⱼ), and the rating is xᵢ 400 / ln 10 points. A draw counts as half a game
    won and half a game lost. Standard errors are from the Fisher information. With draws they are
    too large.

    The likelihood has no maximum if some players have won all their games against all others. A
    draw is then added to every pair of players that met.

    Args:
        score: float [P, P], games that i won against j, draws as halves; 0 on the diagonal.

    Reference: Bradley & Terry 1952, https://doi.org/10.2307/2334029. Existence of the maximum: Ford
    1957, https://doi.org/10.2307/2308513.
    """
    from scipy.sparse.csgraph import connected_components

    games = score + score.T
    # The maximum exists if a chain of wins leads from each player to each other player.
    bounded = bool(connected_components(score > 0, connection="strong")[0] == 1)
    if not bounded:
        score, games = score + 0.5 * (games > 0), games + (games > 0)
    strength = np.zeros(len(score))
    for _ in range(100):
        expected = 1 / (1 + np.exp(strength[None] - strength[:, None]))
        gradient = (score - games * expected).sum(axis=1)
        weight = games * expected * (1 - expected)
        information = (np.diag(weight.sum(axis=1)) - weight)[1:, 1:]
        change = np.linalg.solve(information, gradient[1:])
        # Far from the maximum, a full Newton step may overshoot.
        strength[1:] += change / max(1.0, np.abs(change).max())
        if np.abs(change).max() < 1e-9:
            break
    error = np.sqrt(np.diag(np.linalg.inv(information)))
    return Ratings(POINTS * strength, POINTS * np.concatenate([[0.0], error]), bounded)


def table(names: Sequence[str], ratings: Ratings, score: np.ndarray) -> list[dict[str, str]]:
    """Return the rows of a table: player, rating with a 95 % interval, games, share won."""
    games = (score + score.T).sum(axis=1)
    half = CONFIDENT * ratings.error
    return [
        {
            "player": name,
            "elo": f"{ratings.elo[i]:.1f}",
            "low": f"{ratings.elo[i] - half[i]:.1f}",
            "high": f"{ratings.elo[i] + half[i]:.1f}",
            "games": f"{games[i]:.0f}",
            "score": f"{score[i].sum() / games[i]:.4f}",
        }
        for i, name in enumerate(names)
    ]


def aligned(rows: Sequence[dict[str, str]]) -> str:
    """Return a table as text, with columns aligned at the right."""
    lines = [list(rows[0]), *[list(row.values()) for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def write_csv(rows: Sequence[dict[str, str]], path: Path) -> None:
    """Write a table atomically."""
    with atomic_write(path) as partial, open(partial, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def plot(steps: Sequence[int], ratings: Ratings, path: Path, title: str) -> None:
    """Plot ratings over environment steps. The first player is a horizontal line at 0."""
    figure, axes = figure_over_steps(title, "Elo rating (points)")
    axes.errorbar(
        steps,
        ratings.elo[1:],
        yerr=CONFIDENT * ratings.error[1:],
        marker="o",
        capsize=3,
        label="checkpoints, with 95 % intervals",
    )
    axes.axhline(0.0, color="C7", ls="--", label="random player (0)")
    save_figure(figure, path)
