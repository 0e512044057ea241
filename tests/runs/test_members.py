"""Agents trained as a batch equal agents trained alone, on any devices."""

import contextlib
import io
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from support.runs import rejection, remove_last_checkpoint, setup_of, train

import purejaxppo.cli.evaluate as evaluate_command
import purejaxppo.cli.train as train_command
from purejaxppo import restore
from purejaxppo.config.files import load_config
from purejaxppo.config.schema import EvalConfig
from purejaxppo.parallel.shards import Shards
from purejaxppo.parts import init_program, shard_ids
from purejaxppo.runs.curves import confidence, member_curves
from purejaxppo.runs.evaluation import evaluate
from purejaxppo.runs.programs import Programs, evaluation_keys, select_better
from purejaxppo.runs.rows import read_csv
from purejaxppo.setup import seeds_of

CARTPOLE = """
env: {name: gymnax/CartPole-v1, num_envs: 8}
network: {hidden: [16]}
ppo: {rollout_length: 16, num_minibatches: 2, num_epochs: 2, normalize_reward: true}
eval: {num_episodes: 3}
logging: {tensorboard: false}
num_shards: 1
total_timesteps: 1024
"""


def small_config(make_config, **overrides):
    return make_config(
        **{
            "env": {"name": "gymnax/CartPole-v1", "num_envs": 8},
            "ppo": {"rollout_length": 16, "learning_rate": 1e-3, "normalize_reward": True},
            **overrides,
        }
    )


def trained(programs, updates=4):
    """Return (one parameter vector per agent, returns of their episodes) after some updates."""
    state = programs.init()
    programs.compile(state)
    agents, _ = programs.train_chunk(state, programs.hp, np.int32(updates))
    agents = agents.agent
    leading = len(programs.setup.members)
    leaves = [np.asarray(x).reshape(leading, -1) for x in jax.tree.leaves(agents.params)]
    returns = programs.evaluate(agents, evaluation_keys(programs.key, updates))[0]
    return np.concatenate(leaves, axis=1), np.asarray(returns).reshape(leading, -1)


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_each_agent_of_a_batch_equals_the_agent_trained_alone(make_config, devices):
    config = small_config(make_config, eval={"num_episodes": 3})
    members = [
        replace(config, seed=seed, ppo=replace(config.ppo, learning_rate=rate))
        for seed, rate in ((0, 1e-3), (3, 1e-3), (0, 1e-2), (1, 1e-4))
    ]
    programs = Programs(setup_of(config, devices, members))
    assert programs.shards.num_devices == devices
    together, returns = trained(programs)
    params, scores = trained(Programs(setup_of(members[3])))
    # Batched products sum in another order, and Adam divides by small numbers.
    np.testing.assert_allclose(together[3], params[0], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(returns[3], scores[0])
    assert np.abs(together[0] - together[1]).max() > 0.1
    assert np.abs(together[0] - together[2]).max() > 1e-3
    # Independent agents do not communicate.
    assert collectives(programs.train_chunk.as_text()) == 0


@pytest.mark.toy
def test_shards_of_one_agent_communicate():
    shards = Shards(2, jax.devices()[:2])
    total = shards.map(lambda x: shards.psum({"x": x}), (0,), None)
    assert collectives(jax.jit(total).lower(np.ones(2)).compile().as_text()) > 0


def collectives(hlo):
    kinds = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
    return sum(hlo.count(kind) for kind in kinds)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("num_shards", "num_members", "devices", "across", "along"),
    [(1, 4, 2, 2, 1), (2, 3, 2, 1, 2), (2, 2, 2, 2, 1), (1, 3, 2, 1, 1), (2, 0, 2, 1, 2)],
)
def test_agents_are_spread_over_devices_before_shards(
    num_shards, num_members, devices, across, along
):
    shards = Shards(num_shards, jax.devices("cpu")[:devices], num_members)
    assert shards.num_devices == across * along
    if shards.mesh is not None:
        assert dict(shards.mesh.shape) == {"seed": across, "env": along}


def observations_of(make_config, name, devices):
    """Return the observations of two seeds after two updates, a row for each environment."""
    env = {"name": name, "num_envs": 4}
    config = small_config(make_config, env=env, num_seeds=2, eval={"num_episodes": 0})
    programs = Programs(setup_of(config, devices))
    assert programs.shards.num_devices == 1
    state = programs.init()
    programs.compile(state)
    state, _ = programs.train_chunk(state, programs.hp, np.int32(2))
    obs = np.asarray(state.rollout.obs)
    programs.close()
    return obs.reshape(8, -1)


@pytest.mark.full
def test_seeds_of_a_host_simulator_share_one_pool_of_different_environments(make_config):
    pytest.importorskip("envpool")
    assert len(np.unique(observations_of(make_config, "envpool/CartPole-v1", 2), axis=0)) == 8


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [pytest.param("envpool/CartPole-v1", marks=pytest.mark.slow), "gymnasium/CartPole-v1"],
)
def test_seeds_of_a_host_simulator_share_one_pool_on_any_number_of_devices(make_config, name):
    pytest.importorskip(name.partition("/")[0])
    two = observations_of(make_config, name, 2)
    assert len(np.unique(two, axis=0)) == 8  # no two environments are the same
    np.testing.assert_array_equal(two, observations_of(make_config, name, 1))


FOUR_DEVICES = """
import sys
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 4)
from purejaxppo import load_config
from purejaxppo.runs.programs import Programs, evaluation_keys
from purejaxppo.setup import divide, resolve
name, width = sys.argv[1], sys.argv[2]
def params(count):
    evaluated = {} if count == 4 else {"eval.num_episodes": 0}
    config = load_config(width, {"env.name": name, **evaluated})
    programs = Programs(divide(resolve(config), jax.devices()[:count]))
    assert programs.shards.num_devices == count
    if count == 4:
        assert dict(programs.shards.mesh.shape) == {"seed": 2, "env": 2}
    state = programs.init()
    programs.compile(state)
    state, metrics = programs.train_chunk(state, programs.hp, np.int32(3))
    if programs.evaluate:
        programs.evaluate(state.agent, evaluation_keys(programs.key, 3))
    leaves = jax.tree.leaves(jax.device_get((state.agent.params, metrics)))
    return np.concatenate([np.ravel(x).astype(float) for x in leaves])
one, four = params(1), params(4)
np.testing.assert_allclose(four, one, rtol=1e-3, atol=1e-4)
print("equal", one.size)
"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("gymnax/CartPole-v1", marks=pytest.mark.full),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "brax/inverted_pendulum",
                "craftax/Craftax-Classic-Symbolic-v1",
                "jaxmarl/MPE_simple_reference_v3",
                "jumanji/Snake-v1",
                "pgx/tic_tac_toe",
                "xminigrid/MiniGrid-DoorKey-5x5",
            )
        ),
    ],
)
def test_two_seeds_of_two_shards_on_four_devices_equal_those_on_one(tmp_path, name):
    config = tmp_path / "four.yaml"
    text = CARTPOLE.replace("num_shards: 1", "num_shards: 2\nnum_seeds: 2")
    text = text.replace("num_envs: 8", "num_envs: 8, reset: every_rollout")
    if name.startswith("brax"):  # slow to compile, and CartPole already covers evaluations
        text = text.replace("num_episodes: 3", "num_episodes: 0")
    config.write_text(text)
    run = subprocess.run(
        [sys.executable, "-c", FOUR_DEVICES, name, str(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.startswith("equal"), run.stderr


@pytest.mark.toy
def test_seeds_are_initialised_one_after_another(make_config):
    # JAX's batched QR deadlocks on CPUs, see below.
    config = small_config(make_config, num_seeds=4)
    programs = Programs(setup_of(config))
    jaxpr = jax.make_jaxpr(init_program(programs.parts))(programs.key, shard_ids(programs.parts))
    shapes = list(operands_of_qr(jaxpr.jaxpr))
    assert shapes
    assert {len(shape) for shape in shapes} == {2}


def operands_of_qr(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("qr", "geqrf"):
            yield equation.invars[0].aval.shape
        for inner in jaxprs_in_params(equation.params):
            yield from operands_of_qr(inner)


HUNDRED_STARTS = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
from purejaxppo import load_config
from purejaxppo.runs.programs import Programs
from purejaxppo.setup import divide, resolve
from purejaxppo.parts import STATE_AXES, init_program, shard_ids
config = load_config("cartpole.yaml", {"num_seeds": 32, "num_shards": 1, "env.num_envs": 4})
programs = Programs(divide(resolve(config), jax.devices()))
out = programs.shards.shardings(STATE_AXES)
init = jax.jit(init_program(programs.parts), out_shardings=out)
for _ in range(100):
    jax.block_until_ready(init(programs.key, shard_ids(programs.parts)))
print("started")
"""


@pytest.mark.full
def test_a_hundred_starts_of_many_seeds_do_not_hang():
    # JAX's batched QR deadlocks on CPUs: with flax's orthogonal initialiser under vmap, this
    # hangs immediately.
    run = subprocess.run(
        [sys.executable, "-c", HUNDRED_STARTS],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert run.stdout == "started\n", run.stderr


@pytest.mark.toy
def test_the_better_agent_is_kept_for_each_seed():
    old = {"a": np.zeros((3, 2)), "b": np.zeros(3)}
    new = {"a": np.ones((3, 2)), "b": np.ones(3)}
    kept = select_better(np.array([True, False, True]), old, new)
    np.testing.assert_array_equal(kept["a"], [[1, 1], [0, 0], [1, 1]])
    np.testing.assert_array_equal(kept["b"], [1, 0, 1])


@pytest.mark.toy
def test_the_confidence_band_uses_students_t_distribution():
    # mean 2, sample deviation 1, t(0.975, 2 degrees of freedom) = 4.302653
    np.testing.assert_allclose(confidence(np.array([1.0, 2.0, 3.0])), 4.302653 / 3**0.5, rtol=1e-6)
    assert np.isnan(confidence(np.array([1.0])))
    values = np.array([[1.0, 8.0, 5.0, 1.0], [2.0, 8.0, 9.0, 2.0], [3.0, 8.0, 9.0, np.nan]])
    masked = np.ma.array(values, mask=[[0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0]])
    np.testing.assert_allclose(confidence(masked), [4.302653 / 3**0.5, *[np.nan] * 3], rtol=1e-6)


@pytest.mark.toy
def test_agents_without_finished_episodes_keep_their_last_return_in_curves():
    rows = [
        {"member": m, "update": u, "global_step": 10.0 * u + m, "x": u + 10.0 * m}
        for u in (1, 2, 3, 4)
        for m in (0, 1, 2)
    ]
    for update, agent in ((2, 1), (1, 2), (3, 0), (3, 1), (3, 2)):
        del rows[3 * (update - 1) + agent]["x"]
    steps, values = member_curves(rows, "x")
    np.testing.assert_array_equal(steps, [10.5, 21, 41])
    assert values.tolist() == [[1, 2, 4], [11, 11, 14], [None, 22, 24]]
    assert values.mean(axis=0).tolist() == [6, 35 / 3, 14]
    without_end = [row for row in rows if (row["update"], row["member"]) != (4, 1)]
    np.testing.assert_array_equal(member_curves(without_end, "x")[0], [10.5, 21])


SEEDS = ("--num_seeds", 2, "--seed", 5, "--checkpoint.interval", 512, "--logging.tensorboard")


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """A folder with `run`, of seeds 5 and 6, and its output in `out`. Tests must not change it."""
    folder, out = tmp_path_factory.mktemp("members"), io.StringIO()
    (folder / "small.yaml").write_text(CARTPOLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with contextlib.redirect_stdout(out):
            assert train("small.yaml", *SEEDS) == 0
        Path("runs/small-s5x2").rename("run")
    (folder / "out").write_text(out.getvalue())
    return folder


@pytest.fixture
def run(trained_once, tmp_path, monkeypatch):
    """A copy of a finished run of two seeds in the current folder, with its config file."""
    shutil.copytree(trained_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("run")


def test_a_run_of_seeds_keeps_the_curve_and_best_agent_of_each_seed(run, capsys):
    assert "2 seeds with 8 environments each" in Path("out").read_text()
    rows = read_csv(run / "metrics.csv")
    assert {(row["member"], row["seed"]) for row in rows} == {(0, 5), (1, 6)}
    assert (run / "learning_curve.png").stat().st_size > 10_000
    assert len(list((run / "tensorboard").iterdir())) == 2
    agents = restore(run)
    assert [member.seed for member in agents.members] == [5, 6]
    together = evaluate(agents, 4)
    assert together.returns.shape == (2, 4)
    one = agents.member(1)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[1]), one.state, agents.state)
    # Batched products sum in another order, and a nearly upright pole may fall the other way.
    assert (evaluate(one, 4).returns == together.returns[1]).any()
    assert evaluate_command.main(["--run", str(run), "--episodes", "4", "--member", "1"]) == 0
    assert str(evaluate(one, 4)) in capsys.readouterr().out


@pytest.mark.full
def test_each_best_agent_comes_from_its_own_best_evaluation(run):
    scores = {}
    for row in read_csv(run / "metrics.csv"):
        if "eval/return_mean" in row:
            scores.setdefault(row["member"], []).append(row["eval/return_mean"])
    config = load_config(run / "config.yaml")
    programs = Programs(setup_of(config))
    programs.compile(programs.init())
    best = restore(run).state.agent
    for member, history in scores.items():
        assert len(history) == 8
        update = len(history) - int(np.argmax(history[::-1]))  # the latest of equals
        returns, *_ = programs.evaluate(best, evaluation_keys(programs.key, update))
        assert returns[int(member)].mean() == pytest.approx(max(history))


def test_a_run_of_seeds_resumes_exactly(run):
    shutil.copytree(run, "parts")
    remove_last_checkpoint("parts")
    assert train("small.yaml", *SEEDS, "--run_dir", "parts") == 0
    for which in ("last", "best"):
        parts, straight = (restore(name, which).state for name in ("parts", run))
        jax.tree.map(np.testing.assert_array_equal, parts.params, straight.params)


def test_an_agent_index_beyond_the_run_is_rejected(run, capsys):
    for flags, message in (
        (["--member", "2"], "--member = 2: unknown agent. Use 0 to 1."),
        (["--member", "-2"], "--member = -2: must be at least -1"),
        (["--render", "x.gif"], "Select one with --member i, where i is 0 to 1."),
    ):
        assert evaluate_command.main(["--run", str(run), *flags]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.toy
def test_impossible_seeds_are_rejected(config_file, capsys):
    for flags, message in (
        (["--num_seeds", "0"], "num_seeds = 0: must be at least 1"),
        (
            ["--num_seeds", "3", "--seed", str(2**31 - 2)],
            "seed = 2147483646: seed + num_seeds must be at most",
        ),
    ):
        assert message in rejection(["--config", "small.yaml", *flags], capsys)
    words = ["--config", "small.yaml", "--num_seeds", "2", "--seed", str(2**31 - 2)]
    assert [member.seed for member in seeds_of(train_command.parse(words).config)][-1] == 2**31 - 1


@pytest.mark.toy
def test_asynchronous_training_of_many_agents_is_rejected(make_config):
    config = small_config(make_config, num_seeds=2, eval=EvalConfig(num_episodes=0).__dict__)
    config = replace(config, asynchronous=True)
    with pytest.raises(ValueError, match="asynchronous = true does not support several seeds"):
        Programs(setup_of(config))
