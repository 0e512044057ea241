"""The learner: identities that hold for any correct PPO, and that it learns."""

from dataclasses import replace
from functools import cached_property, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.trees import assert_same, to_numpy

from purejaxppo import learner, streams
from purejaxppo.agents import critics, diagnostics, obs_storage, optimizers, ppo
from purejaxppo.agents.extras.auxiliary_losses import AuxiliaryLoss
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import IntrinsicConfig
from purejaxppo.parallel.shards import Shards
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
from purejaxppo.runs.rows import metrics_row

LIMIT, NUM_ENVS, LENGTH = 7, 4, 12
RND = IntrinsicConfig("rnd", hidden=(4,), features=2)
VECTOR = {"name": "dummy/vector", "num_envs": NUM_ENVS, "max_episode_steps": LIMIT}


class Compiled:
    """The programs of a training, compiled once."""

    def __init__(self, config, devices=None):
        self.parts = make_parts(config, Shards(config.num_shards, devices))
        self.hp = make_hyperparams(self.parts.config)
        self.jitted_init = jax.jit(init_program(self.parts))
        self.chunk = jax.jit(train_program(self.parts))

    def init(self, seed=0):
        return self.jitted_init(jax.random.key(seed), shard_ids(self.parts))

    def train(self, state, num_updates, **hp):
        hp = {name: jnp.float32(x) for name, x in hp.items()}
        return self.chunk(state, self.hp._replace(**hp), jnp.int32(num_updates))

    @cached_property
    def after_four(self):
        """Return (state, metrics) after four updates in one chunk."""
        return self.train(self.init(), 4)


def record_step(parts, state, hp):
    """Run `learner.train_step`, and record its intermediate values.

    Returns:
        (state, transitions, the batch that the gradient steps use, with observations as
        the loss passes them to the network).
    """
    rollouts, updates, seen = [], [], []
    update_epochs, network = ppo.update_epochs, parts.policy.network

    def collect(*args, **kwargs):
        rollouts.append(parts.collect(*args, **kwargs))
        return rollouts[-1]

    def watched_update(update, params, opt_state, batch, *args, **kwargs):
        updates.append((update, params, batch))
        return update_epochs(update, params, opt_state, batch, *args, **kwargs)

    def unroll(params, carry, obs, *rows):
        seen.append(obs)
        return network.unroll(params, carry, obs, *rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo, "update_epochs", watched_update)
        state, _ = learner.train_step(parts._replace(collect=collect), state, hp)
        patch.setattr(parts.policy, "network", network._replace(unroll=unroll))
        [(update, params, batch)] = updates
        update.loss(params, update.prepare(batch))
    [rollout], [obs] = rollouts, seen
    return state, rollout.transitions, batch._replace(obs=obs)


def assert_close(a, b, tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        to_numpy(a),
        to_numpy(b),
    )


@pytest.fixture(scope="module")
def vector(make_config):
    return Compiled(make_config(env=VECTOR))


def test_with_zero_learning_rate_every_ratio_is_one_and_parameters_stay(vector):
    # This also holds while the observation statistics change, since they change after the update.
    state = vector.init()
    after, metrics = vector.train(state, 3, learning_rate=0.0)
    # approx_kl is about half the mean squared log-ratio, so |log ratio| < 1e-5.
    assert 0 <= metrics.losses.approx_kl < 0.5 * (1e-5) ** 2
    assert metrics.losses.clipfrac == 0
    assert metrics.losses.grad_norm > 0
    assert_same(after.agent.params, state.agent.params)
    assert not np.allclose(after.agent.obs_stats.m2[0], 0)


@pytest.mark.usefixtures("optimized")
def test_chunks_of_one_two_and_four_updates_are_bit_identical(make_config):
    vector = Compiled(make_config(env=VECTOR))
    four, total = vector.after_four
    two = vector.train(vector.train(vector.init(), 2)[0], 2)[0]
    assert_same(four, two)
    state, sums = vector.init(), None
    for _ in range(4):
        state, metrics = vector.train(state, 1)
        sums = metrics if sums is None else jax.tree.map(jnp.add, sums, metrics)
    assert_same(four, state)
    assert_close(total, sums, 1e-6)


def test_train_chunk_compiles_once(vector):
    state = vector.train(vector.train(vector.init(), 1)[0], 3)[0]
    vector.train(state, 2, gamma=0.9)
    assert vector.chunk._cache_size() == 1


def test_only_valid_rows_count_as_steps_and_as_observations(vector):
    state, metrics = vector.after_four
    # 48 rows of each environment are six episodes of 7 steps, each with its reset row.
    assert metrics.env_steps == NUM_ENVS * 42
    assert metrics.episodes.count == NUM_ENVS * 6
    assert metrics.episodes.length_sum == NUM_ENVS * 42
    assert metrics.updates == state.update == 4
    assert state.agent.obs_stats.count == NUM_ENVS * 42


def test_other_seeds_give_other_weights_and_other_environments(vector):
    a, b = vector.init(0), vector.init(1)
    assert not np.allclose(
        a.agent.params["actor"]["kernel"], b.agent.params["actor"]["kernel"], atol=1e-4
    )
    assert not np.allclose(a.rollout.obs, b.rollout.obs)


def test_a_seed_in_a_batch_equals_that_seed_alone(vector):
    keys = jnp.stack([jax.random.key(seed) for seed in (5, 0, 9)])
    states = jax.jit(jax.vmap(init_program(vector.parts), (0, None)))(keys, shard_ids(vector.parts))
    assert_same(jax.tree.map(lambda x: x[1], states), vector.init())
    train = jax.jit(jax.vmap(train_program(vector.parts), (0, None, None)))
    states, metrics = train(states, vector.hp, jnp.int32(4))
    # Batched matrix products sum in another order; rounding errors grow over 16 Adam steps.
    alone = vector.after_four
    assert_close(jax.tree.map(lambda x: x[1], states.agent), alone[0].agent, 1e-4)
    assert_close(jax.tree.map(lambda x: x[1], metrics), alone[1], 1e-3)
    assert not np.allclose(
        states.agent.params["critic"]["bias"][0], alone[0].agent.params["critic"]["bias"]
    )


@pytest.fixture(scope="module")
def two_shards(make_config):
    config = make_config(env=VECTOR, num_shards=2)
    return Compiled(config)


def test_two_shards_on_one_device_equal_two_devices(two_shards):
    assert two_shards.parts.shards.num_devices == 1
    spread = Compiled(two_shards.parts.config, jax.devices("cpu")[:2])
    assert spread.parts.shards.num_devices == 2
    here, there = two_shards.init(), spread.init()
    assert_close(here, there, 1e-6)
    here, here_metrics = two_shards.train(here, 4)
    there, there_metrics = spread.train(there, 4)
    # The mean of the gradients sums in another order.
    assert_close(here, there, 1e-4)
    assert_close(here_metrics, there_metrics, 1e-3)


def test_shards_have_separate_environments_and_shared_weights(two_shards):
    state, metrics = two_shards.train(two_shards.init(), 4)
    assert state.rollout.obs.shape == (2, NUM_ENVS // 2, 17)
    assert not np.allclose(state.rollout.obs[0], state.rollout.obs[1])
    assert state.agent.params["critic"]["bias"].shape == (1,)
    assert metrics.env_steps == NUM_ENVS * 42
    assert state.agent.obs_stats.count == NUM_ENVS * 42


@pytest.fixture(scope="module")
def recorded_updates(make_config):
    """Two updates with normalised rewards: the config, and [state, transitions, batch] of each."""
    config = make_config(env=VECTOR, ppo={"normalize_reward": True, "gamma": 0.9})
    parts = make_parts(config)
    # With lambda = 0 the advantage is the TD error, from which the reward follows.
    hp = make_hyperparams(parts.config)._replace(gae_lambda=jnp.float32(0))
    step, steps = jax.jit(partial(record_step, parts)), []
    state = jax.jit(partial(learner.init_state, parts))(jax.random.key(0), 0)
    for _ in range(2):
        state, transitions, batch = step(state, hp)
        steps.append(to_numpy((state, transitions, batch)))
    return config, steps


def test_observation_statistics_cover_all_valid_rows(recorded_updates):
    _, steps = recorded_updates
    rows = [transitions.obs[transitions.valid] for _, transitions, _ in steps]
    for i, (state, transitions, _) in enumerate(steps):
        seen = np.concatenate(rows[: i + 1])
        stats = state.agent.obs_stats
        assert not transitions.valid.all() and stats.count == len(seen)
        np.testing.assert_allclose(stats.mean[0], seen.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(stats.m2[0] / len(seen), seen.var(0), rtol=1e-4)


def test_an_update_normalises_observations_by_earlier_statistics(recorded_updates):
    _, ((first, transitions, batch), (_, later, later_batch)) = recorded_updates
    np.testing.assert_allclose(batch.obs.reshape(transitions.obs.shape), transitions.obs, rtol=1e-5)
    stats = first.agent.obs_stats
    expected = (later.obs - stats.mean[0]) / np.sqrt(stats.m2[0] / stats.count + 1e-8)
    np.testing.assert_allclose(
        later_batch.obs.reshape(later.obs.shape), np.clip(expected, -10, 10), rtol=1e-4, atol=1e-4
    )


def test_rewards_are_divided_by_the_standard_deviation_of_the_discounted_return(recorded_updates):
    config, steps = recorded_updates
    running, seen = np.zeros(NUM_ENVS), []
    for state, transitions, batch in steps:
        done = transitions.terminated | transitions.truncated
        for t in range(LENGTH):
            valid = transitions.valid[t]
            running = np.where(valid, config.ppo.gamma * running + transitions.reward[t], running)
            seen += list(running[valid])
            running = np.where(done[t], 0.0, running)
        np.testing.assert_allclose(state.reward_stats.count, len(seen))
        np.testing.assert_allclose(state.rollout.discounted_return, running, rtol=1e-5)
        reward = transitions.reward / np.std(seen)
        value, advantage = (x.reshape(LENGTH, NUM_ENVS) for x in (batch.value, batch.advantage))
        td_error = reward[:-1] + config.ppo.gamma * value[1:] - value[:-1]
        expected = np.where(transitions.valid[:-1], td_error, 0.0)
        np.testing.assert_allclose(advantage[:-1], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_reward_scale_multiplies_rewards_after_normalisation(
    make_config, recorded_updates, normalize
):
    _, (_, (state, transitions, _)) = recorded_updates
    rollout, hp = SimpleNamespace(transitions=transitions), SimpleNamespace(gamma=0.9)
    plain_config = make_config(ppo={"normalize_reward": normalize}).ppo

    def scaled(scale):
        parts = SimpleNamespace(
            config=SimpleNamespace(ppo=replace(plain_config, reward_scale=scale)),
            shards=SimpleNamespace(psum=lambda x: x),
        )
        return learner.scale_rewards(parts, state, rollout, hp)

    one, ten = scaled(1.0), scaled(10.0)
    np.testing.assert_allclose(ten.reward, 10 * one.reward, rtol=1e-6)
    assert np.abs(one.reward).max() > 0
    assert normalize or one.reward is transitions.reward
    # The discounted return carried to the next rollout is of the rewards of the task.
    np.testing.assert_array_equal(ten.discounted_return, one.discounted_return)
    assert_same(ten.stats, one.stats)


def test_explained_variance_is_centred_and_undefined_for_constant_targets():
    def of(target, value, valid):
        rows = jnp.stack([target, target - value])
        mean = jnp.mean(rows, axis=(1, 2), where=valid)
        count = jnp.sum(valid)
        return diagnostics.explained_variance(rows, mean, valid, count, lambda x: x)

    noise = np.random.default_rng(0).normal(size=(2, 50, 4)).astype(np.float32)
    valid = jnp.asarray(noise[0] < 1.0)
    target = 10_000 + noise[0]
    value = target - (0.5 * noise[1] - 3.0)
    varies, share = of(jnp.asarray(target), jnp.asarray(value), valid)
    keep = np.asarray(valid)
    expected = 1 - np.var((target - value)[keep].astype(float)) / np.var(target[keep].astype(float))
    assert varies == 1
    np.testing.assert_allclose(share, expected, rtol=1e-3)
    constant = jnp.full((50, 4), 100.0).at[0].add(1e-4)  # rounding
    assert of(constant, jnp.asarray(value), valid) == (0, 0.0)


def test_rows_with_constant_targets_have_no_explained_variance():
    metrics = diagnostics.zero_metrics(())._replace(updates=2, explained=0)
    assert "losses/explained_variance" not in metrics_row(metrics)
    row = metrics_row(metrics._replace(explained=1, explained_variance=0.5))
    assert row["losses/explained_variance"] == 0.5


def test_updates_without_valid_steps_do_not_change_the_means_of_losses(make_config):
    """Episodes of ten steps in rollouts of one: every eleventh update has only resets."""
    config = make_config(
        env={"name": "dummy/choices", "num_envs": 4},
        ppo={"rollout_length": 1, "num_minibatches": 1, "num_epochs": 1, "learning_rate": 1e-9},
    )
    parts = make_parts(config)
    state = init_program(parts)(jax.random.key(0), shard_ids(parts))
    _, metrics = train_program(parts)(state, make_hyperparams(config), 44)
    row = metrics_row(jax.device_get(metrics))
    assert metrics.updates == 44 and metrics.trained == 40
    np.testing.assert_allclose(row["losses/entropy"], np.log(3), rtol=1e-4)
    np.testing.assert_allclose(row["losses/epochs"], 40 / 44)
    none = metrics_row(metrics._replace(trained=np.int32(0)))
    assert "losses/entropy" not in none and "losses/skipped" in none


def test_a_correct_constant_critic_gives_zero_advantage_and_policy_gradient(make_config):
    parts = make_parts(make_config(env={"name": "dummy/constant"}, ppo={"gamma": 0.75}))
    state = jax.jit(partial(learner.init_state, parts))(jax.random.key(0), 0)
    critic = {"kernel": jnp.zeros((8, 1)), "bias": jnp.full(1, 4.0)}  # 4 = 1 / (1 - gamma)
    agent = state.agent.replace(params=state.agent.params | {"critic": critic})
    step = jax.jit(partial(record_step, parts))
    after, transitions, batch = step(state.replace(agent=agent), make_hyperparams(parts.config))
    assert transitions.truncated.any() and not transitions.valid.all()
    np.testing.assert_array_equal(batch.advantage, np.zeros(LENGTH * 4))
    assert_same(after.agent.params, agent.params)


@pytest.mark.full
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("shuffle", ["transitions", "trajectories"])
def test_cartpole_is_learned(make_config, shuffle):
    pytest.importorskip("gymnax")
    cartpole = Compiled(
        make_config(
            env={"name": "gymnax/CartPole-v1", "num_envs": 16},
            network={"hidden": (32,)},
            ppo={
                "rollout_length": 64,
                "num_minibatches": 4,
                "num_epochs": 4,
                "learning_rate": 5e-3,
                "shuffle": shuffle,
            },
            total_timesteps=60 * 16 * 64,
        )
    )
    state, early = cartpole.train(cartpole.init(), 2)
    state, _ = cartpole.train(state, 48)
    state, late = cartpole.train(state, 10)

    def mean_return(metrics):
        return metrics.episodes.return_sum / metrics.episodes.count

    assert 10 < mean_return(early) < 40
    assert mean_return(late) > 3 * mean_return(early)
    assert late.env_steps <= 10 * 16 * 64
    assert 0 < late.losses.entropy / late.updates < np.log(2)
    assert late.losses.approx_kl / late.updates < 0.1


PIXELS = {
    "env": {"name": "dummy/pixels", "num_envs": 2},
    "ppo": {"rollout_length": 12, "num_minibatches": 3},
}


def test_images_are_stored_as_bytes_until_the_network(make_config):
    parts = make_parts(make_config(**PIXELS))
    state = jax.eval_shape(init_program(parts), jax.random.key(0), shard_ids(parts))
    hp = make_hyperparams(parts.config)
    program = jax.make_jaxpr(train_program(parts))(state, hp, jnp.int32(1))
    shapes = {f"{kind}[{rows},84,84,4]" for kind in ("u8", "f32") for rows in ("12,2", "24", "8")}
    found = {shape for shape in shapes if shape in str(program)}
    # The rollout, its flattened rows, and a minibatch of them.
    assert found == {"u8[12,2,84,84,4]", "u8[24,84,84,4]", "u8[8,84,84,4]"}


def test_values_of_images_in_parts_equal_those_in_one_batch(make_config, monkeypatch):
    config = make_config(network={"encoder": "cnn_small"}, **PIXELS)
    parts = make_parts(config)
    params = jax.jit(parts.policy.init)(jax.random.key(0)).params
    obs = jax.random.bits(jax.random.key(1), (12, 2, 84, 84, 4), jnp.uint8)
    start = jnp.zeros((12, 2), bool)

    def value(obs, start):
        return parts.policy.network.apply(params, (), obs, start).critic

    results = []
    for images, times in [(512, 1), (9, 3), (1, 12)]:
        monkeypatch.setattr(obs_storage, "IMAGES", images)
        values = jax.jit(partial(parts.storage.map_rows, value, ()))
        text = values.lower(obs, start).as_text()
        assert f"tensor<{times}x{12 // times}x2x84x84x4xui8>" in text
        results.append(values(obs, start))
    for other in results[1:]:
        np.testing.assert_allclose(results[0], other, rtol=1e-5, atol=1e-6)


def test_new_episodes_start_with_a_zero_discounted_return(make_config):
    """Rollouts of 12 steps, episodes of 7 with reward 1: each has returns 1, 1.5, ... ."""
    parts = make_parts(
        make_config(
            env={"name": "dummy/constant", "max_episode_steps": LIMIT},
            ppo={"reset_each_rollout": True, "normalize_reward": True, "gamma": 0.5},
        )
    )
    state = jax.jit(partial(learner.init_state, parts))(jax.random.key(0), 0)
    step = jax.jit(partial(learner.train_step, parts))
    for _ in range(2):
        state, _ = step(state, make_hyperparams(parts.config))
        # Seven steps, the reset row, and four steps of the second, unfinished episode.
        np.testing.assert_allclose(state.rollout.discounted_return, 1 + 0.5 + 0.25 + 0.125)
    episode = 2 - 0.5 ** np.arange(LIMIT)
    seen = [*episode, *episode[:4]]
    np.testing.assert_allclose(state.reward_stats.mean, np.mean(seen), rtol=1e-5)


def next_number(outputs, rows):
    return jnp.where(rows.valid, 1.0 + jnp.square(rows.next_obs[..., 0]), jnp.nan)


@pytest.mark.parametrize("kind", ["rnd", pytest.param("icm", marks=pytest.mark.full)])
def test_bonus_and_auxiliary_losses_do_not_read_the_next_episodes_first_observation(
    kind, make_config, key
):
    """Two rows end episodes, and the observations of the rows after them are set to extremes."""
    term = AuxiliaryLoss(next_number, rows=("next_obs",))
    bonus = replace(RND, kind=kind)
    parts = make_parts(make_config(env=VECTOR, ppo={"terms": (term,)}, intrinsic=bonus))
    state = learner.init_state(parts, key, 0)
    rollout = learner.collect(parts, state.agent, state.rollout, key, 0.0)
    rows, hp = rollout.transitions, make_hyperparams(parts.config)
    ends = jnp.zeros((LENGTH, NUM_ENVS), bool).at[jnp.array([2, 4]), 1].set(True)
    valid = rows.valid.at[jnp.array([3, 5]), 1].set(False)  # for ICM, which also reads obs
    assert valid[jnp.array([2, 4]), 1].all()

    @jax.jit
    def learned(obs, at_once):
        changed = rows._replace(obs=obs, at_once=at_once, valid=valid, terminated=ends)
        given = rollout._replace(transitions=changed)
        keys = streams.split_keys(state.key)
        batch = learner.make_batch(parts, state.agent, given, rows.reward, hp, state.value_stats)
        batch = learner.read_minibatch(parts, given.stored, batch)
        evaluate = parts, state.agent, state.value_stats, hp, state.agent.params, batch
        found = learner.evaluate_minibatch(*evaluate).auxiliary_losses
        return learner.add_bonus(parts, state, given, rows.reward, hp, keys), found

    bonus, found = learned(rows.obs, ends)
    (value,) = (np.asarray(x).reshape(LENGTH, NUM_ENVS) for x in found.values())
    np.testing.assert_array_equal(value[ends], 0.0)
    assert (value[valid & ~ends] >= 1).all()
    np.testing.assert_array_equal(bonus.reward[ends], rows.reward[ends])
    assert (bonus.reward > rows.reward)[valid & ~ends].all()
    poisoned = rows.obs.at[jnp.array([3, 5]), 1].set(50.0)
    assert_same(learned(poisoned, ends)[0], bonus)
    read = learned(poisoned, ~ends)[0].reward
    assert (read != bonus.reward)[ends].all()


def test_random_streams_have_unique_keys(make_config, key):
    parts = make_parts(make_config(ppo={"reset_each_rollout": True}, intrinsic=RND))
    drawn = []
    parts.env.reset = lambda key, reset=parts.env.reset: drawn.append(key) or reset(key)
    state = learner.init_state(parts, key, 0)
    used = streams.split_keys(state.key)
    rollout = learner.collect(parts, state.agent, state.rollout, used.act, 0.0)
    bonus = parts.bonus._replace(
        update=lambda state, rows, key, psum: (state, drawn.append(key) or {})
    )
    reward, hp = rollout.transitions.reward, make_hyperparams(parts.config)
    learner.add_bonus(parts._replace(bonus=bonus), state, rollout, reward, hp, used)
    split = [jax.random.split(x, 1000) for x in (used.act, used.update)]
    keys = [jnp.stack(drawn), jnp.stack([used.next, used.act, used.update]), *split]
    keys = np.concatenate([jax.random.key_data(x) for x in keys])
    assert len(np.unique(keys, axis=0)) == len(keys) == 3 + 3 + 2000


@pytest.mark.toy
def test_stream_numbers_are_unique_and_differ_from_those_of_a_split():
    numbers = [value for name, value in vars(streams).items() if name.isupper()]
    assert len(numbers) == len(set(numbers)) >= 7
    assert min(numbers) > 10**6


def test_metrics_include_those_of_critic_and_learning_rate(make_config):
    adaptive = {"learning_rate_schedule": "adaptive", "target_kl": 1e-9, "ent_coef": 0.1}
    parts = make_parts(make_config(ppo={"critic": "hl_gauss", "gamma": 0.0, **adaptive}))
    state = jax.jit(partial(learner.init_state, parts))(jax.random.key(0), 0)
    step = jax.jit(partial(learner.train_step, parts))
    state, metrics = step(state, make_hyperparams(parts.config))
    assert set(metrics.extras) == set(parts.metric_names)
    assert metrics.extras[critics.CLIPPED] == 0
    assert metrics.extras[optimizers.RATE_FACTOR] == 1  # of the gradient steps of this update
    assert state.opt_state[-1] == pytest.approx(1 / 1.5)  # the KL is above 2e-9
    batch = ppo.Batch(*[None] * len(ppo.Batch._fields))._replace(
        target=jnp.array([1e7, 3.0, -1e9, 1e9]), valid=jnp.array([True, True, True, False])
    )
    shares = diagnostics.mean_of_targets(parts.critic.metrics, batch, lambda x: x)
    np.testing.assert_allclose(shares[critics.CLIPPED], 2 / 3, rtol=1e-6)


def test_undeclared_and_missing_metrics_are_reported(make_config):
    parts = make_parts(make_config(env=VECTOR))
    named = parts._replace(bonus=parts.bonus._replace(metric_names=("mine/bonus",)))
    computed = parts._replace(
        bonus=parts.bonus._replace(update=lambda state, *_: (state, {"mine/bonus": jnp.zeros(())}))
    )
    hp = make_hyperparams(parts.config)

    def error_of(parts):
        state = jax.eval_shape(partial(learner.init_state, parts), jax.random.key(0), 0)
        with pytest.raises(ValueError) as error:
            jax.eval_shape(partial(learner.train_chunk, parts), state, hp, jnp.int32(1))
        return str(error.value)

    assert error_of(named).startswith(
        "mine/bonus is in the learner's metric_names, but no update computes it."
    )
    assert error_of(computed).startswith("mine/bonus is a metric of an update, but the learner's ")
