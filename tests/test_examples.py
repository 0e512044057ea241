"""`examples/`: each one runs at small size as its docstring states, in Python and as a command."""

import ast
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.children import environment
from support.paths import ROOT

from purejaxppo import Agent, CallbackContext, Config, Run, restore
from purejaxppo.__main__ import main
from purejaxppo.agents.extras.intrinsic import BonusRows
from purejaxppo.export import player
from purejaxppo.runs.rows import read_csv
from purejaxppo.sweep import packing
from purejaxppo.types import Outputs, Predictions, Transition

SMALL = {
    "env.num_envs": 4,
    "ppo.rollout_length": 16,
    "ppo.num_minibatches": 2,
    "ppo.num_epochs": 1,
    "network.hidden": [16, 16],
    "eval.num_episodes": 2,
    "num_shards": 1,
}
PATHS = sorted((ROOT / "examples").glob("*.py"))
NAMES = [path.stem for path in PATHS if path.stem != "ppo_in_one_file"]  # it has its own tests


def docstring(name):
    return ast.get_docstring(ast.parse((ROOT / f"examples/{name}.py").read_text()))


def python_code(name):
    """Return the Python code of a docstring, at small size."""
    block = docstring(name).partition("In Python")[2].partition("On the command line")[0]
    code = "\n".join(x for x in block.splitlines() if not x or x.startswith("    "))
    return re.sub(r"(total_timesteps)=\d[\d_]*", r"\1=128, **SMALL", textwrap.dedent(code))


def commands(name, verb):
    """Return the words after `purejaxppo` of the command lines in a docstring with a subcommand."""
    text = docstring(name).replace("\\\n", " ")
    lines = [shlex.split(line) for line in text.splitlines() if line.startswith("    purejaxppo ")]
    return [words[1:] for words in lines if words[1] == verb]


def at_small_size(words, timesteps=128):
    """Return a command line at small size."""
    at = words.index("--total_timesteps") if "--total_timesteps" in words else len(words)
    flags = [f"--{name}={x}" for name, x in SMALL.items() if name != "network.hidden"]
    size = ["--network.hidden", "16", "16", "--total_timesteps", str(timesteps)]
    return [*words[:at], *words[at + 2 :], *flags, *size]


class Trackio:
    """As much of Trackio as its example uses: it stores what is logged."""

    def __init__(self):
        self.logged, self.settings = [], {}

    def init(self, project, **settings):
        self.settings = {"project": project, **settings}
        return self

    def log(self, row, step):
        self.logged.append((step, row))

    def finish(self):
        self.logged.append("finished")


ONE = "predict_next"
"""The example that is also resumed and evaluated in another process."""
TRAINED = [pytest.param(words, id=name) for name in NAMES for words in commands(name, "train")[:1]]
OTHERS = [
    pytest.param(words, id=f"{name}-{i}")
    for name in NAMES
    for i, words in enumerate(commands(name, "train"))
    if i > 0 and "runs/net" not in words  # that command runs before the export
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with the examples, which can be imported. Trackio is a fake."""
    monkeypatch.setitem(sys.modules, "trackio", Trackio())
    for path in PATHS:
        shutil.copy(path, tmp_path)
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for path in PATHS:
        sys.modules.pop(path.stem, None)


@pytest.mark.toy
def test_there_are_ten_examples_of_under_80_lines_that_state_how_to_run_them():
    assert len(NAMES) == 10
    for name in NAMES:
        assert len((ROOT / f"examples/{name}.py").read_text().splitlines()) < 80
        assert f"from {name} import" in python_code(name)
        assert any(f"{name}.py:" in " ".join(words) for words in commands(name, "train"))
    assert len((ROOT / "examples/ppo_in_one_file.py").read_text().splitlines()) < 200


@pytest.mark.full
@pytest.mark.parametrize("words", TRAINED)
def test_each_example_trains_on_the_command_line_and_is_evaluated_without_its_file(
    words, folder, capsys, monkeypatch, request
):
    """One example also resumes and is evaluated in another process."""
    one = request.node.callspec.id == ONE
    flags = ["--eval.num_episodes", "0", "--run_dir", "run"]
    assert main([*at_small_size(words), *flags]) == 0
    if one:
        assert main([*at_small_size(words, 192), *flags]) == 0
        assert "resuming at " in capsys.readouterr().out
    check_run(folder / "run", updates=2 + one)
    for path in folder.glob("*.py"):
        path.unlink()
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    command = ["evaluate", "--run", "run", "--episodes", "2"]
    assert main(command) == 0
    assert "2 episodes: return" in capsys.readouterr().out
    if one:
        command = [sys.executable, "-m", "purejaxppo", *command]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "2 episodes: return" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("words", OTHERS)
def test_the_other_commands_of_each_example_train(words, folder):
    assert main([*at_small_size(words), "--eval.num_episodes", "0", "--run_dir", "run"]) == 0
    check_run(folder / "run", updates=2)


def check_run(run, updates):
    """Check that every update of a run is finite, and that its agent acts."""
    rows = read_csv(run / "metrics.csv")
    assert rows[-1]["update"] == updates and all(row["charts/finite"] for row in rows)
    agent = restore(run)
    obs = np.zeros(agent.policy.observation.shape, np.float32)
    assert agent.act(obs) in range(agent.policy.action.n)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=[pytest.mark.full] * (x not in ("own_environment", "predict_next")))
        for x in NAMES
        if x != "trackio_logger"  # see below
    ],
)
def test_each_example_trains_from_python(name, folder):
    here = {"SMALL": SMALL}
    exec(python_code(name), here)
    run = here["run"]
    assert isinstance(run, Run) and isinstance(run.best, Agent)
    assert run.metrics["update"][-1] == 2
    assert all(run.metrics["charts/finite"])


def example(name):
    return runpy.run_path(str(ROOT / f"examples/{name}.py"))


@pytest.mark.toy
def test_the_lander_falls_and_lands_by_hand(monkeypatch):
    task = example("own_environment")["Lander"]()
    monkeypatch.setattr(jax.random, "normal", lambda key: 0.0)  # no gust
    key = jax.random.key(0)
    state, out = task.step(key, jnp.array([1.0, -2.0]), jnp.int32(1))
    # v = -2 + 0.1 (2.5 - 1) = -1.85, h = 1 - 0.185; fuel costs 0.02
    np.testing.assert_allclose(state, [0.815, -1.85], rtol=1e-6)
    np.testing.assert_allclose(out.reward, -0.02, rtol=1e-6)
    assert not out.terminated
    _, out = task.step(key, jnp.array([0.1, -1.9]), jnp.int32(0))
    np.testing.assert_allclose(out.reward, 10.0 - 4.0, rtol=1e-6)  # v = -1.9 - 0.1
    assert out.terminated and not out.truncated


@pytest.mark.toy
def test_the_rollback_objective_by_hand():
    rollback = example("own_objective")["rollback"]
    hp = type("Hyperparams", (), {"clip_eps": 0.2})
    ratio, advantage = jnp.array([1.1, 1.7, 0.3, 1.7, 0.3]), jnp.array([1.0, 1, 1, -1, -1])
    # f(1.7) = 1.2 - 0.3 * 0.5 = 1.05, f(0.3) = 0.8 + 0.3 * 0.5 = 0.95; the smaller product is used
    expected = [-1.1, -1.05, -0.3, 1.7, 0.95]
    np.testing.assert_allclose(rollback(jnp.log(ratio), advantage, hp), expected, rtol=1e-5)


@pytest.mark.toy
def test_the_loss_of_predict_next_by_hand():
    term = example("predict_next")["predict_next"]
    outputs = Outputs((), None, None, jnp.zeros((2, 3)))
    rows = {"obs": jnp.ones((2, 4)), "next_obs": jnp.full((2, 4), 3.0)}
    rows = type("Rows", (), {**rows, "action": jnp.array([0, 1])})
    params = term.init(jax.random.key(0), outputs, rows)
    assert params["hidden"].shape == (5, 32) and params["out"].shape == (32, 4)
    # only action 0 changes the hidden unit in use, by atanh(0.5): 1 + 2 tanh + 0.5 = 2.5
    params = jax.tree.map(jnp.zeros_like, params) | {"bias": jnp.full(4, 0.5)}
    params["hidden"] = params["hidden"].at[3, 0].set(jnp.arctanh(0.5))
    params["out"] = params["out"].at[0].set(2.0)
    np.testing.assert_allclose(term.loss(params, outputs, rows), [0.25, 2.25], rtol=1e-5)


@pytest.mark.toy
def test_the_count_bonus_by_hand():
    space = type("Spec", (), {"observation": np.zeros(2)})
    bonus = example("own_bonus")["count_bonus"](Config(), space)
    obs = jnp.array([[[1.0, 2.0]], [[1.0, 2.0]], [[-1.0, -2.0]]])  # [T=3, N=1]: two hashes
    rows = BonusRows(obs, obs, None, jnp.array([[True], [True], [False]]))
    counts = bonus.init(jax.random.key(0))
    np.testing.assert_allclose(bonus.reward(counts, rows), [[1.0], [1.0], [0.0]])
    counts, figures = bonus.update(counts, rows, jax.random.key(0), lambda x: 4.0 * x)
    np.testing.assert_allclose(figures["intrinsic/seen"], 1 / 1024)
    np.testing.assert_allclose(bonus.reward(counts, rows)[:2], 1 / 3)  # 2 visits on 4 shards, 1 now


@pytest.mark.toy
def test_the_decoupled_estimator_by_hand():
    decoupled = example("own_advantage")["decoupled"]
    no, yes = jnp.zeros((2, 1), bool), jnp.ones((2, 1), bool)
    ends = jnp.array([[False], [True]])
    reward, value = jnp.array([[1.0], [2.0]]), jnp.array([[0.5], [1.0]])
    rows = Transition(None, None, None, reward, ends, no, yes, no)
    predictions = Predictions(value, jnp.array([[1.0], [9.0]]), None)
    hp = type("Hyperparams", (), {"gamma": 0.5, "gae_lambda": 0.0})
    advantage, target = decoupled(rows, reward, predictions, hp)
    np.testing.assert_allclose(advantage, [[1.0], [1.0]])  # δ: 1 + 0.5 - 0.5, 2 - 1
    np.testing.assert_allclose(target, [[2.0], [2.0]])  # the discounted sums of rewards


@pytest.mark.toy
def test_the_callback_stops_and_writes_histograms(tmp_path):
    watch = example("stop_and_histogram")["StopAt"](10.0)
    written = []
    writer = type("Writer", (), {"add_histogram": lambda self, *args: written.append(args)})()
    agent = type("Agent", (), {"params": {"a": {"w": jnp.array([[[1.0, -3.0]], [[2.0, 0.0]]])}}})
    state = type("State", (), {"agent": agent})
    rows = [{"eval/return_mean": 9.0}, {"eval/return_mean": 11.0}]
    context = CallbackContext(Config(), tmp_path, 1, 64, state, [Config()] * 2, rows, writer)
    assert watch.on_evaluation(context) == {"mine/largest_parameter": [3.0, 2.0]}
    assert context.reason == ""  # before the worse one
    [(name, values, step)] = written
    assert (name, step) == ("a/w", 64) and list(values) == [1.0, -3.0]
    rows[0]["eval/return_mean"] = 10.0
    context.tensorboard = None
    watch.on_evaluation(context)
    assert context.reason == "an evaluation reached 10" and len(written) == 1


def test_the_callback_in_a_run_writes_its_column_and_tensorboard(folder):
    (folder / "now.py").write_text(
        "from stop_and_histogram import StopAt\n\nclass Now(StopAt):\n"
        "    def __init__(self):\n        super().__init__(0.0)\n"
    )
    words = at_small_size(["train", "--config", "cartpole.yaml", "--callbacks", "now.py:Now"], 6400)
    assert main([*words, "--run_dir", "run"]) == 0
    rows = read_csv(folder / "run/metrics.csv")
    assert rows[-1]["update"] == 5  # the first of twenty evaluations
    assert rows[-1]["mine/largest_parameter"] > 0.5
    assert "mine/largest_parameter" not in rows[0]
    events = b"".join(path.read_bytes() for path in (folder / "run/tensorboard").iterdir())
    assert b"actor_torso" in events and b"mine/largest_parameter" in events


def test_the_trackio_logger_gets_every_row_and_the_config(folder):
    here = {"SMALL": SMALL}
    exec(python_code("trackio_logger"), here)
    assert here["run"].metrics["update"][-1] == 2
    fake = sys.modules["trackio"]
    assert fake.settings["project"] == "purejaxppo" and fake.settings["name"] == "cartpole-s0"
    assert fake.settings["config"]["network.hidden"] == [16, 16]
    rows = read_csv(folder / "runs/cartpole-s0/metrics.csv")
    *logged, last = fake.logged
    assert [step for step, _ in logged] == [row["global_step"] for row in rows] and rows
    assert logged[0][1]["losses/entropy"] == pytest.approx(rows[0]["losses/entropy"], rel=1e-6)
    assert last == "finished"


@pytest.mark.full
def test_the_exported_network_does_not_need_its_file(folder):
    (train, *_), (export,) = (
        [w for w in commands("own_network", verb) if "runs/net" in w]
        for verb in ("train", "export")
    )
    assert main(at_small_size(train)) == 0
    check_run(folder / "runs/net", updates=2)
    (folder / "own_network.py").unlink()
    assert main([*export[:-1], "policy.npz"]) == 0 and main(export) == 0
    obs = np.linspace(-1, 1, 4, dtype=np.float32)
    assert player.load("policy.npz")(obs[None])[0] == restore("runs/net").act(obs)


SWEEPS = [name for name in NAMES if commands(name, "sweep") and name != "predict_next"]


@pytest.mark.full
def test_a_sweep_over_the_loss_coefficient_is_one_program(folder, capsys, monkeypatch):
    monkeypatch.setattr(packing, "measure", lambda setup, size: size * 1e3)
    (words,) = commands("predict_next", "sweep")
    assert main([*at_small_size(words, 1024), "--run_dir", "swept"]) == 0
    assert "3 settings x 1 seeds in 1 program\n" in capsys.readouterr().out
    paths = sorted((folder / "swept").glob("rounds/000/group-*/batch-*/metrics.csv"))
    rows = [row for path in paths for row in read_csv(path)]
    errors = [row["losses/predict_next"] for row in rows if row["update"] == 16]
    assert errors[2] < errors[0]  # the one with a weight is learned
    assert (folder / "swept/results.csv").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_the_sweep_of_each_example_runs(name, folder):
    for words in commands(name, "sweep"):
        assert main([*at_small_size(words), "--run_dir", "swept"]) == 0
        assert (folder / "swept/results.csv").is_file()
