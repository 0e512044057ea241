"""PPO with the structure of PureJaxRL: one function of a key, vmapped over seeds.

Many seeds of purejaxppo are compared with it: the auto-reset of gymnax, then a scan over rollout,
advantages, epochs and minibatches drawn with `jax.random.permutation`, with optax over a tree of
parameters. It follows the paper (Schulman et al. 2017, https://arxiv.org/abs/1707.06347) and common
details of implementations; a time limit counts as termination, as in PureJaxRL.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax


class Rows(NamedTuple):
    """A rollout [T, N], or a minibatch of it [B]."""

    obs: Any
    action: Any
    log_prob: Any
    value: Any
    reward: Any
    done: Any


def mlp(layers: list[Any], x):
    """Apply layers with tanh between them."""
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def init_params(key, num_obs: int, num_actions: int, hidden: tuple[int, ...]) -> dict[str, Any]:
    """Draw orthogonal weights, one key at a time, since JAX's batched QR can hang on a CPU."""

    def tower(key, outputs: int, gain: float) -> list[Any]:
        widths = (num_obs, *hidden, outputs)
        gains = [2**0.5] * len(hidden) + [gain]
        keys = jax.random.split(key, len(gains))
        return [
            (jax.nn.initializers.orthogonal(g)(k, (a, b)), jnp.zeros(b))
            for k, g, a, b in zip(keys, gains, widths, widths[1:], strict=False)
        ]

    actor_key, critic_key = jax.random.split(key)
    return {"actor": tower(actor_key, num_actions, 0.01), "critic": tower(critic_key, 1, 1.0)}


def log_prob(logits, action):
    """Return the log-probability of one of n actions."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def gae(rows: Rows, last_value, gamma: float = 0.99, gae_lambda: float = 0.95):
    """Compute generalised advantage estimates [T, N]."""

    def step(carried, row: Rows):
        advantage, next_value = carried
        going_on = 1.0 - row.done
        delta = row.reward + gamma * next_value * going_on - row.value
        advantage = delta + gamma * gae_lambda * going_on * advantage
        return (advantage, row.value), advantage

    start = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(step, start, rows, reverse=True)[1]


def loss(params, rows: Rows, advantage, clip_eps: float = 0.2):
    """Compute the clipped surrogate with half the squared error of the value."""
    logits = mlp(params["actor"], rows.obs)
    value = mlp(params["critic"], rows.obs)[..., 0]
    target = advantage + rows.value
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(log_prob(logits, rows.action) - rows.log_prob)
    clipped = jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps)
    policy = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    return policy + 0.5 * 0.5 * jnp.square(value - target).mean()


def make_train(sizes: dict[str, Any], updates: int) -> tuple[Callable, Callable]:
    """Return (key -> parameters, (parameters, key) -> (parameters, share of ends [updates]))."""
    env, env_params = gymnax.make(sizes["env"].partition("/")[2])
    n, length, parts = sizes["num_envs"], sizes["rollout_length"], sizes["num_minibatches"]
    adam = optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adam(
            optax.linear_schedule(
                sizes["learning_rate"], 0.0, updates * parts * sizes["num_epochs"]
            ),
            eps=1e-5,
        ),
    )

    def act(carried, _):
        params, env_state, obs, key = carried
        key, action_key, env_key = jax.random.split(key, 3)
        logits = mlp(params["actor"], obs)
        action = jax.random.categorical(action_key, logits)
        value = mlp(params["critic"], obs)[..., 0]
        after, env_state, reward, terminated, truncated, _ = jax.vmap(env.step, (0, 0, 0, None))(
            jax.random.split(env_key, n), env_state, action, env_params
        )
        done = terminated | truncated
        rows = Rows(obs, action, log_prob(logits, action), value, reward, done)
        return (params, env_state, after, key), rows

    def minibatch(carried, part):
        params, opt_state = carried
        gradient = jax.grad(loss)(params, *part)
        updates, opt_state = adam.update(gradient, opt_state)
        return (optax.apply_updates(params, updates), opt_state), None

    def update(carried, _):
        params, opt_state, env_state, obs, key = carried
        (_, env_state, obs, key), rows = jax.lax.scan(
            act, (params, env_state, obs, key), None, length
        )
        advantage = gae(rows, mlp(params["critic"], obs)[..., 0])
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rows, advantage))

        def epoch(carried, key):
            order = jax.random.permutation(key, length * n).reshape(parts, -1)
            shuffled = jax.tree.map(lambda x: x[order], flat)
            return jax.lax.scan(minibatch, carried, shuffled)

        key, epochs_key = jax.random.split(key)
        keys = jax.random.split(epochs_key, sizes["num_epochs"])
        (params, opt_state), _ = jax.lax.scan(epoch, (params, opt_state), keys)
        return (params, opt_state, env_state, obs, key), rows.done.mean()

    def init(key):
        num_obs = env.observation_space(env_params).shape[0]
        num_actions = env.action_space(env_params).n
        return init_params(key, num_obs, num_actions, sizes["hidden"])

    def train(params, key):
        env_key, key = jax.random.split(key)
        obs, env_state = jax.vmap(env.reset, (0, None))(jax.random.split(env_key, n), env_params)
        start = (params, adam.init(params), env_state, obs, key)
        (params, *_), ends = jax.lax.scan(update, start, None, updates)
        return params, ends

    return init, train
