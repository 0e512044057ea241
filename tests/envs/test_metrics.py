"""Metrics of environments, in hand-worked episodes, against Brax, and in runs."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.own_code import Paid
from support.paths import EXAMPLE_ENVS, EXAMPLE_WORLDS, OWN_CODE
from support.runs import SMALL_WALK, assert_same_bits, final_state, remove_last_checkpoint

import purejaxppo
from purejaxppo.config.schema import Config, EnvConfig
from purejaxppo.envs import metrics, registry
from purejaxppo.envs.base import MultiStep, TaskStep
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.envs.worlds import JointTask, MultiAgentEnv
from purejaxppo.envs.wrappers import ActionRepeat, TimeLimit, UnitActions, Wrapper
from purejaxppo.rollout import begin_episodes, ended, step
from purejaxppo.runs.episodes import add_step, no_episodes_yet
from purejaxppo.runs.rows import read_csv
from purejaxppo.spaces import Box, Discrete
from purejaxppo.types import PolicyStep

STAY, END, DIVERGE = range(3)
DECLARED = {"height": "sum", "pace": "mean", "place": "last"}


class Climb:
    """Its metrics are multiples of the step number."""

    observation, action = Box((1,)), Discrete(3)
    max_episode_steps, cheap_reset, metrics = 3, True, DECLARED

    def reset(self, key):
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, key, state, action):
        t = state + 1
        obs = jnp.where(action == DIVERGE, jnp.nan, t)[None]
        values = {"height": t, "pace": 2 * t, "place": 10 * t}
        return t, TaskStep(obs, t, action == END, jnp.array(False), values)


def play(env, actions):
    """Return the rows of `actions` [T, N]."""
    state = begin_episodes(env, env.reset(jax.random.key(0)), lambda batch: ())
    rows = []
    for t, action in enumerate(jnp.asarray(actions)):
        now = PolicyStep((), action, jnp.zeros(len(action)), action)
        state, row = step(env, lambda *_, now=now: now, state, jax.random.key(t))
        rows.append(row)
    return rows


def test_metrics_of_a_task_by_hand():
    """Column 0 terminates at step 2, then is truncated at step 3; column 1 diverges at step 2."""
    env = VectorEnv(TimeLimit(Climb(), 3), 2, fresh_every_step=True)
    assert env.spec.metrics == tuple(DECLARED.items())
    actions = [[STAY, STAY], [END, DIVERGE], *[[STAY, STAY]] * 5]
    rows = play(env, actions)
    sums = [ended(row).metrics for row in rows]
    assert [x.count.tolist() for x in sums] == [[n] * 3 for n in (0, 1, 0, 0, 1, 1, 0)]
    assert sums[1].total.tolist() == [1 + 2, (2 + 4) / 2, 20]
    for t in (4, 5):  # columns 1 and 0 after three steps
        assert sums[t].total.tolist() == [1 + 2 + 3, (2 + 4 + 6) / 3, 30]
    assert np.isnan(rows[2].out.metrics[0]).all() and np.isnan(rows[1].out.metrics[1]).all()


def test_metrics_of_a_repeated_action_are_reduced_over_its_steps(key):
    """The second action ends the episode at its second of three steps."""
    task = ActionRepeat(TimeLimit(Climb(), 5), 3)
    run = jax.jit(task.step)
    state, out = run(key, task.reset(key)[0], STAY)
    assert {name: float(x) for name, x in out.metrics.items()} == {
        "height": 1 + 2 + 3,
        "pace": (2 + 4 + 6) / 3,
        "place": 30,
    }
    _, out = run(key, state, STAY)
    assert {name: float(x) for name, x in out.metrics.items()} == {
        "height": 4 + 5,
        "pace": (8 + 10) / 2,
        "place": 50,
    }


def test_the_game_time_of_a_repeated_action_is_the_sum_over_its_steps(key):
    class Clock(Climb):
        metrics: ClassVar = {"ticks": "mean"}

        def step(self, key, state, action):
            state, out = super().step(key, state, action)
            return state, out._replace(metrics={"ticks": 2.0})

    task = ActionRepeat(Clock(), 3)
    _, out = jax.jit(task.step)(key, task.reset(key)[0], STAY)
    assert float(out.metrics["ticks"]) == 6


class Pair:
    """Two agents; the second leaves after a step, the first after two."""

    agents = ("a", "b")
    observation, action = (Box((1,)),) * 2, (Discrete(2),) * 2
    max_episode_steps, cheap_reset = 5, True
    metrics: ClassVar = {"own": "sum", "common": "mean"}

    def reset(self, key):
        return jnp.zeros(()), (jnp.zeros(1),) * 2

    def step(self, key, state, action):
        t = state + 1
        values = {"own": t * jnp.array([1.0, 100.0]), "common": t}
        over = t >= jnp.array([2, 1])
        return t, MultiStep((t[None],) * 2, jnp.zeros(2), over, jnp.array(False), values)


def test_each_agent_has_the_metrics_of_its_own_steps():
    world = UnitActions(JointTask(TimeLimit(Pair(), 5)))
    env = MultiAgentEnv(VectorEnv(world, 1, fresh_every_step=True), world.team)
    rows = play(env, jnp.zeros((3, 2), int))
    by_hand = [[[1, 1], [100, 1]], [[2, 2], [np.nan] * 2], [[np.nan] * 2] * 2]
    np.testing.assert_array_equal([row.out.metrics for row in rows], by_hand)
    sums = [ended(row).metrics for row in rows]
    assert [x.total.tolist() for x in sums] == [[100, 1], [1 + 2, (1 + 2) / 2], [0, 0]]
    assert [x.count.tolist() for x in sums] == [[1, 1], [1, 1], [0, 0]]


class Bare(Wrapper):
    """Returns no metrics."""

    def step(self, key, state, action):
        state, out = super().step(key, state, action)
        return state, TaskStep(out.obs, out.reward, out.terminated, out.truncated)


def test_a_wrapper_may_add_metrics_or_leave_them_out():
    class Counted(Wrapper):
        def __init__(self, task):
            super().__init__(task)
            self.metrics = {**self.metrics, "steps": "sum"}

        def step(self, key, state, action):
            state, out = super().step(key, state, action)
            return state, out._replace(metrics={**out.metrics, "steps": 1})

    def names(*wrappers):
        env = registry.make(EnvConfig(name=Climb(), wrappers=wrappers), 2)
        return [name for name, _ in env.spec.metrics]

    assert names(Counted) == ["height", "pace", "place", "steps"]
    assert names(Bare) == []


def test_the_config_changes_the_reduction_of_a_metric():
    env = registry.make(EnvConfig(name=Climb(), metrics={"height": "last"}), 2)
    assert env.spec.metrics == tuple({**DECLARED, "height": "last"}.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": {"height": "sum"}}, "step returns the metric 'pace', but the task does not"),
        ({"metrics": {**DECLARED, "far": "sum"}}, "the task declares the metric 'far', but step"),
        ({"metrics": {**DECLARED, "pace": "average"}}, "metrics.pace = 'average': unknown reduc"),
        ({"metrics": {**DECLARED, "cut": "sum"}}, "the name 'cut' is taken by the column eval/cut"),
        ({"metrics": ["height"]}, "metrics = ['height']: must map names to sum, mean, last"),
        ({"value": jnp.zeros(2)}, "the metric 'height' is float32 [2] instead of a number []"),
    ],
)
def test_invalid_metrics_are_rejected(changes, message):
    class Wrong(Climb):
        metrics = changes.get("metrics", DECLARED)

        def step(self, key, state, action):
            state, out = super().step(key, state, action)
            height = changes.get("value", out.metrics["height"])
            return state, out._replace(metrics={**out.metrics, "height": height})

    with pytest.raises(ValueError) as error:
        registry.make(EnvConfig(name=Wrong()), 2)
    assert message in str(error.value)


def test_an_unknown_name_or_reduction_in_the_config_is_rejected():
    with pytest.raises(ValueError, match=r"env.metrics.hight: .* Did you mean 'height'\?"):
        registry.make(EnvConfig(name=Climb(), metrics={"hight": "sum"}), 2)
    with pytest.raises(ValueError, match=r"dummy/constant reports no metrics. Remove env.metrics."):
        registry.make(EnvConfig(name="dummy/constant", metrics={"x": "sum"}), 2)
    with pytest.raises(ValueError, match=r"env.metrics.x = 'total': must be one of sum, mean, la"):
        Config().replace(**{"env.metrics": {"x": "total"}})


@pytest.mark.full  # 60 s, compiling Brax's and our loop
@pytest.mark.filterwarnings("ignore:Accessing `.*` directly:DeprecationWarning")
def test_sums_of_brax_metrics_equal_those_of_its_eval_wrapper():
    from brax.envs.wrappers import training

    count, limit = 4, 30
    env = registry.make(EnvConfig(name="brax/hopper", max_episode_steps=limit), count)
    raw, key = env.task.env, jax.random.key(3)
    assert dict(env.spec.metrics) == dict.fromkeys(
        ("reward_forward", "reward_ctrl", "reward_healthy", "x_position", "x_velocity"), "sum"
    )

    def policy(obs):
        return jnp.sin(40 * obs[:, :3])

    def act(key, carry, obs, start):
        return PolicyStep((), policy(obs), jnp.zeros(count), policy(obs))

    our_state = begin_episodes(env, jax.jit(env.reset)(key), lambda batch: ())
    first = no_episodes_yet(count, len(env.spec.metrics))
    our_step = jax.jit(partial(step, env, act))
    _, start_key = jax.random.split(key)
    keys = jax.random.key_data(jax.random.split(start_key, env.num_starts)[:count])
    brax_env = training.EvalWrapper(training.wrap(raw, episode_length=limit))
    brax_state, brax_step = jax.jit(brax_env.reset)(keys), jax.jit(brax_env.step)
    np.testing.assert_array_equal(brax_state.obs, our_state.obs)
    for t in range(limit):
        our_state, row = our_step(our_state, jax.random.key(t))
        first = add_step(first, row)
        brax_state = brax_step(brax_state, policy(brax_state.obs))
    evaluated = brax_state.info["eval_metrics"]
    assert first.finished.all() and len(set(first.lengths.tolist())) > 1
    np.testing.assert_array_equal(first.lengths, evaluated.episode_steps)
    for i, (name, _) in enumerate(env.spec.metrics):
        expected = evaluated.episode_metrics[name]
        np.testing.assert_allclose(first.metrics[:, i], expected, rtol=1e-3, atol=1e-3)


INFORMED = f"gymnasium/{EXAMPLE_ENVS}:Informed"


@pytest.mark.parametrize("kind", ["thread", pytest.param("process", marks=pytest.mark.full)])
def test_numbers_in_info_are_metrics(kind):
    """Episodes of three steps: `goal` is only in the info of the last one."""
    names = {"pace": "mean", "goal": "sum", "nothing": "last"}
    config = EnvConfig(name=INFORMED, num_envs=2, options={"workers": kind}, metrics=names)
    env = registry.make(config, 2)
    try:
        rows = play(env, jnp.zeros((7, 2), int))
    finally:
        env.close()
    sums = [ended(row).metrics for row in rows]
    assert [x.count.tolist() for x in sums] == [[0] * 3] * 2 + [[2, 2, 0]] + [[0] * 3] * 3 + [
        [2, 2, 0]
    ]
    for t in (2, 6):
        assert sums[t].total.tolist() == [2 * (2 + 4 + 6) / 3, 2 * 1, 0]
    assert np.isnan(rows[3].out.metrics).all()  # only a reset


def test_numbers_in_the_infos_of_agents_are_metrics():
    """b leaves at step 2, a and c at step 4; `own` is 0, 10 or 20, plus the step."""
    name = f"pettingzoo/{EXAMPLE_WORLDS}:make_hand"
    options = {"workers": "thread"}
    config = EnvConfig(name=name, num_envs=3, options=options, metrics={"own": "sum"})
    env = registry.make(config, 3)
    try:
        rows = play(env, jnp.zeros((4, 3), int))
    finally:
        env.close()
    sums = [ended(row).metrics for row in rows]
    assert [float(x.total[0]) for x in sums] == [0, 11 + 12, 0, (1 + 2 + 3 + 4) + (80 + 10)]
    assert [int(x.count[0]) for x in sums] == [0, 1, 0, 2]


def test_numbers_in_the_info_of_envpool_are_metrics():
    """Without an action, the reward of a step is the velocity, plus 1 until the robot falls."""
    name, names = "envpool/Hopper-v5", {"x_velocity": "sum"}
    env = registry.make(EnvConfig(name=name, num_envs=2, max_episode_steps=30, metrics=names), 2)
    try:
        rows = play(env, jnp.zeros((40, 2, 3)))
    finally:
        env.close()
    out = jax.tree.map(lambda *xs: np.stack(xs), *(row.out for row in rows))
    alive = out.valid & ~out.terminated
    np.testing.assert_allclose(out.metrics[alive, 0], out.reward[alive] - 1, rtol=1e-4, atol=1e-5)
    assert np.isnan(out.metrics[~out.valid]).all() and not out.valid.all()
    total = ended(rows[29]).metrics.total[0]
    np.testing.assert_allclose(total, out.metrics[:30].sum(), rtol=1e-5)


def test_an_invalid_name_for_an_info_is_rejected():
    with pytest.raises(ValueError, match=r"env.metrics.x_velocty: .* Did you mean 'x_velocity'\?"):
        registry.make(EnvConfig(name="envpool/Hopper-v5", metrics={"x_velocty": "sum"}), 2)
    options = {"workers": "thread"}
    env = registry.make(EnvConfig(name=INFORMED, options=options, metrics={"label": "sum"}), 2)
    message = r"env.metrics.label: step returned info\['label'\] = 'a'. Return a single number."
    try:
        with pytest.raises(Exception, match=message):
            play(env, jnp.zeros((1, 2), int))
    finally:
        env.close()


PAID = SMALL_WALK | {"env.name": f"jax/{OWN_CODE}:Paid", "logging.tensorboard": False}


def test_rows_have_the_mean_over_episodes_of_all_shards_and_of_each_seed(tmp_path):
    """The reward is a metric, whose sums are the returns that other columns report."""
    sizes = {"num_shards": 2, "num_seeds": 2, "eval.num_episodes": 6, "total_timesteps": 192}
    run = purejaxppo.train(
        "cartpole.yaml", run_dir=tmp_path, quiet=True, **PAID | sizes | {"logging.interval": 1}
    )
    columns = run.metrics
    assert len(set(columns["env/pay"])) == len(columns["env/pay"]) == 2 * 6
    for sums, means in (
        ("env/pay", "charts/episodic_return"),
        ("env/steps", "charts/episodic_length"),
        ("eval/pay", "eval/return_mean"),
        ("eval/steps", "eval/length_mean"),
    ):
        assert not np.isnan(columns[means]).all()
        np.testing.assert_allclose(columns[sums], columns[means], rtol=1e-5, atol=1e-6)
    result = purejaxppo.evaluate(run.best, 8)
    np.testing.assert_allclose(result.metrics["pay"], result.returns, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        result.metrics["mean_pay"], result.returns / result.lengths, rtol=1e-5, atol=1e-6
    )
    means = [x.mean() for x in result.metrics["last_pay"]]
    assert result.metric_means["last_pay"] == pytest.approx(np.mean(means))
    assert result.member(1).metric_means["last_pay"] == pytest.approx(means[1])


def test_curves_of_make_train_have_the_metrics():
    config = purejaxppo.load_config("cartpole.yaml", PAID | {"total_timesteps": 768})
    train = purejaxppo.make_train(config, num_points=3)
    curves = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 2)).curves
    assert curves.extras["env/pay"].shape == (2, 3)
    np.testing.assert_allclose(
        curves.extras["env/pay"], curves.episodic_return, rtol=1e-5, atol=1e-6
    )


def test_a_run_with_metrics_resumes_exactly(tmp_path):
    """Checkpoints after updates 3 and 6, rows after 4 and 8."""
    sizes = {"total_timesteps": 256, "logging.interval": 128, "checkpoint.interval": 96}
    settings = PAID | sizes | {"eval.num_episodes": 0}

    def train(folder):
        purejaxppo.train("cartpole.yaml", run_dir=folder, quiet=True, **settings)

    train(tmp_path / "whole")
    train(tmp_path / "half")
    remove_last_checkpoint(tmp_path / "half")
    train(tmp_path / "half")
    assert_same_bits(final_state(tmp_path / "half")[0], final_state(tmp_path / "whole")[0])
    whole, half = (read_csv(tmp_path / name / "metrics.csv") for name in ("whole", "half"))
    for one, other in zip(whole, half, strict=True):
        for name in ("env/pay", "env/mean_pay", "env/last_pay", "env/steps"):
            assert one[name] == pytest.approx(other[name], rel=1e-5)


class Optional(Paid):
    """Reports its metrics only if it declares them."""

    def __init__(self, metrics):
        super().__init__()
        object.__setattr__(self, "metrics", metrics)

    def step(self, key, state, action):
        state, out = super().step(key, state, action)
        return state, out if self.metrics else out._replace(metrics=None)


def test_a_run_saved_without_metrics_resumes_with_them(tmp_path):
    """Version 0.2 saved none."""

    def train(task, steps):
        changes = {"env.name": task, "total_timesteps": steps, "eval.num_episodes": 0}
        settings = PAID | {"logging.interval": 1} | changes
        return purejaxppo.train("cartpole.yaml", run_dir=tmp_path, quiet=True, **settings)

    train(Optional({}), 96)
    column = train(Optional(Paid.metrics), 192).metrics["env/pay"]
    assert np.isnan(column[:3]).all() and not np.isnan(column[4:]).any() and len(column) == 6


class Ones:
    """An episode has four steps, each with a value of 1 of one metric."""

    observation, action = Box((1,)), Discrete(2)
    max_episode_steps, cheap_reset = 4, True

    def __init__(self, name, reduction):
        self.metrics = {name: reduction}

    def reset(self, key):
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, key, state, action):
        values = dict.fromkeys(self.metrics, jnp.ones(()))
        return state, TaskStep(jnp.zeros(1), 0.0, jnp.array(False), jnp.array(False), values)


@pytest.mark.parametrize(("name", "reduction", "expected"), [("n", "sum", 4), ("m", "mean", 1)])
def test_metrics_of_another_reduction_or_name_restart_on_resume(
    name, reduction, expected, tmp_path
):
    """The first run stops between two rows, within episodes."""

    class Stop(purejaxppo.Callback):
        def on_save(self, context):
            if context.update == 3:
                context.stop("between two rows")

    def train(task, callbacks=()):
        sizes = {"logging.interval": 64, "checkpoint.interval": 32, "total_timesteps": 256}
        settings = PAID | sizes | {"env.name": task, "eval.num_episodes": 0}
        return purejaxppo.train(
            "cartpole.yaml", run_dir=tmp_path, quiet=True, callbacks=callbacks, **settings
        )

    before = train(Ones("n", "last"), [Stop()])
    assert list(before.metrics["update"]) == [2] and list(before.metrics["env/n"]) == [1]
    _, first, *others = train(Ones(name, reduction)).metrics[f"env/{name}"]
    assert np.isnan(first) or first == expected  # episodes from before the stop have no value
    assert others == [expected] * 2


def test_a_sum_without_values_is_zero_and_other_reductions_have_no_value():
    empty = metrics.EpisodeMetrics.start(tuple(DECLARED.items()), (1,))
    np.testing.assert_array_equal(empty.reduced, [[0, np.nan, np.nan]])
