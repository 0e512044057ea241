"""`python -m purejaxppo.sweep --config cartpole.yaml --grid ppo.gamma=0.98,0.99`: many settings.

Settings of one structure are trained in one program, all seeds of them side by side; a sweep that
was stopped resumes.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import tyro

from purejaxppo.config.files import dump, flatten, read_yaml, write_whole
from purejaxppo.config.schema import Config, Scalar
from purejaxppo.interrupts import NOTHING_LOST
from purejaxppo.parts import make_parts
from purejaxppo.runs import cli
from purejaxppo.runs.console import Console
from purejaxppo.runs.folder import run_folder
from purejaxppo.runs.members import check_vmappable
from purejaxppo.runs.population import PopulationPrograms, PopulationRun, Rules
from purejaxppo.runs.session import start_jax
from purejaxppo.sweep import packing, report, search_space
from purejaxppo.sweep.launchers import LAUNCHERS, check
from purejaxppo.sweep.packing import Group, group_up
from purejaxppo.sweep.report import Result
from purejaxppo.sweep.search import Fixed, Optuna, Search, rules_of
from purejaxppo.sweep.search_space import Setting

DESCRIPTION = """Train many settings.

Those that differ in tunable numbers alone are trained in one program, all seeds of them. Flags
replace single fields of the config. Running the same command again resumes."""
SWEEP = "sweep.yaml"
WHERE = ("config", "memory_gb", "launcher", "launcher_options", "clobber")
"""Flags that do not change the results."""
OURS = (
    "rounds",
    "jobs",
    "population",
    "results.csv",
    "sweep.png",
    ".sweep.png",
    "best.yaml",
    ".best.yaml",
    f".{SWEEP}",
    SWEEP,
)


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of a sweep: its settings, and the resources to train them on."""

    config: str = "cartpole.yaml"
    """A YAML file, or the bare name of a config that comes with the library."""
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A field and its values, as in ppo.gamma=0.98,0.99; once per field: every combination."""
    ranges: str = ""
    """A YAML file of ranges to draw from: {uniform: [low, high]}, {log_uniform: [low, high]} or
    {choice: [a, b]} per field."""
    random: int = 0
    """Settings to draw from the ranges."""
    optuna: int = 0
    """Settings to try from the ranges, chosen by Optuna after those before them."""
    optuna_batch: int = 8
    """Settings that Optuna chooses at a time, to be trained side by side."""
    population: int = 0
    """Agents of one population that starts with settings drawn from the ranges and evolves while
    it trains: population-based training (Jaderberg et al. 2017)."""
    population_interval: int = 0
    """Environment steps of each agent between selections; 0: a twentieth of total_timesteps."""
    population_share: float = 0.25
    """Share of the population that each selection replaces by copies of as many of the best."""
    population_factor: float = 1.25
    """Factor that numbers of a copied agent are multiplied by, divided by, or neither."""
    objective: Literal["last", "best", "mean"] = "last"
    """An agent's score: the return of its last evaluation, its best, or their mean, which is the
    area under its curve."""
    memory_gb: float = 0.0
    """Memory to fill with agents; 0: four fifths of what is free. More agents than fit are
    trained one batch after another."""
    launcher: Literal["local", "ray", "slurm"] = "local"
    """Train groups of one structure here, on a Ray cluster, or as SLURM jobs."""
    launcher_options: dict[str, Scalar] = dataclasses.field(default_factory=dict)
    """Options of ray.remote or of submitit's executor, as name value pairs."""
    clobber: tyro.conf.FlagCreatePairsOff[bool] = False
    """Delete the folder of an earlier sweep of this name and start afresh."""


@dataclasses.dataclass(frozen=True)
class Command(Config, Flags):
    """A config, and the flags that vary it."""


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    interrupted = f"interrupted; {NOTHING_LOST}"
    return cli.run(lambda words: sweep(parse(words)), args, interrupted=interrupted)


def parse(args: Sequence[str]) -> Command:
    """Parses the command line over its config file.

    Raises:
        ValueError: one sentence.
        SystemExit: --help.
    """
    return cli.parse_over_config(
        Command, args, prog="python -m purejaxppo.sweep", description=DESCRIPTION
    )


def sweep(command: Command) -> int:
    """Trains the settings of `command` and reports them; returns the exit code."""
    config = Config(**{f.name: getattr(command, f.name) for f in dataclasses.fields(Config)})
    name = Path(command.config).stem
    folder = Path(config.run_dir or f"runs/{name}-sweep")
    check_flags(command, config)
    if command.population:
        rules, members = population_of(command, config)
        check_members(members, command)
        with run_folder(folder, clobber=command.clobber, ours=OURS):
            record(folder, command, config)
            return run_population(folder, command, members, rules)
    search, known = search_of(command, config)
    check_members([search_space.apply(config, setting) for setting in known] or [config], command)
    with run_folder(folder, clobber=command.clobber, ours=OURS):
        record(folder, command, config)
        results: list[Result] = []
        for index, tried in enumerate(rounds(search, results, folder)):
            trained = run_round(folder / "rounds" / f"{index:03d}", tried, command, config)
            if isinstance(trained, int):
                return trained
            results += trained
        report.report(folder, results, config, command.objective)
    return 0


def search_of(command: Command, config: Config) -> tuple[Search, list[Setting]]:
    """The search for settings, and those of its settings that are known beforehand.

    Raises:
        ValueError: a grid or ranges that are wrong.
    """
    if command.grid:
        known = search_space.grid_settings(search_space.parse_grid(command.grid, config))
        return Fixed(known), known
    ranges = search_space.load_ranges(Path(command.ranges), config)
    if command.random:
        known = search_space.random_settings(ranges, command.random, config.seed)
        return Fixed(known), known

    def makes_sense(setting: Setting) -> None:
        search_space.apply(config, setting)

    size, seed = command.optuna_batch, config.seed
    return Optuna(ranges, command.optuna, size, seed, makes_sense), []


def check_flags(command: Command, config: Config) -> None:
    """Raises ValueError unless exactly one flag selects the search, and the others fit it."""
    check(command.launcher)
    if command.launcher_options and command.launcher == "local":
        raise ValueError("--launcher_options are for --launcher ray and slurm")
    if config.logging.wandb_project:
        raise ValueError(
            "logging.wandb_project is for train: a sweep's numbers are in its results.csv and in "
            "the metrics.csv of its runs"
        )
    if config.num_shards > 1:
        raise ValueError(
            f"num_shards = {config.num_shards}: a sweep fills devices with agents, each in one "
            f"shard; leave num_shards at 0"
        )
    kinds = {"--grid": len(command.grid), "--random": command.random}
    kinds |= {"--optuna": command.optuna, "--population": command.population}
    given = [flag for flag, value in kinds.items() if value]
    if len(given) != 1:
        found = "none is there" if not given else f"{' and '.join(given)} are there"
        raise ValueError(f"one of {', '.join(kinds)} says what to vary; {found}")
    (kind,) = given
    if kinds[kind] < 1:
        raise ValueError(f"{kind} {kinds[kind]} must be at least 1")
    if kind == "--grid" and command.ranges:
        raise ValueError("--ranges is for what draws from ranges, and this is a --grid")
    if kind != "--grid" and not command.ranges:
        raise ValueError(f"{kind} draws from ranges; name a YAML file of them with --ranges")


def check_members(members: Sequence[Config], command: Command) -> None:
    """Checks agents; builds one of each structure, without computing, if it will train here.

    Raises:
        ValueError: no such environment or devices, or agents that cannot train side by side.
    """
    for group in group_up(members):
        check_vmappable(group[0])
    if command.launcher == "local":
        start_jax(members[0])
        for group in group_up(members):
            make_parts(dataclasses.replace(group[0], num_shards=1, num_seeds=1)).env.close()


def record(folder: Path, command: Command, config: Config) -> None:
    """Writes the definition of the sweep, or compares it with that of the sweep it continues.

    Raises:
        ValueError: the folder holds another sweep.
    """
    shown = flatten(dataclasses.replace(config, run_dir="", devices=0))
    for field in dataclasses.fields(Flags):
        if field.name not in WHERE:
            shown[field.name] = getattr(command, field.name)
    if command.ranges:
        shown["ranges"] = read_yaml(Path(command.ranges))
    new = json.loads(json.dumps(shown))
    path = folder / SWEEP
    if path.is_file():
        old = read_yaml(path)
        free = ("objective", "checkpoint.", "logging.")
        changed = [key for key in new if old.get(key) != new[key] and not key.startswith(free)]
        if changed:
            raise ValueError(
                f"{folder} was made with {changed[0]} = {old.get(changed[0])}, not "
                f"{new[changed[0]]}; --run_dir NAME sweeps beside it, --clobber deletes it and "
                f"starts afresh"
            )
    write_whole(path, dump(new))


def rounds(search: Search, results: list[Result], folder: Path) -> Iterator[list[Setting]]:
    """Yields settings to train side by side, round after round; repeats rounds on disk first."""
    index = 0
    while True:
        path = folder / "rounds" / f"{index:03d}" / "settings.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        tried = search.next([(r.setting, r.score) for r in results], known)
        if not tried:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(tried))
        yield tried
        index += 1


def run_round(
    folder: Path, tried: Sequence[Setting], command: Command, config: Config
) -> list[Result] | int:
    """Trains settings and returns their results, or the exit code if training did not finish."""
    configs = [search_space.apply(config, setting) for setting in tried]
    members = [
        dataclasses.replace(c, seed=c.seed + i, num_seeds=1, num_shards=1)
        for c in configs
        for i in range(config.num_seeds)
    ]
    groups = [
        Group(str(folder / f"group-{i:03d}"), tuple(group), command.memory_gb * 1e9)
        for i, group in enumerate(group_up(members))
    ]
    plural = "s" * (len(groups) > 1)
    print(
        f"{len(tried)} settings x {config.num_seeds} seeds in {len(groups)} program{plural}",
        flush=True,
    )
    codes = LAUNCHERS[command.launcher](groups, folder, command.launcher_options)
    if any(codes):
        return next(filter(None, codes))
    return report.score(groups, tried, configs, command.objective)


def population_of(command: Command, config: Config) -> tuple[Rules, list[Config]]:
    """The rules of a population, and the configs that it starts with.

    Raises:
        ValueError: a number is out of its range, or a range is of structure.
    """
    rules = population_rules(command, config)
    ranges = search_space.load_ranges(Path(command.ranges), config)
    drawn = search_space.random_settings(ranges, command.population, config.seed)
    return rules, [
        dataclasses.replace(
            search_space.apply(config, setting), seed=config.seed + i, num_seeds=1, num_shards=1
        )
        for i, setting in enumerate(drawn)
    ]


def run_population(folder: Path, command: Command, members: list[Config], rules: Rules) -> int:
    """Trains a population and reports it; returns the exit code."""
    devices = start_jax(members[0])
    print(f"a population of {len(members)}, selected every {rules.interval} updates", flush=True)
    run_dir = folder / "population"

    def make(config: Config, run_dir: Path, console: Console) -> PopulationRun:
        programs = PopulationPrograms(config, devices, members, rules)
        return PopulationRun(programs, run_dir, console)

    code = packing.train_batch(run_dir, members, devices, make)
    if not code:
        report.report_population(folder, members, rules, command.objective)
    return code


def population_rules(command: Command, config: Config) -> Rules:
    """The rules of selection and perturbation in a population.

    Raises:
        ValueError: a number is out of its range, or a range is of structure.
    """
    if command.launcher != "local":
        raise ValueError("--population is one program on one machine: leave --launcher at local")
    if command.memory_gb:
        raise ValueError("--population is one program, which --memory_gb cannot cut: leave it out")
    if config.num_seeds > 1:
        raise ValueError("--population gives each agent a seed of its own: leave num_seeds at 1")
    for flag, value, low, high in (
        ("population", command.population, 2, math.inf),
        ("population_share", command.population_share, 0.0, 0.5),
        ("population_factor", command.population_factor, 1.0, math.inf),
        ("population_interval", command.population_interval, 0, math.inf),
    ):
        if not low <= value <= high:
            raise ValueError(f"--{flag} {value} is not between {low} and {high}")
    steps = command.population_interval or config.total_timesteps / 20
    interval = max(1, round(steps / config.steps_per_update))
    return rules_of(
        search_space.load_ranges(Path(command.ranges), config),
        interval,
        command.population_share,
        command.population_factor,
    )


if __name__ == "__main__":
    sys.exit(main())
