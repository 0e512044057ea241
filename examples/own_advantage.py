"""A custom advantage estimator: λ of the policy, and Monte Carlo targets of the critic.

In Python, in this folder, by the config, or in place of a part of the algorithm where no field of
the config fits:

    from own_advantage import change, decoupled
    from purejaxppo import train

    run = train("cartpole.yaml", total_timesteps=500_000, ppo={"advantage": decoupled})
    same = train("cartpole.yaml", total_timesteps=500_000, parts=change, run_dir="runs/parts")

On the command line:

    purejaxppo train --config cartpole.yaml --ppo.advantage own_advantage.py:decoupled
"""

from functools import partial

from purejaxppo.agents.advantages import gae


def decoupled(transitions, reward, predictions, hp):
    """Return (advantage, target), [T, N] each, with λ = 1 in the target. Yuan et al. 2025, VC-PPO.

    https://arxiv.org/abs/2503.01491.

    Args:
        transitions: rows of a rollout [T, N]; rows that are not `valid` are resets.
        reward: reward [T, N], scaled by the config, with the intrinsic reward.
        predictions: `value`, `next_value` (of the last observation where an episode ends) [T, N],
            and `dist_params` of the current policy [T, N, P].
        hp: tunable numbers of the section ppo.
    """
    estimate = partial(
        gae,
        reward,
        predictions.value,
        predictions.next_value,
        transitions.terminated,
        transitions.terminated | transitions.truncated,
        transitions.valid,
        gamma=hp.gamma,
    )
    return estimate(gae_lambda=hp.gae_lambda).advantage, estimate(gae_lambda=1.0).target


def change(parts):
    """Return the parts of a training with another estimator."""
    return parts._replace(advantages=decoupled)
