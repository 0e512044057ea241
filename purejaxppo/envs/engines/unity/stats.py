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
        found: dict[str, list[Statistic]] = {}
        for player in moment.env.players if isinstance(moment.env, UnityEnv) else []:
            recorded, player.stats = player.stats, {}
            for name, one in recorded.items():
                found.setdefault(name if "/" in name else f"unity/{name}", []).append(one)
        return {name: total(each) for name, each in found.items()}


def total(each: list[Statistic]) -> float:
    """One number of several players' statistics of one name."""
    if each[0].aggregation == SUM:
        return sum(one.total for one in each)
    if each[0].aggregation == MOST_RECENT:
        return sum(one.last for one in each) / len(each)
    return sum(one.total for one in each) / sum(one.count for one in each)
