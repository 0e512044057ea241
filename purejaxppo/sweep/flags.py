"""Checks of a sweep's flags against each other."""

from purejaxppo.cli.flags import SweepFlags
from purejaxppo.config.schema import Config
from purejaxppo.sweep.launchers import launcher

WHERE = ("config", "memory_gb", "launcher", "launcher_options", "clobber")
"""Flags that do not change the results."""


def check_flags(command: SweepFlags, config: Config) -> None:
    """Raises ValueError unless the flags fit the search."""
    if command.launcher != "local":
        launcher(command.launcher)
    if command.launcher_options and command.launcher == "local":
        raise ValueError("--launcher_options are for --launcher ray and slurm")
    if config.logging.wandb_project:
        raise ValueError(
            "logging.wandb_project is not supported by sweep. A sweep writes results.csv, and its "
            "runs write metrics.csv."
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
    if command.search == "population":
        check_population(command, config)


def check_population(command: SweepFlags, config: Config) -> None:
    """Raise ValueError if a flag does not fit a population."""
    if command.launcher != "local":
        raise ValueError(
            "--search population is one program on one machine: leave --launcher at local"
        )
    if command.memory_gb:
        raise ValueError(
            "--search population is one program, which --memory_gb cannot cut: leave it out"
        )
    if config.num_seeds > 1:
        raise ValueError("--search population gives each agent its own seed: leave num_seeds at 1")
    if command.num_trials < 2:
        raise ValueError(f"--num_trials = {command.num_trials}: a population has at least 2 agents")
