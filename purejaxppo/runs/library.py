"""The Python interface to runs: train, load, and read metrics and agents."""

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
    """A run folder, as `train` and `purejaxppo train` write it.

    Args:
        run_dir: the folder.
        overrides: objects that config.yaml cannot restore, by dotted field.

    Raises:
        ValueError: the folder is not a run folder.
    """

    def __init__(self, run_dir: str | Path, overrides: dict[str, Any] | None = None) -> None:
        """Read the config."""
        self.run_dir = Path(run_dir).absolute()
        self._overrides = overrides or {}
        check_is_run(self.run_dir)
        self.config = load_config(self.run_dir / CONFIG, self._overrides, saved=True)

    def __repr__(self) -> str:
        """Return the class and the folder."""
        return f"Run({str(self.run_dir)!r})"

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Columns of metrics.csv by name, float64 [rows] each; NaN for empty cells.

        With several agents, the columns `member` and `seed` identify the agent of a row.
        """
        rows = read_csv(self.run_dir / "metrics.csv")
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}

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
    """Train like `purejaxppo train`, in a run folder. An existing run is resumed.

        run = train("cartpole.yaml", total_timesteps=100_000, **{"ppo.gamma": 0.98})
        run.metrics["eval/return_mean"], run.best.act(obs)

    Ctrl-C saves a checkpoint and raises KeyboardInterrupt. If you have not used JAX before, every
    CPU core becomes a JAX device.

    Args:
        config: a `Config`, a YAML file, the name of a config that comes with the library, or
            playground/TASK for the settings that Playground tuned. None: the defaults.
        env: a custom environment instead of the config's: a `Task`, a class or function that makes
            one, or an object with gymnax's interface.
        run_dir: the run folder. Empty: the config's, or else the name that the command chooses.
        callbacks: one or a list, in addition to the config's: functions of a `CallbackContext`,
            `Callback` objects, or classes.
        parts: a function from the parts that the config selects to the parts to train with.
        clobber: delete an earlier run in this folder and start from scratch.
        quiet: print nothing.
        changes: other values of config fields, by dotted name.

    Returns:
        The finished run.

    Raises:
        ValueError, OSError, SimulatorError, Stopped: one sentence about the problem.
        KeyboardInterrupt: you pressed Ctrl-C. A checkpoint is saved first, and the same call
            resumes.
    """
    name = "" if isinstance(config, Config) else str(config or "")
    full = config if isinstance(config, Config) else load_config(name) if name else Config()
    full = with_env(full, env).replace(**changes)
    new_callbacks = callbacks if is_list(callbacks) else [callbacks]
    if new_callbacks:
        full = full.replace(callbacks=(*full.callbacks, *new_callbacks))
    folder = Path(run_dir or full.run_dir or f"runs/{session.run_name(name, full)}").absolute()
    code = session.train(full, folder, clobber=clobber, quiet=quiet, change=parts)
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if code:
        raise SystemExit(code)
    return Run(folder, object_fields(full))


def load(run_dir: str | Path, env: Any = None, **overrides: Any) -> Run:
    """Open a run folder.

    Args:
        run_dir: run folder that `train` or `purejaxppo train` wrote.
        env: the environment, if it was passed as an object that config.yaml cannot restore.
        overrides: other such objects, by dotted field.

    Raises:
        ValueError: the folder is not a run folder, or its config cannot be restored.
    """
    check_settings()
    use_compilation_cache()
    use_cpu_cores(0)
    if env is not None:
        overrides["env.name"] = references.parse_env(env)
    return Run(run_dir, overrides)


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
