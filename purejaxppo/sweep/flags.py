"""Flags of a sweep: parsed over a config, and checked against each other."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import tyro

from purejaxppo.config.schema import Config, Scalar
from purejaxppo.runs import cli
from purejaxppo.sweep.launchers import check

DESCRIPTION = """Train many settings.

Those that differ in tunable numbers alone are trained in one program, all seeds of them. Flags
replace single fields of the config. Running the same command again resumes."""
EXAMPLES = (
    "purejaxppo sweep --config cartpole.yaml --grid ppo.gamma=0.98,0.99 --num_seeds 8",
    "purejaxppo sweep --env.name gymnax/Catch-bsuite --grid ppo.learning_rate=1e-4,1e-3",
    "purejaxppo sweep --config cartpole.yaml --search random --num_trials 64 --search_space r.yaml",
    "purejaxppo sweep --config cartpole.yaml --search optuna --num_trials 64 --search_space r.yaml",
    "purejaxppo sweep --config hopper.yaml --search population --num_trials 16 "
    "--search_space r.yaml",
)
WHERE = ("config", "memory_gb", "launcher", "launcher_options", "clobber")
"""Flags that do not change the results."""


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of a sweep: its settings, and the resources to train them on."""

    config: str = ""
    """A YAML file, the bare name of a config that comes with the library, or playground/TASK for
    the settings that Playground tuned; empty: defaults."""
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A field and its values, as in ppo.gamma=0.98,0.99; once per field: every combination."""
    search: Literal["grid", "random", "optuna", "population"] = "grid"
    """Choice of settings. grid: those of --grid. random: drawn from the search space. optuna:
    chosen from it by Optuna, after the results so far. population: drawn from it for one population
    that evolves while it trains, population-based training (Jaderberg et al. 2017)."""
    num_trials: int = 0
    """Settings to try from the search space, or agents of the population."""
    search_space: str = ""
    """A YAML file of ranges: {uniform: [low, high]}, {log_uniform: [low, high]} or
    {choice: [a, b]} per field."""
    optuna_batch: int = 8
    """Settings that Optuna chooses at a time, to be trained side by side."""
    population_interval: int = 0
    """Environment steps of each agent between selections; 0: a twentieth of total_timesteps."""
    population_share: float = 0.25
    """Share of the population that each selection replaces by copies of as many of the best."""
    population_factor: float = 1.25
    """Factor that numbers of a copied agent are multiplied by, divided by, or neither."""
    select_by: Literal["last", "best", "mean"] = "last"
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


def parse(args: Sequence[str]) -> Command:
    """Parses the command line over its config file.

    Raises:
        ValueError: one sentence.
        SystemExit: --help.
    """
    command = cli.parse_over_config(
        Command, args, prog="purejaxppo sweep", description=DESCRIPTION, examples=EXAMPLES
    )
    cli.check_task(command)
    return command


def check_flags(command: Command, config: Config) -> None:
    """Raises ValueError unless the flags fit the search."""
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
    if command.search == "grid":
        if not command.grid:
            raise ValueError(
                "--grid FIELD=VALUES says what to vary, or --search random, optuna or population "
                "with --num_trials and --search_space; none is there"
            )
        if command.search_space or command.num_trials:
            flag = "--search_space" if command.search_space else "--num_trials"
            raise ValueError(f"{flag} is for --search random, optuna or population, not for a grid")
        return
    kind = f"--search {command.search}"
    if command.grid:
        raise ValueError(f"--grid and {kind} are there: only one of them can be")
    if command.num_trials < 1:
        raise ValueError(f"{kind} needs --num_trials of at least 1, not {command.num_trials}")
    if not command.search_space:
        raise ValueError(f"{kind} draws from ranges: name a YAML file of them with --search_space")
