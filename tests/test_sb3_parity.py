"""Estimates, losses and updates equal those of Stable-Baselines3 on fixed data and weights.

`reference/make_sb3_reference.py` computed single updates on random rollouts with the classes of
SB3, and `reference/record_sb3_training.py` recorded ten updates of SB3's `learn` on Hopper-v5
and CartPole-v1. Two definitions differ and are translated here: SB3's value loss has no factor
1/2, and under value clipping it is the clipped error alone, where ours is the larger of the two
errors as in OpenAI's baselines. A third is not translated: SB3 clips gradients by
limit / (norm + 1e-6), we by limit / norm, a relative difference of 2e-6 at most.

After 400 gradient steps in float32, parameters differ by 1e-5 to 2e-5 of the largest in their
array, mostly because optax computes Adam's bias correction in float32 and torch in double.
"""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.paths import ROOT

from purejaxppo import learner, spaces
from purejaxppo.agents import critics, normalize, objectives, optimizers, ppo, schedules, sequences
from purejaxppo.agents.advantages import gae
from purejaxppo.agents.networks import distributions
from purejaxppo.agents.networks.build import make_network
from purejaxppo.config.schema import Config, EnvConfig, NetworkConfig, PPOConfig
from purejaxppo.envs import registry
from purejaxppo.envs.base import EnvSpec
from purejaxppo.parts import make_parts
from purejaxppo.streams import split_keys
from purejaxppo.types import AgentState, Episodes, Rollout, RolloutState, TrainState, Transition

FOLDER = ROOT / "tests/reference"


def load_script(name):
    """Import a script in the folder of the reference arrays."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sb3 = load_script("make_sb3_reference")
recorded = load_script("record_sb3_training")

T, N = sb3.LENGTH, sb3.NUM_ENVS
FIELDS = ("obs", "action", "log_prob", "value", "target", "advantage")
CONFIG = PPOConfig(
    learning_rate=sb3.LEARNING_RATE,
    clip_eps=sb3.CLIP,
    vf_clip_eps=sb3.VF_CLIP,
    vf_coef=2 * sb3.VF_COEF,
    ent_coef=sb3.ENT_COEF,
    max_grad_norm=sb3.MAX_GRAD_NORM,
    adam_eps=1e-5,
    rollout_length=T,
    num_minibatches=sb3.MINIBATCHES,
    num_epochs=sb3.EPOCHS,
)


@pytest.fixture(scope="module")
def reference():
    with np.load(FOLDER / "sb3.npz") as file:
        return dict(file)


class Model(NamedTuple):
    """The sizes of a pair of 64-64 tanh networks."""

    obs_size: int
    num_outputs: int  # the number of actions, or of their dimensions
    gaussian: bool

    @property
    def spaces(self):
        """Return the spaces of observations and actions."""
        n = self.num_outputs
        action = spaces.Box((n,), -1.0, 1.0) if self.gaussian else spaces.Discrete(n)
        return spaces.Box((self.obs_size,)), action

    def names_and_shapes(self):
        """Return our path and SB3's shape of each parameter, in SB3's order."""
        yield from [(("log_std",), (self.num_outputs,))] if self.gaussian else []
        for torso in ("actor_torso", "critic_torso"):
            for layer, inputs in enumerate((self.obs_size, 64)):
                yield (torso, f"dense_{layer}", "kernel"), (64, inputs)
                yield (torso, f"dense_{layer}", "bias"), (64,)
        for head, size in (("actor", self.num_outputs), ("critic", 1)):
            yield (head, "kernel"), (size, 64)
            yield (head, "bias"), (size,)

    def as_params(self, vector):
        """Return SB3's weights as our parameters; torch stores kernels transposed."""
        params, start = {}, 0
        for path, shape in self.names_and_shapes():
            size = int(np.prod(shape))
            node = params
            for name in path[:-1]:
                node = node.setdefault(name, {})
            node[path[-1]] = jnp.asarray(vector[start : start + size].reshape(shape).T, jnp.float32)
            start += size
        assert start == len(vector)
        return params


MODELS = {
    "discrete": Model(sb3.OBS_SIZE, sb3.NUM_ACTIONS, gaussian=False),
    "gaussian": Model(sb3.OBS_SIZE, sb3.ACTION_SIZE, gaussian=True),
    "hopper": Model(11, 3, gaussian=True),
    "cartpole": Model(4, 2, gaussian=False),
}


@pytest.fixture(scope="module")
def training():
    with np.load(FOLDER / "sb3_training.npz") as file:
        return dict(file)


def recorded_minibatches(orders, key):
    """Return a `minibatch_indices` for an update under `key`: epoch e has minibatches orders[e]."""
    epoch_keys = jax.random.key_data(jax.random.split(key, len(orders)))

    def indices(key, config, length, num_envs):
        assert length * num_envs == orders[0].size
        return orders[jnp.argmax(jnp.all(epoch_keys == jax.random.key_data(key), axis=1))]

    return indices


def make_evaluate(kind, config, hp):
    """Return a function (params, rows) -> MinibatchOutputs, with our 64-64 tanh networks."""
    critic = critics.make(config)
    obs, action = MODELS[kind].spaces
    network = make_network(obs, action, NetworkConfig(hidden=(64, 64)))
    distribution = distributions.for_space(action)
    template = jax.eval_shape(network.init, jax.random.key(0))

    def evaluate(params, rows):
        assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, template)
        out = network.apply(params, (), rows.obs, rows.start)
        log_prob = distribution.log_prob(out.dist_params, rows.action)
        stats = normalize.init_value_stats()
        value_loss = critic.loss(out.critic, rows.value, rows.target, stats, hp)
        return ppo.MinibatchOutputs(log_prob, distribution.entropy(out.dist_params), value_loss)

    return evaluate


def make_loss(kind, config):
    """Return (the PPO loss of our networks, (params, rows) -> (sum, parts); hyperparameters)."""
    hp = schedules.make_hyperparams(Config(ppo=config))
    evaluate, objective = make_evaluate(kind, config, hp), objectives.OBJECTIVES["clip"]

    def loss(params, rows):
        return ppo.ppo_loss(evaluate(params, rows), rows, hp, objective=objective)

    return loss, hp


def make_batch(reference, kind):
    """Return the rollout as a batch of our update."""
    get = {name: jnp.asarray(reference[f"{kind}/{name}"]) for name in FIELDS}
    batch = ppo.Batch(carry=(), start=jnp.zeros((T, N), bool), valid=jnp.ones((T, N), bool), **get)
    return jax.tree.map(lambda x: x.reshape(T * N, *x.shape[2:]), batch)


@pytest.fixture(params=["free", "clipped"])
def value_loss(request, monkeypatch):
    """Whether values are clipped, with SB3's rule in place of ours."""

    def clipped_error_alone(value, old_value, target, clip_eps):
        clipped = old_value + jnp.clip(value - old_value, -clip_eps, clip_eps)
        return 0.5 * jnp.square(clipped - target)

    monkeypatch.setattr(critics.losses, "clipped_squared_error", clipped_error_alone)
    return request.param


@pytest.mark.parametrize("kind", sb3.KINDS)
def test_advantages_equal_those_of_sb3s_buffer(reference, kind):
    data = {n.removeprefix(f"{kind}/"): x for n, x in reference.items() if n.startswith(kind)}
    for n in range(N):
        rows = []  # reward, value, terminated, truncated, valid, with inserted reset rows
        for t in range(T):
            terminated, truncated = data["terminated"][t, n], data["truncated"][t, n]
            rows.append((data["reward"][t, n], data["value"][t, n], terminated, truncated, True))
            if terminated or truncated:
                rows.append((0.0, data["terminal_value"][t, n], False, False, False))
        reward, value, terminated, truncated, valid = (
            np.array(column)[:, None] for column in zip(*rows, strict=True)
        )
        next_value = np.concatenate([value[1:], data["last_value"][n].reshape(1, 1)])
        advantage, target = gae(
            *map(jnp.asarray, (reward, value, next_value)),
            *map(jnp.asarray, (terminated, terminated | truncated, valid)),
            gamma=sb3.GAMMA,
            gae_lambda=sb3.GAE_LAMBDA,
        )
        ours = np.asarray(advantage)[valid]
        np.testing.assert_allclose(ours, data["advantage"][:, n], atol=1e-5)
        np.testing.assert_allclose(np.asarray(target)[valid], data["target"][:, n], atol=1e-5)
    assert data["terminated"].any() and data["truncated"].any()


@pytest.mark.parametrize("kind", sb3.KINDS)
def test_losses_equal_sb3s(reference, kind, value_loss):
    batch = make_batch(reference, kind)
    params = MODELS[kind].as_params(reference[f"{kind}/before"] / 64)
    advantage = normalize.normalize_advantages(
        batch.advantage[None], batch.valid[None], lambda x: x, axis=1
    )[0]
    batch = batch._replace(advantage=advantage)
    config = replace(CONFIG, value_clipping=value_loss == "clipped")
    loss, _ = make_loss(kind, config)
    _, parts = jax.jit(loss)(params, batch)
    mean = [float(x) / (T * N) for x in parts[:5]]
    ours = [mean[0], 2 * mean[1], -mean[2], mean[3], mean[4]]
    np.testing.assert_allclose(ours, reference[f"{kind}/{value_loss}/losses"], atol=1e-5)


@pytest.mark.parametrize("kind", sb3.KINDS)
def test_a_full_update_equals_sb3s(reference, kind, value_loss, monkeypatch, key):
    config = replace(CONFIG, value_clipping=value_loss == "clipped")
    # SB3 orders rows by environment, we by step.
    env, time = np.divmod(reference[f"{kind}/orders"].astype(int), T)
    orders = jnp.asarray(time * N + env).reshape(sb3.EPOCHS, sb3.MINIBATCHES, -1)
    monkeypatch.setattr(sequences, "minibatch_indices", recorded_minibatches(orders, key))
    before = MODELS[kind].as_params(reference[f"{kind}/before"] / 64)
    loss, hp = make_loss(kind, config)
    params, _, parts = jax.jit(
        lambda params, batch, key: ppo.update_epochs(
            ppo.Update(loss, lambda x: x),
            params,
            optimizers.init_state(config, params),
            batch,
            hp,
            key,
            config=config,
            num_envs=N,
        )
    )(before, make_batch(reference, kind), key)
    change = MODELS[kind].as_params(reference[f"{kind}/{value_loss}/change"] / 2**20)
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(change))
    assert largest > 1e-3  # a hundred times the tolerance
    jax.tree.map(
        lambda after, before, change: np.testing.assert_allclose(
            after - before, change, rtol=0, atol=2e-6
        ),
        params,
        before,
        change,
    )
    mean = reference[f"{kind}/{value_loss}/mean_losses"]
    ours = [parts.policy_loss, 2 * parts.value_loss, -parts.entropy]
    np.testing.assert_allclose(ours, mean[:3], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(parts.clipfrac, mean[4], atol=1e-6)


class Replay(NamedTuple):
    """A recorded rollout in our protocol, T' rows of N environments, and its minibatches."""

    transitions: Transition  # [T', N]
    last_obs: jax.Array  # [N, ...]
    orders: jax.Array  # int32 [E, M, B], rows of the flattened rollout
    advantage: jax.Array  # [T', N] of SB3, 0 on rows that are not valid


def replay(data, update):
    """Return SB3's rollout of one update with our reset rows inserted.

    SB3 resets within the step that ends an episode, and adds the discounted value of the last
    observation to the reward if the end is a truncation. We have one more row, not valid, with the
    last observation. Environments with fewer ends than others get more such rows after their last
    step, so that T' is the same in all updates. Rewards, actions and log-probabilities of these
    rows must have no effect; here they are 1. The minibatches are those of SB3, with an equal
    share of these rows in each.
    """
    ends = data["terminated"] | data["truncated"]
    num_rows = ends.shape[1] + int(ends.sum(axis=1).max())
    done, part = ends[update], {name: x[update] for name, x in data.items()}
    (length, num_envs), envs = done.shape, np.broadcast_to(np.arange(ends.shape[2]), done.shape)
    # Each end before a step shifts it by a row.
    rows = np.arange(length)[:, None] + np.cumsum(done, axis=0) - done

    def spread(steps, rest):
        out = np.full((num_rows, *steps.shape[1:]), rest, steps.dtype)
        out[rows, envs] = steps
        return out

    obs = spread(part["obs"], part["last_obs"])
    obs[rows[done] + 1, envs[done]] = part["terminal_obs"][done]
    valid = spread(np.ones_like(done), False)
    transitions = Transition(
        obs=obs,
        action=spread(part["action"], 1),
        log_prob=spread(part["log_prob"], 1),
        reward=spread(part["reward"], 1),
        terminated=spread(part["terminated"], False),
        truncated=spread(part["truncated"], False),
        valid=valid,
        start=np.zeros_like(valid),  # only recurrent networks use it
    )
    env, step = np.divmod(part["order"].astype(int), length)
    shape = (recorded.EPOCHS, recorded.MINIBATCHES, -1)
    theirs = (rows[step, env] * num_envs + env).reshape(shape)
    others = np.broadcast_to(np.flatnonzero(~valid), (len(theirs), num_rows * num_envs - done.size))
    orders = np.concatenate([theirs, others.reshape(shape)], axis=-1)
    advantage = spread(part["advantage"], 0)
    return jax.tree.map(jnp.asarray, Replay(transitions, part["last_obs"], orders, advantage))


def recorded_parts(task, monkeypatch):
    """Return parts with the settings of the recorded run, and the spaces of its environment."""
    obs, action = MODELS[task].spaces
    spec = EnvSpec(obs, action, num_envs=recorded.NUM_ENVS)
    env = SimpleNamespace(spec=spec, begin_rollout=lambda state, key, progress: state)
    monkeypatch.setattr(registry, "make", lambda *_, **__: env)
    config = PPOConfig(
        learning_rate=recorded.LEARNING_RATE,
        learning_rate_schedule="constant",
        gamma=recorded.GAMMA,
        gae_lambda=recorded.GAE_LAMBDA,
        clip_eps=recorded.CLIP,
        vf_coef=2 * recorded.VF_COEF,
        ent_coef=recorded.ENT_COEF,
        max_grad_norm=recorded.MAX_GRAD_NORM,
        adam_eps=recorded.ADAM_EPS,
        rollout_length=recorded.TASKS[task]["length"],
        num_minibatches=recorded.MINIBATCHES,
        num_epochs=recorded.EPOCHS,
        normalize_obs=False,
    )
    env_config = EnvConfig(num_envs=recorded.NUM_ENVS)
    return make_parts(Config(env=env_config, network=NetworkConfig(hidden=(64, 64)), ppo=config))


def make_train_step(parts, monkeypatch):
    """Return a train_step of a replay: (state, Replay) -> (state, metrics, advantage [T', N])."""

    def train_step(state, replay):
        watched = []

        def collect(env, act, state, key, length, storage):
            del env, act, key, length, storage
            i, f = jnp.zeros((), jnp.int32), jnp.zeros(())
            end = state.replace(obs=replay.last_obs)
            return Rollout(replay.transitions, (), state.carry, end, Episodes(i, f, i, i))

        def advantages(*args):
            estimates = parts.advantages(*args)
            watched.append(estimates.advantage)
            return estimates

        indices = recorded_minibatches(replay.orders, split_keys(state.key).update)
        monkeypatch.setattr(sequences, "minibatch_indices", indices)
        replaying = parts._replace(collect=collect, advantages=advantages)
        hp = schedules.make_hyperparams(parts.config)
        state, metrics = learner.train_step(replaying, state, hp)
        (advantage,) = watched  # computed once
        return state, metrics, advantage

    return jax.jit(train_step)


def start_training(parts, params, last_obs, key):
    """Return a state before the first update, with the given parameters."""
    n = parts.env.spec.num_envs
    zeros, integers = jnp.zeros(n), jnp.zeros(n, jnp.int32)
    return TrainState(
        agent=AgentState(params, parts.policy.init_obs_stats()),
        opt_state=optimizers.init_state(parts.config.ppo, params),
        reward_stats=normalize.init_stats(jnp.zeros(())),
        value_stats=normalize.init_value_stats(),
        intrinsic=(),
        bonus_return=(),
        learner=(),
        update=jnp.zeros((), jnp.int32),
        rollout=RolloutState((), last_obs, zeros == 1, (), zeros, integers, zeros),
        key=key,
    )


def assert_close(ours, theirs, what):
    """Check every array of two trees: differences are at most 1e-4 of the largest value."""
    flat, _ = jax.tree_util.tree_flatten_with_path(theirs)
    for (path, expected), found in zip(flat, jax.tree.leaves(ours), strict=True):
        error = np.abs(np.asarray(found) - expected).max() / np.abs(expected).max()
        assert error < 1e-4, f"{what}{jax.tree_util.keystr(path)} is off by {error:.1e}"


def check_training(data, task, monkeypatch, key):
    """Train for all recorded updates, and compare after each."""
    data = {name.removeprefix(f"{task}/"): x for name, x in data.items() if name.startswith(task)}
    vectors = data.pop("params")
    theirs = [jax.tree.map(np.asarray, MODELS[task].as_params(vector)) for vector in vectors]
    parts = recorded_parts(task, monkeypatch)
    train_step = make_train_step(parts, monkeypatch)
    state = start_training(parts, theirs[0], data["last_obs"][0], key)
    for update in range(recorded.UPDATES):
        recording = replay(data, update)
        state, metrics, advantage = train_step(state, recording)
        assert_close(advantage, np.asarray(recording.advantage), f"update {update}: advantage")

        # Kernels are large compared with the changes of ten updates, so changes are compared, too.
        after = state.agent.params
        assert_close(after, theirs[update + 1], f"update {update}: ")
        assert_close(
            jax.tree.map(np.subtract, after, theirs[0]),
            jax.tree.map(np.subtract, theirs[update + 1], theirs[0]),
            f"update {update}: change of ",
        )
        means = metrics.losses
        ours = [means.policy_loss, 2 * means.value_loss, -means.entropy, means.clipfrac]
        # The policy loss is a mean near 0 of numbers near 1, hence the absolute tolerance.
        np.testing.assert_allclose(ours, data["losses"][update], rtol=1e-4, atol=1e-5)
        assert means.grad_norm > recorded.MAX_GRAD_NORM  # gradients were clipped
    assert data["terminated"].any() and data["truncated"].any()
    assert data["losses"][:, recorded.LOSSES.index("clip_fraction")].any()


@pytest.mark.parametrize("task", recorded.TASKS)
def test_ten_updates_on_recorded_rollouts_equal_sb3s(training, task, monkeypatch, key):
    check_training(training, task, monkeypatch, key)


def reproduce(script, path):
    """Run a script in the folder of the reference arrays, and return the written arrays."""
    if not all(map(importlib.util.find_spec, ("torch", "stable_baselines3", "gymnasium"))):
        pytest.skip("needs torch, stable-baselines3 and gymnasium[mujoco]")
    subprocess.run([sys.executable, str(FOLDER / script), str(path)], check=True)
    with np.load(path) as file:
        return dict(file)


@pytest.mark.slow
def test_the_reference_can_be_reproduced(reference, tmp_path):
    again = reproduce("make_sb3_reference.py", tmp_path / "sb3.npz")
    assert set(again) == set(reference)
    for name, expected in reference.items():
        # Changes are stored in units of 2^-20.
        atol = 2 if name.endswith("change") else 1e-5
        np.testing.assert_allclose(again[name], expected, atol=atol, err_msg=name)


@pytest.mark.slow
def test_the_training_can_be_recorded_again(training, tmp_path, monkeypatch, key):
    again = reproduce("record_sb3_training.py", tmp_path / "sb3_training.npz")
    # On another processor rounding makes another trajectory, so only shapes and dtypes are equal.
    described = [{name: (x.shape, x.dtype) for name, x in d.items()} for d in (again, training)]
    assert described[0] == described[1]
    for task in recorded.TASKS:
        with monkeypatch.context() as patch:
            check_training(again, task, patch, key)
