"""Every kind of policy with every kind of action: ratios of 1, masks, resuming and learning."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.trees import assert_same

from purejaxppo import learner, load_config, spaces
from purejaxppo.agents.networks import action_masks, distributions
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import IntrinsicConfig
from purejaxppo.envs import registry
from purejaxppo.envs.vectorize import VmapEnv
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
from purejaxppo.rollout import collect
from purejaxppo.runs.episodes import run_episodes

CELLS = ("none", "gru", "lstm", "mingru")
ACTIONS = {
    "discrete": {},
    "multidiscrete": {},
    "box": {},
    "tanh": {"distribution": "tanh_gaussian"},
    "beta": {"distribution": "beta"},
    "hybrid": {},
    "hybrid beta": {"distribution": "beta"},
    "masked": {},
}
KINDS = {"tanh": "box", "beta": "box", "hybrid beta": "hybrid"}


class Training:
    """Parts, and their functions, each compiled once."""

    def __init__(self, parts):
        self.parts = parts
        self.hp = make_hyperparams(parts.config)
        self.init = jax.jit(init_program(parts))
        self.train_chunk = jax.jit(train_program(parts))
        self.init_state = jax.jit(partial(learner.init_state, parts))
        self.collect = jax.jit(partial(learner.collect, parts))


@pytest.fixture(scope="module")
def make_training(make_config):
    """A function that makes each training once and compiles its programs once."""
    made = {}

    def make(action="box", *, ppo=None, network=None, **rest):
        options = {"kind": KINDS.get(action, action)}
        env = {"name": "dummy/choices", "options": options, "max_episode_steps": 7}
        network = {"rnn_size": 6, **ACTIONS[action], **(network or {})}
        config = make_config(env=env, network=network, ppo=ppo or {}, **rest)
        kind = repr(config), jax.config.read("jax_disable_most_optimizations")
        if kind not in made:
            made[kind] = Training(make_parts(config))
        return made[kind]

    return make


def run(training, state, updates, **hp):
    hp = training.hp._replace(**{name: jnp.float32(x) for name, x in hp.items()})
    return training.train_chunk(state, hp, jnp.int32(updates))


def begin(training, seed=0):
    return training.init(jax.random.key(seed), shard_ids(training.parts))


FULL = pytest.mark.full


@pytest.mark.parametrize(
    ("memory", "action"),
    [
        ("gru", "masked"),
        ("lstm", "hybrid beta"),
        ("mingru", "tanh"),
        # The options below include unbounded numbers.
        *(pytest.param("gru", x, marks=FULL) for x in ("discrete", "multidiscrete", "box")),
    ],
)
def test_ratios_are_one_and_results_do_not_depend_on_chunks(memory, action, make_training):
    """12 steps of episodes of 7: they start and end within rollouts and sequences."""
    network = {"rnn": memory, "rnn_layers": 1 + (memory == "mingru")}
    training = make_training(action, network=network, ppo={"bptt_length": 4})
    state = begin(training)
    still, metrics = run(training, state, 2, learning_rate=0.0)
    assert 0 <= metrics.losses.approx_kl < 1e-9
    assert metrics.losses.clipfrac == 0
    assert_same(still.agent.params, state.agent.params)
    after, metrics = run(training, state, 2)
    assert all(np.isfinite(x) for x in jax.tree.leaves(metrics.losses))
    half, _ = run(training, jax.device_get(run(training, state, 1)[0]), 1)
    assert_same(after, half)


@pytest.mark.parametrize("memory", ["none", pytest.param("gru", marks=FULL)])
def test_the_kl_of_episodes_ends_the_epochs_of_an_update(memory, make_training, key):
    stop = {"early_stop_kl": True, "early_stop_unit": "episode", "target_kl": 1e-6}
    training = make_training("hybrid beta", network={"rnn": memory}, ppo=stop)
    parts, state = training.parts, begin(training)
    _, metrics = run(training, state, 1, learning_rate=0.0)
    assert metrics.losses.epochs == parts.config.ppo.num_epochs > 1
    _, metrics = run(training, state, 1, learning_rate=1e-2)
    assert metrics.losses.epochs == 1
    still = training.init_state(key, 0)
    rollout = training.collect(still.agent, still.rollout, key, 0.0)
    moved = jax.tree.map(lambda x: 1.2 * x + 0.05, still.agent.params)
    episode_kl = jax.jit(partial(learner.episode_kl, parts, still.agent, rollout))
    np.testing.assert_allclose(episode_kl(still.agent.params), 0.0, atol=1e-8)
    rows = rollout.transitions
    unroll = partial(parts.policy.unroll, still.agent.replace(params=moved))
    out = parts.layout.evaluate_rollout(unroll, rollout, parts.storage)
    log_prob = parts.policy.distribution.log_prob(out.dist_params, rows.action)
    log_ratio = np.asarray(log_prob - rows.log_prob, np.float64)
    sums = []
    for env in range(log_ratio.shape[1]):
        pieces = np.split(np.arange(len(log_ratio)), np.flatnonzero(rows.start[1:, env]) + 1)
        valid = [piece[np.asarray(rows.valid[:, env])[piece]] for piece in pieces]
        sums += [log_ratio[piece, env].sum() for piece in valid if len(piece)]
    assert len(sums) > log_ratio.shape[1]  # some episodes end within the rollout
    expected = np.mean(np.exp(sums) - 1 - np.asarray(sums))
    assert expected > 1e-4
    np.testing.assert_allclose(episode_kl(moved), expected, rtol=1e-3)


EXTRAS = {
    "muon, decay, warm-up, clip and kl, fixed": {
        "optimizer": "muon",
        "weight_decay": 0.01,
        "learning_rate_warmup": 0.5,
        "learning_rate_schedule": "cosine",
        "objective": "clip_kl",
        "clip_bootstrap": "fixed",
    },
    "dual clip, kl stop, popart": {
        "objective": "dual_clip",
        "early_stop_kl": True,
        "critic": "popart",
        "clip_bootstrap": "observed",
    },
    "spo, symlog, anew": {"objective": "spo", "critic": "symlog", "recompute_advantages": True},
    "kl, rate, histogram": {
        "objective": "kl",
        "learning_rate_schedule": "adaptive",
        "critic": "hl_gauss",
    },
}


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("muon, decay, warm-up, clip and kl, fixed", "none"),
        pytest.param("dual clip, kl stop, popart", "lstm", marks=FULL),
        pytest.param("spo, symlog, anew", "none", marks=FULL),
        pytest.param("kl, rate, histogram", "mingru", marks=FULL),
    ],
)
def test_algorithm_options_can_be_combined(name, memory, make_training):
    kind = "icm" if memory == "none" else "rnd"
    training = make_training(
        "hybrid",
        network={"rnn": memory, "block": "residual", "hidden": (8,)},
        ppo=EXTRAS[name],
        intrinsic=IntrinsicConfig(kind=kind, hidden=(8,), num_minibatches=2),
        num_shards=1 if memory == "none" else 2,
    )
    state = begin(training)
    # PopArt preserves values up to rounding, and a warm-up starts at 0: ratios are still 1.
    _, metrics = run(training, state, 2, learning_rate=0.0)
    assert 0 <= metrics.losses.approx_kl < 1e-9
    after, metrics = run(training, state, 3)
    assert all(np.isfinite(x) for x in jax.tree.leaves(metrics))
    assert metrics.extras["intrinsic/reward"] > 0
    moved = jax.tree.map(
        lambda a, b: float(jnp.abs(a - b).max()), after.agent.params, state.agent.params
    )
    assert max(jax.tree.leaves(moved)) > 1e-6
    half, _ = run(training, jax.device_get(run(training, state, 1)[0]), 2)
    assert_same(after, half)


@pytest.mark.parametrize("memory", CELLS[1:])
def test_the_carry_is_reset_at_the_start_of_each_episode(memory, make_training, key):
    """Compared with acting step by step, with a carry of zeros at each start."""
    training = make_training(network={"rnn": memory})
    state = training.init_state(key, 0)
    env, policy = training.parts.env, training.parts.policy
    act = partial(policy.act, state.agent)
    rollout = jax.jit(lambda: collect(env, act, state.rollout, key, 12))()
    transitions = rollout.transitions
    apply, log_prob_of = jax.jit(policy.network.apply), jax.jit(policy.distribution.log_prob)
    carry = policy.network.initial_carry((4,))
    assert_same(rollout.carry, carry)
    for t in range(12):
        fresh = policy.network.initial_carry((4,))
        carry = jax.tree.map(
            lambda new, old, t=t: jnp.where(transitions.start[t][:, None], new, old), fresh, carry
        )
        never = jnp.zeros(4, bool)
        out = apply(state.agent.params, carry, transitions.obs[t], never)
        carry, log_prob = out.carry, log_prob_of(out.dist_params, transitions.action[t])
        np.testing.assert_allclose(transitions.log_prob[t], log_prob, atol=1e-4)
    end = rollout.end
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), end.carry, carry)
    assert transitions.start[1:].any()


def test_gradients_reach_back_through_one_sequence_only(make_training, key):
    """The last value depends on the first observation of its sequence, not on older ones."""
    training = make_training(network={"rnn": "gru"}, ppo={"bptt_length": 4, "rollout_length": 8})
    state, parts, hp = training.init_state(key, 0), training.parts, training.hp
    rollout = training.collect(state.agent, state.rollout, key, 0.0)

    def last_value_loss(obs):
        rows = rollout.transitions._replace(obs=obs, start=jnp.zeros((8, 4), bool))
        changed = rollout._replace(transitions=rows)
        batch = learner.make_batch(parts, state.agent, changed, rows.reward, hp, state.value_stats)
        batch = batch._replace(carry=jax.lax.stop_gradient(batch.carry), target=jnp.zeros((8, 4)))
        evaluation = learner.evaluate_minibatch(
            parts,
            state.agent,
            state.value_stats,
            hp,
            state.agent.params,
            learner.read_minibatch(parts, rollout.stored, batch),
        )
        # The last step of the second sequence of each environment.
        return jnp.sum(evaluation.value_loss[4:, -1])

    gradient = jax.jit(jax.grad(last_value_loss))(rollout.transitions.obs)
    assert (np.abs(gradient[4:]).max(axis=(1, 2)) > 0).all()
    np.testing.assert_array_equal(gradient[:4], 0.0)


def test_an_evaluation_keeps_the_carry_between_steps(make_training, key):
    training = make_training(network={"rnn": "lstm"})
    agent = training.init_state(key, 0).agent
    config, policy, keys = training.parts.config, training.parts.policy, jax.random.split(key, 4)
    env = VmapEnv(registry.make(config.env, 1, evaluation=True), 4)
    env_state, obs = jax.jit(env.reset)(keys)
    returns, *_ = jax.jit(
        lambda *begun: run_episodes(
            env,
            begun,
            partial(policy.act_deterministically, agent),
            policy.network.initial_carry,
            keys,
        )
    )(env_state, obs)
    mode, step = jax.jit(policy.mode), jax.jit(partial(env.step, keys))
    carry, start, total = policy.network.initial_carry((4,)), jnp.ones(4, bool), np.zeros(4)
    for _ in range(7):
        carry, action = mode(agent, carry, obs, start)
        env_state, out = step(env_state, action)
        obs, start, total = out.obs, ~out.valid, total + np.asarray(out.reward)
    np.testing.assert_allclose(returns, total, rtol=1e-4)


def test_masked_actions_are_never_drawn_and_masks_reach_the_update(make_training, key):
    training = make_training("masked")
    state, parts = training.init_state(key, 0), training.parts
    rollout = training.collect(state.agent, state.rollout, key, 0.0)
    transitions = rollout.transitions
    allowed = np.take_along_axis(
        transitions.obs["action_mask"], np.asarray(transitions.action)[..., None], -1
    )
    assert allowed.all()
    batch = jax.jit(partial(learner.make_batch, parts))(
        state.agent, rollout, transitions.reward, training.hp, state.value_stats
    )
    rows = learner.read_minibatch(parts, rollout.stored, batch)
    mask = transitions.obs["action_mask"]
    for obs in (rows.obs, parts.policy.normalize_obs(rollout.obs_stats, rows.obs)):
        assert obs["action_mask"].dtype == jnp.uint8
        np.testing.assert_array_equal(obs["action_mask"], mask.reshape(-1, 3))
    assert not np.all(mask)


MASKED = {
    "discrete": (distributions.categorical(4), [1, 0, 1, 0]),
    "all but one": (distributions.categorical(4), [0, 0, 0, 1]),
}


@pytest.mark.toy
@pytest.mark.parametrize("name", MASKED)
def test_a_million_samples_are_all_allowed_and_have_the_masked_probabilities(name, key):
    dist, mask = MASKED[name]
    logits, mask = jnp.array([0.3, 5.0, -1.0, 0.0]), jnp.array(mask, jnp.uint8)
    params = action_masks.forbid(logits, mask, spaces.Discrete(4), -1e9)
    draws = np.asarray(dist.sample(jnp.broadcast_to(params, (1_000_000, 4)), key))
    counts = np.bincount(draws, minlength=4)
    allowed = np.asarray(mask, bool)
    assert counts[~allowed].sum() == 0
    expected = np.where(allowed, np.exp(np.asarray(logits, np.float64)), 0)
    expected /= expected.sum()
    np.testing.assert_allclose(counts / 1e6, expected, atol=2e-3)
    for action in np.flatnonzero(allowed):
        np.testing.assert_allclose(
            np.exp(dist.log_prob(params, jnp.int32(action))), expected[action], rtol=1e-5
        )
    p = expected[allowed]
    np.testing.assert_allclose(dist.entropy(params), -np.sum(p * np.log(p)), atol=1e-6)
    gradient = jax.grad(
        lambda x: dist.entropy(action_masks.forbid(x, mask, spaces.Discrete(4), -1e9))
    )(logits)
    assert np.all(np.isfinite(gradient)) and np.all(np.asarray(gradient)[~allowed] == 0)


def test_the_policy_does_not_depend_on_observations_of_the_critic(make_config, key):
    """Changed observations of the critic change values, but not the output of the policy."""
    env = {"name": "dummy/vector", "obs_indices": (0, 1, 2), "privileged_obs": True}
    network = {"actor_keys": ("obs",), "critic_keys": ("state",), "input_hidden": (8,)}
    parts = make_parts(make_config(env=env, network=network))
    state = jax.jit(partial(learner.init_state, parts))(key, 0)
    obs = state.rollout.obs
    assert obs["obs"].shape == (4, 3) and obs["state"].shape == (4, 17)
    np.testing.assert_array_equal(obs["obs"], obs["state"][:, :3])

    @jax.jit
    def outputs(obs):
        return parts.policy.network.apply(state.agent.params, (), obs, None)

    _, dist_params, value, _ = outputs(obs)
    other = outputs({**obs, "state": obs["state"] + 1.0})
    np.testing.assert_array_equal(other.dist_params, dist_params)
    assert not np.allclose(other.critic, value)
    other = outputs({**obs, "obs": obs["obs"] + 1.0})
    np.testing.assert_array_equal(other.critic, value)
    assert not np.allclose(other.dist_params, dist_params, atol=1e-4)


@FULL
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(
    ("memory", "least", "most"),
    [
        pytest.param("none", 0.0, 0.3, marks=pytest.mark.slow),
        ("gru", 0.8, 1.0),
        pytest.param("lstm", 0.8, 1.0, marks=pytest.mark.slow),
        pytest.param("mingru", 0.8, 1.0, marks=pytest.mark.slow),
    ],
)
def test_only_recurrent_policies_solve_a_memory_task(memory, least, most):
    """The action must equal a bit of 10 steps ago: always right with memory, else half the time."""
    pytest.importorskip("gymnax")
    config = load_config(
        "memory_chain.yaml",
        {
            "network.rnn": memory,
            "network.rnn_size": 16,
            "env.options": {"memory_length": 10},
            "env.num_envs": 32,
            "ppo.rollout_length": 48,
            "total_timesteps": 50_000 if memory == "none" else 160_000,
            "num_shards": 1,
        },
    )
    training = Training(make_parts(config))
    state, _ = run(training, begin(training), config.num_updates - 20)
    _, metrics = run(training, state, 20)
    assert least <= abs(metrics.episodes.return_sum / metrics.episodes.count) <= most


def test_hard_resets_start_every_rollout_with_new_episodes(make_training, key):
    """Rollouts of 12 steps, episodes of 7: each starts a new one, and the last is bootstrapped."""
    training = make_training(ppo={"reset_each_rollout": True})
    state = training.init_state(key, 0)
    for i in range(3):
        rollout = training.collect(state.agent, state.rollout, jax.random.key(i), 0.0)
        start = np.asarray(rollout.transitions.start)
        np.testing.assert_array_equal(np.flatnonzero(start[:, 0]), [0, 8])
        assert rollout.episodes.count == 4
        assert rollout.episodes.length_sum == 4 * 7
        state = state.replace(rollout=rollout.end)
    soft = make_training()
    first = soft.collect(state.agent, soft.init_state(key, 0).rollout, key, 0.0)
    second = soft.collect(state.agent, first.end, key, 0.0)
    np.testing.assert_array_equal(np.flatnonzero(second.transitions.start[:, 0]), [4])


def test_each_agent_has_the_policy_of_its_name(make_config, key):
    names = {"hunter_*": "hunters", "prey_*": "prey"}
    config = make_config(
        env={"name": "particles/tag", "num_envs": 10},
        network={"policies": names, "rnn": "gru", "rnn_size": 6, "rnn_layers": 2},
    )
    training = Training(make_parts(config))
    state = begin(training)
    agents = training.parts.env.spec.agents
    params = state.agent.params
    assert set(params) == {"hunters", "prey"}
    network, obs = training.parts.policy.network, jax.tree.map(lambda x: x[0], state.rollout.obs)
    carry = jax.tree.map(lambda x: jax.random.normal(key, x.shape), network.initial_carry((10,)))
    never = jnp.zeros(10, bool)
    one = make_parts(
        make_config(
            env={"name": "particles/tag", "num_envs": 10},
            network={"rnn": "gru", "rnn_size": 6, "rnn_layers": 2},
        )
    ).policy.network
    out = jax.jit(network.apply)(params, carry, obs, never)
    apply = jax.jit(one.apply)
    own = {name: apply(params[name], carry, obs, never) for name in params}
    for row in range(10):
        name = "prey" if agents[row % 5].startswith("prey") else "hunters"
        jax.tree.map(
            lambda a, b, row=row: np.testing.assert_allclose(a[row], b[row], atol=1e-6),
            out,
            own[name],
        )
    assert not np.allclose(out.dist_params, own["hunters"].dist_params, atol=1e-3)
    _, metrics = run(training, state, 2, learning_rate=0.0)
    assert 0 <= metrics.losses.approx_kl < 1e-9
    for wrong, words in [
        ({"hunter_*": "a"}, "no pattern matches agent 'prey_0'"),
        ({"*": "a", "wolf": "b"}, "no agent has policy 'b'"),
        ({"*": 1, "wolf": 2}, "no agent has policy '2'"),
        ({"hunter_*": "torso", "*": "b"}, "a policy cannot be named 'torso'"),
    ]:
        with pytest.raises(ValueError, match=words):
            make_parts(
                make_config(
                    env={"name": "particles/tag", "num_envs": 10}, network={"policies": wrong}
                )
            )
    with pytest.raises(ValueError, match="this one has one agent"):
        make_parts(make_config(network={"policies": {"*": "a"}}))
    numbers = {"hunter_*": 1, "prey_*": 2}
    env = {"name": "particles/tag", "num_envs": 10}
    assert make_parts(make_config(env=env, network={"policies": numbers}))
