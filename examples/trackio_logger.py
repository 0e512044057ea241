"""A custom logger: it writes metrics and videos to a local Trackio dashboard.

Each agent (seed) becomes a Trackio run. Install it with `pip install trackio`.

In Python, in this folder:

    from trackio_logger import TrackioLogger
    from purejaxppo import train

    run = train("cartpole.yaml", loggers=TrackioLogger, total_timesteps=100_000)

On the command line:

    purejaxppo train --config cartpole.yaml --logging.loggers trackio_logger.py:TrackioLogger
    trackio show --project purejaxppo
"""

import trackio

from purejaxppo import Logger


class TrackioLogger(Logger):
    """Logs to the Trackio project "purejaxppo"."""

    def start(self, context):
        """Start the run, or continue it when training is resumed."""
        settings = {"name": context.name, "group": context.group or None}
        config = dict(context.config)
        self.run = trackio.init("purejaxppo", config=config, resume="allow", **settings)

    def metrics(self, row, step):
        """Log the metrics."""
        self.run.log(row, step=step)

    def video(self, path, step):
        """Log a video of the agent."""
        self.run.log({"eval/video": trackio.Video(path)}, step=step)

    def close(self):
        """Upload the last rows."""
        self.run.finish()
