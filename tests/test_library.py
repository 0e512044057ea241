"""Runs from Python: train, continue, load and act; callbacks that add columns, stop and fail."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from support.own_code import Paid, Walk
from support.paths import ROOT
from support.runs import assert_same_bits, final_state
from support.trees import assert_same

from purejaxppo import (
    Agent,
    Callback,
    Config,
    evaluate,
    hyperparams,
    load,
    load_config,
    sweep,
    train,
    video,
)
from purejaxppo.config import hints
from purejaxppo.envs.base import TaskStep
from purejaxppo.parts import with_env
from purejaxppo.runs.callbacks import CallbackContext, CallbackError, call, make_callbacks
from purejaxppo.runs.console import Stopped
from purejaxppo.runs.hooks import Evaluate
from purejaxppo.runs.loggers import CsvLogger
from purejaxppo.spaces import Box, Discrete

full = pytest.mark.full
SMALL = {
    "env.num_envs": 4,
    "ppo.rollout_length": 8,
    "ppo.num_minibatches": 2,
    "ppo.num_epochs": 1,
    "network.hidden": [8],
    "eval.num_episodes": 2,
    "checkpoint.interval": 64,
    "logging.tensorboard": False,
    "num_shards": 1,
    "ppo.learning_rate_schedule": "constant",
    "total_timesteps": 128,
}


@dataclass(frozen=True)
class Still:
    """The observation is constant; an action of 1 has reward 1."""

    start: float = 0.5
    observation = Box((1,))
    action = Discrete(2)
    max_episode_steps = 4
    cheap_reset = True

    def reset(self, key):
        state = jnp.full(1, self.start)
        return state, state

    def step(self, key, state, action):
        return state, TaskStep(state, action * 1.0, jnp.array(False), jnp.array(False))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hints, "START", tmp_path)
    return tmp_path


def train_small(callbacks=(), **changes):
    """Train a small run in the folder `run`, without output."""
    env = changes.pop("env", Still)
    return train(env=env, run_dir="run", callbacks=callbacks, quiet=True, **{**SMALL, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of an instance, which no test changes."""
    folder = tmp_path_factory.mktemp("library")
    return train(env=Still(0.25), run_dir=folder / "run", quiet=True, **SMALL)


def test_an_environment_instance_trains_a_run_with_metrics_and_agents(trained):
    assert str(trained.config.env.name).startswith("jax/object of ")
    assert str(trained.config.env.name).endswith("test_library:Still")
    metrics = trained.metrics
    np.testing.assert_array_equal(metrics["update"], [1, 2, 3, 4])
    # Rows 4, 9, 14, ... reset all four environments: 1, 2, 1 and 2 of the 8 rows of a rollout.
    np.testing.assert_array_equal(metrics["global_step"], [28, 52, 80, 104])
    assert metrics["eval/return_mean"].dtype == np.float64
    assert trained.best.act(np.array([0.25])) in (0, 1)
    assert trained.last.act(np.full((3, 1), 0.25)).shape == (3,)
    assert trained.last.env_steps == 104
    assert trained.agent(52).env_steps == 52
    with pytest.raises(ValueError, match="77"):
        trained.agent(77)


def test_the_number_of_copies_is_an_argument_of_train():
    changes = {name: value for name, value in SMALL.items() if name != "env.num_envs"}
    run = train(env=Still, num_envs=2, run_dir="run", quiet=True, **changes)
    assert run.config.env.num_envs == 2


def test_an_environment_instance_must_be_passed_again_to_load(trained):
    again = load(trained.run_dir, env=Still(0.25))
    obs = np.linspace(-1, 1, 5)[:, None]
    np.testing.assert_array_equal(again.best.act(obs), trained.best.act(obs))
    with pytest.raises(ValueError, match=r"an object from Python cannot be loaded. Pass"):
        _ = load(trained.run_dir).best.policy
    with pytest.raises(ValueError, match="nothing: not a run folder"):
        load("nothing")


def test_a_finished_run_suggests_a_command_only_if_the_command_can_open_it(capsys):
    train(env=Still(0.25), run_dir="object", **SMALL)
    assert "evaluate: purejaxppo.evaluate(run, episodes=100) in Python\n" in capsys.readouterr().out
    train(env=Walk, run_dir="class", **SMALL)
    assert "evaluate --run class\n" in capsys.readouterr().out


@full
def test_a_run_is_loaded_in_a_new_process_with_its_environment(trained):
    code = (
        "import sys; from support.own_code import Walk; from purejaxppo import load\n"
        "print(load(sys.argv[1], env=Walk()).best.act([0.25]))"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-c", code, str(trained.run_dir)]
    out = subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout
    assert int(out) == trained.best.act([0.25])


@pytest.mark.full
def test_a_continued_run_equals_an_uninterrupted_one(capfd):
    run = train_small(env=Walk, total_timesteps=64)
    assert list(run.metrics["update"]) == [1, 2]
    run = train_small(env=Walk)
    assert list(run.metrics["update"]) == [1, 2, 3, 4]
    whole = train(env=Walk, run_dir="whole", quiet=True, **SMALL)
    assert_same_bits(final_state(run.run_dir)[0], final_state(whole.run_dir)[0])
    assert capfd.readouterr() == ("", "")  # quiet
    with pytest.raises(ValueError, match=r"run was trained with network\.hidden = "):
        train_small(env=Walk, **{"network.hidden": [4]})
    assert list(train_small(env=Walk, total_timesteps=32).metrics["update"]) == [
        1,
        2,
        3,
        4,
    ]  # finished


class Columns(Callback):
    """Adds a column from the first row on, and another from the third on."""

    def on_log(self, context):
        found = {"mine/steps": context.env_steps}
        return found | ({"mine/late": jnp.float32(7.0)} if context.update > 2 else {})

    def on_evaluation(self, context):
        return {"mine/evaluated": context.rows[0]["eval/return_mean"]}


def test_a_callback_can_add_columns_later_and_a_resumed_run_keeps_them():
    run = train_small([Columns])
    metrics = run.metrics
    np.testing.assert_array_equal(metrics["mine/steps"], metrics["global_step"])
    np.testing.assert_array_equal(metrics["mine/late"], [np.nan, np.nan, 7.0, 7.0])
    np.testing.assert_array_equal(metrics["mine/evaluated"], metrics["eval/return_mean"])
    metrics = train_small([Columns], total_timesteps=160).metrics
    np.testing.assert_array_equal(metrics["mine/late"], [np.nan, np.nan, 7.0, 7.0, 7.0])
    metrics = train_small(total_timesteps=192).metrics  # the columns stay without the callback
    np.testing.assert_array_equal(metrics["mine/late"], [np.nan] * 2 + [7.0] * 3 + [np.nan])


@pytest.mark.toy
def test_a_csv_file_gets_a_column_when_it_first_appears_and_keeps_it(folder):
    path = folder / "metrics.csv"
    columns = ("update", "global_step", "a/b")
    logger = CsvLogger(path, 0, columns)
    logger.write([{"update": 1, "global_step": 8, "a/b": 0.5}])
    logger.write([{"update": 2, "global_step": 16, "a/b": 1.5, "c/d": 4.5}])
    logger.write([{"update": 3, "global_step": 24, "a/b": 2.5}])
    logger.close()
    header, *lines = path.read_text().splitlines()
    assert header == "update,global_step,a/b,c/d"
    assert lines == ["1,8,0.5,", "2,16,1.5,4.5", "3,24,2.5,"]
    logger = CsvLogger(path, 2, columns)  # resumed at 2
    logger.write([{"update": 3, "global_step": 24, "a/b": 3.5, "c/d": 5.5}])
    logger.close()
    assert path.read_text().splitlines() == [header, *lines[:2], "3,24,3.5,5.5"]


def test_a_callback_stops_a_run_that_continues_without_it():
    seen = []

    class Stop(Callback):
        def on_start(self, context):
            seen.append(("start", context.update))

        def on_log(self, context):
            if context.update == 2:
                context.stop("enough")

        def on_save(self, context):
            seen.append(("save", context.update))

        def on_end(self, context):
            seen.append(("end", context.update, context.agent.act([0.5]) in (0, 1)))

    run = train_small([Stop()])
    assert list(run.metrics["update"]) == [1, 2] and run.last.env_steps == 52
    assert seen == [("start", 0), ("save", 2), ("end", 2, True)]
    assert list(train_small().metrics["update"]) == [1, 2, 3, 4]


def test_the_agent_of_a_callback_has_the_steps_of_each_member():
    seen = []
    run = train_small([seen.append], env=Paid, num_seeds=3, seed=4)
    context = seen[-1]
    steps = tuple(int(row["global_step"]) for row in context.rows)
    assert context.agent.member_steps == steps == run.last.member_steps
    assert len(set(steps)) > 1
    assert context.agent.member(1).env_steps == steps[1]


def test_a_run_folder_may_be_below_the_home_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder / "home"))
    (folder / "home").mkdir()
    run = train(env=Still, quiet=True, **{**SMALL, "run_dir": "~/run"})
    assert run.run_dir == folder / "home/run" and not (folder / "~").exists()
    assert load("~/run").last.env_steps == run.last.env_steps


@pytest.fixture
def failing_evaluation(monkeypatch):
    """A function that makes the evaluation after an update fail within its context."""
    rows = Evaluate._rows

    @contextlib.contextmanager
    def failing(update):
        def fails(hook, run, agent):
            if run.progress.update == update:
                raise RuntimeError("lost")
            return rows(hook, run, agent)

        with monkeypatch.context() as patch:
            patch.setattr(Evaluate, "_rows", fails)
            with pytest.raises(Stopped, match=r"RuntimeError: lost\. "):
                yield

    return failing


@pytest.mark.parametrize(("failing", "seeds"), [(2, 1), (4, 1), (4, 2)])
def test_an_evaluation_that_fails_is_repeated_by_the_resumed_run(
    failing, seeds, failing_evaluation, monkeypatch
):
    """Also the last one, after which no update is left."""
    with failing_evaluation(failing):
        train_small(num_seeds=seeds)
    resumed = train_small(num_seeds=seeds)
    metrics, best = resumed.metrics, resumed.best
    with monkeypatch.context() as patch:
        patch.setattr(Evaluate, "_rows", None)
        train_small(num_seeds=seeds)  # it is finished
    assert all(path.name.isdigit() for path in Path("run/checkpoints").iterdir())
    shutil.rmtree("run")
    whole = train_small(num_seeds=seeds)
    columns = [x for x in whole.metrics if x not in ("seconds", "charts/SPS")]
    assert len(columns) > 20
    for name in columns:
        np.testing.assert_array_equal(metrics[name], whole.metrics[name], err_msg=name)
    assert best.env_steps == whole.best.env_steps
    assert_same(best.state, whole.best.state)


def test_a_checkpoint_stays_if_its_replacement_fails(failing_evaluation, monkeypatch):
    with failing_evaluation(1):
        train_small()
    steps = [path.name for path in Path("run/checkpoints").iterdir()]

    def fails(self, *args, **kwargs):
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("orbax.checkpoint.AsyncCheckpointer.save", fails)
        with pytest.raises(Stopped, match=r"Saved at \d+ steps in run"):
            train_small()
    assert [path.name for path in Path("run/checkpoints").iterdir()] == steps
    Path("run/checkpoints", steps[0]).rename(f"run/checkpoints/{steps[0]}.replaced")  # killed
    assert list(train_small().metrics["update"]) == [1, 2, 3, 4]


def test_the_evaluation_of_a_warm_start_is_repeated(failing_evaluation, trained):
    with failing_evaluation(0):
        train_small(init=trained)
    assert list(train_small(init=trained).metrics["update"]) == [0, 1, 2, 3, 4]


def fails_on_log(context):
    raise KeyError("lost")


class FailsOnSave:
    def on_save(self, context):
        return 1 / 0


class FailsAtTheEnd:
    def on_end(self, context):
        return 1 / 0


FAILING = [fails_on_log, *(pytest.param(x, marks=full) for x in (FailsOnSave, FailsAtTheEnd))]


@pytest.mark.parametrize("callback", FAILING)
def test_a_raising_callback_gets_a_one_sentence_error_after_a_save(callback):
    with pytest.raises(Stopped) as caught:
        train_small([callback])
    text = str(caught.value)
    method = {fails_on_log: "on_log", FailsOnSave: "on_save", FailsAtTheEnd: "on_end"}[callback]
    function = getattr(callback, method, callback)
    after = r"Saved at \d+ steps in run\. Fix the cause, then run the same command to resume\."
    if callback is FailsAtTheEnd:
        after = r"run is complete and saved\. The same command does not repeat the failed step\."
    assert re.fullmatch(
        rf"callback {callback.__name__}.{method}: line "
        rf"{function.__code__.co_firstlineno + 1} of \S*/test_library.py raises (KeyError: 'lost'|"
        rf"ZeroDivisionError: division by zero)\. {after}",
        text,
    ), text
    assert "\n" not in text
    run = train_small()
    assert list(run.metrics["update"]) == [1, 2, 3, 4]


def test_rows_after_an_error_of_a_callback_do_not_count_metrics_twice():
    def fails_once(context):
        if context.update == 2:
            raise KeyError("lost")

    with pytest.raises(Stopped):
        train_small([fails_once])
    resumed = train_small().metrics
    shutil.rmtree("run")
    whole = train_small().metrics
    for name in ("update", "losses/value_loss", "losses/entropy", "charts/episodic_length"):
        np.testing.assert_array_equal(resumed[name], whole[name], err_msg=name)


def metrics_of_callback(returned, agents=1, event="on_log"):
    """Return the metrics of a callback that returns a value, in a run of `agents` agents."""
    members = [Config()] * agents
    rows = [{"charts/SPS": 1.0}] * agents
    context = CallbackContext(Config(), None, 1, 64, None, members, rows)
    made = make_callbacks(Config(callbacks=(lambda context: returned,)))
    return call(made, event, context)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, [{}, {}]),
        ({}, [{}, {}]),
        ({"mine/a": 2}, [{"mine/a": 2.0}, {"mine/a": 2.0}]),
        ({"mine/a": [1, 2.5]}, [{"mine/a": 1.0}, {"mine/a": 2.5}]),
        ({"mine/a": np.array([1, 2])}, [{"mine/a": 1.0}, {"mine/a": 2.0}]),
        ({"mine/a": jnp.float32(3.0)}, [{"mine/a": 3.0}, {"mine/a": 3.0}]),
    ],
)
def test_a_callback_returns_one_number_for_all_agents_or_one_per_agent(returned, expected):
    assert metrics_of_callback(returned, agents=2) == expected


@pytest.mark.toy
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (3, r"returned 3\. Return a mapping of names to numbers"),
        ("many", r"returned 'many'\. Return a mapping"),
        ({"mine/a": "many"}, r"'many'.*\. Return a mapping of names to numbers"),
        ({"mine/a": None}, r"None.*\. Return a mapping of names to numbers"),
        ({"mine/a": np.zeros((2, 2))}, "Return a mapping of names to numbers"),
        ({"mine": 1.0}, "returned the metric 'mine', a name without a slash"),
        ({"charts/SPS": 1.0}, "returned the metric 'charts/SPS', an existing metric"),
        (
            {"mine/a": [1.0, 2.0, 3.0]},
            "returned 3 numbers for 'mine/a'. Return one number, or one for each of the 2 agents",
        ),
    ],
)
def test_an_invalid_result_of_a_callback_gets_a_one_sentence_error(returned, message):
    with pytest.raises(CallbackError, match=message) as caught:
        metrics_of_callback(returned, agents=2)
    assert "\n" not in str(caught.value)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (
            3,
            r"callbacks = .* is a int. It must be a function \(context\), or an object with",
        ),
        ("mine.py:Gone", "callbacks: mine.py: no such file in "),
        ("nonsense", "callbacks"),
    ],
)
def test_an_invalid_callback_gets_a_one_sentence_error(callback, message):
    with pytest.raises(ValueError, match=message):
        make_callbacks(Config(callbacks=(callback,)))


def test_a_callback_of_many_agents_writes_each_number_to_its_agent():
    def each(context):
        assert [member.seed for member in context.members] == [3, 4]
        assert context.agent.member(1).act([0.5]) in (0, 1)
        return {"mine/seed": [member.seed for member in context.members], "mine/one": 1.0}

    run = train_small([each], num_seeds=2, seed=3)
    np.testing.assert_array_equal(run.metrics["mine/seed"], [3, 4] * 4)
    np.testing.assert_array_equal(run.metrics["seed"], run.metrics["mine/seed"])
    np.testing.assert_array_equal(run.metrics["mine/one"], 1.0)
    assert run.best.member(1).act([0.5]) in (0, 1)
    with pytest.raises(ValueError, match=r"act: this run trained 2 agents"):
        run.best.act([0.5])


@pytest.mark.toy
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ppo.gama": 0.9}, r"ppo.gama: unknown key. Did you mean ppo.gamma"),
        ({"gamma": 0.9}, "gamma: unknown key. Use ppo.gamma = 0.9"),
        ({"ppo": {"gama": 0.9}}, r"ppo\.gama: unknown key. Did you mean ppo\.gamma"),
        ({"ppoo": {"gamma": 0.9}}, r"ppoo: unknown key. Did you mean ppo\?"),
        ({"env": {"options": 3}}, r"env\.options = 3: must be a mapping"),
        ({"ppo.gamma": 2.0}, r"ppo.gamma = 2.0"),
        ({"ppo.num_epochs": 1.5}, "ppo.num_epochs"),
        ({"ppo.gamma": "high"}, "ppo.gamma"),
        ({"ppo": 3}, "ppo"),
        ({"ppo.num_minibatches": 7}, "num_minibatches = 7"),
    ],
)
def test_an_invalid_replace_of_a_config_gets_a_one_sentence_error(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_config("cartpole.yaml").replace(**changes)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=message):
        train("cartpole.yaml", run_dir="never", **changes)
    assert not Path("never").exists()


NO_PATH = r" = 3: must be a string or a pathlib\.Path\.$"


@pytest.mark.toy
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train("cartpole.yaml", foo=1), r"`purejaxppo train --help all` lists all keys"),
        (lambda: train("cartpole.yaml", init=3, run_dir="never"), "^3 is neither a Run nor an"),
        (lambda: train("cartpole.yaml", parts=3, run_dir="never"), "^parts = 3: must be a functi"),
        (lambda: train(3), NO_PATH),
        (lambda: train("cartpole.yaml", run_dir=3), NO_PATH),
        (lambda: load(3), NO_PATH),
        (lambda: Agent.load(3), NO_PATH),
        (lambda: sweep("cartpole.yaml", grid=[1]), r"^grid = \[1\]: must be a mapping of fields"),
        (lambda: hyperparams("cartpole.yaml", gamma=0.9), "^config = 'cartpole.yaml': must be a C"),
    ],
)
def test_an_argument_of_another_type_gets_a_one_sentence_error(
    call, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value) and not Path("never").exists()


@pytest.mark.toy
def test_replace_returns_a_new_config_and_keeps_the_first():
    first = load_config("cartpole.yaml")
    second = first.replace(seed=3, **{"ppo.gamma": 0.9, "network.hidden": [8]})
    assert (second.seed, second.ppo.gamma, second.network.hidden) == (3, 0.9, (8,))
    assert (first.seed, first.ppo.gamma) == (0, 0.99)
    assert second.replace(seed=0, **{"ppo.gamma": 0.99, "network.hidden": [64, 64]}) == first


@pytest.mark.toy
def test_nested_settings_change_only_what_they_name():
    base = load_config("cartpole.yaml")
    dotted = {"ppo.gamma": 0.9, "network.hidden": [8], "env.options": {"length": 3}}
    nested = {"ppo": {"gamma": 0.9}, "network": {"hidden": [8]}, "env": {"options": {"length": 3}}}
    expected = base.replace(**dotted)
    assert expected.ppo.learning_rate == base.ppo.learning_rate != Config().ppo.learning_rate
    assert base.replace(**nested) == expected
    assert load_config("cartpole.yaml", nested) == expected
    assert load_config("cartpole.yaml", **nested) == expected
    assert load_config("cartpole.yaml", dotted, seed=3) == expected.replace(seed=3)
    assert base.replace(ppo=expected.ppo).ppo == expected.ppo
    assert with_env(base, {"num_envs": 64}) == base.replace(**{"env.num_envs": 64})


@pytest.mark.toy
def test_a_config_is_built_from_nested_mappings():
    config = Config(env={"name": "dummy/constant", "options.size": 3}, ppo={"gamma": 0.9}, seed=1)
    assert config == Config().replace(
        seed=1, **{"env.name": "dummy/constant", "env.options": {"size": 3}, "ppo.gamma": 0.9}
    )
    with pytest.raises(ValueError, match=r"^ppo\.gama: unknown key. Did you mean ppo\.gamma"):
        Config(ppo={"gama": 0.9})
    with pytest.raises(ValueError, match=r"^ppo: must be a section of keys, not a whole number"):
        Config(ppo=3)


def test_the_metrics_of_a_run_are_a_dict_with_a_short_repr_and_a_data_frame(trained):
    metrics = trained.metrics
    assert isinstance(metrics, dict)
    assert repr(metrics).startswith(
        f"<4 rows of {len(metrics)} metrics: member, seed, global_step, "
    )
    with pytest.raises(
        KeyError, match=r"eval/returnmean: unknown.*Did you mean 'eval/return_mean'"
    ):
        _ = metrics["eval/returnmean"]
    frame = metrics.to_pandas()
    assert list(frame.columns) == list(metrics)
    np.testing.assert_array_equal(frame["eval/return_mean"], metrics["eval/return_mean"])


def test_a_data_frame_without_pandas_gets_a_one_sentence_error(trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ValueError, match=r"^pandas is not installed\. Run: .*pip install 'pandas'$"
    ):
        trained.metrics.to_pandas()


def test_a_run_has_a_score_checkpoints_and_members(trained):
    assert trained.score == np.nanmax(trained.metrics["eval/return_mean"])
    assert trained.checkpoints == [52, 104]
    assert trained.members == (trained.config,)


def test_a_plot_shows_the_values_of_metrics(trained):
    (axes,) = trained.plot().axes
    curves = {line.get_label(): line.get_xydata() for line in axes.lines}
    metrics = trained.metrics
    returns = np.stack([metrics["global_step"], metrics["eval/return_mean"]], 1)
    expected = returns[np.isfinite(returns[:, 1])]
    np.testing.assert_array_equal(curves["evaluation (deterministic policy)"], expected)
    assert axes.get_legend() is not None
    figure = trained.plot("losses/entropy", label="first")
    assert trained.plot("losses/entropy", axes=figure.axes[0], label="again") is figure
    first, again = figure.axes[0].lines
    np.testing.assert_array_equal(first.get_ydata(), metrics["losses/entropy"])
    assert [first.get_label(), again.get_label()] == ["first", "again"]
    assert first.get_color() != again.get_color()
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"losses/entropie: .* Did you mean 'losses/entropy'"):
        trained.plot("losses/entropie")


def test_a_plot_does_not_change_the_back_end_of_matplotlib(trained):
    code = (
        "import sys, matplotlib; from purejaxppo.runs.curves import new_figure, png\n"
        "before = matplotlib.rcParams._get_backend_or_none()\n"
        "png(new_figure(1, 1)); assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert matplotlib.rcParams._get_backend_or_none() == before, before"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "svg"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


def test_a_notebook_shows_the_curve_and_the_score_of_a_run(trained, monkeypatch):
    text = trained._repr_html_()
    assert "jax/object of" in text and f"best evaluation {trained.score:.3f}" in text
    assert '<img width="560" src="data:image/png;base64,iVBOR' in text
    monkeypatch.setattr(type(trained), "_rows", lambda self: [])
    assert "no episode has ended" in trained._repr_html_()


def test_a_video_is_written_from_a_run_and_an_agent(trained, folder):
    assert video(trained, "run.gif") == Path("run.gif")
    video(trained.last, str(folder / "last.gif"), seed=1, deterministic=False)
    assert all((folder / name).read_bytes()[:4] == b"GIF8" for name in ("run.gif", "last.gif"))
    with pytest.raises(ValueError, match=r"^run\.avi: a video file must end in"):
        video(trained, "run.avi")


def test_functions_of_an_agent_take_a_run(trained):
    first, second = evaluate(trained, 3), evaluate(trained.best, 3)
    np.testing.assert_array_equal(first.returns, second.returns)
    with pytest.raises(ValueError, match=r"^'run' is a path\. Pass purejaxppo\.load\(path\)"):
        evaluate("run")
    for seed in (2**40, 1.5, "a"):
        for function in (evaluate, lambda run, **options: video(run, "x.gif", **options)):
            with pytest.raises(ValueError, match=r"^seed = .*: must be a whole number from -2\^31"):
                function(trained, seed=seed)


@pytest.mark.toy
def test_the_repr_of_an_agent_is_one_line(make_config):
    agent = Agent(make_config(), None, 1234)
    assert repr(agent) == "<dummy/constant after 1,234 steps>"
    assert repr(replace(agent, members=(agent.config,) * 3)).startswith("<3 agents of dummy")


class Endless(Still):
    """Without a time limit, and with actions without bounds."""

    max_episode_steps = 0
    action = Box((1,))

    def step(self, key, state, action):
        return super().step(key, state, action[0])


def test_a_missing_limit_and_missing_bounds_are_reported_once(tmp_path, capfd):
    changes = {**SMALL, "eval.num_episodes": 0, "logging.log_file": "run.log"}
    train(env=Endless(0.25), run_dir=tmp_path / "run", **changes)
    printed, log = capfd.readouterr(), (tmp_path / "run/run.log").read_text()
    for text in (printed.out + printed.err, log):
        assert text.count("has no time limit. If") == text.count("has actions without bounds.") == 1
    assert "warning: jax/object of " in printed.out
