"""The Python interface to sweeps: train many settings, and read the table of results."""

import contextlib
import csv
import html
import io
import math
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import yaml

from purejaxppo.cli.flags import SweepFlags
from purejaxppo.config.checks import check_ranges
from purejaxppo.config.files import Dumper, as_text, build, by_dotted_name, flatten
from purejaxppo.config.hints import nearest
from purejaxppo.config.plain import plain, user_path
from purejaxppo.config.references import OBJECT, parse
from purejaxppo.config.schema import HINTS, Config, is_list
from purejaxppo.envs import registry
from purejaxppo.parallel.settings import check_settings
from purejaxppo.parallel.shards import use_compilation_cache, use_cpu_cores
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.curves import (
    RETURN,
    confidence,
    draw_agents,
    figure_over_steps,
    metric_curves,
    with_legends,
)
from purejaxppo.runs.library import (
    Run,
    RunMetrics,
    config_of,
    data_frame,
    object_fields,
    python_messages,
)
from purejaxppo.runs.rows import Row
from purejaxppo.sweep import session
from purejaxppo.sweep.pictures import figure_of
from purejaxppo.sweep.report import TABLE, table_of
from purejaxppo.sweep.scores import Result, read_members
from purejaxppo.sweep.search_space import apply, entry_of, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLAGS = {field.name for field in fields(SweepFlags)} - {"config"}
MOST_CURVES = 10
"""Largest number of settings whose curves are plotted."""


@dataclass(frozen=True, eq=False, repr=False)
class Setting:
    """A setting of a `Sweep`: values of config fields, trained with several seeds."""

    settings: dict[str, Any]
    """Values by dotted name."""
    config: Config
    """Config with these values, of the first seed. `train` accepts it."""
    scores: np.ndarray  # float64 [seeds]
    """Score of each seed; NaN for a seed without a score."""
    seeds: tuple[int, ...]
    """Seed of each agent."""
    runs: tuple[tuple[Run, int], ...]
    """For each seed, its run and its index among the agents of this run."""

    def __repr__(self) -> str:
        """Return the settings, the score, and the number of seeds."""
        return f"<{self.name}: {self.score:.4g} over {len(self.seeds)} seeds>"

    @property
    def name(self) -> str:
        """Settings as text, such as "ppo.gamma = 0.98"."""
        return ", ".join(f"{key} = {show(value)}" for key, value in self.settings.items())

    @property
    def score(self) -> float:
        """Mean score over seeds; NaN if a seed has no score."""
        return float(np.mean(self.scores))

    @property
    def ci95(self) -> float:
        """Half the width of the 95 % confidence interval of the score (Student's t)."""
        return float(confidence(self.scores))

    @property
    def agents(self) -> list[Agent]:
        """Agent with the best evaluation of each seed. Its score can differ: see `select_by`."""
        runs = {run.run_dir: run for run, _ in self.runs}
        best = {folder: run.best for folder, run in runs.items()}
        return [best[run.run_dir].member(index) for run, index in self.runs]

    @property
    def best(self) -> Agent:
        """Agent with the best evaluation of the seed with the highest score."""
        scores = np.nan_to_num(self.scores, nan=-np.inf)
        run, index = self.runs[int(np.argmax(scores))]
        return run.best.member(index)

    @property
    def result(self) -> Result:
        """Setting as the command's report reads it."""
        places = tuple((str(run.run_dir), index) for run, index in self.runs)
        return Result(self.settings, self.config, tuple(self.scores.tolist()), places)

    def rows(self) -> list[list[Row]]:
        """Return the rows of metrics.csv of each seed."""
        folders = {str(run.run_dir) for run, _ in self.runs}
        rows = {folder: read_members(folder) for folder in folders}
        return [rows[str(run.run_dir)].get(index, []) for run, index in self.runs]


class Sweep(Sequence[Setting]):
    """The table of a finished sweep: a `Setting` per row, the best first.

        table = ppo.sweep("cartpole.yaml", grid={"ppo.gamma": [0.9, 0.99]}, num_seeds=8)
        table.best.settings, table.best.scores, table.best.agents

    Args:
        run_dir: folder of a finished sweep, of Python or of the command line.
        overrides: objects that the runs' config.yaml cannot restore, by dotted name.

    Raises:
        ValueError: the folder has no results.
    """

    def __init__(self, run_dir: str | Path, overrides: Mapping[str, Any] | None = None) -> None:
        """Read results.csv."""
        self.run_dir = user_path(run_dir, "run_dir").absolute()
        path = self.run_dir / TABLE
        if not path.is_file():
            problem = f"{TABLE} is missing" if self.run_dir.is_dir() else "no such folder"
            raise ValueError(
                f"{self.run_dir}: not a finished sweep ({problem}). Use a folder that sweep wrote."
            )
        with path.open(newline="", encoding="utf-8") as file:
            cells = list(csv.DictReader(file))
        runs: dict[Path, Run] = {}

        def run_of(folder: Path) -> Run:
            if folder not in runs:
                runs[folder] = Run(folder, overrides)
            return runs[folder]

        self._settings = [setting_of(row, self.run_dir, run_of) for row in cells]

    @overload
    def __getitem__(self, index: int) -> Setting: ...

    @overload
    def __getitem__(self, index: slice) -> list[Setting]: ...

    def __getitem__(self, index: int | slice) -> Setting | list[Setting]:
        """Return settings by rank, from 0."""
        return self._settings[index]

    def __len__(self) -> int:
        """Return the number of settings."""
        return len(self._settings)

    @property
    def best(self) -> Setting:
        """Setting with the highest score.

        Raises:
            ValueError: no setting has a score, because agents diverged or no episode ended.
        """
        if math.isnan(self[0].score):
            raise ValueError(f"{self.run_dir}: no setting has a score.")
        return self[0]

    @property
    def metrics(self) -> RunMetrics:
        """Metrics of all agents, with a column for each setting that varies, and `seed`.

        `metrics.to_pandas()` has a row per agent and log interval.
        """
        rows = [
            {**setting.settings, **row, "seed": seed}
            for setting in self
            for seed, seed_rows in zip(setting.seeds, setting.rows(), strict=True)
            for row in seed_rows
        ]
        names = dict.fromkeys(name for row in rows for name in row if name != "member")
        columns = {name: [row.get(name, math.nan) for row in rows] for name in names}
        return RunMetrics({name: _array(values) for name, values in columns.items()})

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with a row per setting, the best first.

        Raises:
            ValueError: pandas is not installed.
        """
        return data_frame(self._columns())

    def plot(self, metric: str = "", *, axes: Any = None) -> "Figure":
        """Plot the scores by setting, or the learning curves of the best settings.

            table.plot()
            table.plot("eval/return_mean").savefig("curves.png")

        Args:
            metric: a column of metrics.csv, drawn over environment steps as a mean over seeds with
                its 95 % confidence band. Empty: scores as a line, heat map or parallel axes.
            axes: matplotlib axes to draw on, with `metric`. None: a new figure.

        Raises:
            ValueError: the metric is unknown.
        """
        if not metric:
            scores: Figure = figure_of(
                [s.result for s in self], list(self[0].settings), self._title
            )
            return scores
        if axes is None:
            title = self._title
            if len(self) > MOST_CURVES:
                title = f"the best {MOST_CURVES} of {len(self)} settings, {title}"
            label = RETURN if metric == "eval/return_mean" else metric
            _, axes = figure_over_steps(title, label)
        for setting in self[:MOST_CURVES]:
            rows = [
                {**row, "member": seed}
                for seed, seed_rows in enumerate(setting.rows())
                for row in seed_rows
            ]
            steps, values = metric_curves(rows, metric)
            draw_agents(axes, steps, values, color=None, label=setting.name, each=False)
        figure: Figure = with_legends(axes.figure)
        return figure

    @property
    def _title(self) -> str:
        config, size = self[0].config, len(self[0].seeds)
        return f"{config.env.name}: mean of {size} seed{'s' * (size > 1)}"

    def _columns(self) -> dict[str, list[Any]]:
        """Return the columns of the table."""
        return {
            "rank": list(range(1, len(self) + 1)),
            **{key: [setting.settings[key] for setting in self] for key in self[0].settings},
            "return_mean": [setting.score for setting in self],
            "return_std": [
                float(s.scores.std(ddof=1)) if len(s.scores) > 1 else math.nan for s in self
            ],
            "return_ci95": [setting.ci95 for setting in self],
            "seeds": [len(setting.seeds) for setting in self],
        }

    def __repr__(self) -> str:
        """Return the table of the best settings, as the command prints it."""
        from rich.console import Console

        out = Console(file=io.StringIO(), width=100, force_jupyter=False, color_system=None)
        with out.capture() as text:
            out.print(table_of([s.result for s in self], list(self[0].settings), self._title))
        return text.get().rstrip()

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        columns = self._columns()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(show(cell))}</td>' for cell in row)}</tr>"
            for row in zip(*columns.values(), strict=True)
        )
        title = html.escape(self._title)
        return f"<table><caption>{title}</caption><tr>{head}</tr>{body}</table>"


def _array(values: list[Any]) -> np.ndarray:
    """Return numbers as float64, and other values as objects."""
    if all(isinstance(x, int | float) and not isinstance(x, bool) for x in values):
        return np.array(values, np.float64)
    array = np.empty(len(values), object)
    array[:] = values
    return array


def setting_of(row: Mapping[str, str], folder: Path, run_of: Callable[[Path], Run]) -> Setting:
    """Return the setting of a row of results.csv.

    Args:
        row: cells by column.
        folder: folder of the sweep, which may have been moved.
        run_of: opens a run folder.
    """
    names = list(row)
    keys = names[names.index("rank") + 1 : names.index("return_mean")]
    indices = [int(index) for index in row["indices"].split()]
    is_population = row["runs"].endswith("population")
    # Up to version 0.3.0, the paths were absolute.
    batches = re.findall(r"rounds/\d+/group-\d+/batch-\d+", row["runs"])
    places = ["population"] * len(indices) if is_population else batches
    runs = [(run_of(folder / place), index) for place, index in zip(places, indices, strict=True)]
    members = [run.members[index] for run, index in runs]
    first = replace(members[0], run_dir="", num_shards=0)
    if is_population:  # its numbers have changed since the start
        settings = {key: float(row[key]) for key in keys}
        first = apply(first, settings)
    else:
        settings = {key: value_in(first, key) for key in keys}
    scores = np.array([float(x) for x in row["returns"].split()])
    return Setting(settings, first, scores, tuple(m.seed for m in members), tuple(runs))


def value_in(config: Config, key: str) -> Any:
    """Return the value of a field, or of one of ppo.term_coefs."""
    place = entry_of(key)
    value = flatten(config)[key] if place is None else config.ppo.coefs[place]
    return list(value) if isinstance(value, tuple) else value


def sweep(
    config: str | Path | Config | None = None,
    *,
    env: Any = None,
    grid: Mapping[str, Any] | None = None,
    search: str = "grid",
    search_space: Mapping[str, Any] | str | Path = "",
    num_trials: int = 0,
    run_dir: str | Path = "",
    clobber: bool = False,
    quiet: bool = False,
    **changes: Any,
) -> Sweep:
    """Train with many settings like `purejaxppo sweep`. An existing sweep is resumed.

        table = sweep("cartpole.yaml", grid={"ppo.learning_rate": [1e-4, 1e-3]}, num_seeds=8)
        space = {"ppo.gamma": {"uniform": [0.9, 0.999]}, "ppo.num_epochs": {"choice": [2, 4]}}
        table = sweep("cartpole.yaml", search="random", search_space=space, num_trials=16)

    Settings that differ only in tunable numbers train in one program, with all their seeds.

    Args:
        config: see `train`.
        env: see `train`.
        grid: list of values for each field, nested or by dotted name. All combinations are trained.
        search: "grid", "random", "optuna" or "population" (population-based training).
        search_space: range of each field: {"uniform": [low, high]}, {"log_uniform": [low, high]} or
            {"choice": [a, b]}; or a YAML file of ranges.
        num_trials: number of settings to try, or of agents in the population.
        run_dir: folder of the sweep. Empty: runs/CONFIG-sweep.
        clobber: delete an earlier sweep in this folder and start from scratch.
        quiet: print nothing.
        changes: other values of config fields, such as num_seeds=8 and ppo={"gamma": 0.98}, and
            other flags of the command: select_by, optuna_batch, population_interval,
            population_share, population_factor, memory_gb, launcher, launcher_options.

    Returns:
        The table of results.

    Raises:
        ValueError, OSError, SimulatorError, Stopped: one sentence about the problem.
        KeyboardInterrupt: you pressed Ctrl-C. The same call resumes.
    """
    options = {name: changes.pop(name) for name in [*changes] if name in FLAGS}
    name = "" if isinstance(config, Config) else str(config or "")
    with python_messages(), silenced(quiet):
        check_flag_names(changes)
        check_settings()
        use_compilation_cache()
        full = config_of(config, env, changes)
        use_cpu_cores(full.devices)  # simulators may use JAX when they are imported
        registry.resolve(full.env)
        full = replace(full, run_dir=str(run_dir)) if run_dir else full
        if search == "grid" and not (grid or search_space or num_trials):
            raise ValueError(
                'grid is missing. Use grid={"ppo.gamma": [0.98, 0.99]}, or search="random" with '
                "num_trials and search_space."
            )
        given = {
            "config": name,
            "grid": grid_texts(grid or {}),
            "search": search,
            "search_space": space_text(search_space),
            "num_trials": num_trials,
            "clobber": clobber,
        }
        command = build(SweepFlags, {**given, **options})
        check_ranges(command, "")
        folder = session.folder_of(command, full).absolute()  # custom code may change directory
        code = session.sweep(command, full)
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if code:
        raise SystemExit(code)
    return Sweep(folder, object_fields(full))


def check_flag_names(changes: Mapping[str, Any]) -> None:
    """Raise ValueError for an unknown keyword that is similar to a flag of the command."""
    known = {name.partition(".")[0] for name in HINTS}
    for name in changes:
        if "." not in name and name not in known and (close := nearest(name, FLAGS)):
            raise ValueError(f"{name}: unknown argument. Did you mean {close}?")


@contextlib.contextmanager
def silenced(quiet: bool) -> Iterator[None]:
    """Discard standard output inside the block if `quiet`."""
    with contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext():
        yield


def grid_texts(grid: Mapping[str, Any]) -> list[str]:
    """Return a grid as values of the flag --grid.

    Raises:
        ValueError: the grid is not a mapping, or values are not a list, or are objects without a
            reference.
    """
    if not isinstance(grid, Mapping):
        raise ValueError(f"grid = {grid!r}: must be a mapping of fields to lists of values.")
    texts = []
    for name, values in by_dotted_name(grid).items():
        listed = list(values) if isinstance(values, Iterable) else []
        if not listed or isinstance(values, str | Mapping):
            raise ValueError(f"grid: {name} = {values!r}: must be a list of values.")
        texts.append(f"{name}={','.join(flow(name, value) for value in listed)}")
    return texts


def flow(name: str, value: Any) -> str:
    """Return a value as YAML in one line; objects as references to custom code."""
    value = plain(value)
    if not isinstance(value, bool | int | float | str | dict) and not is_list(value):
        value = parse(value)
        if str(value).startswith(OBJECT):
            raise ValueError(
                f"grid: {name} = {value}: a sweep saves custom code by reference. Use a class or "
                f"function at the top level of a module, or file.py:Name."
            )
    text: str = yaml.dump([as_text(value)], Dumper=Dumper, default_flow_style=True, width=math.inf)
    return text.strip()[1:-1]


def space_text(search_space: Mapping[str, Any] | str | Path) -> str:
    """Return a search space as the value of the flag --search_space."""
    if not isinstance(search_space, Mapping):
        return str(search_space)
    data = as_text(plain(by_dotted_name(search_space)))
    text: str = yaml.dump(data, Dumper=Dumper, default_flow_style=True, width=math.inf)
    return text.strip() if data else ""
