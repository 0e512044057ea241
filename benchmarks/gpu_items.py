"""The items of gpu.py: measurements of a GPU, each in its own process.

An item is a function of `toy` that yields (name, measurement), with names unique within the item.
A toy run has the same rows with tiny sizes.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gpu_runs
import harness
import launches
import ours
import peers
from gpu_runs import Measurements
from harness import Row

ROUNDS = 5
SECONDS = 0.5
"""Length of a timed round, in seconds."""


class Item(NamedTuple):
    """A group of measurements."""

    function: Callable[[bool], Measurements]
    seconds: float  # limit
    about: str
    timed: bool = True  # no other program may use the GPU while it runs
    compiles: bool = True  # its programs can be compiled before they are timed


def names(item: str, *, toy: bool) -> list[str]:
    """Return the names of the rows of an item."""
    return [name for name, _ in ITEMS[item].function(toy)]


def work(item: str, path: Path, *, toy: bool, only: str | None = None) -> None:
    """Measure the rows of an item that are not in the file; a failure is a row with its error.

    Args:
        item: a key of `ITEMS`.
        path: the file of the rows.
        toy: tiny sizes.
        only: the name of the only row to measure; None: all rows.
    """
    ours.start(1 if toy else 0)
    done = {row["name"] for row in harness.read_rows(path) if row["item"] == item}
    for name, measure in ITEMS[item].function(toy):
        if name in done or only not in (None, name):
            continue
        try:
            row = {"ok": True, **measure()}
        except Exception as error:  # the other rows are still measured
            why = (str(error).splitlines() or [""])[0]
            row = {"ok": False, "why": f"{type(error).__name__}: {why}"[:300]}
        append(path, *harness.complete([{"item": item, "name": name, **row}]))


def append(path: Path, row: Row) -> None:
    """Add a row to a file, and wait until it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


def machine(toy: bool) -> Measurements:
    """Measure the memory and arithmetic of the GPU, and the time of a launch in a loop."""
    yield "card", card
    yield "copy", partial(copy_speed, toy)
    for precision in ("highest", "high", "bfloat16"):
        yield f"matrix product, {precision}", partial(product_speed, toy, precision)
    for kernels in (1, 4, 32):
        yield f"launch, {kernels} in a row", partial(launch_time, toy, kernels)


def card() -> Row:
    """Return the name and number of GPUs."""
    import jax

    return {"facts": {"kind": jax.devices()[0].device_kind, "cards": len(jax.devices())}}


def fastest(program: Any, *args: Any) -> float:
    """Return the minimal seconds of five calls of a compiled program, after a first call."""
    import jax

    jax.block_until_ready(program(*args))
    return min(
        harness.timed(lambda _: jax.block_until_ready(program(*args)), 1)[1] for _ in range(5)
    )


def copy_speed(toy: bool) -> Row:
    """Return TB/s of an elementwise product, for bytes read and written."""
    import jax
    import jax.numpy as jnp

    x = jnp.arange(2**10 if toy else 2**29, dtype=jnp.float32)
    seconds = fastest(jax.jit(lambda x: x * 1.5), x)
    return {"facts": {"TB/s": round(2 * x.nbytes / seconds / 1e12, 3)}}


def product_speed(toy: bool, precision: str) -> Row:
    """Return TFLOP/s of a product of random square matrices."""
    import jax
    import jax.numpy as jnp

    n = 64 if toy else 8192
    x = jax.random.normal(jax.random.key(0), (n, n))
    if precision == "bfloat16":
        x, precision = x.astype(jnp.bfloat16), "default"
    seconds = fastest(jax.jit(lambda x: jnp.matmul(x, x, precision=precision)), x)
    return {"facts": {"TFLOP/s": round(2 * n**3 / seconds / 1e12, 1)}}


def launch_time(toy: bool, chain: int) -> Row:
    """Return the microseconds of a kernel in a loop, where each depends on the last."""
    import jax
    import jax.numpy as jnp

    turns = 100 if toy else 10_000

    def body(_: Any, x: Any) -> Any:
        for _ in range(chain):
            x = x - 1e-3 * jnp.sum(x)  # a sum ends a kernel
        return x

    program = jax.jit(lambda x: jax.lax.fori_loop(0, turns, body, x))
    x = jnp.arange(1024.0)
    counted = launches.Program(program.lower(x).compile().as_text()).turn(turns)
    kernels = turns * max(counted, 1)
    return {"launches": kernels, "launch_us": 1e6 * fastest(program, x) / kernels}


SMALL = {
    "env.num_envs": 8,
    "network.hidden": [8],
    "ppo.rollout_length": 8,
    "ppo.bptt_length": 0,
    "ppo.num_minibatches": 2,
    "ppo.num_epochs": 2,
}
LIGHT = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Breakout-MinAtar")
"""Tasks that compile fast; a toy run replaces others by a dummy."""


def config_of(toy: bool, name: str, changes: dict[str, Any] | None = None) -> Any:
    """Return a config, with its sizes for a GPU if `changes` has `gpu`; tiny in a toy run."""
    from purejaxppo.config.files import for_platform, load_config
    from purejaxppo.config.schema import Config

    changes = dict(changes or {})
    sized = changes.pop("gpu", False)
    config = for_platform(load_config(name, changes), "gpu" if sized else "cpu")
    if toy and not config.env.name.endswith(LIGHT):
        config = Config().replace(**{"env.name": "dummy/vector"})
    if toy:
        config = config.replace(**SMALL, num_seeds=min(config.num_seeds, 3))
    return config.replace(**{"eval.num_episodes": 0})


def speed_of(toy: bool, name: str, changes: dict[str, Any] | None = None) -> Row:
    """Train on one GPU: compile seconds, launches, peak memory, and steps/s of five rounds."""
    import jax

    from purejaxppo.setup import resolve_shards

    device = jax.devices()[0]
    config = resolve_shards(config_of(toy, name, changes), 1, device.platform)
    started = time.perf_counter()
    run, programs = ours.updates_of(config)
    started = time.perf_counter() - started
    count = harness.calibrate(run, 0.02 if toy else SECONDS)
    rounds = [steps / s for steps, s in (harness.timed(run, count) for _ in range(ROUNDS))]
    result = harness.Result(rounds, {})
    counted = 0
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # a cached program may have no text
        counted = launches.Program(programs.train_chunk.as_text()).turn(0)
    update_us = 1e6 * programs.steps_per_update / result.median()
    programs.close()
    return result.row(
        sizes=f"{config.env.num_envs} x {config.ppo.rollout_length}, "
        f"{config.ppo.num_epochs} x {config.ppo.num_minibatches}",
        start_seconds=round(started, 2),
        update_us=round(update_us, 1),
        launches=counted,
        launch_us=update_us / counted if counted else 0.0,
        **harness.peak(),
    )


def speeds(*cases: tuple[str, str, dict[str, Any]]) -> Callable[[bool], Measurements]:
    """Return an item of trainings, given (name of the row, config, changes)."""

    def rows(toy: bool) -> Measurements:
        for name, config, changes in cases:
            yield name, partial(speed_of, toy, config, changes)

    return rows


FIRST = ("hopper", "cheetah_run", "minatar_breakout", "humanoid")
"""The first configs whose sizes for a GPU are measured."""
ELSEWHERE = ("cartpole", "ant", "cartpole_balance", "cartpole_hidden")
"""Configs whose sizes for a GPU are in other items."""


def sized(toy: bool) -> Measurements:
    """Yield every config that has sizes for a GPU, with these sizes."""
    from purejaxppo.config.files import library_configs, load_config

    for name in sorted(library_configs(), key=lambda name: (name not in FIRST, name)):
        if name not in ELSEWHERE and load_config(name).gpu:
            yield f"{name}, its sizes for a GPU", partial(speed_of, toy, name, {"gpu": True})


def ant(toy: bool) -> Measurements:
    """Measure Ant with 4,096 environments, with our PPO and Brax's at equal sizes."""
    yield "ant, 4096", partial(speed_of, toy, "ant.yaml", {"gpu": True})
    yield "ant, 4096, Brax's PPO", partial(brax_speed, toy)


def brax_speed(toy: bool) -> Row:
    """Return the last reported steps/s of Brax's PPO at the sizes of ant.yaml on a GPU."""
    small = {"num_envs": 8, "rollout_length": 4, "num_minibatches": 2, "num_epochs": 2}
    real = {"num_envs": 4096, "rollout_length": 16, "num_minibatches": 16, "num_epochs": 4}
    sizes = {"env": "brax/fast", **small} if toy else {"env": "brax/ant", **real}
    seen: list[Row] = []
    peers.brax_ppo(
        sizes | {"hidden": (128, 128), "normalize_obs": True},
        lambda _, metrics: seen.append(metrics),
        num_timesteps=512 if toy else 12_000_000,
        num_evals=ROUNDS + 3,  # the first two parts include compilation, each of another program
        run_evals=False,
        learning_rate=3e-4,
    )
    return harness.Result([float(x["training/sps"]) for x in seen[-ROUNDS:]], {}).row()


def seeds(toy: bool) -> Measurements:
    """Measure seeds of CartPole in one program, with our PPO and that of plain.py."""
    for count in (2048, 1, 64):
        name, changes = f"{count} seeds", {"num_seeds": count}
        yield name, partial(speed_of, toy, "cartpole.yaml", changes)
        yield f"{name}, plain", partial(plain_speed, toy, min(count, 3) if toy else count)


def plain_speed(toy: bool, count: int) -> Row:
    """Return steps/s of plain.py's seeds at the sizes of cartpole.yaml, from initial parameters."""
    import jax
    from plain import make_train

    small = {"num_envs": 8, "rollout_length": 8, "num_minibatches": 2, "num_epochs": 2}
    real = {"num_envs": 64, "rollout_length": 32, "num_minibatches": 4, "num_epochs": 4}
    sizes = {"env": "gymnax/CartPole-v1", "hidden": (64, 64), "learning_rate": 1e-3}
    sizes |= small if toy else real
    updates = 4 if toy else 10
    init, train = make_train(sizes, updates)
    keys = jax.random.split(jax.random.key(0), count)
    params = jax.jit(lambda keys: jax.lax.map(init, keys))(keys)
    program = jax.jit(jax.vmap(train))
    jax.block_until_ready(program(params, keys))
    steps = count * updates * sizes["num_envs"] * sizes["rollout_length"]
    speeds = []
    for _ in range(ROUNDS):
        _, seconds = harness.timed(lambda _: jax.block_until_ready(program(params, keys)), 1)
        speeds.append(steps / seconds)
    return harness.Result(speeds, {}).row(**harness.peak())


def widths() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Measure precisions x widths, and bfloat16."""
    for width in (64, 256, 1024):
        for precision in ("highest", "high"):
            changes = {"network.hidden": [width, width], "network.matmul_precision": precision}
            yield f"width {width}, {precision}", "cartpole.yaml", {"gpu": True, **changes}
    changes = {"network.hidden": [256, 256], "network.compute_dtype": "bfloat16"}
    yield "width 256, bfloat16", "cartpole.yaml", {"gpu": True, **changes}


HIDDEN = "cartpole_hidden.yaml"
ITEMS = {
    "machine": Item(machine, 90, "the card, its arithmetic and a launch", compiles=False),
    "one update": Item(
        gpu_runs.one_update, 150, "next to the CPU's from the same state", timed=False
    ),
    "cartpole": Item(
        speeds(
            ("cartpole, 4096", "cartpole.yaml", {"gpu": True}),
            ("cartpole, 64", "cartpole.yaml", {}),
            ("cartpole, 16384", "cartpole.yaml", {"gpu": True, "env.num_envs": 16384}),
        ),
        60,
        "64, 4,096 and 16,384 environments",
    ),
    "ant": Item(ant, 150, "4,096 environments, next to Brax's PPO"),
    "seeds": Item(seeds, 120, "1, 64 and 2,048 seeds, next to the plain plan"),
    "balance": Item(
        speeds(("cartpole_balance, 2048", "cartpole_balance.yaml", {"gpu": True})),
        90,
        "CartpoleBalance, 2,048 environments",
    ),
    "one run": Item(
        gpu_runs.one_run, 150, "twice; killed and resumed; a host simulator", timed=False
    ),
    "cells": Item(
        speeds(
            *((rnn, HIDDEN, {"gpu": True, "network.rnn": rnn}) for rnn in ("gru", "mingru", "lstm"))
        ),
        120,
        "gru next to mingru and lstm",
    ),
    "sizes": Item(sized, 240, "every config that has sizes for a GPU"),
    "learning": Item(gpu_runs.learning, 240, "runs to a return", compiles=False),
    "widths": Item(speeds(*widths()), 120, "precision x width, and bfloat16"),
    "first update": Item(gpu_runs.first_update, 120, "cold and warm", compiles=False),
    "oscillator": Item(speeds(("oscillator", "oscillator.yaml", {})), 90, "1,000 neurons"),
    "mjx": Item(speeds(("hopper_mjx", "hopper_mjx.yaml", {})), 400, "Brax's hopper on MJX"),
}
