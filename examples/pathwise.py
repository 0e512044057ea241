"""A custom update: pathwise policy gradients (REPPO), on-policy, for continuous actions.

The critic Q(s, a) learns the distribution of returns from λ-targets of soft rewards. The actor
follows the gradient of Q through its actions, and stays within a KL bound of the policy that acted.
Voelcker et al. 2025, https://arxiv.org/abs/2507.11019. Rollouts, statistics, evaluations,
checkpoints and sweeps are those of the library.

In Python, in this folder:

    from pathwise import CHANGES
    from purejaxppo import load_config, train

    config = load_config("pendulum.yaml", CHANGES)
    run = train(config, total_timesteps=300_000)

On the command line:

    purejaxppo train --config pendulum.yaml --ppo.learner pathwise.py:pathwise \
        --network.distribution tanh_gaussian --network.std dependent --network.layer_norm true \
        --network.activation swish
    python pathwise.py --config pendulum.yaml --seeds 3 --steps 300_000

The second command trains PPO and this update, and prints a table of returns and CPU seconds. On
CPUs, a gradient step takes three times as long as PPO's: compare both before you use it.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from purejaxppo import Box, Learner, load_config, make_train
from purejaxppo.agents import diagnostics, epochs, optimizers, ppo, sequences
from purejaxppo.agents.critics import CLIPPED
from purejaxppo.agents.decisions import discount, next_entries
from purejaxppo.agents.schedules import scheduled
from purejaxppo.learner import read_minibatch, scale_rewards, update_obs_stats
from purejaxppo.streams import split_keys
from purejaxppo.types import AgentState, Batch, Losses, Predictions


class Settings(NamedTuple):
    """Settings of pathwise updates, in addition to those of the sections network and ppo.

    Wide bins make learning slow: use the smallest `limit` with losses/clipped_targets near 0.
    """

    num_bins: int = 101
    limit: float = 5.0  # the bins are from -limit to limit, in units of scaled rewards
    kl_bound: float = 0.1  # largest KL(old || new) of a state
    target_entropy: float = -0.5  # per action dimension
    temperature: float = 0.01  # at the start
    kl_weight: float = 0.01  # at the start
    samples: int = 4  # actions per next state in the targets


class State(NamedTuple):
    """State of the update: the critic, and the logarithms of temperature and KL weight."""

    critic: Any
    critic_opt: Any
    multipliers: dict
    multipliers_opt: Any


class Critic(nn.Module):
    """Logits [..., K] of the distribution of returns; the initial returns are 0."""

    hidden: tuple
    bins: tuple

    @nn.compact
    def __call__(self, obs, action):
        """Map observations and actions [..., size] to logits."""
        x = jnp.concatenate([obs, action], -1)
        for width in self.hidden:
            x = nn.swish(nn.RMSNorm()(nn.Dense(width)(x)))
        zero = 40.0 * histogram(jnp.zeros(()), jnp.array(self.bins))
        return nn.Dense(len(self.bins), bias_init=lambda *_: zero)(x)


def histogram(value, bins):
    """Return the mass of N(value, 0.75 bins) in each of K bins, [...] -> [..., K] (HL-Gauss).

    Farebrother et al. 2024, https://arxiv.org/abs/2403.03950, section 3.1.
    """
    width = bins[1] - bins[0]
    edges = jnp.append(bins - width / 2, bins[-1] + width / 2)
    z = (edges - jnp.clip(value, bins[0], bins[-1])[..., None]) / (0.75 * width)
    cdf = jax.scipy.special.erf(z / np.sqrt(2))
    return jnp.diff(cdf) / (cdf[..., -1:] - cdf[..., :1])


def kl_divergence(old, new):
    """Return KL(old || new) of normal distributions, [..., 2 size] each -> [...].

    Parameters are means and log standard deviations. The KL of their tanh is the same.
    """
    (old_mean, old_log), (mean, log) = jnp.split(old, 2, -1), jnp.split(new, 2, -1)
    squares = jnp.exp(2 * (old_log - log)) + jnp.square((old_mean - mean) * jnp.exp(-log))
    return jnp.sum(log - old_log + 0.5 * (squares - 1), -1)


def multiplier_loss(multipliers, entropy, kl, target_entropy, kl_bound):
    """Return a loss that raises temperature and KL weight outside of their limits.

    The temperature rises below the target entropy, and the KL weight above the KL bound.
    """
    temperature, weight = jnp.exp(multipliers["temperature"]), jnp.exp(multipliers["kl_weight"])
    return temperature * (entropy - target_entropy) + weight * (kl_bound - kl)


REQUIRED = {
    "network.distribution": "tanh_gaussian",
    "network.rnn": "none",
    "ppo.symmetry": "none",
    "ppo.epoch_fraction": 1.0,
    "ppo.early_stop_unit": "step",
    "ppo.terms": (),
    "intrinsic.kind": "none",
}
"""Required settings; the update would ignore other values."""


class Networks:
    """Critic and actor as functions of parameters and rows of a rollout."""

    def __init__(self, parts, settings):
        """Check the config, and build the critic, without computing anything."""
        config, spec, limit = parts.config, parts.env.spec, settings.limit
        if not isinstance(spec.observation, Box) or not isinstance(spec.action, Box):
            raise ValueError(
                f"env.name = {config.env.name}: pathwise updates need a Box of observations and a "
                f"Box of actions."
            )
        for name, needed in REQUIRED.items():
            section, _, field = name.partition(".")
            value = getattr(getattr(config, section), field)
            if value != needed:
                raise ValueError(f"{name} = {value}: pathwise updates need {name} = {needed}.")
        if config.ppo.learning_rate_schedule == "adaptive":
            raise ValueError(
                "ppo.learning_rate_schedule = adaptive: pathwise updates need another schedule."
            )
        self.parts, self.settings = parts, settings
        self.dist = parts.policy.distribution
        self.bins = jnp.linspace(-limit, limit, settings.num_bins)
        widths = config.network.critic_hidden or config.network.hidden
        self.critic = Critic(widths, tuple(np.linspace(-limit, limit, settings.num_bins)))
        self.target_entropy = settings.target_entropy * spec.action.shape[0]

    def logits(self, params, stats, obs, action):
        """Return the critic's logits for actions as the policy stores them."""
        obs = self.parts.policy.normalize_obs(stats, obs)
        return self.critic.apply(params, obs, self.dist.to_env(action))

    def value(self, params, stats, obs, action):
        """Return Q(obs, action), [...]."""
        return jax.nn.softmax(self.logits(params, stats, obs, action)) @ self.bins

    def critic_loss(self, stats, params, rows):
        """Return the cross-entropy of the targets' histograms, summed over valid rows."""
        log_mass = jax.nn.log_softmax(self.logits(params, stats, rows.obs, rows.action))
        loss = -jnp.sum(histogram(rows.target, self.bins) * log_mass, -1)
        return self.sums(loss, rows, value_loss=loss)

    def actor_loss(self, agent, state, key, params, rows):
        """Return α log π(a|s) - Q(s, a) within the KL bound, and the weighted KL beyond it."""
        agent = agent.replace(params=params)
        new = self.parts.policy.unroll(agent, (), rows.obs, rows.start).dist_params
        action = self.dist.sample(new, key)
        log_prob = self.dist.log_prob(new, action)
        value = self.value(state.critic, agent.obs_stats, rows.obs, action)
        kl = kl_divergence(rows.extra["dist_params"], new)
        multipliers = jax.tree.map(jnp.exp, state.multipliers)
        inside = kl < self.settings.kl_bound
        soft = multipliers["temperature"] * log_prob - value
        loss = jnp.where(inside, soft, multipliers["kl_weight"] * kl)
        beyond = 1.0 - inside
        return self.sums(
            loss, rows, policy_loss=loss, entropy=-log_prob, approx_kl=kl, clipfrac=beyond
        )

    def sums(self, loss, rows, **components):
        """Return (sum of a loss over valid rows, sums of its components)."""
        sums = {name: jnp.sum(x, where=rows.valid) for name, x in components.items()}
        zeros = Losses._make([jnp.zeros(())] * (len(Losses._fields) - 1) + [()])
        return jnp.sum(loss, where=rows.valid), zeros._replace(**sums)

    def batch(self, agent, state, rollout, reward, hp, key):
        """Return the rows of a rollout with λ-targets of soft rewards.

        r̃ₜ = rₜ - γ α log π(aₜ₊₁|sₜ₊₁), with aₜ₊₁ sampled from the policy that acted. Truncated
        steps bootstrap from Q(sₜ₊₁, aₜ₊₁); terminated steps do not, and have no aₜ₊₁.
        """
        rows, policy = rollout.transitions, self.parts.policy
        obs = self.parts.storage.read(rollout.stored, rows.obs)
        obs = jnp.concatenate([obs, rollout.end.obs[None]])
        start = jnp.concatenate([rows.start, rollout.end.start[None]])
        dist_params = policy.unroll(agent, (), obs, start).dist_params

        def sample(key):
            action = self.dist.sample(dist_params, key)
            value = self.value(state.critic, agent.obs_stats, obs, action)
            return value, self.dist.log_prob(dist_params, action)

        samples = jax.lax.map(sample, jax.random.split(key, self.settings.samples))
        value, log_prob = (jnp.mean(x, 0) for x in samples)
        later, later_log_prob = (
            next_entries(x[:-1], x[-1], rows.absent) for x in (value, log_prob)
        )
        gamma, temperature = (
            discount(hp.gamma, rows.ticks),
            jnp.exp(state.multipliers["temperature"]),
        )
        bonus = gamma * temperature * later_log_prob
        soft = reward - jnp.where(rows.terminated, 0.0, bonus)
        predictions = Predictions(value[:-1], later, dist_params[:-1])
        target = self.parts.advantages(rows, soft, predictions, hp).target
        extra = {"dist_params": dist_params[:-1], "truncated": rows.truncated}
        batch = Batch(
            obs=rows.obs,
            carry=(),
            start=rows.start,
            action=rows.action,
            log_prob=rows.log_prob,
            value=value[:-1],
            target=target,
            advantage=jnp.zeros_like(target),
            valid=rows.valid,
            extra=extra,
        )
        return self.parts.layout.split(batch)


def init(settings, parts, agent, key):
    """Return the initial state of the update."""
    networks, spec = Networks(parts, settings), parts.env.spec
    rows = (jnp.zeros((1, *space.shape)) for space in (spec.observation, spec.action))
    critic = networks.critic.init(key, *rows)
    log = {name: jnp.log(getattr(settings, name)) for name in ("temperature", "kl_weight")}
    critic_opt = optimizers.init_state(parts.config.ppo, critic)
    return State(critic, critic_opt, log, optax.scale_by_adam().init(log))


def learn(settings, parts, state, rollout, hp):
    """Return (the training state after an update, its metrics)."""
    config, networks, keys = parts.config.ppo, Networks(parts, settings), split_keys(state.key)
    hp = scheduled(hp, config, state.update)
    agent = AgentState(state.agent.params, rollout.obs_stats)
    scaled = scale_rewards(parts, state, rollout, hp)
    target_key, epochs_key = jax.random.split(keys.update)
    batch = networks.batch(agent, state.learner, rollout, scaled.reward, hp, target_key)
    uncut = batch._replace(valid=batch.valid & ~batch.extra["truncated"])
    update = partial(
        ppo.Update, psum=parts.shards.psum, prepare=partial(read_minibatch, parts, rollout.stored)
    )
    actor_optimizer = optimizers.make(config, agent.params)
    critic_optimizer = optimizers.make(config, state.learner.critic)

    def step(carried, minibatch):
        actor, critic, learner = carried
        index, key = minibatch
        rows = index, batch.advantage[index]
        loss = partial(networks.critic_loss, agent.obs_stats)
        critic, of_critic = ppo.gradient_step(
            update(loss), critic_optimizer, hp, uncut, critic, rows
        )
        learner = learner._replace(critic=critic_optimizer.unravel(critic.flat))
        loss = partial(networks.actor_loss, agent, learner, key)
        actor, losses = ppo.gradient_step(update(loss), actor_optimizer, hp, batch, actor, rows)
        learner = step_multipliers(networks, learner, losses, hp)
        return (actor, critic, learner), losses._replace(value_loss=of_critic.value_loss)

    def epoch(carried, key):
        order, noise = jax.random.split(key)
        length = rollout.transitions.valid.shape[0]
        index = sequences.minibatch_indices(order, config, length, parts.env.spec.num_envs)
        return epochs.scan(step, carried, (index, jax.random.split(noise, len(index))))

    actor = ppo.GradientState(optimizers.flatten(agent.params)[0], state.opt_state)
    critic, learner = optimizers.flatten(state.learner.critic)[0], state.learner
    critic = ppo.GradientState(critic, learner.critic_opt)
    (actor, critic, learner), losses = epochs.make(config)(
        epoch, (actor, critic, learner), jax.random.split(epochs_key, config.num_epochs)
    )
    losses = ppo.mean_losses(losses, config.num_minibatches)
    agent = AgentState(
        actor_optimizer.unravel(actor.flat), update_obs_stats(parts, state.agent.obs_stats, rollout)
    )
    metrics = diagnostics.summarise(agent, rollout, batch, losses, parts.shards.psum)
    extras = {f"losses/{name}": jnp.exp(x) for name, x in learner.multipliers.items()}
    outside = {CLIPPED: lambda target: jnp.abs(target) > settings.limit}
    extras |= diagnostics.mean_of_targets(outside, batch, parts.shards.psum)
    state = state.replace(
        agent=agent,
        opt_state=actor.opt_state,
        learner=learner._replace(critic_opt=critic.opt_state),
        reward_stats=scaled.stats,
        update=state.update + 1,
        rollout=rollout.end.replace(discounted_return=scaled.discounted_return),
        key=keys.next,
    )
    return state, metrics._replace(extras=extras)


def step_multipliers(networks, learner, losses, hp):
    """Take a gradient step of temperature and KL weight, if the actor took one."""
    gradient = jax.grad(multiplier_loss)(
        learner.multipliers,
        losses.entropy,
        losses.approx_kl,
        networks.target_entropy,
        networks.settings.kl_bound,
    )
    change, opt = optax.scale_by_adam().update(gradient, learner.multipliers_opt)
    moved = jax.tree.map(lambda x, y: x - hp.learning_rate * y, learner.multipliers, change)
    new = learner._replace(multipliers=moved, multipliers_opt=opt)
    return jax.tree.map(partial(jnp.where, losses.epochs > 0), new, learner)


def make(**settings):
    """Return the update for `ppo.learner`, with other `Settings`."""
    for name in settings.keys() - set(Settings._fields):
        raise ValueError(f"{name}: unknown setting. Settings: {', '.join(Settings._fields)}.")
    chosen = Settings(**settings)
    figures = "losses/temperature", "losses/kl_weight", CLIPPED
    return Learner(partial(learn, chosen), partial(init, chosen), lambda parts: figures)


pathwise = make()
CHANGES = {
    "ppo.learner": pathwise,
    "network.distribution": "tanh_gaussian",
    "network.std": "dependent",
    "network.layer_norm": True,
    "network.activation": "swish",
}
"""Changes of a config for pathwise updates."""


def trained(config, seeds):
    """Train one seed after the other; return their CPU seconds without compilation, and curves."""
    train = make_train(config, num_points=50)
    program = jax.jit(train).lower(jax.random.key(0)).compile()
    start = time.process_time()
    curves = [jax.block_until_ready(program(jax.random.key(seed))).curves for seed in seeds]
    seconds = (time.process_time() - start) / len(seeds)
    train.close()
    return {
        "cpu_seconds": round(seconds, 2),
        "env_steps": np.asarray(curves[0].env_steps).tolist(),
        "returns": np.array([x.episodic_return for x in curves]).round(2).tolist(),
    }


def return_at(row, part):
    """Return the returns of all seeds after a part of the run, 0 to 1: means of its last tenth."""
    returns, steps = np.array(row["returns"], float), np.array(row["env_steps"])
    last = (steps <= part * steps[-1] + 1) & (steps > (part - 0.1) * steps[-1])
    return np.nanmean(returns[:, last], 1)


def table(rows):
    """Return a table of the rows of PPO and pathwise updates, at equal steps and equal seconds."""
    lines = [
        "| config | update | steps | CPU seconds per seed | return | in PPO's seconds |",
        "|---" * 6 + "|",
    ]
    seconds = {row["config"]: row["cpu_seconds"] for row in rows if row["update"] == "ppo"}
    for row in rows:
        parts = 1.0, min(1.0, seconds.get(row["config"], np.inf) / row["cpu_seconds"])
        scores = [return_at(row, part) for part in parts]
        cells = (f"{x.mean():,.1f} ± {x.std(ddof=len(x) > 1):,.1f}" for x in scores)
        facts = row["config"], row["update"], f"{row['steps']:,}", f"{row['cpu_seconds']:,.1f}"
        lines.append(f"| {' | '.join([*facts, *cells])} |")
    return "\n".join(lines)


def main():
    """Train PPO and pathwise updates with the same configs, and print a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--config", nargs="+", default=["pendulum.yaml"])
    parser.add_argument("--steps", type=int, default=0, help="0: those of the config")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], help="NAME=JSON for pathwise updates")
    parser.add_argument("--rows", default="pathwise.jsonl", help="results so far; resumes there")
    args = parser.parse_args()
    try:
        compare(args)
    except ValueError as error:
        parser.error(str(error))


def value_of(pair):
    """Return (name, value) of NAME=JSON."""
    name, _, value = pair.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        raise ValueError(f"--set {pair}: must be NAME=JSON, such as limit=2.5.") from None


def compare(args):
    """Train what is missing, and print the table after each config."""
    path, done = Path(args.rows), []
    if path.is_file():
        done = [json.loads(line) for line in path.read_text().splitlines()]
    seeds = list(range(args.first_seed, args.first_seed + args.seeds))
    flags = dict(map(value_of, args.set))
    learner = make(**{name: flags[name] for name in flags if "." not in name})
    changes = CHANGES | {"ppo.learner": learner} | {k: flags[k] for k in flags if "." in k}
    rows = []
    for name in args.config:
        base = load_config(name)
        base = base.replace(total_timesteps=args.steps or base.total_timesteps)
        for update, config, settings in (
            ("ppo", base, {}),
            ("pathwise", base.replace(**changes), flags),
        ):
            facts = {"config": name, "update": update, "steps": base.total_timesteps}
            facts |= {"seeds": seeds, "settings": settings}
            row = next((x for x in done if x.items() >= facts.items()), None)
            if row is None:
                row = facts | trained(config, seeds)
                with path.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            rows.append(row)
        print(table(rows), flush=True)


if __name__ == "__main__":
    main()
