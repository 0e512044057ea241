"""Items of gpu.py that compare: a GPU with the CPU, a run with itself, forms with each other."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_items import Row, Rows, Work, best_of, config_of, is_there, tried

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-2
"""Norm of the difference of parameters after an update, in units of the norm of their change; Adam
makes steps of gradients' signs where these are hardly more than rounding."""
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "feed-forward": ("cartpole.yaml", {}),
    "continuous actions": ("pendulum.yaml", {}),
    "images": ("minatar_breakout.yaml", {"network.encoder": "cnn_small"}),
    "gru": ("cartpole_hidden.yaml", {}),
    "mingru": ("cartpole_hidden.yaml", {"network.rnn": "mingru"}),
    "popart": ("cartpole.yaml", {"ppo.critic": "popart", "ppo.normalize_reward": False}),
    "curious": ("mountain_car_curious.yaml", {}),
}


SMALL_RUN = ("--env.num_envs", "8", "--ppo.rollout_length", "8", "--network.hidden", "8")
REHEARSED = ("feed-forward", "images", "gru")
"""The kinds that a rehearsal computes; of the others it makes the config."""


def updated(config: Any, device: Any, platform: str, state: Any = None) -> tuple[Any, Any]:
    """(the state before, the parameters after) one update in the form of a platform."""
    import jax
    import numpy as np

    from purejaxppo.runs.programs import Programs, resolve_shards

    programs = Programs(resolve_shards(config, 1, platform), [device])
    programs.shards.platform = platform
    with jax.default_device(device):
        start = programs.init() if state is None else jax.device_put(state, device)
        kept = jax.device_get(start)
        programs.compile_training(start)
        after, _ = programs.train_chunk(start, programs.hp, np.int32(1))
    return kept, jax.device_get(after.agent.params)


def one_update(work: Work) -> Rows:
    """An update's parameters here and on the CPU, from the same state.

    Actions are drawn alike on both; an action that rounding turns makes another rollout, which is
    said. In a rehearsal both are computed on the CPU, in the forms of the two platforms.
    """
    import jax
    import numpy as np

    def compare(config: Any) -> Row:
        here, cpu = jax.devices()[0], jax.devices("cpu")[0]
        state, mine = updated(config, here, "gpu" if work.rehearse else here.platform)
        _, other = updated(config, cpu, "cpu", state)
        before, mine, other = (
            np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
            for tree in (state.agent.params, mine, other)
        )
        error = float(np.linalg.norm(mine - other) / np.linalg.norm(other - before))
        why = {} if error < TOLERANCE else {"why": f"above {TOLERANCE}, or another rollout"}
        return {"ok": error < TOLERANCE, **why, "facts": {"difference": f"{error:.1e}"}}

    configs = {name: config_of(work, *kind) for name, kind in KINDS.items()}
    for name in work.size(tuple(KINDS), REHEARSED):
        yield from tried(work, f"one update, {name}", lambda c=configs[name]: compare(c))


def command(work: Work, folder: Path, *flags: str) -> list[str]:
    """The train command of a small run in a folder."""
    steps = work.size("400_000", "2_048")
    return [
        *(sys.executable, "-m", "purejaxppo.train", "--config", "cartpole.yaml"),
        *("--run_dir", str(folder), "--total_timesteps", steps, "--checkpoint.interval", "1024"),
        *("--eval.num_episodes", "0", "--logging.interval", "1024"),
        *work.size((), SMALL_RUN),
        *flags,
    ]


def one_run(work: Work) -> Rows:
    """A run twice with one seed; killed and resumed; one on a host's simulator."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)

        def twice() -> Row:
            for name in ("one", "two"):
                trained(work, command(work, here / name))
            return same(here / "one", here / "two")

        def resumed() -> Row:
            if not (here / "one").is_dir():
                trained(work, command(work, here / "one"))
            words = command(work, here / "killed")
            with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
                while process.poll() is None and not saves(here / "killed"):
                    time.sleep(0.01)
                process.send_signal(signal.SIGKILL)
            at = max((int(x) for x in saves(here / "killed")), default=0)
            ended(words)
            row = same(here / "one", here / "killed")
            return {**row, "facts": {**row["facts"], "killed after steps": at}}

        def host() -> Row:
            if not is_there("gymnasium"):
                return {"ok": False, "why": "gymnasium is not installed"}
            words = command(work, here / "host", "--env.name", "gymnasium/CartPole-v1")
            trained(work, [*words, "--env.num_envs", "4", "--total_timesteps", "1024"])
            return {}

        yield from tried(work, "the same twice", twice)
        yield from tried(work, "killed and resumed", resumed)
        yield from tried(work, "a simulator on the host", host)


def trained(work: Work, words: list[str]) -> str:
    """The output of a train command, in a rehearsal without a process of its own."""
    if not work.rehearse:
        return ended(words)
    from purejaxppo.commands import train

    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = train.main(words[3:])
    if code:
        raise RuntimeError((errors.getvalue().strip().splitlines() or ["failed"])[-1])
    return output.getvalue()


def ended(words: list[str]) -> str:
    """A command's output; RuntimeError with its last line if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["failed"])[-1])
    return done.stdout


def saves(folder: Path) -> list[str]:
    """The saves of a run."""
    return [x.name for x in (folder / "checkpoints").glob("[0-9]*") if x.name.isdigit()]


def same(one: Path, other: Path) -> Row:
    """Whether two runs' agents agree in every bit, and else by how much they differ."""
    import jax
    import numpy as np

    from purejaxppo import restore

    first, second = (jax.device_get(restore(folder).state) for folder in (one, other))
    errors = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), first, second)
    most = max(jax.tree.leaves(errors))
    why = {} if most == 0 else {"why": "other bits"}
    return {"ok": most == 0, **why, "facts": {"largest difference": f"{most:.1e}"}}


def gpu_tests(work: Work) -> Rows:
    """The tests that are marked `gpu`."""

    def run() -> Row:
        if not is_there("pytest") or not (ROOT / "tests").is_dir():
            return {"ok": False, "why": "pytest is not installed"}
        words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:xdist"]
        words += ["--collect-only"] * work.rehearse + ["tests/test_precision.py"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        return {"ok": done.returncode == 0, "why": last, "facts": {"said": last}}

    yield from tried(work, "gpu tests", run)


def recurrences(work: Work) -> Rows:
    """Seconds of advantages [T, N] in stages and step by step."""
    import jax
    import jax.numpy as jnp

    from purejaxppo.agents import recurrences as forms
    from purejaxppo.parallel import platforms

    def measure(platform: str, rows: int) -> Row:
        def solve(b: Any, a: Any) -> Any:
            with platforms.tracing_for(platform):
                return forms.backwards(b, a)

        b, a = jnp.ones((rows, work.size(4096, 8))), jnp.full((rows, work.size(4096, 8)), 0.9)
        program = jax.jit(solve)
        return {"facts": {"us": round(1e6 * best_of(lambda: program(b, a)), 1)}}

    for rows in work.size((32, 128, 1024), (8, 16)):
        for platform, form in (("gpu", "stages"), ("cpu", "steps")):
            name = f"advantages of {rows} rows, {form}"
            yield from tried(work, name, lambda p=platform, r=rows: measure(p, r))


def whole_runs(work: Work) -> Rows:
    """Runs with the sizes for a GPU, to their end: wall time and the last evaluation."""

    def run(name: str) -> Row:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "purejaxppo.train", "--config", name]
            words += ["--run_dir", f"{folder}/run"]
            if work.rehearse:
                words += ["--total_timesteps", "4096", "--eval.num_episodes", "2", *SMALL_RUN]
            started = time.perf_counter()
            said = trained(work, words)
            seconds = time.perf_counter() - started
        found = re.findall(r"return (-?[\d,.]+)", said)
        facts = {"seconds": round(seconds, 1), "return": found[-1] if found else "none"}
        return {"ok": bool(found), "why": "no return in the output", "facts": facts}

    for name in work.size(("cartpole", "hopper", "ant"), ("cartpole",)):
        yield from tried(work, f"{name}, whole run", lambda n=name: run(n))


def envpool(work: Work) -> Rows:
    """EnvPool: a few updates of its CartPole, in a process that may abort."""

    def run() -> Row:
        if not is_there("envpool"):
            return {"ok": False, "why": "envpool is not installed"}
        with tempfile.TemporaryDirectory() as folder:
            words = command(work, Path(folder) / "run", "--env.name", "envpool/CartPole-v1")
            env = {**os.environ, "PYTHONFAULTHANDLER": "1"}
            words += ["--env.num_envs", "8", "--total_timesteps", "1024"]
            done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"ok": done.returncode == 0, **({"why": why[:300]} if done.returncode else {})}

    yield from tried(work, "envpool", run)
