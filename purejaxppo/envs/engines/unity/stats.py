"""Statistics that Unity games record, as metrics of a run.

`callbacks: [purejaxppo.envs.engines.unity.stats:Stats]`; see docs/unity.md.
"""

from typing import Any

from purejaxppo.envs.engines.unity.adapter import UnityEnv
from purejaxppo.envs.engines.unity.channels import Statistic

MOST_RECENT, SUM = 1, 2


class Stats:
    """A callback that logs the statistics that training's games recorded since the last row.

    A name without a slash gets the prefix `unity/`. Averages and histograms become the mean of all
    values, sums the total, and most recent values the mean over games.
    """

    def on_log(self, moment: Any) -> dict[str, float]:
        """Return the statistics by name, each since the last call."""
        by_name: dict[str, list[Statistic]] = {}
        for game in moment.env.games if isinstance(moment.env, UnityEnv) else []:
            recorded, game.stats = game.stats, {}
            for name, statistic in recorded.items():
                by_name.setdefault(name if "/" in name else f"unity/{name}", []).append(statistic)
        return {name: total(statistics) for name, statistics in by_name.items()}


def total(statistics: list[Statistic]) -> float:
    """Combine several games' statistics of one name into one number."""
    if statistics[0].aggregation == SUM:
        return sum(statistic.total for statistic in statistics)
    if statistics[0].aggregation == MOST_RECENT:
        return sum(statistic.last for statistic in statistics) / len(statistics)
    return sum(statistic.total for statistic in statistics) / sum(
        statistic.count for statistic in statistics
    )
