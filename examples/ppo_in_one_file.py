"""PPO in one file, for reading: the complete algorithm in plain JAX, on CartPole of gymnax.

With the same parameters, rollout and minibatches it has the advantages, losses and parameters of
the library. It does not normalise observations and rewards, and has one device and no run folder.

In Python, in this folder:

    from ppo_in_one_file import Config, train

    params, lengths = train(Config(num_updates=150), seed=0)

On the command line:

    python ppo_in_one_file.py
"""

from functools import partial
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax


class Config(NamedTuple):
    """Sizes and coefficients, with the names of the literature."""

    num_envs: int = 64
    rollout_length: int = 32
    num_minibatches: int = 4
    num_epochs: int = 4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_eps: float = 0.2
    vf_coef: float = 0.5
    ent_coef: float = 0.01
    learning_rate: float = 1e-3
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)
    num_updates: int = 150


class Rows(NamedTuple):
    """A rollout of T steps of N environments, with arrays [T, N, ...], or [B, ...] in an update."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    reward: jax.Array
    terminated: jax.Array  # the task has ended: no bootstrap
    truncated: jax.Array  # the time limit: bootstrap
    valid: jax.Array  # False on the row after an end, which resets
    advantage: Any = ()
    target: Any = ()  # target of the value


def init_layers(key, sizes, last_gain):
    """Return dense layers with orthogonal weights: a list of (w, b)."""
    gains = [2**0.5] * (len(sizes) - 2) + [last_gain]
    weights = zip(jax.random.split(key, len(gains)), gains, sizes[:-1], sizes[1:], strict=True)
    initial = jax.nn.initializers.orthogonal
    return [(initial(gain)(k, (n, m)), jnp.zeros(m)) for k, gain, n, m in weights]


def mlp(layers, x):
    """Apply dense layers with tanh between them, [..., D] -> [..., F]."""
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ layers[-1][0] + layers[-1][1]


def network(params, obs):
    """Return (log-probabilities of all actions [..., A], value [...]) of observations [..., D]."""
    return jax.nn.log_softmax(mlp(params["actor"], obs)), mlp(params["critic"], obs)[..., 0]


def env_step(env, env_params, key, before, action):
    """Step one environment, or reset it if its episode has ended (next-step reset)."""
    state, _, done = before
    new_obs, new_state = env.reset_env(key, env_params)
    obs, state, reward, terminated, _ = env.step_env(key, state, action, env_params)
    truncated = env.is_truncated(state, env_params)
    stepped, reset = (state, obs, terminated | truncated), (new_state, new_obs, jnp.array(False))
    after = jax.tree.map(partial(jnp.where, done), reset, stepped)
    return after, (jnp.where(done, 0.0, reward), terminated & ~done, truncated & ~done, ~done)


def collect(config, env, env_params, params, envs, key):
    """Step all environments T times: (envs, `Rows`), with envs = (state, obs [N, D], done [N])."""

    def step(envs, key):
        action_key, env_key = jax.random.split(key)
        log_probs, _ = network(params, envs[1])
        action = jax.random.categorical(action_key, log_probs)
        log_prob = jnp.take_along_axis(log_probs, action[:, None], -1)[:, 0]
        keys = jax.random.split(env_key, config.num_envs)
        after, results = jax.vmap(partial(env_step, env, env_params))(keys, envs, action)
        return after, Rows(envs[1], action, log_prob, *results)

    return jax.lax.scan(step, envs, jax.random.split(key, config.rollout_length))


def gae(config, rows, value, next_value):
    """Return generalised advantage estimates [T, N] and targets; Schulman et al. 2016, eq. 16.

    Truncated steps bootstrap from the last observation, in the next row; all ends cut the trace.
    """
    delta = rows.reward + config.gamma * jnp.where(rows.terminated, 0.0, next_value) - value
    decay = config.gamma * config.gae_lambda * ~(rows.terminated | rows.truncated)

    def backwards(later, row):
        delta, decay, valid = row
        advantage = jnp.where(valid, delta + decay * later, 0.0)
        return advantage, advantage

    last = jnp.zeros_like(delta[0])
    _, advantage = jax.lax.scan(backwards, last, (delta, decay, rows.valid), reverse=True)
    return advantage, advantage + value


def make_batch(config, params, rows, last_obs):
    """Return the rows [B, ...] of a rollout before `last_obs` [N, D], with advantages."""
    _, value = network(params, jnp.concatenate([rows.obs, last_obs[None]]))
    advantage, target = gae(config, rows, value[:-1], value[1:])
    rows = rows._replace(advantage=advantage, target=target)
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), rows)


def ppo_loss(params, batch, config):
    """Return (policy + vf_coef value - ent_coef entropy, its parts), means over valid rows."""
    mean = partial(jnp.mean, where=batch.valid)
    advantage = batch.advantage - mean(batch.advantage)
    advantage = advantage / (jnp.std(advantage, where=batch.valid, ddof=1) + 1e-8)
    log_probs, value = network(params, batch.obs)
    log_prob = jnp.take_along_axis(log_probs, batch.action[:, None], -1)[:, 0]
    ratio = jnp.exp(log_prob - batch.log_prob)
    clipped = jnp.clip(ratio, 1.0 - config.clip_eps, 1.0 + config.clip_eps)
    policy_loss = mean(-jnp.minimum(ratio * advantage, clipped * advantage))
    value_loss = mean(0.5 * jnp.square(value - batch.target))
    entropy = mean(-jnp.sum(jnp.exp(log_probs) * log_probs, -1))
    total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
    return total, (policy_loss, value_loss, entropy)


def make_optimizer(config):
    """Return Adam with clipping of the global norm of gradients."""
    adam = optax.adam(config.learning_rate, eps=1e-5)
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), adam)


def update(config, params, opt_state, batch, indices):
    """Take a gradient step per minibatch, `indices` int [E x M, B]: (params, state, losses)."""

    def step(carried, index):
        params, opt_state = carried
        minibatch = jax.tree.map(lambda x: x[index], batch)
        gradient, parts = jax.grad(ppo_loss, has_aux=True)(params, minibatch, config)
        change, opt_state = make_optimizer(config).update(gradient, opt_state)
        return (optax.apply_updates(params, change), opt_state), parts

    (params, opt_state), parts = jax.lax.scan(step, (params, opt_state), indices)
    return params, opt_state, [x.mean() for x in parts]


def shuffled(config, key):
    """Return the indices of all minibatches of all epochs, int [E x M, B]."""
    keys, size = jax.random.split(key, config.num_epochs), config.num_envs * config.rollout_length
    epochs = jax.vmap(jax.random.permutation, (0, None))(keys, size)
    return epochs.reshape((-1, size // config.num_minibatches))


def train(config, seed):
    """Train: (parameters, steps per ended episode in the rollout of each update [U])."""
    env, env_params = gymnax.make("CartPole-v1")
    keys = jax.random.split(jax.random.key(seed), 4)
    sizes = env.observation_space(env_params).shape[0], *config.hidden
    actor = init_layers(keys[0], (*sizes, env.num_actions), 0.01)
    params = {"actor": actor, "critic": init_layers(keys[1], (*sizes, 1), 1.0)}
    reset = jax.vmap(env.reset_env, (0, None))
    obs, state = reset(jax.random.split(keys[2], config.num_envs), env_params)

    def train_step(carried, key):
        params, opt_state, envs = carried
        act_key, key = jax.random.split(key)
        envs, rows = collect(config, env, env_params, params, envs, act_key)
        batch = make_batch(config, params, rows, envs[1])
        params, opt_state, _ = update(config, params, opt_state, batch, shuffled(config, key))
        ends = jnp.sum(rows.terminated | rows.truncated)
        return (params, opt_state, envs), jnp.sum(rows.valid) / jnp.maximum(ends, 1)

    first = params, make_optimizer(config).init(params), (state, obs, jnp.zeros(len(obs), bool))
    scan = jax.jit(partial(jax.lax.scan, train_step))
    (params, *_), lengths = scan(first, jax.random.split(keys[3], config.num_updates))
    return params, lengths


if __name__ == "__main__":
    print("steps per episode, every tenth update:", train(Config(), seed=0)[1][9::10].round())
