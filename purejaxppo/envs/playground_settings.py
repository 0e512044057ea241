"""Convert Playground's tuned parameters of Brax PPO to a config, for `--config playground/TASK`.

Settings that differ from Brax (see `docs/playground.md`):

    rollout_length       Brax collects unrolls until it has batch_size x num_minibatches of them.
    recompute_advantages Brax computes advantages at each gradient step, over one unroll;
                         purejaxppo at each epoch, over the rollout.
    init_std             softplus(0) + 0.001, the initial standard deviation of Brax's policy.
    initializer          LeCun normal instead of LeCun uniform; both have the same variance.
    total_timesteps      counts actions; num_timesteps counts each repeat of an action.
    eval.interval        Brax also evaluates the untrained agent.
    num_resets_per_eval  ignored: every episode has a fresh start.
    gae_lambda           Brax's advantage is delta + gamma A', with lambda only in A'; here GAE.
"""

from collections.abc import Mapping
from typing import Any

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.quiet import quiet

NETWORK = {
    "policy_hidden_layer_sizes": (32,) * 4,
    "value_hidden_layer_sizes": (256,) * 5,
    "policy_obs_key": "state",
    "value_obs_key": "state",
}
"""Default networks of Brax PPO."""
OTHERS = {
    "max_grad_norm": 0.0,
    "clipping_epsilon": 0.3,
    "num_eval_envs": 128,
    "network_factory": {},
}
"""More defaults of Brax PPO; max_grad_norm = 0 disables clipping."""
IGNORED = ("num_resets_per_eval",)
STATE_ONLY = ("SpotFlatTerrainJoystick",)
"""Tasks with dict observations whose critic only observes the policy's entry."""


def settings(task: str) -> dict[str, Any]:
    """Return the sections of a config, as plain values, from Playground's parameters for a task.

    Raises:
        ValueError: Playground is not installed, the task is unknown or has no parameters, or a
            parameter is not supported.
    """
    registry.resolve(EnvConfig(name=f"playground/{task}"))
    return translated(task, tuned(task))


def tuned(task: str) -> dict[str, Any]:
    """Return Playground's `brax_ppo_config` of a task, as plain values."""
    # Playground and MJX print on stdout where warp has no CUDA device.
    with quiet():
        from mujoco_playground import registry as playground
        from mujoco_playground.config import (
            dm_control_suite_params,
            locomotion_params,
            manipulation_params,
        )
    suites = {
        playground.dm_control_suite: dm_control_suite_params,
        playground.locomotion: locomotion_params,
        playground.manipulation: manipulation_params,
    }
    params = next(params for suite, params in suites.items() if task in suite.ALL_ENVS)
    plain: dict[str, Any] = params.brax_ppo_config(task).to_dict()
    return plain


def translated(task: str, brax: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameters of Brax PPO for a Playground task to sections of a config.

    Raises:
        ValueError: a parameter is not supported.
    """
    params = _TrackedDict({**OTHERS, **brax})
    repeats, episode_length = params["action_repeat"], params["episode_length"]
    steps = params["num_timesteps"] // repeats
    unrolls = params["batch_size"] * params["num_minibatches"]
    sections = {
        "env": {
            "name": f"playground/{task}",
            "num_envs": params["num_envs"],
            "options": {"action_repeat": repeats, "episode_length": episode_length},
        },
        "network": network(task, {**NETWORK, **params["network_factory"]}),
        "ppo": {
            "learning_rate": params["learning_rate"],
            "learning_rate_schedule": "constant",
            "adam_eps": 1e-8,
            "max_grad_norm": params["max_grad_norm"],
            "gamma": params["discounting"],
            "gae_lambda": 0.95,
            "clip_eps": params["clipping_epsilon"],
            "vf_coef": 0.5,
            "ent_coef": params["entropy_cost"],
            "recompute_advantages": True,
            "rollout_length": params["unroll_length"] * unrolls // params["num_envs"],
            "num_minibatches": params["num_minibatches"],
            "num_epochs": params["num_updates_per_batch"],
            "normalize_obs": params["normalize_observations"],
            "reward_scale": params["reward_scaling"],
        },
        "eval": {
            "num_episodes": params["num_eval_envs"],
            "interval": -(-steps // max(params["num_evals"] - 1, 1)),
            "stochastic": True,
        },
        "total_timesteps": steps,
    }
    params.check_all_read(task)
    return sections


def network(task: str, factory: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the networks of Brax PPO to the section `network`.

    Raises:
        ValueError: a parameter is not supported.
    """
    params = _TrackedDict(factory)
    keys = [params["policy_obs_key"]], [params["value_obs_key"]]
    has_parts = keys[0] != keys[1] or task in STATE_ONLY
    section = {
        "hidden": list(params["policy_hidden_layer_sizes"]),
        "critic_hidden": list(params["value_hidden_layer_sizes"]),
        "activation": "swish",
        "actor_keys": keys[0] if has_parts else [],
        "critic_keys": keys[1] if has_parts else [],
        "initializer": "lecun_normal",
        "distribution": "tanh_gaussian",
        "std": "dependent",
        "init_std": 0.694,
        "min_std": 0.001,
    }
    params.check_all_read(task)
    return section


class _TrackedDict(dict[str, Any]):
    """A dict that records which keys were read, to detect unsupported parameters."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read = set(IGNORED)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def check_all_read(self, task: str) -> None:
        """Raise ValueError if a key was not read."""
        if unknown := sorted(set(self) - self.read):
            raise ValueError(
                f"--config playground/{task}: purejaxppo does not support these parameters of "
                f"Playground: {', '.join(unknown)}. Use --env.name playground/{task}."
            )
