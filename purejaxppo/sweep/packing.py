"""A sweep's agents in batches: each a run of many agents in one program, as large as fits.

Settings of one structure are one group, which compiles once. A group's agents, each setting with
each seed, are cut into batches where they do not fit into memory together.
"""

import gc
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from purejaxppo.config.files import compare, load_config, write_whole
from purejaxppo.config.schema import Config
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.runs.console import Console
from purejaxppo.runs.devices import start_jax
from purejaxppo.runs.failures import OutOfMemoryError
from purejaxppo.runs.folder import CONFIG, run_folder
from purejaxppo.runs.health import NotFiniteError
from purejaxppo.runs.population import AddPopulation, Rules, population_functions, short_interval
from purejaxppo.runs.programs import MakeTrainFunctions, Programs, ppo_functions, without_hang
from purejaxppo.runs.resume import with_old_rules
from purejaxppo.runs.session import execute
from purejaxppo.runs.training import Training, open_training
from purejaxppo.setup import Setup, divide, resolve
from purejaxppo.sweep.search_space import structure

SHARE = 0.8
"""Share of the free memory that a sweep takes by default."""
PLAN = "batches.json"


@dataclass(frozen=True)
class Group:
    """Agents of one structure, and the folder of their runs; a value that can be pickled."""

    folder: str
    members: tuple[Config, ...]
    memory: float = 0.0
    """Budget in bytes; 0: a share of what is free."""


def group_up(members: Sequence[Config]) -> list[list[Config]]:
    """Groups agents by structure, in the order of each group's first agent."""
    groups: dict[Any, list[Config]] = {}
    for member in members:
        groups.setdefault(structure(member), []).append(member)
    return list(groups.values())


def train_groups(groups: Sequence[Group]) -> list[int]:
    """Train groups in turn, up to one that fails or is interrupted; return their exit codes."""
    codes = []
    for group in groups:
        codes.append(train_group(group))
        if codes[-1]:
            break
    return codes


def train_group(group: Group) -> int:
    """Trains the rest of a group, batch after batch; returns the first exit code that is not 0."""
    setup = resolve(one_shard(group.members[0]), members=group.members)
    setup = replace(setup, devices=tuple(start_jax(setup)))
    folder = Path(group.folder)
    for index, members in enumerate(plan(group, setup)):
        code = train_batch(folder / f"batch-{index:03d}", replace(setup, members=members))
        gc.collect()  # its programs and agents, which refer to each other
        if code:
            return code
    return 0


def one_shard(config: Config) -> Config:
    """Return a config whose environments are not divided: a sweep divides its agents."""
    return replace(config, num_shards=1)


def plan(group: Group, setup: Setup) -> list[tuple[Config, ...]]:
    """Divides a group into batches; as planned before, if any of these has a save."""
    path = Path(group.folder) / PLAN
    members = group.members
    begun = any(path.parent.glob("batch-*/checkpoints/[0-9]*"))
    if path.is_file() and begun:
        sizes = json.loads(path.read_text(encoding="utf-8"))
    else:
        width = 1 if setup.on_host else len(setup.devices)
        sizes = cut(len(members), fitting(group, setup, width), width)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(sizes))
    batches, start = [], 0
    for size in sizes:
        batch = members[start : start + size]
        batches.append(batch + batch[-1:] * (size - len(batch)))
        start += size
    return batches


def cut(count: int, limit: int, width: int) -> list[int]:
    """Sizes of batches of at most `limit` agents: as few and as equal as can be.

    Each is a multiple of `width`, so that all devices have work; together they may be more than
    `count`, by less than `width` for each: such slots are filled with a copy.

        cut(10, 100, 2) = [10], cut(9, 100, 2) = [10], cut(10, 4, 2) = [4, 4, 2]
    """
    limit = max(limit // width, 1) * width
    number = math.ceil(count / limit)
    size = math.ceil(count / number / width) * width
    sizes = [size] * (count // size)
    left = count - sum(sizes)
    return sizes + [math.ceil(left / width) * width] * (left > 0)


def fitting(group: Group, setup: Setup, width: int) -> int:
    """Number of a group's agents that fit into memory together, by XLA's memory analysis.

    Raises:
        ValueError: not even the fewest that a program can be made of.
    """
    devices, cores = setup.devices, cpu_cores()
    part = min(len(devices) / cores, 1.0) if devices[0].platform == "cpu" else 1.0
    budget = group.memory or SHARE * part * free_memory(devices)
    whole = cut(len(group.members), len(group.members), width)[0]
    needed = measure(setup, whole)
    if needed <= budget:
        return whole
    few, more = width, 2 * width
    least = measure(setup, few)
    if least > budget:
        raise ValueError(
            f"{few} agents need {least / 1e9:.3f} GB, and the budget is {budget / 1e9:.3f} GB: "
            f"give more with --memory_gb, or make them smaller (env.num_envs, ppo.rollout_length)"
        )
    slope = (measure(setup, more) - least) / (more - few)
    return min(few + int((budget - least) / max(slope, 1.0)), whole - width)


def measure(setup: Setup, size: int) -> float:
    """Bytes that `size` agents take: their largest program, and a copy of them to be saved."""
    filled = tuple(setup.members[i % len(setup.members)] for i in range(size))
    programs = without_hang(Programs(divide(replace(setup, members=filled), setup.devices)))
    try:
        return _bytes(programs)
    finally:
        programs.close()


def _bytes(programs: Programs) -> float:
    state = programs.abstract_state()
    programs.compile(state)
    compiled = [programs.train_chunk] + [programs.evaluate] * bool(programs.evaluate)
    leaves = jax.tree.leaves((state.agent, state.opt_state))
    state_bytes = sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)
    return max(map(program_bytes, compiled)) * programs.shards.num_devices + 2 * state_bytes


def program_bytes(compiled: Any) -> int:
    """Bytes that a compiled program needs on each device: arguments, results and work space."""
    found = compiled.memory_analysis()
    return (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
    )


def free_memory(devices: Sequence[jax.Device]) -> float:
    """Bytes that are free: the devices' own memory, or the machine's if they are its cores."""
    if devices[0].platform != "cpu":
        stats = [device.memory_stats() or {} for device in devices]
        limits = [s["bytes_limit"] - s["bytes_in_use"] for s in stats if "bytes_limit" in s]
        return float(min(limits) * len(limits)) if limits else math.inf
    found = [line.split() for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    free = float(found[0][1]) * 1024 if found else math.inf
    for limit, used in CGROUPS:  # a container's or a batch job's
        numbers = [*_lines(limit), *_lines(used)]
        if len(numbers) == 2 and all(number.isdigit() for number in numbers):
            free = min(free, float(numbers[0]) - float(numbers[1]))
    return max(free, 0.0)


CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def train_batch(folder: Path, setup: Setup, rules: Rules | None = None) -> int:
    """Trains a batch in its folder, or the rest of it; returns the exit code.

    Args:
        folder: of the batch.
        setup: its members, and all devices.
        rules: of a population, whose agents copy each other; None: they do not.
    """
    members = setup.members
    config = replace(one_shard(members[0]), run_dir=str(folder))
    with run_folder(folder, clobber=False):
        if (folder / CONFIG).is_file():
            old = load_config(folder / CONFIG, saved=True)
            config, *old_members = (with_old_rules(x, old) for x in (config, *members))
            members = tuple(old_members)
            if any(compare(old, config)):
                raise ValueError(
                    f"{folder} was made by another sweep. Use --clobber to start from scratch."
                )
        setup = divide(replace(setup, config=config, members=members), setup.devices)
        console = Console(len(members) * config.num_updates * config.steps_per_update)
        programs = without_hang(Programs(setup, functions_of(rules)))
        run = open_training(programs, folder, console)
        if run.finished:
            console.print_line(f"{folder} is trained")
            run.close()
            return 0
        return train_agents(run, rules)


def functions_of(rules: Rules | None) -> MakeTrainFunctions:
    """The functions that a batch compiles."""
    return ppo_functions if rules is None else population_functions(rules)


def train_agents(run: Training, rules: Rules | None) -> int:
    """Trains the agents of a batch or of a population; returns the exit code."""
    try:
        if rules is None:
            code = execute(run)
        else:
            if warning := short_interval(
                rules, run.config.ppo.rollout_length, run.programs.spec.max_episode_steps
            ):
                run.console.print_line(warning)
            added = AddPopulation(rules)
            code = execute(run, [added], added.columns)
        return code or (128 + run.signal if run.signal else 0)
    except NotFiniteError as error:
        if rules is not None:
            raise
        run.console.print_line(f"{run.run_dir}: {error}")  # its agents have no score
        return 0
    except OutOfMemoryError as error:
        raise ValueError(
            f"{len(run.members)} agents ran out of memory ({error}). Set a smaller --memory_gb, "
            f"then run the same command to resume."
        ) from error
