"""Custom code, valid and invalid, which tests name by this file."""

import random
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from purejaxppo.agents.extras.auxiliary_losses import AuxiliaryLoss
from purejaxppo.agents.extras.intrinsic import Intrinsic
from purejaxppo.agents.networks.distributions import Distribution
from purejaxppo.agents.networks.torsos import Torso
from purejaxppo.envs.base import MultiStep, TaskStep
from purejaxppo.envs.wrappers import Wrapper
from purejaxppo.learner import PPO, Learner
from purejaxppo.spaces import Box, Discrete

NOTHING = None
NO = jnp.array(False)


@dataclass(frozen=True)
class Walk:
    """A position on a line, drawn from -1 to 1; action 1 moves up by `size`, 0 down; ends at 3."""

    size: float = 0.5
    observation = Box((1,))
    action = Discrete(2)
    max_episode_steps: int = 8
    cheap_reset = True

    def reset(self, key):
        position = jax.random.uniform(key, (1,), minval=-1.0)
        return position, position

    def step(self, key, state, action):
        state = state + self.size * (2.0 * action - 1.0)
        return state, TaskStep(state, state[0], state[0] >= 3.0, NO)


class Paid(Walk):
    """A walk with a random reward, which is also a metric, and random ends."""

    metrics: ClassVar = {"pay": "sum", "steps": "sum", "mean_pay": "mean", "last_pay": "last"}

    def step(self, key, state, action):
        state, out = super().step(key, state, action)
        pay, end = jax.random.normal(key), jax.random.uniform(key) < 0.1
        values = {"pay": pay, "steps": 1, "mean_pay": pay, "last_pay": pay}
        return state, out._replace(reward=pay, terminated=end, metrics=values)


def make_walk(size=0.25):
    return Walk(size)


class Doubled(Wrapper):
    """Doubles the reward."""

    def step(self, key, state, action):
        state, out = self.task.step(key, state, action)
        return state, out._replace(reward=2.0 * out.reward)


class Broken(Walk):
    """A task with the fault `fault`, which a check finds."""

    fault = ""

    def reset(self, key):
        position, obs = super().reset(key)
        if self.fault == "shape":
            return position, jnp.zeros(3)
        if self.fault == "dtype":
            return position, obs.astype(jnp.int32)
        if self.fault == "nan":
            return position, obs * jnp.nan
        if self.fault == "random":
            return position, obs + random.random()
        if self.fault == "one":
            return obs
        return position, obs

    def step(self, key, state, action):
        after, out = super().step(key, state, action)
        if self.fault == "if" and state[0] > 0:
            return after, out
        if self.fault == "reward":
            return after, out._replace(reward=state)
        if self.fault == "flags":
            return after, out._replace(terminated=state[0])
        if self.fault == "tuple":
            return after, tuple(out)
        if self.fault == "state":
            return after[0], out
        if self.fault == "raises":
            raise KeyError("lost")
        return after, out


def broken(fault):
    return type(f"Broken{fault}", (Broken,), {"fault": fault})()


class Pair:
    """Two agents with different spaces; rewards are the action of `up` and minus that of `down`."""

    agents = ("up", "down")
    observation = (Box((2,)), Box((1,)))
    action = (Discrete(3), Discrete(2))
    state_space = Box((1,))
    max_episode_steps = 6
    cheap_reset = True
    fault = ""

    def reset(self, key):
        state = jax.random.uniform(key, (1,))
        return state, self.observe(state)

    def observe(self, state):
        both = jnp.concatenate([state, -state])
        return (both, both) if self.fault == "shape" else (both, state)

    def global_state(self, state):
        return state[0] if self.fault == "global" else state

    def step(self, key, state, action):
        up, down = (jnp.float32(one) for one in action)
        state = state + 0.1 * (up - down)
        reward = up - down if self.fault == "reward" else jnp.stack([up, -down])
        gone = jnp.zeros(1 if self.fault == "flags" else 2, bool)
        out = MultiStep(self.observe(state), reward, gone, jnp.array(False))
        return state, (tuple(out) if self.fault == "tuple" else out)


def broken_pair(fault, **changes):
    return type(f"BrokenPair{fault}", (Pair,), {"fault": fault, **changes})()


class Dense(nn.Module):
    """A layer of `width`."""

    width: int = 4

    @nn.compact
    def __call__(self, obs):
        return jnp.tanh(nn.Dense(self.width)(obs))


class Sized(nn.Module):
    """A layer of the first width in the config."""

    config: object

    @nn.compact
    def __call__(self, obs):
        return jnp.tanh(nn.Dense(self.config.hidden[0])(obs))


class Normed(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return nn.BatchNorm(use_running_average=True)(obs)


class Linear:
    """Features obs @ w in plain JAX, where w is initialised with ones."""

    def init(self, key, obs):
        return {"w": jnp.ones((obs.shape[-1], 3))}

    def apply(self, params, obs):
        return obs @ params["w"]


class Flat(Linear):
    def apply(self, params, obs):
        return jnp.sum(obs @ params["w"])


def shared(config):
    return Torso(Dense(config.hidden[0]))


def two_widths():
    return Torso(actor=Dense(3), critic=Dense(5))


def three(*args, **options):
    """Return an object that no extension point accepts."""
    return 3


def none_of_these():
    """Has no parameters, as no extension point allows."""


def plain_gradient(log_ratio, advantage, hp):
    """Return -r A, without clipping."""
    return -jnp.exp(log_ratio) * advantage


def two_arguments(log_ratio, advantage):
    return log_ratio * advantage


def gives_a_number(log_ratio, advantage, hp):
    return jnp.mean(log_ratio * advantage)


def gives_integers(log_ratio, advantage, hp):
    return (log_ratio * advantage).astype(jnp.int32)


def has_an_if(log_ratio, advantage, hp):
    if advantage[0] > 0:
        return log_ratio
    return -log_ratio


def gives_nan(log_ratio, advantage, hp):
    return jnp.log(log_ratio - 1.0)


def draws(log_ratio, advantage, hp):
    return log_ratio + np.random.rand()  # noqa: NPY002 - the fault


GENERATOR = np.random.default_rng(0)


def draws_an_array(log_ratio, advantage, hp):
    return log_ratio + GENERATOR.normal(size=4).astype(np.float32)


def divides(log_ratio, advantage, hp):
    return log_ratio * (1 / 0)


def next_position(outputs, rows):
    """Return the squared error of the mean feature as prediction of the next first observation."""
    return jnp.square(jnp.mean(outputs.features, -1) - rows.next_obs[..., 0])


next_position.rows = ("next_obs",)


def small_features(outputs, rows):
    return jnp.mean(jnp.square(outputs.features), -1)


def asks_too_late(outputs, rows):
    return rows.reward


def gives_a_mean(outputs, rows):
    return jnp.mean(outputs.features)


def asks_for_the_weather(outputs, rows):
    return rows.value


asks_for_the_weather.rows = ("weather",)


def predicted_reward(params, outputs, rows):
    return jnp.square(outputs.features @ params["w"] + params["b"] - rows.reward)


def zero_weights(key, outputs, rows):
    return {"w": jnp.zeros(outputs.features.shape[-1]), "b": jnp.zeros(())}


predict_reward = AuxiliaryLoss(
    predicted_reward, rows=("reward",), init=zero_weights, name="reward_error"
)


def one_step(transitions, reward, predictions, hp):
    """Return r + gamma v' - v, without a trace."""
    later = jnp.where(transitions.terminated, 0.0, predictions.next_value)
    target = reward + hp.gamma * later
    return jnp.where(transitions.valid, target - predictions.value, 0.0), target


def advantage_alone(transitions, reward, predictions, hp):
    return reward


def height_bonus(config, spec):
    """Return a bonus of 1 above 0, with the number of updates as its state."""

    def update(state, rows, key, psum):
        return state + 1, {"intrinsic/updates": jnp.float32(state)}

    return Intrinsic(
        init=lambda key: jnp.int32(0),
        reward=lambda state, rows: jnp.where(rows.valid & (rows.next_obs[..., 0] > 0), 1.0, 0.0),
        update=update,
        metric_names=("intrinsic/updates",),
    )


def silent_bonus(config, spec):
    return height_bonus(config, spec)._replace(metric_names=())


def counted(config):
    """Return PPO's update with the number of updates as its state."""

    def learn(parts, state, rollout, hp):
        state, metrics = PPO.learn(parts, state, rollout, hp)
        extras = metrics.extras | {"mine/updates": jnp.float32(state.learner)}
        return state.replace(learner=state.learner + 1), metrics._replace(extras=extras)

    def metric_names(parts):
        return (*PPO.metric_names(parts), "mine/updates")

    return Learner(learn, lambda parts, agent, key: jnp.int32(0), metric_names)


def uncounted(config):
    return counted(config)._replace(metric_names=PPO.metric_names)


def half_gradient(config):
    return optax.scale(0.5)


def unit_normal(size):
    """A distribution by its means, with a standard deviation of 1."""

    def log_prob(mean, action):
        return jnp.sum(-0.5 * jnp.square(action - mean) - 0.5 * jnp.log(2 * jnp.pi), -1)

    return Distribution(
        num_params=size,
        sample=lambda mean, key: mean + jax.random.normal(key, mean.shape),
        mode=lambda mean: mean,
        log_prob=log_prob,
        entropy=lambda mean: jnp.full(mean.shape[:-1], size * 0.5 * (1 + jnp.log(2 * jnp.pi))),
        to_env=lambda action: action,
        from_env=lambda action: action,
    )


def unsummed(size):
    return unit_normal(size)._replace(log_prob=lambda mean, action: action - mean)


def late_start(progress):
    return jnp.where(progress < 0.5, 0.0, 1.0)


def two_numbers(progress):
    return jnp.stack([progress, progress])
