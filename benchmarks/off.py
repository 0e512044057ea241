"""Training speed beside another checkout's, in turns of about a second.

    git worktree add ../before 0f0639b
    python benchmarks/off.py --before ../before [--tasks cartpole hopper] [--rounds 40]

Both versions compile this version's config (without its `gpu` section, which earlier ones do not
know) in a process of their own and stay there; then they take turns, one chunk of updates each, so
that whatever else slows the machine down for seconds slows both. In a third turn this version's
cores are kept awake, in tasks where the train command does so on virtual machines. Rows go to
benchmarks/results/off.jsonl, and from there `docs/make_results.py` writes the table of
docs/policies.md.
"""

import argparse
import contextlib
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import machine
import turns

ROOT = Path(__file__).resolve().parent.parent
PATH = machine.RESULTS / "off.jsonl"
TASKS: dict[str, tuple[str, int]] = {
    "cartpole": ("cartpole.yaml", 0),
    "hopper": ("hopper.yaml", 0),
    "hopper_v5": ("hopper_v5.yaml", 0),
    "cartpole_hidden": ("cartpole_hidden.yaml", 0),
    "cartpole, 32 seeds": ("cartpole.yaml", 32),
}
"""Task -> config, and seeds in one program (0: one agent)."""
NEVER_AWAKE = ("hopper_v5", "cartpole, 32 seeds")
"""Tasks whose cores the train command leaves alone: on the host, or agents that do not wait."""
AWAKE = "kept awake"
"""This version, with its cores kept awake; the name of a row's speeds."""
PROGRAM = """
import sys, time, jax, jax.numpy as jnp
try:
    from purejaxppo.config.files import load_config
    from purejaxppo.parallel.shards import Shards, use_cpu_cores, use_compilation_cache
except ImportError:  # a version without rooms
    from purejaxppo.configio import load_config
    from purejaxppo.sharding import Shards, use_cpu_cores, use_compilation_cache
use_compilation_cache(); use_cpu_cores(0)
config, seeds = sys.argv[1], int(sys.argv[2])
host = load_config(config).env.name.partition("/")[0] in ("envpool", "gymnasium")
devices = jax.devices()[:1] if host else jax.devices()
config = load_config(config, {"num_shards": 1 if seeds else len(devices)})
try:
    from purejaxppo.runs.members import MemberPrograms  # a version without an axis for one agent
except ImportError:
    seeds = seeds or 1
shards = Shards(config.num_shards, devices, seeds)
key = jax.random.key(0)
try:
    from purejaxppo.agents.schedules import make_hyperparams
    from purejaxppo.parts import STATE_AXES, init_program, make_parts, shard_ids, train_program
    parts = make_parts(config, shards)
    init, train, ids = init_program(parts), train_program(parts), shard_ids(parts)
    hp = make_hyperparams(config)
except ImportError:  # a version without parts
    from purejaxppo.learner import STATE_AXES, Learner
    learner = Learner(config, shards)
    init, train, ids = learner.init, learner.train_chunk, learner.shard_ids()
    hp = learner.hyperparams()
if seeds:
    key = jax.random.split(key, seeds)
    hp = jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds,)), hp)
state = jax.jit(init, out_shardings=shards.shardings(STATE_AXES))(key, ids)
chunk = jax.jit(train, donate_argnums=0,
                out_shardings=(shards.shardings(STATE_AXES), shards.shardings(None)))
for line in sys.stdin:
    started = time.perf_counter()
    state, metrics = jax.block_until_ready(chunk(state, hp, jnp.int32(int(line))))
    seconds = time.perf_counter() - started
    print(int(metrics.env_steps.sum()), seconds, flush=True)
"""


class Version:
    """A checkout's training program, compiled and waiting.

    Args:
        checkout: where its package is.
        config: path of a YAML file.
        seeds: agents in the program, 0 for one.
    """

    def __init__(self, checkout: Path, config: str, seeds: int) -> None:
        """Starts the process."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, config, str(seeds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,  # which Python looks at first
            env={**os.environ, "PYTHONPATH": str(checkout)},
        )

    def train(self, updates: int) -> tuple[int, float]:
        """(environment steps, seconds) of so many updates."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{updates}\n")
        self.process.stdin.flush()
        steps, seconds = self.process.stdout.readline().split()
        return int(steps), float(seconds)

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def main() -> None:
    """Measures both versions on each task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one turn")
    args = parser.parse_args()
    for task in args.tasks:
        row = {"task": task, "revision": revision_of(args.before)}
        rows = [r for r in machine.read_rows(PATH) if any(r[key] != row[key] for key in row)]
        with tempfile.TemporaryDirectory() as folder:
            config, seeds = without_gpu(TASKS[task][0], Path(folder)), TASKS[task][1]
            versions = {
                "before": Version(args.before.resolve(), config, seeds),
                "now": Version(ROOT, config, seeds),
            }
            awake = task not in NEVER_AWAKE
            row |= compare(task, versions, args.rounds, args.seconds, awake=awake)
        machine.write_rows(
            PATH, [*rows, row | {"date": datetime.date.today().isoformat(), **machine.describe()}]
        )


def without_gpu(name: str, folder: Path) -> str:
    """A copy of a config in a folder, without its last section, of settings for GPUs."""
    text = (ROOT / "configs" / name).read_text(encoding="utf-8")
    path = folder / name
    path.write_text(text.partition("\ngpu:")[0] + "\n", encoding="utf-8")
    return str(path)


def revision_of(checkout: Path) -> str:
    """The commit of a checkout, shortened."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def compare(
    task: str, versions: dict[str, Version], rounds: int, seconds: float, *, awake: bool
) -> dict[str, list[float]]:
    """Measure steps per second of each round of two versions, by name, and close them.

    With `awake`, the second version is also measured with cores kept awake.
    """
    first, second = versions
    try:
        for version in versions.values():  # compile, and warm up
            version.train(1)
        each = [version.train(2)[1] / 2 for version in versions.values()]
        updates = max(1, round(seconds / min(each)))
        names = [first, second, AWAKE] if awake else [first, second]
        speeds: dict[str, list[float]] = {name: [] for name in names}
        for i in range(rounds):
            for name in names[:: 1 if i % 2 else -1]:
                with turns.kept_awake() if name == AWAKE else contextlib.nullcontext():
                    steps, spent = versions[second if name == AWAKE else name].train(updates)
                speeds[name].append(steps / spent)
        for name in names[1:]:
            low, middle, high = turns.quartiles(speeds[first], speeds[name])
            print(
                f"{task}: {first} {statistics.median(speeds[first]):,.0f}, {name} "
                f"{statistics.median(speeds[name]):,.0f} steps/s; ratio of a round {middle:.3f} "
                f"(quartiles {low:.3f} and {high:.3f})",
                flush=True,
            )
        return speeds
    finally:
        for version in versions.values():
            version.close()


if __name__ == "__main__":
    main()
