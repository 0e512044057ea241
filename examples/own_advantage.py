"""An advantage estimator of your own: one λ for the policy, and Monte Carlo targets for the critic.

In Python, in this folder, by the config or, as the last resort, in place of a part of the
algorithm:

    from own_advantage import change, decoupled
    from purejaxppo import train

    run = train("cartpole.yaml", total_timesteps=500_000, **{"ppo.advantage": decoupled})
    same = train("cartpole.yaml", total_timesteps=500_000, parts=change, run_dir="runs/parts")

On the command line:

    purejaxppo train --config cartpole.yaml --ppo.advantage own_advantage.py:decoupled
"""

from functools import partial

from purejaxppo.agents.advantages import gae


def decoupled(transitions, reward, predictions, hp):
    """(advantage, target), [T, N] each; the target's λ is 1. Yuan et al. 2025, VC-PPO.

    https://arxiv.org/abs/2503.01491.

    Args:
        transitions: rows of a rollout [T, N]; those that are not `valid` are resets.
        reward: scaled as configured, with the intrinsic reward, [T, N].
        predictions: `value`, `next_value` (of the true last observation where an episode ends)
            [T, N], and `dist_params` of the policy as it is now [T, N, P].
        hp: the tunable numbers of the section ppo.
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
    """The parts of a training, with another estimator."""
    return parts._replace(advantages=decoupled)
