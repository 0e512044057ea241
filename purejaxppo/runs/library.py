"""The Python interface to runs: train one, load one, and read what it has."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from purejaxppo.config import references
from purejaxppo.config.files import flatten, load_config
from purejaxppo.config.references import CodeRef
from purejaxppo.config.schema import Config, is_list
from purejaxppo.learner import Parts
from purejaxppo.parallel.settings import check_settings
from purejaxppo.parallel.shards import use_compilation_cache, use_cpu_cores
from purejaxppo.parts import with_env
from purejaxppo.runs import session
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.checkpoint import restore
from purejaxppo.runs.folder import CONFIG, check_is_run
from purejaxppo.runs.rows import read_csv


class Run:
    """A run's folder, as `train` and the command write it.

    Args:
        run_dir: the folder.
        overrides: objects that the run's config cannot restore, by dotted field.

    Raises:
        ValueError: it is no run's folder.
    """

    def __init__(self, run_dir: str | Path, overrides: dict[str, Any] | None = None) -> None:
        """Reads the config."""
        self.run_dir = Path(run_dir).absolute()
        self._overrides = overrides or {}
        check_is_run(self.run_dir)
        self.config = load_config(self.run_dir / CONFIG, self._overrides, saved=True)

    def __repr__(self) -> str:
        """Its folder."""
        return f"Run({str(self.run_dir)!r})"

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """The columns of metrics.csv by name, float64 [rows] each; NaN where a row has no number.

        Rows of several agents take turns: `member` and `seed` tell them apart.
        """
        rows = read_csv(self.run_dir / "metrics.csv")
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}

    @property
    def best(self) -> Agent:
        """The agent with the best evaluation so far; of several agents, each one's best."""
        return self.agent("best")

    @property
    def last(self) -> Agent:
        """The agent of the last save."""
        return self.agent("last")

    def agent(self, checkpoint: str | int) -> Agent:
        """The agent of a save: "best", "last" or its environment steps; see `restore`."""
        return restore(self.run_dir, checkpoint, overrides=self._overrides)


def train(
    config: str | Path | Config | None = None,
    *,
    env: Any = None,
    run_dir: str | Path = "",
    callbacks: Any = (),
    parts: Callable[[Parts], Parts] | None = None,
    clobber: bool = False,
    quiet: bool = False,
    **changes: Any,
) -> Run:
    """Trains as `purejaxppo train` does, in a run folder; an existing run is continued.

        run = train("cartpole.yaml", total_timesteps=100_000, **{"ppo.gamma": 0.98})
        run.metrics["eval/return_mean"], run.best.act(obs)

    Ctrl-C saves, and then raises KeyboardInterrupt. JAX uses every CPU core as a device if it has
    not been used before.

    Args:
        config: a `Config`, a YAML file, the bare name of one that comes with the library, or
            playground/TASK for the settings that Playground tuned; None: the defaults.
        env: a user's own environment in place of the config's: a `Task`, or a class or function
            that makes one, or what has gymnax's interface.
        run_dir: the run's folder; empty: that of the config, or else as the command names it.
        callbacks: one or a list, added to those of the config: functions of a `CallbackContext`,
            `Callback`s, or classes.
        parts: the parts that the config names -> those to train with.
        clobber: delete an earlier run of this folder and start afresh.
        quiet: print nothing.
        changes: other values of fields, by dotted name.

    Raises:
        ValueError, OSError, SimulatorError, Stopped: in one sentence.
        KeyboardInterrupt: after a save; the same call continues.
    """
    name = "" if isinstance(config, Config) else str(config or "")
    made = config if isinstance(config, Config) else load_config(name) if name else Config()
    made = with_env(made, env).replace(**changes)
    given = callbacks if is_list(callbacks) else [callbacks]
    if given:
        made = made.replace(callbacks=(*made.callbacks, *given))
    folder = Path(run_dir or made.run_dir or f"runs/{session.run_name(name, made)}").absolute()
    code = session.train(made, folder, clobber=clobber, quiet=quiet, change=parts)
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if code:
        raise SystemExit(code)
    return Run(folder, object_fields(made))


def load(run_dir: str | Path, env: Any = None, **overrides: Any) -> Run:
    """Opens a run's folder.

    Args:
        run_dir: as made by `train` or by the command.
        env: the environment, if it was given as an object that config.yaml cannot restore.
        overrides: other such objects, by dotted field.

    Raises:
        ValueError: it is no run's folder, or its config cannot be restored.
    """
    check_settings()
    use_compilation_cache()
    use_cpu_cores(0)
    if env is not None:
        overrides["env.name"] = references.parse_env(env)
    return Run(run_dir, overrides)


def object_fields(config: Config) -> dict[str, Any]:
    """The fields of a config that hold objects, by dotted name: a file cannot restore them."""
    return {
        name: value
        for name, value in flatten(config).items()
        if any(
            isinstance(one, CodeRef) and one.object is not None
            for one in (value if isinstance(value, tuple) else (value,))
        )
    }
