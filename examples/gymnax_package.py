"""An environment with the interface of gymnax, from this file or from any installed package.

It needs `reset_env`, `step_env`, `observation_space`, `action_space` and `default_params`, whose
field `max_steps_in_episode` is the time limit. The library resets it, with exact last observations.

In Python, in this folder:

    from gymnax_package import Gusty
    from purejaxppo import train

    run = train("cartpole.yaml", env=Gusty(), total_timesteps=500_000)

On the command line; `env.options` replace fields of the parameters:

    purejaxppo train --config cartpole.yaml --env.name gymnax/gymnax_package.py:Gusty
    purejaxppo train --config cartpole.yaml --env.name gymnax/gymnax_package.py:heavy
    purejaxppo train --config cartpole.yaml \
        --env.name gymnax/gymnax.environments.classic_control.cartpole:CartPole \
        --env.options length 1.0
"""

import jax
from gymnax.environments.classic_control.cartpole import CartPole


class Gusty(CartPole):
    """CartPole with wind that pushes the cart."""

    def step_env(self, key, state, action, params):
        """Add noise to the velocity of the cart before each step."""
        key, wind = jax.random.split(key)
        state = state.replace(x_dot=state.x_dot + 0.05 * jax.random.normal(wind))
        return super().step_env(key, state, action, params)


def heavy():
    """Return (environment, parameters) with a pole five times as heavy."""
    env = CartPole()
    return env, env.default_params.replace(masspole=0.5)
