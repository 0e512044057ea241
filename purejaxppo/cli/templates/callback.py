"""A callback of your own: ends a run once its evaluations are good enough."""

from purejaxppo import Callback


class Watch(Callback):
    """Called between two chunks of training: at the start, logs, evaluations, saves and the end."""

    enough = 450.0
    """The mean return of an evaluation that ends the run."""

    def on_evaluation(self, context):
        """Called after each evaluation, with its numbers in `context.rows`, one row for each agent.

        Returns:
            Columns to add to metrics.csv, whose names have a slash: a number for all agents, or a
            list with one for each.
        """
        returns = [row["eval/return_mean"] for row in context.rows]
        if min(returns) >= self.enough:
            context.stop(f"an evaluation reached {self.enough}")
        return {"mine/missing": [max(0.0, self.enough - value) for value in returns]}
