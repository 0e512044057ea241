"""Windows assembled from their series equal the original windows."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo import learner
from purejaxppo.agents import obs_storage
from purejaxppo.agents.policy import Policy
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.envs.wrappers import ActionRepeat, TimeLimit, Wrapper
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
from purejaxppo.rollout import collect, init_rollout
from purejaxppo.spaces import Box, Dict, Discrete
from purejaxppo.types import PolicyStep

NUM_ENVS, NUM_STARTS, LENGTH = 5, 8, 40
FULL = pytest.mark.full


def recording(window, slide, shape=(), seed=0):
    """A rollout by hand, with ends and broken rows.

    Returns:
        (windows [T + 1, N, H, ...], whether they start an episode [T + 1, N], what episodes begin
        with [M, H, ...], which of these each row's did [T + 1, N]).
    """
    rng = np.random.default_rng(seed)
    fresh = rng.normal(size=(NUM_STARTS, window, *shape)).astype(np.float32)
    obs = [rng.normal(size=(NUM_ENVS, window, *shape)).astype(np.float32)]
    start = [rng.random(NUM_ENVS) < 0.5]
    place = [rng.integers(NUM_STARTS, size=NUM_ENVS)]
    done = np.zeros(NUM_ENVS, bool)
    for _ in range(LENGTH):
        new = rng.normal(size=(NUM_ENVS, slide, *shape)).astype(np.float32)
        now = np.concatenate([obs[-1][:, slide:], new], axis=1)
        # Environment 0 never ends, environment 1 ends in every step. After a divergence, a new
        # episode starts in the same row; after an end, one row later.
        ends = (rng.random(NUM_ENVS) < [0, 1, 0.04, 0.1, 0.3]) & ~done
        broken = ends & (rng.random(NUM_ENVS) < 0.5)
        anew = done | broken
        place.append(np.where(anew, rng.integers(NUM_STARTS, size=NUM_ENVS), place[-1]))
        now[anew] = fresh[place[-1][anew]]
        obs.append(now)
        start.append(anew)
        done = ends & ~broken
    return np.stack(obs), np.stack(start), fresh, np.stack(place)


def store(window, slide, obs, start, fresh, place):
    """Store rows one by one, as a rollout does; return (storage, series, rows [T + 1, N])."""
    storage = obs_storage.WindowedObs(window, slide, lambda place: (jnp.asarray(fresh), place))

    def append(series, row):
        return storage.append(series, *row)

    @jax.jit
    def run(rows):
        return jax.lax.scan(append, storage.init(rows[0][0], len(obs) - 1, place[0]), rows)

    return storage, *run((obs, start, place))


SIZES = [(7, 1), (7, 3), (6, 2), (60, 1), (1, 1), (4, 4)]


@pytest.mark.parametrize(
    ("window", "slide", "shape"),
    [
        *((*size, ()) for size in SIZES),
        (7, 3, (2, 3)),
        *(pytest.param(*size, (2, 3), marks=FULL) for size in SIZES if size != (7, 3)),
    ],
)
def test_gathered_windows_equal_the_recorded_windows(window, slide, shape):
    obs, *starts = recording(window, slide, shape)
    storage, series, rows = store(window, slide, obs, *starts)
    assert series.values.shape == (NUM_ENVS, window + LENGTH * slide, *shape)
    np.testing.assert_array_equal(storage.read(series, rows), obs)
    # Any rows in any order, as minibatches take them.
    index = np.random.default_rng(1).permutation(obs.shape[0] * NUM_ENVS)[:30]
    flat = jax.tree.map(lambda x: x.reshape(-1)[index], rows)
    expected = obs.reshape(-1, *obs.shape[2:])[index]
    np.testing.assert_array_equal(storage.read(series, flat), expected)


@pytest.mark.parametrize("rows_at_a_time", [1, 3 * NUM_ENVS, 10_000])
def test_map_rows_and_sum_rows_process_windows_in_parts(rows_at_a_time, monkeypatch):
    monkeypatch.setattr(obs_storage, "ROWS", rows_at_a_time)
    obs, start, *starts = recording(7, 1)
    storage, series, rows = store(7, 1, obs, start, *starts)
    means = storage.map_rows(lambda obs, start: obs.mean(-1) + start, series, rows, start)
    np.testing.assert_allclose(means, obs.mean(-1) + start, rtol=1e-5, atol=1e-6)
    sums = storage.sum_rows(lambda obs, on: jnp.sum(obs, 0, where=on[:, None]), series, rows, start)
    np.testing.assert_allclose(sums, obs[start].sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("space", "known", "kind"),
    [
        (Box((250,), slide=1), True, obs_storage.WindowedObs),
        (Box((250,), slide=1), False, obs_storage.FullObs),
        (Box((250,)), True, obs_storage.FullObs),
        (Dict.of({"a": Box((250,), slide=1)}), True, obs_storage.FullObs),
        (Discrete(3), True, obs_storage.FullObs),
    ],
)
def test_only_windows_with_known_starts_are_stored_as_series(space, known, kind):
    assert type(obs_storage.make(space, (lambda state: state) if known else None)) is kind


@dataclass(frozen=True)
class Walk:
    """The last 9 positions of a random walk. Far up it diverges, far down it ends."""

    action = Box((1,), -1.0, 1.0)
    observation = Box((9,), slide=1)
    max_episode_steps: int = 17
    cheap_reset = False

    def reset(self, key):
        """Return a window of noise."""
        obs = jax.random.normal(key, (9,))
        return obs, obs

    def step(self, key, state, action):
        """Step the walk; far up it diverges, far down it ends."""
        place = state[-1] + 0.3 * jax.random.normal(key) + 0.5 * action[0]
        place = jnp.where(place > 1.7, jnp.nan, place)
        state = jnp.append(state[1:], place)
        return state, TaskStep(state, -jnp.abs(place), place < -1.8, jnp.array(False))


class Paid(Wrapper):
    """Double rewards."""

    def step(self, key, state, action):
        state, out = self.task.step(key, state, action)
        return state, out._replace(reward=2.0 * out.reward)


class Kept(Paid):
    """Declare sliding windows."""

    keeps_windows = True


class Scaled(Wrapper):
    """Scale observations by a number that grows with every step."""

    def reset(self, key):
        state, obs = self.task.reset(key)
        return (state, 1.0), obs

    def step(self, key, state, action):
        state, scale = state
        state, out = self.task.step(key, state, action)
        return (state, scale + 1.0), out._replace(obs=out.obs / (scale + 1.0))


class Wrong(Scaled):
    """Declare sliding windows that do not slide."""

    keeps_windows = True


class Noisy(Wrapper):
    """Add noise to observations."""

    def step(self, key, state, action):
        state, out = self.task.step(key, state, action)
        return state, out._replace(obs=out.obs + jax.random.normal(key, out.obs.shape))


def repeated(task):
    """Repeat each action."""
    return ActionRepeat(task, 2)


WINDOWED = ((), (Kept, Kept))
"""Wrappers after which windows are stored as series."""
OTHERS = ((Paid,), (Kept, Scaled), (Paid, Kept), (Noisy,), (repeated,))
STORED = [
    *(("walk", wrappers, "every_rollout") for wrappers in (*WINDOWED, *OTHERS)),
    ("walk", (), "every_step"),
    ("dummy/vector", (Noisy,), "every_rollout"),
    pytest.param("oscillator/kuramoto", (), "every_rollout", marks=FULL),
]


def name_of(value):
    return "-".join(x.__name__ for x in value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(("task", "wrappers", "reset"), STORED, ids=name_of)
def test_stored_observations_equal_those_the_policy_acted_on(task, wrappers, reset, make_config):
    name, limit = (Walk(), 0) if task == "walk" else (task, 7)
    env = {"name": name, "wrappers": wrappers, "reset": reset, "max_episode_steps": limit}
    parts = make_parts(make_config(env={**env, "num_envs": 8}))
    windows = task != "dummy/vector" and wrappers in WINDOWED and reset == "every_rollout"
    kind = obs_storage.WindowedObs if windows else obs_storage.FullObs
    assert type(parts.storage) is kind

    def act(key, carry, obs, start):
        action = jax.random.uniform(key, (8, *parts.env.spec.action.shape), minval=-1.0)
        return PolicyStep(carry, obs, jnp.zeros(8), action)

    def run(key):
        state = init_rollout(parts.env, lambda batch: (), key)
        for _ in range(2):
            state = learner.begin_rollout(parts, state, key, 0.0)
            rollout = collect(parts.env, act, state, key, 24, storage=parts.storage)
            rows, state = rollout.transitions, rollout.end
        return parts.storage.read(rollout.stored, rows.obs), rows.action, rows.valid

    read, acted_on, valid = jax.jit(run)(jax.random.key(0))
    np.testing.assert_array_equal(read, acted_on)
    assert not valid.all()


@pytest.mark.parametrize(
    "wrappers", [pytest.param((), marks=FULL), pytest.param((Kept,), marks=FULL), (Scaled,)]
)
def test_the_first_ratio_is_one_with_wrapped_windows(wrappers, make_config):
    config = make_config(
        env={"name": Walk(), "wrappers": wrappers, "num_envs": 8},
        ppo={"rollout_length": 24, "num_minibatches": 1, "num_epochs": 1},
    )
    parts = make_parts(config)
    programs = parts, jax.jit(init_program(parts)), jax.jit(train_program(parts))
    _, metrics = train(programs, [2])
    assert 0 <= metrics.losses.approx_kl < 0.5 * (1e-5) ** 2
    assert metrics.losses.clipfrac == 0


def test_a_wrapper_that_declares_windows_and_breaks_them_is_rejected(make_config):
    config = EnvConfig(name=Walk(), wrappers=(Wrong,))
    with pytest.raises(ValueError, match="declared with slide = 1, but a step does not drop 1 val"):
        registry.make(config, 2)


@pytest.mark.parametrize("slide", [2, 10, -1])
def test_a_task_whose_windows_move_by_another_slide_is_rejected(slide):
    class Faster(Walk):
        observation = Box((9,), slide=slide)

    with pytest.raises(ValueError, match=f"declared with slide = {slide}, but a step"):
        registry.make(EnvConfig(name=Faster()), 2)


def walk_parts(config, series):
    """Return the parts of a training run on walks that stores series, or else windows."""
    parts = make_parts(config)
    task = TimeLimit(Walk(), 17)
    env = VectorEnv(task, parts.env.spec.num_envs, fresh_every_step=False)
    policy = Policy(parts.config, task)
    return parts._replace(
        env=env,
        policy=policy,
        act=policy.act,
        storage=obs_storage.make(Walk.observation if series else Box((9,)), env.starts),
    )


@pytest.fixture(scope="module")
def config(make_config):
    return make_config(
        env={"num_envs": 8},
        ppo={"rollout_length": 24, "num_minibatches": 4, "normalize_reward": True},
    )


@pytest.fixture(scope="module")
def series(config):
    """Return the parts and compiled programs of a run that stores windows as series."""
    return compiled(config, series=True)


def compiled(config, series):
    """Return (parts, initial program, training program)."""
    parts = walk_parts(config, series)
    return parts, jax.jit(init_program(parts)), jax.jit(train_program(parts))


def train(programs, chunks, state=None):
    """Return (state, metrics) after some chunks of updates."""
    parts, init, chunk = programs
    if state is None:
        state = init(jax.random.key(1), shard_ids(parts))
    hp = make_hyperparams(parts.config)
    for updates in chunks:
        state, metrics = chunk(state, hp, jnp.int32(updates))
    return state, metrics


def numbers(tree):
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(tree)
    ]


def assert_close(a, b, tolerance):
    for x, y in zip(numbers(a), numbers(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=FULL)])
def test_training_on_series_equals_training_on_full_windows(config, series, shards):
    config = replace(config, num_shards=shards)
    series = series if shards == 1 else compiled(config, series=True)
    one, metrics = train(series, [6])
    other, expected = train(compiled(config, series=False), [6])
    # Walks were truncated, ended and diverged within rollouts, and continued in the next one.
    assert metrics.episodes.diverged > 5
    assert metrics.episodes.count > 20
    assert one.agent.obs_stats.count == metrics.env_steps
    assert_close(metrics, expected, 1e-4)
    # The sums of the statistics are added up in another order, over 48 Adam steps.
    assert_close(one, other, 1e-4)


@pytest.mark.usefixtures("optimized")
def test_series_and_full_storage_give_bit_identical_windows(config):
    both = [walk_parts(config, series) for series in (True, False)]
    assert type(both[0].storage) is not type(both[1].storage)

    def act(key, carry, obs, start):
        action = jax.random.uniform(key, (8, 1), minval=-1.0)
        return PolicyStep(carry, action, jnp.zeros(8), action)

    def run(parts, state):
        key = jax.random.key(7)
        state = learner.begin_rollout(parts, state, key, 0.0)
        rollout = collect(parts.env, act, state, key, 24, storage=parts.storage)
        obs = parts.storage.read(rollout.stored, rollout.transitions.obs)
        return rollout.end, obs, rollout.episodes

    runs, broke = [jax.jit(partial(run, parts)) for parts in both], 0
    for seed in range(3):
        state = init_rollout(both[0].env, lambda batch: (), jax.random.key(seed))
        seen = [run(state) for run in runs]
        broke += int(seen[0][2].diverged)
        for x, y in zip(*map(numbers, seen), strict=True):
            np.testing.assert_array_equal(x, y)
    assert broke


def test_a_resumed_training_equals_an_uninterrupted_one(series):
    straight, _ = train(series, [4])
    halfway, _ = train(series, [2])
    saved = jax.tree.map(jnp.copy, halfway)
    for x, y in zip(numbers(train(series, [2], saved)[0]), numbers(straight), strict=True):
        np.testing.assert_array_equal(x, y)
