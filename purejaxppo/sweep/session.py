"""A sweep from start to end: settings, folder, rounds of training, report."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from purejaxppo.cli.flags import SweepFlags
from purejaxppo.cli.parser import check_task
from purejaxppo.config import copies
from purejaxppo.config.checks import without_effect
from purejaxppo.config.files import as_text, dump, flatten, read_yaml, write_whole
from purejaxppo.config.hints import short_path
from purejaxppo.config.plain import user_path
from purejaxppo.config.run_files import with_copies
from purejaxppo.config.schema import Config
from purejaxppo.parts import make_parts
from purejaxppo.runs import warm_start
from purejaxppo.runs.devices import start_jax
from purejaxppo.runs.folder import (
    SWEEP,
    check_not_deleted,
    copy_code,
    imports_of,
    is_among,
    run_folder,
    with_absolute_paths,
)
from purejaxppo.runs.population import Rules
from purejaxppo.runs.session import base_name, check_logging
from purejaxppo.setup import check_vmappable, resolve
from purejaxppo.sweep import packing, report, scores, search_space
from purejaxppo.sweep.flags import WHERE, check_flags
from purejaxppo.sweep.launchers import launcher
from purejaxppo.sweep.packing import Group, group_up, one_shard
from purejaxppo.sweep.scores import Result
from purejaxppo.sweep.search import NextRound, Optuna, Scored, rules_of
from purejaxppo.sweep.search_space import Values

FILES = ("results.csv", "sweep.png", "best.yaml", SWEEP)
SWEEP_FILES = ("rounds", "jobs", "population", copies.CODE, *(f".{name}" for name in FILES), *FILES)


def sweep(command: SweepFlags, config: Config) -> int:
    """Train the settings of a sweep, report the results, and return the exit code."""
    check_task(config)
    config = replace(with_absolute_paths(config), gpu={})  # a sweep does not use it
    if not command.search_space.startswith("{") and Path(command.search_space).is_file():
        path = str(Path(command.search_space).absolute())
        command = dataclasses.replace(command, search_space=path)
    relative_folder = folder_of(command, config)
    folder = relative_folder.absolute()
    check_flags(command, config)
    check_logging(config, folder)
    config = grouped(config, folder)
    if not command.clobber:
        config = with_copies(config, files_of(folder, command))
        for line in imports_of(relative_folder, [config]) if (folder / SWEEP).is_file() else ():
            print(line, flush=True)
    if command.search == "population":
        rules, members = population_of(command, config)
        check_members(members, command)
        check_kept(folder, command, members)
        with run_folder(folder, clobber=command.clobber, run_files=SWEEP_FILES):
            record(folder, command, config)
            members = with_code(members, folder, command)
            return run_population(folder, command, members, rules)
    search, known = search_of(command, config)
    members = [search_space.apply(config, setting) for setting in known] or [config]
    check_members(members, command)
    check_kept(folder, command, members)
    with run_folder(folder, clobber=command.clobber, run_files=SWEEP_FILES):
        record(folder, command, config)
        results: list[Result] = []
        for index, round_settings in enumerate(rounds(search, results, folder)):
            outcome = run_round(folder, index, round_settings, command, config)
            if isinstance(outcome, int):
                return outcome
            results += outcome
        report.report(folder, results, config, command.select_by)
    return 0


def check_kept(folder: Path, command: SweepFlags, members: Sequence[Config]) -> None:
    """With --clobber, check that no file that the sweep needs would be deleted.

    Raises:
        ValueError: a config needs such a file, or the search space is one.
    """
    if not command.clobber:
        return
    for member in members:
        check_not_deleted(member, folder, SWEEP_FILES)
    space = command.search_space
    is_file = not space.startswith("{") and Path(space).is_file()
    if is_file and is_among(Path(space), folder, SWEEP_FILES):
        raise ValueError(
            f"--clobber would delete {space}. Move the file, or use another --run_dir."
        )


def grouped(config: Config, folder: Path) -> Config:
    """Return the config with the sweep's name as the group of its W&B runs, unless it has one."""
    used = config.logging
    if used.wandb_group or not (used.wandb_project or used.loggers):
        return config
    return replace(config, logging=replace(used, wandb_group=folder.name))


def folder_of(command: SweepFlags, config: Config) -> Path:
    """Return the folder of a sweep."""
    return user_path(config.run_dir or f"runs/{base_name(command.config, config)}-sweep")


def files_of(folder: Path, command: SweepFlags) -> dict[str, str]:
    """Return the path of each Python file of a sweep: {name in the config: path}.

    With a launcher, these are the copies in the sweep's folder, because other hosts may not have
    the originals.
    """
    return copies.of_run(folder) if command.launcher == "local" else copies.paths_of_copies(folder)


def with_code(members: Sequence[Config], folder: Path, command: SweepFlags) -> list[Config]:
    """Copy the Python files of configs into a sweep's folder; return configs with `files_of`."""
    for note in dict.fromkeys(note for member in members for note in copy_code(member, folder)):
        print(note, flush=True)
    return [with_copies(member, files_of(folder, command)) for member in members]


def search_of(command: SweepFlags, config: Config) -> tuple[NextRound, list[Values]]:
    """Return the search, and the settings that are known before training.

    Known settings are trained in one round.

    Raises:
        ValueError: the grid or the search space is invalid.
    """
    if command.search == "grid":
        known = search_space.grid_settings(search_space.parse_grid(command.grid, config))
        return one_round(known), known
    ranges = search_space.load_ranges(command.search_space, config)
    if command.search == "random":
        known = search_space.random_settings(ranges, command.num_trials, config.seed)
        return one_round(known), known

    def check(setting: Values) -> None:
        search_space.apply(config, setting)

    size, seed = command.optuna_batch, config.seed
    return Optuna(ranges, command.num_trials, size, seed, check).next, []


def one_round(settings: Sequence[Values]) -> NextRound:
    """Return a search that trains all settings in the first round.

    If the sweep resumes, they have the saved order, which does not depend on that of flags.
    """
    by_text = {_text_of(setting): setting for setting in settings}

    def search(scored: Scored, known: Sequence[Values] | None) -> list[Values]:
        if scored:
            return []
        return [by_text.get(_text_of(x), x) for x in known] if known else list(settings)

    return search


def _text_of(setting: Values) -> str:
    """Return a setting as text that does not depend on the order of its fields."""
    saved = json.loads(json.dumps(as_text(setting)))  # all keys are text there
    return json.dumps(saved, sort_keys=True)


def check_members(members: Sequence[Config], command: SweepFlags) -> None:
    """Check the agents, and print warnings about settings without effect.

    With the local launcher, one agent per compiled program is built, without computing.

    Raises:
        ValueError: a config, environment or device is invalid, or agents cannot share a program.
    """
    groups = group_up(members)
    for group in groups:
        check_vmappable(group[0])
    setups = [resolve(one_shard(group[0]), members=group) for group in groups]
    if command.launcher == "local":
        start_jax(setups[0])
        for setup in setups:
            parts = make_parts(replace(setup.config, num_seeds=1))
            if warm_start.is_set(setup):
                warm_start.print_imports(setup.config)
                warm_start.load(setup, parts)
            parts.env.close()
    for warning in without_effect(members):
        print(f"warning: {warning}", flush=True)


def record(folder: Path, command: SweepFlags, config: Config) -> None:
    """Write the definition of the sweep. If the sweep resumes, compare it with the saved one.

    Raises:
        ValueError: the folder contains another sweep.
    """
    definition = flatten(dataclasses.replace(config, run_dir="", devices=0))
    for field in dataclasses.fields(SweepFlags):
        if field.name not in WHERE:
            definition[field.name] = getattr(command, field.name)
    if command.search_space:
        definition["search_space"], _ = search_space.read_space(command.search_space)
    new = as_text(definition)
    path = folder / SWEEP
    if path.is_file():
        old = read_yaml(path)
        free = ("select_by", "checkpoint.", "logging.", "gpu")
        old["grid"] = search_space.parse_grid(old.get("grid", ()), config)
        changes = {**new, "grid": search_space.parse_grid(command.grid, config)}
        changed = [
            key
            for key, value in changes.items()
            if old.get(key) != value and not key.startswith(free)
        ]
        if changed:
            raise ValueError(
                f"{short_path(folder)} contains a sweep with {changed[0]} = "
                f"{old.get(changed[0])}, not {changes[changed[0]]}. Use another --run_dir, or "
                f"--clobber to delete that sweep."
            )
    write_whole(path, dump(new))


def rounds(search: NextRound, results: list[Result], folder: Path) -> Iterator[list[Values]]:
    """Yield the settings of each round. Rounds of an interrupted sweep come first."""
    index = 0
    while True:
        path = folder / "rounds" / f"{index:03d}" / "settings.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        settings = search([(r.setting, r.score) for r in results], known)
        if not settings:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(as_text(settings)))
        yield settings
        index += 1


def run_round(
    sweep_folder: Path, index: int, settings: Sequence[Values], command: SweepFlags, config: Config
) -> list[Result] | int:
    """Train settings, and return their results, or the exit code if training did not finish."""
    folder = sweep_folder / "rounds" / f"{index:03d}"
    configs = [search_space.apply(config, setting) for setting in settings]
    configs = with_code(configs, sweep_folder, command)
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
        f"{len(settings)} settings x {config.num_seeds} seeds in {len(groups)} program{plural}",
        flush=True,
    )
    if command.launcher == "local":
        codes = packing.train_groups(groups)
    else:
        codes = launcher(command.launcher)(groups, folder, command.launcher_options)
    if any(codes):
        return next(filter(None, codes))
    return scores.score(groups, settings, configs, command.select_by)


def population_of(command: SweepFlags, config: Config) -> tuple[Rules, list[Config]]:
    """Return the rules of a population, and its initial configs.

    Raises:
        ValueError: a number is out of range, or a range is not of a tunable number.
    """
    ranges = search_space.load_ranges(command.search_space, config)
    steps = command.population_interval or config.total_timesteps / 20
    interval = max(1, round(steps / config.steps_per_update))
    rules = rules_of(ranges, interval, command.population_share, command.population_factor)
    samples = search_space.random_settings(ranges, command.num_trials, config.seed)
    return rules, [
        dataclasses.replace(
            search_space.apply(config, setting), seed=config.seed + i, num_seeds=1, num_shards=1
        )
        for i, setting in enumerate(samples)
    ]


def run_population(folder: Path, command: SweepFlags, members: list[Config], rules: Rules) -> int:
    """Train a population, write its report, and return the exit code."""
    setup = resolve(one_shard(members[0]), members=members)
    setup = replace(setup, devices=tuple(start_jax(setup)))
    every = f"every {rules.interval} updates" if rules.interval > 1 else "after each update"
    print(f"population of {len(members)} agents, compared {every}", flush=True)
    code = packing.train_batch(folder / "population", setup, rules)
    if not code:
        report.report_population(folder, members, rules, command.select_by)
    return code
