"""Settings of other libraries, translated by docs/names.md, give the same gradient step.

Stable-Baselines3's are compared in test_sb3_parity.py. CleanRL has no package to import.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo import spaces
from purejaxppo.agents import critics, normalize, objectives, optimizers, ppo, schedules
from purejaxppo.agents.advantages import gae
from purejaxppo.agents.networks import distributions
from purejaxppo.agents.networks.build import make_network
from purejaxppo.config import foreign
from purejaxppo.config.schema import Config, NetworkConfig

T, N, ACTIONS = 8, 4, 2


def translate(library, values):
    """Translate settings of another library to ours, by dotted name."""
    names, sizes = foreign.libraries()[library], foreign.sizes_of({})
    return {
        names[name].field: foreign.our_value(names[name], value, sizes)
        for name, value in values.items()
    }


def make_rows(seed):
    """Return rewards, ends and noise of a random rollout, [T, N]."""
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=(T, N)).astype(np.float32)
    return rng, reward, rng.random((T, N)) < 0.2


def our_gae(config, reward, value, last_value, done):
    """Return advantages and targets [T, N], where every end is a termination."""
    arrays = map(jnp.asarray, (reward, value, np.concatenate([value[1:], last_value[None]])))
    flags = map(jnp.asarray, (done, done, np.ones_like(done)))
    return gae(*arrays, *flags, gamma=config.ppo.gamma, gae_lambda=config.ppo.gae_lambda)


@pytest.mark.parametrize("gae_lambda", [1.0, 0.9])
def test_gradient_of_brax_equals_ours_with_translated_settings(gae_lambda):
    losses = pytest.importorskip("brax.training.agents.ppo.losses")
    brax = pytest.importorskip("brax.training.distribution")
    theirs = {
        "entropy_cost": 0.02,
        "discounting": 0.97,
        "gae_lambda": gae_lambda,
        "reward_scaling": 0.5,
        "clipping_epsilon": 0.15,
        "clipping_epsilon_value": 0.1,
        "vf_loss_coefficient": 0.7,
    }
    config = Config().replace(**translate("Brax", theirs), **{"ppo.value_clipping": True})
    hp = schedules.make_hyperparams(config)
    rng, reward, done = make_rows(0)
    # Policy and critic are tables: row t of environment n is entry t * N + n.
    index = np.arange((T + 1) * N).reshape(T + 1, N)
    params = losses.PPONetworkParams(
        policy=jnp.asarray(rng.normal(size=(T * N, 2 * ACTIONS)), jnp.float32),
        value=jnp.asarray(rng.normal(size=(T + 1) * N), jnp.float32),
    )
    action = jnp.asarray(rng.normal(size=(T, N, ACTIONS)), jnp.float32)
    distribution = brax.NormalTanhDistribution(event_size=ACTIONS)
    logits = params.policy[index[:T]]
    old_log_prob = distribution.log_prob(logits, action) + rng.normal(0, 0.2, (T, N))
    old_value = params.value[index[:T]] + rng.normal(0, 0.2, (T, N))
    key = jax.random.key(0)

    def brax_loss(params):
        def batch_first(x):
            return jnp.swapaxes(jnp.asarray(x), 0, 1)

        data = SimpleNamespace(
            observation=batch_first(index[:T]),
            next_observation=batch_first(index[1:]),
            reward=batch_first(reward),
            discount=batch_first(1.0 - done),
            extras={
                "state_extras": {"truncation": batch_first(0.0 * reward)},
                "policy_extras": {
                    "raw_action": batch_first(action),
                    "log_prob": batch_first(old_log_prob),
                    "value": batch_first(old_value),
                    "distribution_params": batch_first(logits),
                },
            },
        )
        data = losses.types.Transition(
            action=data.extras["policy_extras"]["raw_action"], **vars(data)
        )
        network = SimpleNamespace(
            parametric_action_distribution=distribution,
            policy_network=SimpleNamespace(apply=lambda _, table, obs: table[obs]),
            value_network=SimpleNamespace(apply=lambda _, table, obs: table[obs]),
        )
        given = dict(theirs)
        given["vf_coefficient"] = given.pop("vf_loss_coefficient")
        return losses.compute_ppo_loss(
            params, (), data, key, network, normalize_advantage=False, **given
        )[0]

    value = np.asarray(params.value)[index]
    scaled = config.ppo.reward_scale * reward
    estimates = our_gae(config, scaled, value[:T], value[T], done)
    following = jnp.concatenate([estimates.target[1:], value[T:]])
    advantage = scaled + config.ppo.gamma * (1.0 - done) * following - value[:T]
    if gae_lambda == 1.0:
        np.testing.assert_allclose(advantage, estimates.advantage, atol=1e-5)
    batch = ppo.Batch(
        obs=(),
        carry=(),
        start=jnp.zeros((T, N), bool),
        action=action,
        log_prob=old_log_prob,
        value=old_value,
        target=estimates.target,
        advantage=advantage,
        valid=jnp.ones((T, N), bool),
    )

    def our_loss(params):
        logits, values = params.policy[index[:T]], params.value[index[:T]]
        critic, stats = critics.make(config.ppo), normalize.init_value_stats()
        evaluation = ppo.MinibatchOutputs(
            log_prob=distribution.log_prob(logits, action),
            entropy=distribution.entropy(logits, key),
            value_loss=critic.loss(values[..., None], batch.value, batch.target, stats, hp),
        )
        objective = objectives.OBJECTIVES[config.ppo.objective]
        return ppo.ppo_loss(evaluation, batch, hp, objective=objective)[0] / (T * N)

    found, expected = jax.jit(jax.grad(our_loss))(params), jax.jit(jax.grad(brax_loss))(params)
    assert min(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected)) > 1e-3
    jax.tree.map(
        lambda ours, other: np.testing.assert_allclose(ours, other, atol=1e-6), found, expected
    )


@pytest.mark.slow
@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("per_minibatch", [False, True])
def test_gradient_step_of_rsl_rl_equals_ours_with_translated_settings(clipped, per_minibatch, key):
    torch = pytest.importorskip("torch")
    tensordict = pytest.importorskip("tensordict")
    algorithms = pytest.importorskip("rsl_rl.algorithms")
    models = pytest.importorskip("rsl_rl.models")
    storages = pytest.importorskip("rsl_rl.storage")
    theirs = {
        "num_learning_epochs": 1,
        "clip_param": 0.15,
        "gamma": 0.97,
        "lam": 0.9,
        "value_loss_coef": 0.7,
        "entropy_coef": 0.02,
        "learning_rate": 1.0,
        "optimizer": "sgd",
        "use_clipped_value_loss": clipped,
    }
    config = Config().replace(
        **translate("rsl_rl", theirs),
        **{
            "ppo.num_minibatches": 1,
            "ppo.vf_clip_eps": 0.15,
            "ppo.learning_rate_schedule": "constant",
            "ppo.max_grad_norm": 0.0,
            "ppo.advantage_normalization": "minibatch" if per_minibatch else "batch",
            "ppo.rollout_length": T,
            "env.num_envs": N,
            "network.hidden": (64, 64),
        },
    )
    rng, reward, done = make_rows(1)
    obs = [
        tensordict.TensorDict(
            {"policy": torch.tensor(rng.normal(size=(N, 4)), dtype=torch.float32)}, [N]
        )
        for _ in range(T + 1)
    ]
    torch.manual_seed(0)
    groups = {"actor": ["policy"], "critic": ["policy"]}
    gaussian = {"class_name": "GaussianDistribution", "std_type": "log"}
    actor = models.MLPModel(obs[0], groups, "actor", ACTIONS, [64, 64], "tanh", False, gaussian)
    critic = models.MLPModel(obs[0], groups, "critic", 1, [64, 64], "tanh")
    storage = storages.RolloutStorage("rl", N, T, obs[0], [ACTIONS])
    algorithm = algorithms.PPO(
        actor,
        critic,
        storage,
        num_mini_batches=1,
        schedule="fixed",
        max_grad_norm=1e9,
        normalize_advantage_per_mini_batch=per_minibatch,
        **theirs,
    )
    with torch.no_grad():
        for t in range(T):
            algorithm.act(obs[t])
            step = torch.tensor(reward[t]), torch.tensor(done[t])
            algorithm.process_env_step(obs[t + 1], *step, {})
        algorithm.compute_returns(obs[T])
        last_value = critic(obs[T]).numpy()[:, 0]
        for x in (*actor.parameters(), *critic.parameters()):
            x.add_(0.05 * torch.randn(x.shape))  # for ratios other than 1, and clipped values
    rows = {
        name: getattr(storage, name).numpy().copy()
        for name in ("actions", "values", "actions_log_prob")
    }
    value = rows["values"][..., 0]
    estimates = our_gae(config, reward, value, last_value, done)
    np.testing.assert_allclose(estimates.target, storage.returns.numpy()[..., 0], atol=1e-5)
    batch = ppo.Batch(
        obs=jnp.asarray(np.stack([x["policy"].numpy() for x in obs[:T]])),
        carry=(),
        start=jnp.zeros((T, N), bool),
        action=jnp.asarray(rows["actions"]),
        log_prob=jnp.asarray(rows["actions_log_prob"][..., 0]),
        value=jnp.asarray(value),
        target=estimates.target,
        advantage=estimates.advantage,
        valid=jnp.ones((T, N), bool),
    )
    batch = jax.tree.map(lambda x: x.reshape(T * N, *x.shape[2:]), batch)
    before = torch_params(torch, actor, critic)
    algorithm.update()
    expected = jax.tree.map(np.subtract, torch_params(torch, actor, critic), before)
    found = jax.tree.map(np.subtract, our_update(config, before, batch, key), before)
    assert min(float(np.abs(x).max()) for x in jax.tree.leaves(expected)) > 1e-3
    jax.tree.map(
        lambda ours, other: np.testing.assert_allclose(ours, other, atol=1e-5), found, expected
    )


def torch_params(torch, actor, critic):
    """Return the weights of rsl_rl's models as our parameters; torch stores kernels transposed."""
    params = {"log_std": actor.distribution.log_std_param.detach().numpy().copy()}
    for name, model in (("actor", actor), ("critic", critic)):
        layers = [
            {"kernel": x.weight.detach().numpy().T.copy(), "bias": x.bias.detach().numpy().copy()}
            for x in model.mlp
            if isinstance(x, torch.nn.Linear)
        ]
        *torso, params[name] = layers
        params[f"{name}_torso"] = {f"dense_{i}": layer for i, layer in enumerate(torso)}
    return params


def our_update(config, params, batch, key):
    """Return the parameters after one update on a batch, with our 64-64 tanh networks."""
    hp, critic = schedules.make_hyperparams(config), critics.make(config.ppo)
    action = spaces.Box((ACTIONS,), -1.0, 1.0)
    network = make_network(spaces.Box((4,)), action, NetworkConfig(hidden=(64, 64)))
    distribution = distributions.for_space(action)

    def loss(params, rows):
        out = network.apply(params, (), rows.obs, rows.start)
        stats = normalize.init_value_stats()
        evaluation = ppo.MinibatchOutputs(
            distribution.log_prob(out.dist_params, rows.action),
            distribution.entropy(out.dist_params),
            critic.loss(out.critic, rows.value, rows.target, stats, hp),
        )
        objective = objectives.OBJECTIVES[config.ppo.objective]
        return ppo.ppo_loss(evaluation, rows, hp, objective=objective)

    params = jax.tree.map(jnp.asarray, params)
    return jax.jit(
        lambda params, batch, key: ppo.update_epochs(
            ppo.Update(loss, lambda x: x),
            params,
            optimizers.init_state(config.ppo, params),
            batch,
            hp,
            key,
            config=config.ppo,
            num_envs=N,
        )
    )(params, batch, key).params
