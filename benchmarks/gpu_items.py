"""The items of gpu.py: what is measured on a GPU, each in its own process.

An item is a function of `toy` that yields (name, measurement), the names unique within the item. A
toy run has the same rows with tiny sizes.
"""

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gpu_correctness
import harness
import launches
import ours
import peers

Row = dict[str, Any]
Measurements = Iterator[tuple[str, Callable[[], Row]]]
ROUNDS = 5


class Item(NamedTuple):
    """A group of measurements."""

    function: Callable[[bool], Measurements]
    seconds: float  # limit
    about: str


def work(item: str, path: Path, *, toy: bool) -> None:
    """Measure the rows of an item that are not in the file; a failure is a row with its reason."""
    ours.start(1 if toy else 0)
    done = {row["name"] for row in harness.read_rows(path) if row["item"] == item}
    for name, measure in ITEMS[item].function(toy):
        if name in done:
            continue
        try:
            row = {"ok": True, **measure()}
        except Exception as error:  # the other rows are wanted
            why = (str(error).splitlines() or [""])[0]
            row = {"ok": False, "why": f"{type(error).__name__}: {why}"[:300]}
        append(path, *harness.complete([{"item": item, "name": name, **row}]))


def append(path: Path, row: Row) -> None:
    """Add a row to a file, on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


def machine(toy: bool) -> Measurements:
    """The card, and the time of a launch in a loop on it."""
    import jax
    import jax.numpy as jnp

    def card() -> Row:
        device = jax.devices()[0]
        return {"facts": {"kind": device.device_kind, "cards": len(jax.devices())}}

    def launch() -> Row:
        turns = 100 if toy else 10_000

        def body(_: Any, x: Any) -> Any:
            return jnp.sort(x * 1.5)  # two kernels that cannot be one

        program = jax.jit(lambda x: jax.lax.fori_loop(0, turns, body, x))
        x = jnp.arange(1024.0)
        text = program.lower(x).compile().as_text()
        kernels = max(launches.Program(text).total.kernels, turns)
        jax.block_until_ready(program(x))
        seconds = min(
            harness.timed(lambda _: jax.block_until_ready(program(x)), 1)[1] for _ in range(5)
        )
        return {"launches": kernels, "launch_us": 1e6 * seconds / kernels}

    yield "card", card
    yield "launch", launch


SMALL = {
    "env.num_envs": 8,
    "network.hidden": [8],
    "ppo.rollout_length": 8,
    "ppo.bptt_length": 0,
    "ppo.num_minibatches": 2,
    "ppo.num_epochs": 2,
}
LIGHT = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Breakout-MinAtar")
"""Tasks that compile quickly; a toy run has a dummy in place of others."""


def config_of(toy: bool, name: str, changes: dict[str, Any] | None = None) -> Any:
    """Return a config, with its sizes for a GPU where `changes` has `gpu`; tiny in a toy run."""
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
    """Train on one card: compile seconds, launches, peak memory, and steps/s of five rounds."""
    import jax

    from purejaxppo.runs.programs import resolve_shards

    device = jax.devices()[0]
    config = resolve_shards(config_of(toy, name, changes), 1, device.platform)
    run, programs = ours.updates_of(config)
    count = harness.calibrate(run, 0.02 if toy else 1.0)
    rounds = [steps / s for steps, s in (harness.timed(run, count) for _ in range(ROUNDS))]
    result = harness.Result(rounds, {})
    counted = launches.Program(programs.train_chunk.as_text()).turn(0)
    update_us = 1e6 * programs.steps_per_update / result.median()
    programs.close()
    return result.row(
        sizes=f"{config.env.num_envs} x {config.ppo.rollout_length}, "
        f"{config.ppo.num_epochs} x {config.ppo.num_minibatches}",
        compile_seconds=programs.compile_seconds,
        launches=counted,
        launch_us=update_us / counted if counted else 0.0,
        **harness.peak(),
    )


def speeds(*cases: tuple[str, str, dict[str, Any]]) -> Callable[[bool], Measurements]:
    """Return an item of trainings: (row's name, config, changes)."""

    def rows(toy: bool) -> Measurements:
        for name, config, changes in cases:
            yield name, partial(speed_of, toy, config, changes)

    return rows


def sized(toy: bool) -> Measurements:
    """Every config that has sizes for a GPU, with them."""
    from purejaxppo.config.files import library_configs, load_config

    for name in sorted(library_configs()):
        if load_config(name).gpu:
            yield f"{name}, its sizes for a GPU", partial(speed_of, toy, name, {"gpu": True})


def ant(toy: bool) -> Measurements:
    """Ant with 4,096 environments, ours and Brax's PPO at equal sizes."""
    yield "ant, 4096", partial(speed_of, toy, "ant.yaml", {"gpu": True})
    yield "ant, 4096, Brax's PPO", partial(brax_speed, toy)


def brax_speed(toy: bool) -> Row:
    """Return steps/s of Brax's PPO at the sizes of ant.yaml on a GPU, its own last figure."""
    small = {"num_envs": 8, "rollout_length": 4, "num_minibatches": 2, "num_epochs": 2}
    real = {"num_envs": 4096, "rollout_length": 16, "num_minibatches": 16, "num_epochs": 4}
    sizes = {"env": "brax/fast", **small} if toy else {"env": "brax/ant", **real}
    seen: list[Row] = []
    peers.brax_ppo(
        sizes | {"hidden": (128, 128), "normalize_obs": True},
        lambda _, metrics: seen.append(metrics),
        num_timesteps=512 if toy else 30_000_000,
        num_evals=4,  # the first part's figure counts its compile, the last one's does not
        num_eval_envs=2 if toy else 128,
        learning_rate=3e-4,
    )
    return harness.Result([float(seen[-1]["training/sps"])], {}).row()


def seeds(toy: bool) -> Measurements:
    """Seeds of CartPole in one program, ours and PureJaxRL's plan as plain.py writes it."""
    for count in (1, 64, 2048):
        name, changes = f"{count} seeds", {"num_seeds": count}
        yield name, partial(speed_of, toy, "cartpole.yaml", changes)
        yield f"{name}, plain", partial(plain_speed, toy, min(count, 3) if toy else count)


def plain_speed(toy: bool, count: int) -> Row:
    """Return steps/s of plain.py's seeds at the sizes of cartpole.yaml."""
    from seeds import train_plain

    small = {"num_envs": 8, "rollout_length": 8, "num_minibatches": 2, "num_epochs": 2}
    real = {"num_envs": 64, "rollout_length": 32, "num_minibatches": 4, "num_epochs": 4}
    sizes = {"env": "gymnax/CartPole-v1", "hidden": (64, 64), "learning_rate": 1e-3}
    steps = {"total_timesteps": 256 if toy else 100_000}
    once = train_plain(sizes | (small if toy else real) | steps, count)
    once()
    steps, seconds = harness.timed(lambda _: once(), 1)
    return harness.Result([steps / seconds], {}).row()


def widths() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Return precision x width, and bfloat16."""
    for width in (64, 256, 1024):
        for precision in ("highest", "high"):
            changes = {"network.hidden": [width, width], "network.matmul_precision": precision}
            yield f"width {width}, {precision}", "cartpole.yaml", {"gpu": True, **changes}
    changes = {"network.hidden": [256, 256], "network.compute_dtype": "bfloat16"}
    yield "width 256, bfloat16", "cartpole.yaml", {"gpu": True, **changes}


HIDDEN = "cartpole_hidden.yaml"
ITEMS = {
    "machine": Item(machine, 60, "the card, a launch"),
    "one update": Item(gpu_correctness.one_update, 120, "next to the CPU's from the same state"),
    "one run": Item(gpu_correctness.one_run, 60, "twice; killed and resumed; a host simulator"),
    "cartpole": Item(
        speeds(
            *((f"cartpole, {n}", "cartpole.yaml", {"env.num_envs": n}) for n in (4096, 64, 16384))
        ),
        60,
        "64, 4,096 and 16,384 environments",
    ),
    "ant": Item(ant, 150, "4,096 environments, next to Brax's PPO"),
    "balance": Item(
        speeds(("cartpole_balance, 2048", "cartpole_balance.yaml", {"gpu": True})),
        90,
        "CartpoleBalance, 2,048 environments",
    ),
    "seeds": Item(seeds, 90, "1, 64 and 2,048 seeds, next to the plain plan"),
    "sizes": Item(sized, 240, "every config that has sizes for a GPU"),
    "cells": Item(
        speeds(
            *((rnn, HIDDEN, {"gpu": True, "network.rnn": rnn}) for rnn in ("gru", "mingru", "lstm"))
        ),
        120,
        "gru next to mingru and lstm",
    ),
    "widths": Item(speeds(*widths()), 120, "precision x width, and bfloat16"),
    "oscillator": Item(speeds(("oscillator", "oscillator.yaml", {})), 90, "1,000 neurons"),
    "mjx": Item(speeds(("hopper_mjx", "hopper_mjx.yaml", {})), 400, "Brax's hopper on MJX"),
}
