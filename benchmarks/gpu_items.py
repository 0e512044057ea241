"""The items of gpu.py: what is measured on a GPU, each in a process of its own.

An item is a function of (done, rehearse) that yields rows, each with a `name` that the item gives
to no other and `ok`; rows whose names are in `done` it leaves out. A rehearsal has the same rows.
"""

import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Row = dict[str, Any]
Rows = Iterator[Row]
LAUNCH_SECONDS = (1.5e-6, 3e-6)
ROUNDS = 5
END = "end of item\n"
"""The line that follows an item's rows."""
TARGETS = {
    "cartpole, 4096": 10e6,
    "ant, 4096": 1e6,
    "cartpole_balance, 2048": 0.7e6,
}
"""Steps/s of one H200 that these rows are to reach."""


class Item(NamedTuple):
    """A group of measurements."""

    function: Callable[["Work"], Rows]
    seconds: float  # limit
    about: str
    env: dict[str, str] = {}  # noqa: RUF012


class Work(NamedTuple):
    """What an item is asked for."""

    done: set[str]  # names of rows that are there
    rehearse: bool

    def size(self, real: Any, small: Any) -> Any:
        """A size, or in a rehearsal a small one."""
        return small if self.rehearse else real


def work(names: list[str], done: dict[str, list[str]], *, rehearse: bool) -> None:
    """Runs items; prints their rows, and where each ends."""
    import ours

    ours.start(1 if rehearse else 0)
    for name in names:
        for row in ITEMS[name].function(Work(set(done.get(name, [])), rehearse)):
            print("row", json.dumps(row | {"rehearsed": rehearse}), flush=True)
        print(END, end="", flush=True)


def tried(work: Work, name: str, measure: Callable[[], Row]) -> Rows:
    """The row of a measurement, unless it is there; a failure is a row with its reason."""
    if name in work.done:
        return
    try:
        row = measure()
    except Exception as error:  # whatever it is, the other rows are wanted
        why = (str(error).splitlines() or [""])[0]
        row = {"ok": False, "why": f"{type(error).__name__}: {why}"[:300]}
    yield {"name": name, "ok": True, **row}


def best_of(function: Callable[[], Any], times: int = 5) -> float:
    """Seconds of the fastest of some calls, after one that warms up."""
    import jax

    jax.block_until_ready(function())
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        jax.block_until_ready(function())
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def the_machine(work: Work) -> Rows:
    """Versions, bandwidth, matrix products in fp32 and TF32, and a launch in a loop."""
    import jax
    import jax.numpy as jnp
    import machine

    def versions() -> Row:
        device = jax.devices()[0]
        return {
            "facts": {"kind": device.device_kind, "cards": len(jax.devices()), **machine.software()}
        }

    def bandwidth() -> Row:
        x = jnp.zeros(work.size(2**30, 2**18), jnp.float32)
        add = jax.jit(lambda x: x + 1)
        seconds = best_of(lambda: add(x))
        return {"facts": {"GB/s": round(2 * x.nbytes / seconds / 1e9, 2)}}

    def product(precision: str) -> Row:
        n = work.size(8192, 256)
        x = jnp.ones((n, n), jnp.float32)
        multiply = jax.jit(lambda x: jnp.matmul(x, x, precision=precision))
        return {"facts": {"TFLOP/s": round(2 * n**3 / best_of(lambda: multiply(x)) / 1e12, 3)}}

    def launch() -> Row:
        import launches

        turns = work.size(10_000, 100)

        def body(_: Any, x: Any) -> Any:
            return jnp.sort(x * 1.5)  # two kernels that cannot be one

        program = jax.jit(lambda x: jax.lax.fori_loop(0, turns, body, x))
        x = jnp.arange(1024.0)
        text = program.lower(x).compile().as_text()
        kernels = max(launches.Program(text).total.kernels, turns)
        seconds = best_of(lambda: program(x))
        return {"launches": kernels, "launch_us": 1e6 * seconds / kernels}

    yield from tried(work, "versions", versions)
    yield from tried(work, "bandwidth", bandwidth)
    for precision in ("highest", "high"):
        yield from tried(work, f"products, {precision}", lambda p=precision: product(p))
    yield from tried(work, "launch", launch)


SMALL = {
    "env.num_envs": 8,
    "network.hidden": [8],
    "ppo.rollout_length": 8,
    "ppo.bptt_length": 0,
    "ppo.num_minibatches": 2,
    "ppo.num_epochs": 2,
}
LIGHT = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Breakout-MinAtar")
"""Tasks that compile in no time; a rehearsal has a toy in the place of others."""


def config_of(work: Work, name: str, changes: dict[str, Any] | None = None) -> Any:
    """A config, with its sizes for a GPU where `changes` has `gpu`; small in a rehearsal."""
    from purejaxppo.config.files import for_platform, load_config
    from purejaxppo.config.schema import Config

    changes = dict(changes or {})
    sized = changes.pop("gpu", False)
    config = for_platform(load_config(name, changes), "gpu" if sized else "cpu")
    if work.rehearse and not config.env.name.endswith(LIGHT):
        config = Config().replace(**{"env.name": "dummy/vector"})
    if work.rehearse:
        config = config.replace(**SMALL, num_seeds=min(config.num_seeds, 3))
    return config.replace(**{"eval.num_episodes": 0})


def speed_of(work: Work, config: Any) -> Row:
    """Training: compile seconds, launches, peak memory, and steps/s of five rounds."""
    import jax
    import launches
    import numpy as np

    from purejaxppo.runs.programs import Programs, resolve_shards

    devices = jax.devices()[:1]
    config = resolve_shards(config, 1, devices[0].platform)
    programs = Programs(config, devices)
    state = programs.init()
    programs.compile(state)
    counted = launches.Program(programs.train_chunk.as_text()).turn(0)

    def updates(count: int) -> float:
        nonlocal state
        started = time.perf_counter()
        state, metrics = programs.train_chunk(state, programs.hp, np.int32(count))
        jax.block_until_ready(metrics)
        return time.perf_counter() - started

    updates(1)
    count, wanted = 1, work.size(1.0, 0.02)
    while (seconds := updates(count)) < wanted / 4:
        count *= 2
    count = max(1, round(count * wanted / seconds))
    rounds = [count * programs.steps_per_update / updates(count) for _ in range(ROUNDS)]
    programs.close()
    speed = statistics.median(rounds)
    update_us = 1e6 * programs.steps_per_update / speed
    memory = devices[0].memory_stats() or {}
    peak = memory.get("peak_bytes_in_use")
    return {
        "sizes": f"{config.env.num_envs} x {config.ppo.rollout_length}, "
        f"{config.ppo.num_epochs} x {config.ppo.num_minibatches}",
        "compile_seconds": programs.compile_seconds,
        "update_us": update_us,
        "launches": counted,
        "launch_us": update_us / counted if counted else None,
        "peak_gib": None if peak is None else peak / 2**30,
        "steps_per_second": speed,
        "rounds": [round(x) for x in rounds],
        "predicted": [programs.steps_per_update / (counted * s) for s in LAUNCH_SECONDS[::-1]],
    }


def speeds(*cases: tuple[str, str, dict[str, Any]]) -> Callable[[Work], Rows]:
    """An item of trainings: (row's name, config, changes)."""

    def rows(work: Work) -> Rows:
        for name, config, changes in cases:
            yield from tried(
                work, name, lambda c=config, x=changes: speed_of(work, config_of(work, c, x))
            )

    return rows


def sized(work: Work) -> Rows:
    """Every config that has sizes for a GPU, with them."""
    from purejaxppo.config.files import library_configs, load_config

    for name in sorted(library_configs()):
        if load_config(name).gpu:
            yield from speeds((f"{name}, its sizes for a GPU", name, {"gpu": True}))(work)


def ant(work: Work) -> Rows:
    """Ant with 4,096 environments, ours and Brax's PPO at equal sizes."""
    ours: Row = {}

    def own() -> Row:
        ours.update(speed_of(work, config_of(work, "ant.yaml", {"gpu": True})))
        return ours

    yield from tried(work, "ant, 4096", own)

    def brax() -> Row:
        speed = brax_speed(work)
        known = ours.get("steps_per_second")
        return {
            "steps_per_second": speed,
            "rounds": [round(speed)],
            "ratio": known / speed if known else None,
            "rival": "Brax's PPO",
        }

    yield from tried(work, "ant, 4096, Brax's PPO", brax)


def brax_speed(work: Work) -> float:
    """Steps/s of Brax's PPO at the sizes of ant.yaml on a GPU, its own figure of its last part."""
    import jax
    import jax.numpy as jnp
    from brax import envs
    from brax.training.agents.ppo import networks as brax_networks
    from brax.training.agents.ppo import train as ppo

    def replicated(tree: Any, devices: list[Any]) -> Any:
        return jax.tree.map(lambda x: jnp.stack([x] * len(devices)), tree)

    jax.device_put_replicated = replicated  # which Brax calls, and newer versions of JAX lack
    n = work.size(4096, 8)
    seen: list[dict[str, Any]] = []
    ppo.train(
        environment=envs.get_environment(
            *work.size(("ant",), ("fast",)), **work.size({"backend": "spring"}, {})
        ),
        num_timesteps=work.size(30_000_000, 512),
        num_envs=n,
        unroll_length=work.size(16, 4),
        num_minibatches=work.size(16, 2),
        batch_size=work.size(4096 // 16, 4),
        num_updates_per_batch=4,
        num_evals=4,  # the first part's figure counts its compile, the last one's does not
        num_eval_envs=work.size(128, 2),
        episode_length=work.size(1000, 8),
        normalize_observations=True,
        learning_rate=3e-4,
        network_factory=lambda *args, **kwargs: brax_networks.make_ppo_networks(
            *args,
            policy_hidden_layer_sizes=(128, 128),
            value_hidden_layer_sizes=(128, 128),
            **kwargs,
        ),
        progress_fn=lambda _, metrics: seen.append(metrics),
    )
    return float(seen[-1]["training/sps"])


def seeds(work: Work) -> Rows:
    """Seeds of CartPole in one program, ours and PureJaxRL's plan as plain.py writes it."""
    for count in (1, 64, 2048):
        own: Row = {}

        def ours(count: int = count, own: Row = own) -> Row:
            own.update(speed_of(work, config_of(work, "cartpole.yaml", {"num_seeds": count})))
            return own

        def plain(count: int = count, own: Row = own) -> Row:
            speed = plain_speed(work, min(count, work.size(count, 3)))
            known = own.get("steps_per_second")
            ratio = known / speed if known else None
            return {
                "steps_per_second": speed,
                "rounds": [round(speed)],
                "ratio": ratio,
                "rival": "the plain plan",
            }

        yield from tried(work, f"{count} seeds", ours)
        yield from tried(work, f"{count} seeds, plain", plain)


def plain_speed(work: Work, count: int) -> float:
    """Steps/s of plain.py's seeds at the sizes of cartpole.yaml."""
    import jax
    from plain import make_train

    sizes = {
        "env": "gymnax/CartPole-v1",
        "num_envs": work.size(64, 8),
        "rollout_length": work.size(32, 8),
        "num_minibatches": work.size(4, 2),
        "num_epochs": work.size(4, 2),
        "hidden": (64, 64),
        "learning_rate": 1e-3,
    }
    updates = work.size(50, 3)
    init, train = make_train(sizes, updates)
    keys = jax.random.split(jax.random.key(0), count)
    params = jax.jit(lambda keys: jax.lax.map(init, keys))(keys)
    train = jax.jit(jax.vmap(train))
    seconds = best_of(lambda: train(params, keys), times=2)
    return count * updates * sizes["num_envs"] * sizes["rollout_length"] / seconds


def later(name: str) -> Callable[[Work], Rows]:
    """An item of gpu_correctness.py."""

    def rows(work: Work) -> Rows:
        import gpu_correctness

        yield from getattr(gpu_correctness, name)(work)

    return rows


def is_there(package: str) -> bool:
    """True if a package is installed."""
    return importlib.util.find_spec(package) is not None


HIDDEN = "cartpole_hidden.yaml"
PLAIN_LAUNCHES = {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}
ITEMS = {
    "machine": Item(the_machine, 60, "versions, bandwidth, products, a launch"),
    "one update": Item(later("one_update"), 120, "beside the CPU's from the same state"),
    "one run": Item(later("one_run"), 60, "the same twice; killed and resumed; a host's simulator"),
    "gpu tests": Item(later("gpu_tests"), 60, "pytest -m gpu"),
    "cartpole": Item(
        speeds(
            ("cartpole, 4096", "cartpole.yaml", {"env.num_envs": 4096}),
            ("cartpole, 64", "cartpole.yaml", {}),
            ("cartpole, 16384", "cartpole.yaml", {"env.num_envs": 16384}),
        ),
        60,
        "64, 4,096 and 16,384 environments",
    ),
    "ant": Item(ant, 150, "4,096 environments, beside Brax's PPO"),
    "balance": Item(
        speeds(("cartpole_balance, 2048", "cartpole_balance.yaml", {"gpu": True})),
        90,
        "CartpoleBalance, 2,048 environments",
    ),
    "seeds": Item(seeds, 90, "1, 64 and 2,048 seeds, beside the plain plan"),
    "sizes": Item(sized, 240, "every config that has sizes for a GPU"),
    "cells": Item(
        speeds(
            ("gru", HIDDEN, {"gpu": True}),
            ("mingru", HIDDEN, {"gpu": True, "network.rnn": "mingru"}),
            ("lstm", HIDDEN, {"gpu": True, "network.rnn": "lstm"}),
        ),
        120,
        "gru beside mingru and lstm",
    ),
    "widths": Item(
        speeds(
            *(
                (
                    f"width {width}, {precision}",
                    "cartpole.yaml",
                    {
                        "gpu": True,
                        "network.hidden": [width, width],
                        "network.matmul_precision": precision,
                    },
                )
                for width in (64, 256, 1024)
                for precision in ("highest", "high")
            ),
            (
                "width 256, bfloat16",
                "cartpole.yaml",
                {"gpu": True, "network.hidden": [256, 256], "network.compute_dtype": "bfloat16"},
            ),
        ),
        120,
        "precision x width, and bfloat16",
    ),
    "no command buffers": Item(
        speeds(("cartpole, 4096, launch by launch", "cartpole.yaml", {"env.num_envs": 4096})),
        45,
        "launches one by one",
        PLAIN_LAUNCHES,
    ),
    "recurrences": Item(later("recurrences"), 45, "advantages in stages and step by step"),
    "oscillator": Item(speeds(("oscillator", "oscillator.yaml", {})), 90, "4,096 neurons"),
    "mjx": Item(speeds(("hopper_mjx", "hopper_mjx.yaml", {})), 400, "Brax's hopper on MJX"),
    "whole runs": Item(later("whole_runs"), 500, "CartPole, hopper and ant to a return"),
    "envpool": Item(later("envpool"), 120, "a simulator on the host that registers for GPUs"),
}
