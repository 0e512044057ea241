"""Checks of a sweep's flags."""

from purejaxppo.cli.flags import SweepFlags
from purejaxppo.config.schema import Config
from purejaxppo.sweep.launchers import launcher

WHERE = ("config", "memory_gb", "launcher", "launcher_options", "clobber")
"""Flags that do not affect results."""


def check_flags(command: SweepFlags, config: Config) -> None:
    """Raise ValueError if a flag is missing or does not apply to the search."""
    if command.launcher != "local":
        launcher(command.launcher)
    if command.launcher_options and command.launcher == "local":
        raise ValueError("--launcher_options requires --launcher ray or slurm.")
    if config.num_shards > 1:
        raise ValueError(
            f"num_shards = {config.num_shards} is not supported by sweep, which divides agents "
            f"among devices. Use num_shards = 0."
        )
    if command.search == "grid":
        if not command.grid:
            raise ValueError(
                "--grid is missing. Use --grid FIELD=VALUES, or --search random, optuna or "
                "population with --num_trials and --search_space."
            )
        if command.search_space or command.num_trials:
            flag = "--search_space" if command.search_space else "--num_trials"
            raise ValueError(f"{flag} requires --search random, optuna or population.")
        return
    kind = f"--search {command.search}"
    if command.grid:
        raise ValueError(f"--grid does not support {kind}. Use one of them.")
    if command.num_trials < 1:
        raise ValueError(f"--num_trials = {command.num_trials}: {kind} requires at least 1.")
    if not command.search_space:
        raise ValueError(f"--search_space is missing. {kind} requires a YAML file of ranges.")
    if command.search == "population":
        check_population(command, config)


def check_population(command: SweepFlags, config: Config) -> None:
    """Raise ValueError if a flag does not apply to a population."""
    if command.launcher != "local":
        raise ValueError(
            "--search population is one program and does not support --launcher. Remove it."
        )
    if command.memory_gb:
        raise ValueError(
            "--search population is one program and does not support --memory_gb. Remove it."
        )
    if config.num_seeds > 1:
        raise ValueError(
            "--search population does not support num_seeds > 1. Use --num_trials for more agents."
        )
    if command.num_trials < 2:
        raise ValueError(
            f"--num_trials = {command.num_trials}: a population requires at least 2 agents."
        )
