"""The Python interface to runs: train, load, read metrics and agents, plot, write videos."""

import base64
import contextlib
import html
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from purejaxppo.config.files import flatten, load_config, with_env_change
from purejaxppo.config.hints import did_you_mean, format_number, python_names, short_path
from purejaxppo.config.installation import install
from purejaxppo.config.plain import seed_of, user_path, whole
from purejaxppo.config.references import CodeRef
from purejaxppo.config.run_files import load_members
from purejaxppo.config.schema import Config, is_list
from purejaxppo.learner import Parts
from purejaxppo.parallel.settings import check_settings
from purejaxppo.parallel.shards import use_compilation_cache, use_cpu_cores
from purejaxppo.parts import with_env
from purejaxppo.runs import session
from purejaxppo.runs.agent import Agent, HasBest, agent_of
from purejaxppo.runs.checkpoint import last_progress, restore
from purejaxppo.runs.console import Stopped, print_warnings
from purejaxppo.runs.curves import (
    RETURN,
    are_seeds,
    draw_agents,
    draw_returns,
    figure_over_steps,
    has_returns,
    metric_curves,
    png,
    title_of,
    with_legends,
)
from purejaxppo.runs.folder import CONFIG, MEMBERS, check_is_run, steps_of
from purejaxppo.runs.recording import draw
from purejaxppo.runs.rows import Row, read_csv
from purejaxppo.video.video import check_target

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RunMetrics(dict[str, np.ndarray]):
    """Columns of metrics.csv by name, float64 [rows] each; NaN for empty cells.

    With several agents, the columns `member` and `seed` identify the agent of a row.
    """

    def __repr__(self) -> str:
        """Return the number of rows, and the names of the columns."""
        rows = len(next(iter(self.values()), ()))
        return f"<{rows} rows of {len(self)} metrics: {', '.join(self)}>"

    def __missing__(self, name: str) -> np.ndarray:
        """Raise KeyError with the most similar name."""
        raise KeyError(f"{name}: unknown metric. {did_you_mean(name, self)}")

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame.

        Raises:
            ValueError: pandas is not installed.
        """
        return data_frame(self)


def data_frame(columns: Mapping[str, Any]) -> Any:
    """Return columns as a pandas.DataFrame.

    Raises:
        ValueError: pandas is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ValueError(f"pandas is not installed. Run: {install('pandas')}") from error
    return pandas.DataFrame(dict(columns))


class Run:
    """A run folder, as `train` and `purejaxppo train` write it. Notebooks show its curve and score.

    Args:
        run_dir: the folder.
        overrides: objects that config.yaml cannot restore, by dotted field.

    Raises:
        ValueError: the folder is not a run folder.
    """

    def __init__(self, run_dir: str | Path, overrides: Mapping[str, Any] | None = None) -> None:
        """Read the config."""
        self.run_dir = user_path(run_dir, "run_dir").absolute()
        self._overrides = dict(overrides or {})
        check_is_run(self.run_dir)
        self.config = load_config(self.run_dir / CONFIG, self._overrides, saved=True)

    def __repr__(self) -> str:
        """Return the class and the folder."""
        return f"Run({str(self.run_dir)!r})"

    @cached_property
    def members(self) -> tuple[Config, ...]:
        """Config of each agent."""
        return tuple(load_members(self.run_dir / MEMBERS, self.config)) or (self.config,)

    @property
    def metrics(self) -> RunMetrics:
        """Columns of metrics.csv by name, float64 [rows] each; NaN for empty cells.

        It is a dict with `to_pandas()`. With several agents, the columns `member` and `seed`
        identify the agent of a row.
        """
        rows = self._rows()
        names = dict.fromkeys(name for row in rows for name in row)
        return RunMetrics(
            {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}
        )

    @property
    def score(self) -> float:
        """Return of the best evaluation; with several agents, the mean over agents.

        NaN if no agent has been evaluated.
        """
        best = last_progress(self.run_dir).best_return
        return math.nan if best is None else best

    @property
    def checkpoints(self) -> list[int]:
        """Environment steps of the checkpoints, for `agent`."""
        return steps_of(self.run_dir)

    @property
    def best(self) -> Agent:
        """Agent with the best evaluation so far. With several agents: the best of each."""
        return self.agent("best")

    @property
    def last(self) -> Agent:
        """Agent of the last checkpoint."""
        return self.agent("last")

    def agent(self, checkpoint: str | int) -> Agent:
        """Restore the agent of a checkpoint: "best", "last" or its steps; see `restore`."""
        return restore(self.run_dir, checkpoint, overrides=self._overrides)

    def plot(self, metric: str = "", *, axes: Any = None, label: str = "") -> "Figure":
        """Plot the learning curve, or a metric, over environment steps.

        With several agents, the plot shows each agent, the mean and its 95 % confidence band.

            run.plot().savefig("curve.png")
            run.plot("losses/entropy")

        Args:
            metric: a column of metrics.csv. Empty: training and evaluation returns.
            axes: matplotlib axes to draw on. None: a new figure.
            label: label of the metric's curve. Empty: its name.

        Returns:
            The figure, which notebooks display.

        Raises:
            ValueError: the metric is unknown.
        """
        rows, seeds = self._rows(), are_seeds(self.members)
        if axes is None:
            title = title_of(self.config, self.members)
            _, axes = figure_over_steps(title, metric or RETURN)
        if metric:
            steps, values = metric_curves(rows, metric)
            draw_agents(axes, steps, values, color=None, label=label or metric, band=seeds)
        else:
            draw_returns(axes, rows, evaluated=self.config.eval.policy, band=seeds)
        figure: Figure = with_legends(axes.figure)
        return figure

    def elo(self, games: int = 100, *, member: int = -1, seed: int = 0) -> str:
        """Rate all checkpoints of a two-player game of pgx/ against each other.

        Writes elo.csv and elo.png to the run folder.

        Args:
            games: number of games of each pair of players, even.
            member: index of the agent to rate, in a run of several agents.
            seed: seed of games and moves.

        Returns:
            A table, as a string.

        Raises:
            ValueError: the task is not a two-player game, or no checkpoint exists.
        """
        from purejaxppo.runs.tournament import rate

        if (count := whole(games)) is None or count < 2 or count % 2:
            raise ValueError(
                f"games = {games!r}: must be even and at least 2, because each player begins half "
                f"of the games."
            )
        with python_messages():
            return rate(self.run_dir, games=count, member=member, seed=seed_of(seed))

    def _rows(self) -> list[Row]:
        return read_csv(self.run_dir / "metrics.csv")

    def _repr_html_(self) -> str:
        """Return score and learning curve for notebooks."""
        text = f"<b>{html.escape(str(short_path(self.run_dir)))}</b>: "
        text += html.escape(title_of(self.config, self.members))
        if not math.isnan(self.score):
            text += f", best evaluation {format_number(self.score)}"
        if not has_returns(self._rows()):
            return f"<p>{text}, no episode has ended</p>"
        picture = base64.b64encode(png(self.plot())).decode()
        return f'<p>{text}</p><img width="560" src="data:image/png;base64,{picture}">'


def train(
    config: str | Path | Config | None = None,
    *,
    env: Any = None,
    num_envs: int | None = None,
    run_dir: str | Path = "",
    callbacks: Any = (),
    loggers: Any = (),
    parts: Callable[[Parts], Parts] | None = None,
    init: Agent | HasBest | None = None,
    clobber: bool = False,
    quiet: bool = False,
    **changes: Any,
) -> Run:
    """Train like `purejaxppo train`, in a run folder. An existing run is resumed.

        run = train("cartpole.yaml", total_timesteps=100_000, ppo={"gamma": 0.98})
        run.metrics["eval/return_mean"], run.best.act(obs)

    Ctrl-C saves a checkpoint and raises KeyboardInterrupt. If you have not used JAX before, every
    CPU core becomes a JAX device.

    Args:
        config: a `Config`, a YAML file, the name of a config that comes with the library, or
            playground/TASK for the settings that Playground tuned. None: the defaults.
        env: an environment instead of the config's: a name such as gymnasium/CartPole-v1, a
            `Task`, an environment of Gymnasium, PettingZoo (parallel), gymnax, Brax or Playground,
            its class, or a function that makes one. The config's env.options are then not used. A
            mapping changes settings of the section env: env={"num_envs": 64}.
        num_envs: number of copies of the environment, which step in parallel. None: the config's
            env.num_envs.
        run_dir: the run folder. Empty: the config's, or else the default of the command.
        callbacks: one or a list, in addition to the config's: functions of a `CallbackContext`,
            `Callback` objects, or classes.
        loggers: one or a list, in addition to the config's: classes derived from `Logger`, of which
            each agent gets an object, or objects, which log the mean of the agents.
        parts: a function from the parts that the config selects to the parts to train with.
        init: agent that a new run starts from, or a run for its best agent, instead of a run
            folder (`init_from`). `init_parts` selects its parts.
        clobber: delete an earlier run in this folder and start from scratch.
        quiet: print nothing.
        changes: other values of config fields: total_timesteps=1_000_000, ppo={"gamma": 0.98}. A
            section changes only the fields that it names. Dotted names work too:
            **{"ppo.gamma": 0.98}.

    Returns:
        The finished run.

    Raises:
        ValueError, OSError, SimulatorError, Stopped: one sentence about the problem.
        KeyboardInterrupt: you pressed Ctrl-C. A checkpoint is saved first, and the same call
            resumes.
    """
    print_warnings()
    name = "" if isinstance(config, Config) else str(config or "")
    if num_envs is not None:
        changes["env.num_envs"] = num_envs
    with python_messages():
        full = config_of(config, env, changes)
        added = {"callbacks": (full.callbacks, callbacks)}
        added["logging.loggers"] = (full.logging.loggers, loggers)
        for field, (values, more) in added.items():
            if more := more if is_list(more) else [more]:
                full = full.replace(**{field: (*values, *more)})
        chosen = run_dir or full.run_dir or f"runs/{session.run_name(name, full)}"
        folder = user_path(chosen, "run_dir").absolute()
        start = None if init is None else agent_of(init)
        code = session.train(full, folder, clobber=clobber, quiet=quiet, change=parts, init=start)
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if code:
        raise SystemExit(code)
    return Run(folder, object_fields(full))


def config_of(config: str | Path | Config | None, env: Any, changes: Mapping[str, Any]) -> Config:
    """Return the config of `train` or `sweep` from their arguments."""
    if not isinstance(config, Config):
        config = load_config(config) if config else Config()
    return with_env(config, env, changes)


@contextlib.contextmanager
def python_messages() -> Iterator[None]:
    """Name arguments of functions instead of flags in errors of the block."""
    try:
        yield
    except (ValueError, Stopped) as error:
        message = python_names(str(error))
        if message != str(error):
            error.args = (message,)
        raise


def load(run_dir: str | Path, env: Any = None, **overrides: Any) -> Run:
    """Open a run folder.

    Args:
        run_dir: run folder that `train` or `purejaxppo train` wrote.
        env: the environment, if it was passed as an object that config.yaml cannot restore.
        overrides: other such objects, as network={"torso": Net}.

    Raises:
        ValueError: the folder is not a run folder, or its config cannot be restored.
    """
    print_warnings()
    check_settings()
    use_compilation_cache()
    use_cpu_cores(0)
    return Run(run_dir, with_env_change(overrides, env))


def video(
    agent: Agent | HasBest,
    path: str | Path,
    *,
    seed: int = 0,
    deterministic: bool | None = None,
    env: Any = None,
    **changes: Any,
) -> Path:
    """Write a video of one episode.

        ppo.video(run, "hopper.mp4")

    Args:
        agent: one agent, or a run for its best agent.
        path: path of the file, .mp4, .gif or .html.
        seed: seed of the episode.
        deterministic: True for the distribution's mode, False for samples, None for the setting of
            the run's evaluations.
        env: another environment, or other settings of the section env, as for `Agent.with_env`.
        changes: such settings by dotted name.

    Returns:
        The path.

    Raises:
        ValueError: the file cannot be written, or these are several agents.
    """
    one, path = agent_of(agent), user_path(path)
    check_target(path)
    one.check_single("video", "this run", "agent.member(i)")
    one = one.with_env(env, **changes)
    draw(one, path, seed=seed_of(seed), deterministic=deterministic)
    return path


def object_fields(config: Config) -> dict[str, Any]:
    """Return the config fields with objects, which a file cannot restore, by dotted name."""
    return {
        name: value
        for name, value in flatten(config).items()
        if any(
            isinstance(item, CodeRef) and item.object is not None
            for item in (value if isinstance(value, tuple) else (value,))
        )
    }
