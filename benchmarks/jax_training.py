"""Training steps/s where resets are dear: ours beside PPO after PureJaxRL's plan.

    python benchmarks/jax_training.py [--repeats 3]

Craftax-Classic at the sizes of configs/craftax_classic.yaml. The plan (plain.py) steps the
simulator by its own auto-reset, which computes a new world for every environment at every step;
and, as `plain-shared`, computes worlds for a sixteenth of the environments, which those that end
share. Ours draws starts once per rollout. Contenders are processes that take turns, on all cores;
rows go to benchmarks/results/jax_training.jsonl.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import machine
import ours
import turns

NAME = "Craftax-Classic-Symbolic-v1"
SIZES: dict[str, Any] = {
    "env": f"craftax/{NAME}",
    "num_envs": 64,
    "rollout_length": 64,
    "num_minibatches": 8,
    "num_epochs": 4,
    "hidden": (256, 256),
    "normalize_obs": False,
    "learning_rate": 2e-4,
}
SHARE = 16
"""Environments per world that `plain-shared` computes at a step."""
CONTENDERS = {
    "ours": "purejaxppo",
    "plain": "PureJaxRL's plan, the simulator's own auto-reset",
    "plain-shared": f"PureJaxRL's plan, one new world a step for {SHARE} environments",
}


def main() -> None:
    """Parent: lets the contenders run in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round, at least")
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "jax_training.jsonl")
    parser.add_argument("--worker", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.seconds)
        return
    worker = [sys.executable, __file__, "--seconds", str(args.seconds), "--worker"]
    results = turns.measure({name: [*worker, name] for name in CONTENDERS}, args.repeats)
    for name, result in results.items():
        ratio = results["ours"].median() / result.median()
        print(f"{name:14}{result.median():10,.0f} steps/s; ours / this: {ratio:.2f}")
    rows = [
        result.row(env=SIZES["env"], contender=name, about=CONTENDERS[name], sizes=SIZES)
        for name, result in results.items()
    ]
    machine.replace_rows(args.results, rows, "contender", "device")


def work(contender: str, seconds: float) -> None:
    """Worker: compiles, then trains an update or more per line of stdin."""
    if contender == "ours":
        ours.start()
        ours.train(SIZES, seconds)
        return
    ours.start(1)
    import jax
    from plain import make_train

    shared = contender == "plain-shared"
    updates = 8 if shared else 1  # worlds before the first step then count for little
    init, train = make_train(SIZES, updates, world(shared=shared))
    params, key = jax.jit(init)(jax.random.key(0)), jax.random.key(1)
    compiled = jax.jit(train).lower(params, key).compile()

    def run(count: int) -> int:
        for _ in range(count):
            jax.block_until_ready(compiled(params, key))
        return count * updates * SIZES["num_envs"] * SIZES["rollout_length"]

    turns.rounds(run, seconds)


def world(*, shared: bool) -> Any:
    """Craftax-Classic as the plan steps it."""
    import jax
    import jax.numpy as jnp
    from craftax.craftax_env import make_craftax_env_from_name
    from plain import World

    env = make_craftax_env_from_name(NAME, auto_reset=not shared)
    params, n = env.default_params, SIZES["num_envs"]

    def reset(key, count=n):
        return jax.vmap(env.reset, (0, None))(jax.random.split(key, count), params)

    def own_step(key, state, action):
        keys = jax.random.split(key, n)
        obs, state, reward, done, _ = jax.vmap(env.step, (0, 0, 0, None))(
            keys, state, action, params
        )
        return obs, state, reward, done

    def shared_step(key, state, action):
        obs, state, reward, done = own_step(key, state, action)
        place = jnp.arange(n) % (n // SHARE)
        anew = jax.tree.map(lambda x: x[place], reset(key, n // SHARE))

        def choose(new, old):
            return jnp.where(done.reshape(n, *(1,) * (old.ndim - 1)), new, old)

        obs, state = jax.tree.map(choose, anew, (obs, state))
        return obs, state, reward, done

    step = shared_step if shared else own_step
    return World(reset, step, env.observation_space(params).shape[0], env.action_space(params).n)


if __name__ == "__main__":
    main()
