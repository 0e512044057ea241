"""Items of gpu.py that compare results, or that train with the command.

They compare a GPU with the CPU, and repeated runs, or measure returns by time and the first update.
"""

import importlib.util
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import harness
import startup
from harness import Row

Measurements = Iterator[tuple[str, Callable[[], Row]]]
TOLERANCE = 1e-2
"""Largest norm of the difference of parameters after an update, relative to the norm of their
change; Adam makes full steps even where gradients are close to rounding errors."""
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "feed-forward": ("cartpole.yaml", {}),
    "continuous actions": ("pendulum.yaml", {}),
    "images": ("minatar_breakout.yaml", {"network.encoder": "cnn_small"}),
    "gru": ("cartpole_hidden.yaml", {}),
    "mingru": ("cartpole_hidden.yaml", {"network.rnn": "mingru"}),
    "popart": ("cartpole.yaml", {"ppo.critic": "popart", "ppo.normalize_reward": False}),
    "curious": ("mountain_car_curious.yaml", {}),
}
RUNS = (
    ("cartpole.yaml", 475.0),
    ("ant.yaml", 8000.0),
    ("minatar_breakout.yaml", 60.0),
    ("hopper.yaml", 2000.0),
    ("cheetah_run.yaml", 850.0),
)
"""Configs, trained with their sizes for a GPU, and their timed returns."""
SMALL_RUN = ("--env.num_envs", "8", "--ppo.rollout_length", "8", "--network.hidden", "8")


def one_update(toy: bool) -> Measurements:
    """Compare the parameters after an update here and on the CPU, for each kind of policy.

    Both start from the same state and draw actions with the same keys; an action that rounding
    changes makes another rollout, which is reported. In a toy run both are computed on the CPU, in
    the forms of the two platforms.
    """
    for name, kind in KINDS.items():
        yield f"one update, {name}", partial(compare_updates, toy, *kind)


def compare_updates(toy: bool, name: str, changes: dict[str, Any]) -> Row:
    """Compare one update here and on the CPU."""
    import jax
    import numpy as np
    from gpu_items import config_of

    config = config_of(toy, name, changes)
    here, cpu = jax.devices()[0], jax.devices("cpu")[0]
    state, mine = updated(config, here, "gpu" if toy else here.platform)
    _, other = updated(config, cpu, "cpu", state)
    before, mine, other = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
        for tree in (state.agent.params, mine, other)
    )
    error = float(np.linalg.norm(mine - other) / np.linalg.norm(other - before))
    why = {} if error < TOLERANCE else {"why": f"above {TOLERANCE}, or another rollout"}
    return {"ok": error < TOLERANCE, **why, "facts": {"difference": f"{error:.1e}"}}


def updated(config: Any, device: Any, platform: str, state: Any = None) -> tuple[Any, Any]:
    """Return the state before and the parameters after one update in the form of a platform."""
    import jax
    import numpy as np

    from purejaxppo.runs.programs import Programs
    from purejaxppo.setup import divide, resolve, resolve_shards

    with jax.default_device(device):
        setup = resolve(resolve_shards(config, 1, platform))
        programs = Programs(divide(setup, [device]))
        programs.shards.platform = platform
        start = programs.init() if state is None else jax.device_put(state, device)
        kept = jax.device_get(start)
        programs.compile(start)
        after, _ = programs.train_chunk(start, programs.hp, np.int32(1))
    return kept, jax.device_get(after.agent.params)


def one_run(toy: bool) -> Measurements:
    """Compare two runs with one seed, a resumed run, and train on a host simulator."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        yield "the same twice", partial(twice, toy, here)
        yield "killed and resumed", partial(resumed, toy, here)
        yield "a simulator on the host", partial(on_host, toy, here)


def command(config: str, folder: Path, *flags: str) -> list[str]:
    """Return the train command of a config in a folder."""
    words = [sys.executable, "-m", "purejaxppo.train", "--config", config]
    return [*words, "--run_dir", str(folder), *flags]


def small_run(toy: bool, folder: Path, *flags: str) -> list[str]:
    """Return the train command of a small run in a folder."""
    size = ("--total_timesteps", "2_048", *SMALL_RUN) if toy else ("--total_timesteps", "400_000")
    size += ("--checkpoint.interval", "1024", "--logging.interval", "1024")
    return command("cartpole.yaml", folder, *size, "--eval.num_episodes", "0", *flags)


def twice(toy: bool, folder: Path) -> Row:
    """Train twice with one seed, and compare."""
    for name in ("one", "two"):
        harness.call(small_run(toy, folder / name))
    return same(folder / "one", folder / "two")


def resumed(toy: bool, folder: Path) -> Row:
    """Kill a run at its first checkpoint, resume it, and compare with an uninterrupted run."""
    if not (folder / "one").is_dir():
        harness.call(small_run(toy, folder / "one"))
    words = small_run(toy, folder / "killed")

    def checkpoints() -> list[int]:
        names = (x.name for x in (folder / "killed" / "checkpoints").glob("[0-9]*"))
        return [int(name) for name in names if name.isdigit()]

    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not checkpoints():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    steps = max(checkpoints(), default=0)
    harness.call(words)
    row = same(folder / "one", folder / "killed")
    return {**row, "facts": {**row["facts"], "killed after steps": steps}}


def on_host(toy: bool, folder: Path) -> Row:
    """Train a few updates on a host simulator."""
    if importlib.util.find_spec("gymnasium") is None:
        return {"ok": False, "why": "gymnasium is not installed"}
    words = small_run(toy, folder / "host", "--env.name", "gymnasium/CartPole-v1")
    harness.call([*words, "--env.num_envs", "4", "--total_timesteps", "1024"])
    return {}


def same(one: Path, other: Path) -> Row:
    """Report whether the agents of two runs are bit-identical, and the largest difference."""
    import jax
    import numpy as np

    from purejaxppo import restore

    first, second = (jax.device_get(restore(folder).state) for folder in (one, other))
    errors = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), first, second)
    most = max(jax.tree.leaves(errors))
    why = {} if most == 0 else {"why": "other bits"}
    return {"ok": most == 0, **why, "facts": {"largest difference": f"{most:.1e}"}}


def learning(toy: bool) -> Measurements:
    """Train each config of `RUNS` once."""
    for config, wanted in RUNS:
        yield f"{config}, to {wanted:,.0f}", partial(learn, toy, config, wanted)


def learn(toy: bool, config: str, wanted: float) -> Row:
    """Train a seed, and return its evaluations by training seconds, and the total seconds."""
    flags = ("--total_timesteps", "2_048", *SMALL_RUN) if toy else ()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        name = "cartpole.yaml" if toy else config
        _, seconds = harness.timed(lambda _: harness.call(command(name, run_dir, *flags)), 1)
        rows = harness.metrics(run_dir)
    names = "global_step", "seconds", "eval/return_mean"
    curve = [[row[x] for x in names] for row in rows if "eval/return_mean" in row]
    reached = [second for _, second, mean in curve if mean >= wanted]
    return {
        "curve": curve,
        "env_steps": int(rows[-1]["global_step"]),
        "train_seconds": rows[-1]["seconds"],
        "seconds": round(seconds, 2),
        "reached_seconds": reached[0] if reached else None,
        "last_return_mean": curve[-1][2],
    }


def first_update(toy: bool) -> Measurements:
    """Measure the seconds from the command to its first progress, with and without a cache."""
    for config in ("hopper.yaml", "cartpole.yaml"):
        yield f"first update, {config}", partial(starts, toy, config)


def starts(toy: bool, config: str) -> Row:
    """Start a run three times with one cache, and return the seconds of the first and the last."""
    flags = ["--eval.num_episodes", "0", *(SMALL_RUN if toy else ())]
    flags += ["--total_timesteps", "256" if toy else "1_000_000", "--clobber"]
    name = "cartpole.yaml" if toy else config
    with tempfile.TemporaryDirectory() as folder:
        env = startup.environment(harness.ROOT, Path(folder))
        words = command(name, Path(folder) / "run", *flags)
        cold, _, warm = (startup.run(words, env, "steps/s") for _ in range(3))
    return {"cold_seconds": round(cold, 2), "warm_seconds": round(warm, 2)}
