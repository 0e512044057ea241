"""Division of a sweep's agents into groups and batches, and their training.

Settings that differ only in tunable numbers form a group. A group's agents, each setting with each
seed, are divided into batches that fit into memory. A batch is one run in one program.
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
from purejaxppo.config.hints import short_path
from purejaxppo.config.run_files import load_members
from purejaxppo.config.schema import Config
from purejaxppo.envs.registry import free_options
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.runs.console import Console
from purejaxppo.runs.devices import start_jax
from purejaxppo.runs.failures import OutOfMemoryError
from purejaxppo.runs.folder import CONFIG, MEMBERS, run_folder, steps_of
from purejaxppo.runs.health import NotFiniteError
from purejaxppo.runs.population import AddPopulation, Rules, population_functions, short_interval
from purejaxppo.runs.programs import Programs, ppo_functions, without_hang
from purejaxppo.runs.resume import with_old_rules
from purejaxppo.runs.session import execute
from purejaxppo.runs.training import Training, open_training
from purejaxppo.setup import Setup, divide, resolve
from purejaxppo.sweep.search_space import structure

MEMORY_SHARE = 0.8
"""Fraction of the free memory that a sweep uses by default."""
PLAN = "batches.json"


@dataclass(frozen=True)
class Group:
    """Agents that can share a program, and the folder of their runs. It can be pickled."""

    folder: str
    members: tuple[Config, ...]
    memory: float = 0.0
    """Memory budget in bytes; 0: `MEMORY_SHARE` of the free memory."""


def group_up(members: Sequence[Config]) -> list[list[Config]]:
    """Group agents by structure, in the order of each group's first agent."""
    groups: dict[Any, list[Config]] = {}
    for member in members:
        groups.setdefault(structure(member), []).append(member)
    return list(groups.values())


def train_groups(groups: Sequence[Group]) -> list[int]:
    """Train groups one by one until one fails or is interrupted; return their exit codes."""
    codes = []
    for group in groups:
        codes.append(train_group(group))
        if codes[-1]:
            break
    return codes


def train_group(group: Group) -> int:
    """Train a group, one batch after another; return the first exit code that is not 0, or 0."""
    setup = resolve(one_shard(group.members[0]), members=group.members)
    setup = replace(setup, devices=tuple(start_jax(setup)))
    folder = Path(group.folder)
    for index, members in enumerate(plan(group, setup)):
        code = train_batch(folder / f"batch-{index:03d}", replace(setup, members=members))
        gc.collect()  # frees the programs and agents, which refer to each other
        if code:
            return code
    return 0


def one_shard(config: Config) -> Config:
    """Return a config with one shard, because a sweep divides agents among devices."""
    return replace(config, num_shards=1)


def plan(group: Group, setup: Setup) -> list[tuple[Config, ...]]:
    """Divide a group into batches. The saved plan is used if a batch has a checkpoint."""
    path = Path(group.folder) / PLAN
    members = group.members
    has_checkpoints = any(map(steps_of, path.parent.glob("batch-*")))
    if path.is_file() and has_checkpoints:
        sizes = json.loads(path.read_text(encoding="utf-8"))
    else:
        width = 1 if setup.on_host else len(setup.devices)
        sizes = batch_sizes(len(members), max_batch(group, setup, width), width)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(sizes))
    batches, start = [], 0
    for size in sizes:
        batch = members[start : start + size]
        batches.append(batch + batch[-1:] * (size - len(batch)))
        start += size
    return batches


def batch_sizes(count: int, limit: int, width: int) -> list[int]:
    """Return the sizes of as few and as equal batches as possible, each of at most `limit` agents.

    Each size is a multiple of `width`, so all devices have work. Copies fill extra slots.

        batch_sizes(10, 100, 2) = [10]
        batch_sizes(9, 100, 2) = [10]
        batch_sizes(10, 4, 2) = [4, 4, 2]
    """
    limit = max(limit // width, 1) * width
    number = math.ceil(count / limit)
    size = math.ceil(count / number / width) * width
    sizes = [size] * (count // size)
    remaining = count - sum(sizes)
    return sizes + [math.ceil(remaining / width) * width] * (remaining > 0)


def max_batch(group: Group, setup: Setup, width: int) -> int:
    """Return the largest number of a group's agents that one program can train.

    XLA's memory analysis estimates their memory.

    Args:
        group: the agents, and their memory budget.
        setup: setup of the group, with its devices.
        width: the smallest number of agents that one program trains.

    Raises:
        ValueError: not even `width` agents fit.
    """
    devices, cores = setup.devices, cpu_cores()
    part = min(len(devices) / cores, 1.0) if devices[0].platform == "cpu" else 1.0
    budget = group.memory or MEMORY_SHARE * part * free_memory(devices)
    all_agents = math.ceil(len(group.members) / width) * width
    needed = measure(setup, all_agents)
    if needed <= budget:
        return all_agents
    few, more = width, 2 * width
    least = measure(setup, few)
    if least > budget:
        raise ValueError(
            f"{few} agents need {least / 1e9:.3f} GB of device memory, but the budget is "
            f"{budget / 1e9:.3f} GB. Increase --memory_gb, or reduce env.num_envs or "
            f"ppo.rollout_length."
        )
    slope = (measure(setup, more) - least) / (more - few)
    return min(few + int((budget - least) / max(slope, 1.0)), all_agents - width)


def measure(setup: Setup, size: int) -> float:
    """Return the bytes that `size` agents need.

    Their largest program, and two copies of their parameters and optimiser states for checkpoints.
    """
    agents = tuple(setup.members[i % len(setup.members)] for i in range(size))
    programs = without_hang(Programs(divide(replace(setup, members=agents), setup.devices)))
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
    """Return the bytes that a compiled program needs on each device."""
    analysis = compiled.memory_analysis()
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
        - analysis.alias_size_in_bytes
    )


def free_memory(devices: Sequence[jax.Device]) -> float:
    """Return the free bytes of the devices; for CPU devices, of the host."""
    if devices[0].platform != "cpu":
        stats = [device.memory_stats() or {} for device in devices]
        limits = [s["bytes_limit"] - s["bytes_in_use"] for s in stats if "bytes_limit" in s]
        return float(min(limits) * len(limits)) if limits else math.inf
    available = [x.split() for x in _lines("/proc/meminfo") if x.startswith("MemAvailable:")]
    free = float(available[0][1]) * 1024 if available else math.inf
    for folder in cgroups():  # limits of containers and batch jobs
        for limit, used in CGROUP_FILES:
            numbers = [*_lines(folder / limit), *_lines(folder / used)]
            if len(numbers) == 2 and all(number.isdigit() for number in numbers):
                stat = dict(line.split() for line in _lines(folder / "memory.stat"))
                cached = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
                free = min(free, float(numbers[0]) - float(numbers[1]) + float(cached))
    return max(free, 0.0)


CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),  # of cgroup version 1
)


def cgroups(root: Path = Path("/sys/fs/cgroup"), process: str = "/proc/self/cgroup") -> set[Path]:
    """Return the folders of this process's memory control groups (cgroups) and of their parents.

    Args:
        root: folder of all groups; version 1 has them in its folder `memory`.
        process: file with the groups of the process, as lines of ID:controllers:path.
    """
    folders = {root, root / "memory"}
    for line in _lines(process):
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            group = (root / "memory" if controllers else root) / path.lstrip("/")
            folders |= {x for x in (group, *group.parents) if x.is_relative_to(root)}
    return folders


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def train_batch(folder: Path, setup: Setup, rules: Rules | None = None) -> int:
    """Train a batch in its folder, or resume it; return the exit code.

    Args:
        folder: folder of the batch.
        setup: the batch's agents, and all devices.
        rules: rules of a population; None for independent agents.
    """
    members = setup.members
    config = replace(one_shard(members[0]), run_dir=str(folder))
    with run_folder(folder, clobber=False):
        if (folder / CONFIG).is_file():
            old = load_config(folder / CONFIG, saved=True)
            saved = [old, *load_members(folder / MEMBERS, old)]
            config, *old_members = (with_old_rules(x, old) for x in (config, *members))
            members = tuple(old_members)
            used = [config, *(members if len(members) > 1 else ())]
            if not steps_of(folder):  # its size may change
                saved, used = saved[:1], used[:1]
            if len(saved) != len(used) or any(
                any(compare(*pair, free_options(config.env)))
                for pair in zip(saved, used, strict=True)
            ):
                raise ValueError(
                    f"{short_path(folder)} was started with other settings of its agents. Use the "
                    f"same flags in the same order, another --run_dir, or --clobber to delete that "
                    f"sweep and start again."
                )
        setup = divide(replace(setup, config=config, members=members), setup.devices)
        console = Console(len(members) * config.num_updates * config.steps_per_update)
        functions = ppo_functions if rules is None else population_functions(rules)
        programs = without_hang(Programs(setup, functions))
        run = open_training(programs, folder, console)
        if run.finished or run.was_stopped:
            console.print_line(f"{short_path(folder)} is finished already")
            run.close()
            return 0
        return train_agents(run, rules)


def train_agents(run: Training, rules: Rules | None) -> int:
    """Train agents together in one program, a batch or a population; return the exit code."""
    try:
        if rules is None:
            code = execute(run)
        else:
            if warning := short_interval(
                rules, run.config.ppo.rollout_length, run.programs.spec.max_episode_steps
            ):
                run.console.warn(warning)
            hook = AddPopulation(rules)
            code = execute(run, [hook], hook.columns)
        return code or (128 + run.signal if run.signal else 0)
    except NotFiniteError as error:
        if rules is not None:
            raise
        run.console.print_line(f"{short_path(run.run_dir)}: {error}")  # these agents have no score
        return 0
    except OutOfMemoryError as error:
        if rules is not None:
            remedy = (
                "Reduce env.num_envs or --num_trials, and add --clobber to delete this population "
                "and start again."
            )
        elif any(map(steps_of, run.run_dir.parent.glob("batch-*"))):  # `plan` keeps the sizes
            remedy = "Reduce --memory_gb, and add --clobber to delete this sweep and start again."
        else:
            remedy = "Reduce --memory_gb, then run the same command to resume."
        raise ValueError(
            f"out of memory with {len(run.members)} agents ({error}). {remedy}"
        ) from error
