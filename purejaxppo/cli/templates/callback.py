"""A custom callback, which stops a run when its evaluations are good enough."""

from purejaxppo import Callback


class Watch(Callback):
    """Its methods on_start, on_log, on_evaluation, on_save and on_end are called during a run."""

    target = 450.0
    """The mean return at which the run stops."""

    def on_evaluation(self, context):
        """Handle an evaluation, whose metrics are in `context.rows`, one row per agent.

        Returns:
            Columns to add to metrics.csv, with a slash in each name. A value is one number for all
            agents, or a list with a number per agent.
        """
        returns = [row["eval/return_mean"] for row in context.rows]
        if min(returns) >= self.target:
            context.stop(f"an evaluation reached {self.target}")
        return {"mine/missing": [max(0.0, self.target - value) for value in returns]}
