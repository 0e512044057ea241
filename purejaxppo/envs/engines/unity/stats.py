"""Statistics that players record, as metrics of a run.

`callbacks: [purejaxppo.envs.engines.unity.stats:Stats]`; see docs/unity.md.
"""

from typing import Any

from purejaxppo.envs.engines.unity.adapter import UnityEnv
from purejaxppo.envs.engines.unity.channels import Statistic

MOST_RECENT, SUM = 1, 2


class Stats:
    """A callback that adds what the players of training have recorded since the last row.

    A name without a slash gets `unity/` in front. Averages and histograms are the mean of all
    values, sums the sum, and the most recent value the mean of the players' own.
    """

    def on_log(self, moment: Any) -> dict[str, float]:
        """The statistics by name, each since the last call."""
        by_name: dict[str, list[Statistic]] = {}
        for game in moment.env.games if isinstance(moment.env, UnityEnv) else []:
            recorded, game.stats = game.stats, {}
            for name, statistic in recorded.items():
                by_name.setdefault(name if "/" in name else f"unity/{name}", []).append(statistic)
        return {name: total(statistics) for name, statistics in by_name.items()}


def total(statistics: list[Statistic]) -> float:
    """One number of several players' statistics of one name."""
    if statistics[0].aggregation == SUM:
        return sum(statistic.total for statistic in statistics)
    if statistics[0].aggregation == MOST_RECENT:
        return sum(statistic.last for statistic in statistics) / len(statistics)
    return sum(statistic.total for statistic in statistics) / sum(
        statistic.count for statistic in statistics
    )
