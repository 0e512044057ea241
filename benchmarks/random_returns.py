"""Mean returns of uniformly random actions, which docs/results.md normalises learning with.

    python benchmarks/random_returns.py hopper_v5 walker2d_v5 halfcheetah_v5

A row per config, over whole episodes, goes to benchmarks/results/random_returns.jsonl.
"""

import argparse
import datetime

import machine

PATH = machine.RESULTS / "random_returns.jsonl"


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="+", help="bare names or paths of configs")
    parser.add_argument("--episodes", type=int, default=100)
    args = parser.parse_args()
    for name in args.configs:
        row = {"config": f"{name}.yaml", "episodes": args.episodes, **measure(name, args.episodes)}
        rows = [r for r in machine.read_rows(PATH) if r["config"] != row["config"]]
        about = {"date": datetime.date.today().isoformat(), **machine.describe()}
        machine.write_rows(PATH, [*rows, row | about])
        print(f"{name}: {row['return_mean']:.1f} ± {row['return_std']:.1f}", flush=True)


def measure(name: str, episodes: int) -> dict[str, float]:
    """Mean and standard deviation of the returns of one config's task."""
    import jax
    import jax.numpy as jnp

    from purejaxppo import load_config
    from purejaxppo.envs import registry
    from purejaxppo.episodes import run_episodes
    from purejaxppo.spaces import Discrete
    from purejaxppo.types import PolicyStep

    env = registry.make(load_config(name).env, episodes, evaluation=True)
    space = env.spec.action

    def act(keys, carry, obs, start):
        del obs, start
        if isinstance(space, Discrete):
            action = jax.random.randint(keys[0], (episodes,), 0, space.n)
        else:  # bounded actions are given in [-1, 1]
            action = jax.random.uniform(keys[0], (episodes, *space.shape), minval=-1.0)
        return PolicyStep(carry, action, jnp.zeros(episodes), action)

    begin, key = jax.jit(env.reset)(jax.random.key(0)), jax.random.split(jax.random.key(1), 1)
    run = jax.jit(lambda begun, keys: run_episodes(env, begun, act, lambda shape: (), keys))
    returns = jax.device_get(run(begin, key)).returns
    return {"return_mean": float(returns.mean()), "return_std": float(returns.std())}


if __name__ == "__main__":
    main()
