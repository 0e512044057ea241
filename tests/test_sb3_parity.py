"""Our estimates, losses and a whole update equal Stable-Baselines3's on fixed data and weights.

`reference/make_sb3_reference.py` computed the numbers with SB3's own classes. Two definitions
differ and are translated here: SB3's value loss has no half, and under value clipping it takes the
clipped error alone, where ours takes the larger of the two as OpenAI's baselines do.
"""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo import spaces
from purejaxppo.advantages import gae
from purejaxppo.agents import distributions, ppo
from purejaxppo.agents.networks import make_network
from purejaxppo.config import NetworkConfig, PPOConfig

FOLDER = Path(__file__).parent / "reference"
_spec = importlib.util.spec_from_file_location("sb3", FOLDER / "make_sb3_reference.py")
sb3 = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sb3)

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


def names_and_shapes(kind):
    """SB3's order of parameters: our path, and SB3's shape."""
    outputs = {"discrete": sb3.NUM_ACTIONS, "gaussian": sb3.ACTION_SIZE}[kind]
    yield from [(("log_std",), (outputs,))] if kind == "gaussian" else []
    for torso in ("actor_torso", "critic_torso"):
        for layer, inputs in enumerate((sb3.OBS_SIZE, 64)):
            yield (torso, f"dense_{layer}", "kernel"), (64, inputs)
            yield (torso, f"dense_{layer}", "bias"), (64,)
    for head, size in (("actor", outputs), ("critic", 1)):
        yield (head, "kernel"), (size, 64)
        yield (head, "bias"), (size,)


def as_params(vector, kind):
    """SB3's weights as our parameters; torch stores kernels transposed."""
    params, start = {}, 0
    for path, shape in names_and_shapes(kind):
        size = int(np.prod(shape))
        node = params
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = jnp.asarray(vector[start : start + size].reshape(shape).T, jnp.float32)
        start += size
    assert start == len(vector)
    return params


def make_evaluate(kind):
    """(params, rows) -> Evaluation, by our own 64-64 tanh networks."""
    action = {
        "discrete": spaces.Discrete(sb3.NUM_ACTIONS),
        "gaussian": spaces.Box((sb3.ACTION_SIZE,), -1.0, 1.0),
    }[kind]
    network = make_network(spaces.Box((sb3.OBS_SIZE,)), action, NetworkConfig(hidden=(64, 64)))
    distribution = distributions.for_space(action)
    template = jax.eval_shape(network.init, jax.random.key(0))

    def evaluate(params, rows):
        assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, template)
        _, out, value = network.apply(params, (), rows.obs, rows.start)
        log_prob = distribution.log_prob(out, rows.action)
        return ppo.Evaluation(log_prob, distribution.entropy(out), value)

    return evaluate


def make_batch(reference, kind):
    """The rollout as our update sees it."""
    get = {name: jnp.asarray(reference[f"{kind}/{name}"]) for name in FIELDS}
    batch = ppo.Batch(carry=(), start=jnp.zeros((T, N), bool), valid=jnp.ones((T, N), bool), **get)
    return jax.tree.map(lambda x: x.reshape(T * N, *x.shape[2:]), batch)


@pytest.fixture(params=["free", "clipped"])
def value_loss(request, monkeypatch):
    """Whether values are clipped; if so, with SB3's rule in place of ours."""

    def clipped_error_alone(value, old_value, target, clip_eps):
        clipped = old_value + jnp.clip(value - old_value, -clip_eps, clip_eps)
        return 0.5 * jnp.square(clipped - target)

    monkeypatch.setattr(ppo.losses, "clipped_squared_error", clipped_error_alone)
    return request.param


@pytest.mark.parametrize("kind", sb3.KINDS)
def test_advantages_equal_those_of_sb3s_buffer(reference, kind):
    data = {n.removeprefix(f"{kind}/"): x for n, x in reference.items() if n.startswith(kind)}
    for n in range(N):
        rows = []  # reward, value, terminated, truncated, valid, with reset rows put in
        for t in range(T):
            terminated, truncated = data["terminated"][t, n], data["truncated"][t, n]
            rows.append((data["reward"][t, n], data["value"][t, n], terminated, truncated, True))
            if terminated or truncated:
                rows.append((0.0, data["terminal_value"][t, n], False, False, False))
        reward, value, terminated, truncated, valid = (
            np.array(column)[:, None] for column in zip(*rows, strict=True)
        )
        next_value = np.concatenate([value[1:], data["last_value"][n].reshape(1, 1)])
        advantage = gae(
            *map(jnp.asarray, (reward, value, next_value)),
            *map(jnp.asarray, (terminated, terminated | truncated, valid)),
            gamma=sb3.GAMMA,
            gae_lambda=sb3.GAE_LAMBDA,
        )
        ours = np.asarray(advantage)[valid]
        np.testing.assert_allclose(ours, data["advantage"][:, n], atol=1e-5)
        np.testing.assert_allclose(ours + data["value"][:, n], data["target"][:, n], atol=1e-5)
    assert data["terminated"].any() and data["truncated"].any()


@pytest.mark.parametrize("kind", sb3.KINDS)
def test_losses_equal_sb3s(reference, kind, value_loss):
    batch = make_batch(reference, kind)
    params = as_params(reference[f"{kind}/before"] / 64, kind)
    advantage = ppo.normalize_advantages(
        batch.advantage[None], batch.valid[None], lambda x: x, axis=1
    )[0]
    batch = batch._replace(advantage=advantage)
    evaluation = make_evaluate(kind)(params, batch)
    hp = ppo.make_hyperparams(CONFIG, 1)
    _, parts = ppo.ppo_loss(evaluation, batch, hp, value_clipping=value_loss == "clipped")
    mean = [float(x) / (T * N) for x in parts]
    ours = [mean[0], 2 * mean[1], -mean[2], mean[3], mean[4]]
    np.testing.assert_allclose(ours, reference[f"{kind}/{value_loss}/losses"], atol=1e-5)


@pytest.mark.parametrize("kind", sb3.KINDS)
def test_a_whole_update_equals_sb3s(reference, kind, value_loss, monkeypatch, key):
    config = replace(CONFIG, value_clipping=value_loss == "clipped")
    # SB3 numbers rows environment by environment, we step by step.
    env, time = np.divmod(reference[f"{kind}/orders"].astype(int), T)
    orders = jnp.asarray(time * N + env).reshape(sb3.EPOCHS, sb3.MINIBATCHES, -1)
    epoch_keys = jax.random.key_data(jax.random.split(key, sb3.EPOCHS))

    def deal(key, config, length, num_envs):
        assert (length, num_envs) == (T, N)
        return orders[jnp.argmax(jnp.all(epoch_keys == jax.random.key_data(key), axis=1))]

    monkeypatch.setattr(ppo, "deal", deal)
    before = as_params(reference[f"{kind}/before"] / 64, kind)
    params, _, parts = jax.jit(
        lambda params, batch, key: ppo.improve(
            make_evaluate(kind),
            params,
            ppo.optimizer(config).init(ppo.flatten(params)[0]),
            batch,
            ppo.make_hyperparams(config, 1),
            key,
            config=config,
            num_envs=N,
            psum=lambda x: x,
        )
    )(before, make_batch(reference, kind), key)
    change = as_params(reference[f"{kind}/{value_loss}/change"] / 2**20, kind)
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


@pytest.mark.reference
def test_the_reference_can_be_made_again(reference, tmp_path):
    if not (importlib.util.find_spec("torch") and importlib.util.find_spec("stable_baselines3")):
        pytest.skip("needs torch and stable-baselines3")
    path = tmp_path / "sb3.npz"
    script = str(FOLDER / "make_sb3_reference.py")
    subprocess.run([sys.executable, script, str(path)], check=True)
    with np.load(path) as again:
        assert set(again) == set(reference)
        for name, expected in reference.items():
            # Changes are stored in 2^-20ths.
            atol = 2 if name.endswith("change") else 1e-5
            np.testing.assert_allclose(again[name], expected, atol=atol, err_msg=name)
