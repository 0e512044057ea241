"""Playground's tuned parameters of Brax's PPO as settings of ours, for `--config playground/TASK`.

What has no setting of the same meaning (`docs/playground.md` says more):

    rollout_length       Brax collects unrolls until it has batch_size x num_minibatches of them.
    recompute_advantages Brax estimates advantages at each gradient step with the newest critic,
                         over one unroll; ours anew at each epoch, over the rollout.
    init_std             softplus(0) + 0.001, the standard deviation that Brax's policy starts with.
    initializer          LeCun's normal for LeCun's uniform: the same variance.
    total_timesteps      of actions; num_timesteps counts each of their repeats.
    eval.interval        Brax also evaluates the untrained agent.
    num_resets_per_eval  none: every episode begins with a start of its own.
    gae_lambda           Brax's advantage is delta + gamma A', with lambda in A' alone; ours GAE's.
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
"""Networks of Brax's PPO where a task's parameters do not say."""
OTHERS = {
    "max_grad_norm": 0.0,
    "clipping_epsilon": 0.3,
    "num_eval_envs": 128,
    "network_factory": {},
}
"""Further defaults of Brax's PPO; a norm of 0 clips no gradient."""
IGNORED = ("num_resets_per_eval",)
STATE_ALONE = ("SpotFlatTerrainJoystick",)
"""Tasks whose observation has parts, and whose critic is yet to see no more than the policy."""


def settings(task: str) -> dict[str, Any]:
    """A config's sections, as plain values, from the parameters that Playground tuned for a task.

    Raises:
        ValueError: Playground is not installed, has no such task or no parameters for it, or has
            a parameter that is not known here.
    """
    registry.resolve(EnvConfig(name=f"playground/{task}"))
    return translated(task, tuned(task))


def tuned(task: str) -> dict[str, Any]:
    """Playground's own `brax_ppo_config` of a task, as plain values."""
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
    """Parameters of Brax's PPO for a Playground task as sections of a config.

    Raises:
        ValueError: a parameter that is not known here.
    """
    known = _Read({**OTHERS, **brax})
    repeats, episode_length = known["action_repeat"], known["episode_length"]
    steps = known["num_timesteps"] // repeats
    unrolls = known["batch_size"] * known["num_minibatches"]
    made = {
        "env": {
            "name": f"playground/{task}",
            "num_envs": known["num_envs"],
            "options": {"action_repeat": repeats, "episode_length": episode_length},
        },
        "network": network(task, {**NETWORK, **known["network_factory"]}),
        "ppo": {
            "learning_rate": known["learning_rate"],
            "learning_rate_schedule": "constant",
            "adam_eps": 1e-8,
            "max_grad_norm": known["max_grad_norm"],
            "gamma": known["discounting"],
            "gae_lambda": 0.95,
            "clip_eps": known["clipping_epsilon"],
            "vf_coef": 0.5,
            "ent_coef": known["entropy_cost"],
            "recompute_advantages": True,
            "rollout_length": known["unroll_length"] * unrolls // known["num_envs"],
            "num_minibatches": known["num_minibatches"],
            "num_epochs": known["num_updates_per_batch"],
            "normalize_obs": known["normalize_observations"],
            "reward_scale": known["reward_scaling"],
        },
        "eval": {
            "num_episodes": known["num_eval_envs"],
            "interval": -(-steps // max(known["num_evals"] - 1, 1)),
            "stochastic": True,
        },
        "total_timesteps": steps,
    }
    known.check_all_read(task)
    return made


def network(task: str, factory: Mapping[str, Any]) -> dict[str, Any]:
    """Networks of Brax's PPO as the section `network`.

    Raises:
        ValueError: a parameter that is not known here.
    """
    known = _Read(factory)
    keys = [known["policy_obs_key"]], [known["value_obs_key"]]
    has_parts = keys[0] != keys[1] or task in STATE_ALONE
    made = {
        "hidden": list(known["policy_hidden_layer_sizes"]),
        "critic_hidden": list(known["value_hidden_layer_sizes"]),
        "activation": "swish",
        "actor_keys": keys[0] if has_parts else [],
        "critic_keys": keys[1] if has_parts else [],
        "initializer": "lecun_normal",
        "distribution": "tanh_gaussian",
        "std": "dependent",
        "init_std": 0.694,
        "min_std": 0.001,
    }
    known.check_all_read(task)
    return made


class _Read(dict[str, Any]):
    """Parameters that remember which of them were read, so that none is dropped."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read = set(IGNORED)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def check_all_read(self, task: str) -> None:
        """Raise ValueError if a parameter was not read."""
        if unknown := sorted(set(self) - self.read):
            raise ValueError(
                f"--config playground/{task}: purejaxppo does not support these parameters of "
                f"Playground: {', '.join(unknown)}. Use --env.name playground/{task}."
            )
