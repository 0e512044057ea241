"""Contenders of other libraries: the PPO of Stable-Baselines3, SBX, Brax and rejax.

They may run under another Python; sizes are the flat dict of `ours`.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import harness

Sizes = dict[str, Any]


def sb3(sizes: Sizes, seconds: float) -> None:
    """Run unchanged Stable-Baselines3 on one thread, since more are slower at these sizes."""
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    learn(PPO, sizes, seconds, device="cpu")


def sbx(sizes: Sizes, seconds: float) -> None:
    """Run unchanged SBX: the loop of Stable-Baselines3 with networks and updates in JAX."""
    import flax.linen as nn
    from sbx import PPO

    learn(PPO, sizes, seconds, activation_fn=nn.tanh)


def learn(kind: Any, sizes: Sizes, seconds: float, device: str = "auto", **policy: Any) -> None:
    """Run rounds of `learn`, one rollout and its update at a time, on a DummyVecEnv."""
    from stable_baselines3.common.env_util import make_vec_env

    n, length = sizes["num_envs"], sizes["rollout_length"]
    hidden = list(sizes["hidden"])
    model = kind(
        "MlpPolicy",
        make_vec_env(sizes["env"].partition("/")[2], n, seed=0),
        n_steps=length,
        batch_size=n * length // sizes["num_minibatches"],
        n_epochs=sizes["num_epochs"],
        policy_kwargs={"net_arch": {"pi": hidden, "vf": hidden}, **policy},
        seed=0,
        device=device,
    )

    def run(count: int) -> int:
        before = model.num_timesteps
        model.learn(count * n * length, reset_num_timesteps=False, log_interval=None)
        return model.num_timesteps - before

    harness.rounds(run, seconds)


def brax(sizes: Sizes, seconds: float) -> None:
    """Run unchanged PPO of Brax, which waits for the next round in its progress callback."""
    per_update = sizes["num_envs"] * sizes["rollout_length"]
    updates = max(1, round(seconds * 60_000 / per_update))
    reports, evals = 0, 200

    def progress(steps: int, metrics: dict[str, Any]) -> None:
        nonlocal reports
        reports += 1
        if reports == 2:  # the first interval compiles
            harness.ready()
        elif reports > 2:
            print("speed", float(metrics["training/sps"]), flush=True)
        if reports > 1 and not sys.stdin.readline():
            sys.exit()

    brax_ppo(
        sizes,
        progress,
        num_timesteps=per_update * updates * evals,
        num_evals=evals + 1,
        num_eval_envs=1,
        run_evals=False,
    )


def brax_ppo(sizes: Sizes, progress: Callable[[int, dict[str, Any]], None], **given: Any) -> None:
    """Train with the PPO of Brax at these sizes, on every device of JAX.

    Args:
        sizes: without `hidden` the networks are the default ones of Brax.
        progress: called with (steps, metrics) after each evaluation.
        given: further arguments of the `train` of Brax, in place of those derived from sizes.
    """
    from brax import envs
    from brax.training.agents.ppo import networks, train

    repair_brax()
    layers = {
        f"{kind}_hidden_layer_sizes": sizes["hidden"]
        for kind in ("policy", "value")
        if "hidden" in sizes
    }
    name = sizes["env"].partition("/")[2]
    defaults = {
        "environment": envs.get_environment(
            name, **{"backend": "spring"} if name != "fast" else {}
        ),
        "episode_length": 1000,
        "num_envs": sizes["num_envs"],
        "unroll_length": sizes["rollout_length"],
        "batch_size": sizes["num_envs"] // sizes["num_minibatches"],
        "num_minibatches": sizes["num_minibatches"],
        "num_updates_per_batch": sizes["num_epochs"],
        "normalize_observations": sizes["normalize_obs"],
        "network_factory": functools.partial(networks.make_ppo_networks, **layers),
        "seed": 0,
    }
    train.train(**{**defaults, **given}, progress_fn=progress)


def rejax(sizes: Sizes, seconds: float) -> None:
    """Run unchanged PPO of rejax in one compiled loop per round, without evaluations."""
    import jax
    from rejax import PPO

    n, length = sizes["num_envs"], sizes["rollout_length"]
    algorithm = PPO.create(
        env=sizes["env"].partition("/")[2],
        num_envs=n,
        num_steps=length,
        num_epochs=sizes["num_epochs"],
        num_minibatches=sizes["num_minibatches"],
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": sizes["hidden"]},
    )
    state = algorithm.init_state(jax.random.PRNGKey(0))

    @jax.jit
    def iterate(state: Any, count: int) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, x: algorithm.train_iteration(x), state)

    def run(count: int) -> int:
        nonlocal state
        state = jax.block_until_ready(iterate(state, count))
        return count * n * length

    harness.rounds(run, seconds)


def repair_brax() -> None:
    """Restore a function that JAX 0.10 removed and Brax 0.14.2 still calls."""
    import jax
    import jax.numpy as jnp

    if not hasattr(jax, "device_put_replicated"):
        mesh = jax.sharding.Mesh(jax.local_devices(), "device")
        each = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
        jax.device_put_replicated = lambda tree, devices: jax.tree.map(
            lambda x: jax.device_put(jnp.stack([x] * len(devices)), each), tree
        )
