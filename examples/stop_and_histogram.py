"""A custom callback: it stops a run at a return, and logs histograms of the parameters.

It runs on the host between two chunks of training, and does not slow down the chunks. Its returned
numbers become columns of metrics.csv.

In Python, in this folder; a function, as in `callbacks=[print]`, gets a context for every row:

    from stop_and_histogram import StopAt
    from purejaxppo import train

    run = train("cartpole.yaml", callbacks=[StopAt(300.0)], total_timesteps=500_000)
    print(run.metrics["mine/largest_parameter"])

On the command line, where a class is called without arguments:

    purejaxppo train --config cartpole.yaml --callbacks stop_and_histogram.py:StopAt
    tensorboard --logdir runs
"""

import jax
import numpy as np

from purejaxppo import Callback, CallbackContext


class StopAt(Callback):
    """Stops the run when the mean return of an evaluation reaches `enough`."""

    def __init__(self, enough: float = 450.0):
        """Set the return to stop at."""
        self.enough = enough

    def on_evaluation(self, context: CallbackContext):
        """Run after each evaluation, with its numbers in `context.rows`, one row per agent."""
        returns = [row["eval/return_mean"] for row in context.rows]
        if min(returns) >= self.enough:
            context.stop(f"an evaluation reached {min(returns):.0f}")
        # Every array of the state has a leading axis of agents; TensorBoard shows the first.
        leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(context.state.agent.params))
        for path, leaf in leaves if context.tensorboard else ():
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            context.tensorboard.add_histogram(name, np.ravel(leaf[0]), context.env_steps)
        agents = range(len(context.members))
        largest = [float(max(abs(leaf[i]).max() for _, leaf in leaves)) for i in agents]
        return {"mine/largest_parameter": largest}
