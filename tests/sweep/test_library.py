"""Sweeps from Python: the table, its agents and plots, resumes, and clear errors."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.own_code import Walk, make_walk
from support.trees import assert_same

from purejaxppo import Setting, Sweep, evaluate, load, load_config, restore, sweep
from purejaxppo.config.files import read_yaml
from purejaxppo.sweep import __main__ as sweep_command
from purejaxppo.sweep import packing
from purejaxppo.sweep.library import grid_texts, space_text
from purejaxppo.sweep.search_space import Choice, LogUniform, Uniform, load_ranges, parse_grid

SMALL = {
    "env": {"num_envs": 4},
    "ppo": {"rollout_length": 8, "num_minibatches": 2, "num_epochs": 1},
    "eval": {"num_episodes": 2},
    "logging": {"tensorboard": False},
    "network": {"hidden": [4]},
    "total_timesteps": 96,
    "num_seeds": 2,
}
GRID = {"ppo": {"gamma": [0.5, 0.9]}, "network.hidden": [[4], [3, 3]]}


@pytest.fixture(autouse=True, scope="module")
def small_agents():
    """Assume that an agent takes a kilobyte instead of measuring compiled programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "measure", lambda setup, size: size * 1e3)
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def swept(**arguments):
    config = load_config("cartpole.yaml", {"env.name": make_walk, "num_shards": 1})
    return sweep(config, **{**SMALL, "quiet": True, **arguments})


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A finished sweep of four settings with two seeds, which no test changes."""
    return swept(grid=GRID, run_dir=tmp_path_factory.mktemp("a sweep") / "swept")


def test_a_table_has_a_row_per_setting_the_best_first(table):
    assert len(table) == 4 and [s.score for s in table] == sorted(s.score for s in table)[::-1]
    settings = [tuple(map(str, s.settings.values())) for s in table]
    assert sorted(settings) == [(g, h) for g in ("0.5", "0.9") for h in ("[3, 3]", "[4]")]
    assert list(table.best.settings) == ["ppo.gamma", "network.hidden"]
    assert table.best is table[0] and isinstance(table[-1], Setting)
    assert table[1:3] == [table[1], table[2]]


@pytest.mark.parametrize("before", ["", "/old place/runs/swept/"])
def test_a_table_finds_its_runs_by_relative_paths_and_by_absolute_ones_of_0_3(table, before):
    Path("moved").mkdir()
    Path("moved/rounds").symlink_to(table.run_dir / "rounds")
    text = (table.run_dir / "results.csv").read_text()
    assert str(table.run_dir) not in text
    Path("moved/results.csv").write_text(text.replace("rounds/", f"{before}rounds/"))
    moved = Sweep("moved")
    assert repr(moved) == repr(table)
    assert [index for s in moved for _, index in s.runs] == [i for s in table for _, i in s.runs]
    assert moved.best.best.act([0.5]) == table.best.best.act([0.5])


def test_a_setting_has_its_config_seeds_and_scores(table):
    for setting in table:
        config = setting.config
        assert config.ppo.gamma == setting.settings["ppo.gamma"]
        assert list(config.network.hidden) == setting.settings["network.hidden"]
        assert (config.seed, config.num_seeds, config.run_dir, setting.seeds) == (0, 1, "", (0, 1))
        for score, rows in zip(setting.scores, setting.rows(), strict=True):
            assert score == pytest.approx([r["eval/return_mean"] for r in rows][-1], rel=1e-5)
        assert setting.score == np.mean(setting.scores)
        # Student's t of 0.975 with one degree of freedom is 12.7062.
        half = 12.7062 * abs(np.diff(setting.scores)[0]) / 2
        assert setting.ci95 == pytest.approx(half, rel=1e-4)


def test_the_agents_of_a_setting_are_the_best_of_each_seed(table):
    setting = table[-1]
    for agent, (run, index) in zip(setting.agents, setting.runs, strict=True):
        assert_same(agent.state, restore(run.run_dir).member(index).state)
        assert agent.config.ppo.gamma == setting.settings["ppo.gamma"]
    assert [agent.config.seed for agent in setting.agents] == [0, 1]
    best = int(np.argmax(setting.scores))
    assert_same(setting.best.state, setting.agents[best].state)
    assert evaluate(setting, 3).returns.shape == (3,)


def test_the_config_of_the_best_setting_is_that_of_best_yaml(table):
    assert table.best.config == load_config(table.run_dir / "best.yaml")


def test_a_table_is_a_data_frame_and_text(table):
    frame = table.to_pandas()
    assert list(frame.columns) == [
        *("rank", "ppo.gamma", "network.hidden", "return_mean"),
        *("return_std", "return_ci95", "seeds"),
    ]
    np.testing.assert_allclose(frame["return_mean"], [s.score for s in table])
    np.testing.assert_allclose(frame["return_std"], [s.scores.std(ddof=1) for s in table])
    text, html = repr(table), table._repr_html_()
    assert "network.hidden" in text and "± 95 %" in text and len(text.splitlines()) >= 8
    assert html.count("<tr>") == 5 and "<td>3 3</td>" in html
    assert repr(table.best).startswith("<ppo.gamma = ") and "over 2 seeds" in repr(table.best)


def test_the_metrics_of_a_table_have_a_row_per_agent_and_interval(table):
    metrics = table.metrics
    rows = sum(len(seed_rows) for setting in table for seed_rows in setting.rows())
    assert {len(column) for column in metrics.values()} == {rows}
    gammas, hidden, seeds = metrics["ppo.gamma"], metrics["network.hidden"], metrics["seed"]
    assert set(gammas) == {0.5, 0.9} and set(seeds) == {0, 1}
    chosen = (gammas == table[2].settings["ppo.gamma"]) & (seeds == 1)
    chosen &= [layers == table[2].settings["network.hidden"] for layers in hidden]
    expected = [row["losses/entropy"] for row in table[2].rows()[1]]
    np.testing.assert_array_equal(metrics["losses/entropy"][chosen], expected)


def test_a_plot_shows_scores_or_curves(table):
    (scores, _) = table.plot().axes
    assert [label.get_text() for label in scores.get_yticklabels()] == ["0.5", "0.9"]
    figure = table.plot("losses/entropy")
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == [setting.name for setting in table]
    first = np.mean([[row["losses/entropy"] for row in rows] for rows in table[0].rows()], axis=0)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), first)
    assert table.plot("charts/SPS", axes=axes) is figure
    with pytest.raises(ValueError, match=r"losses/entropie: .* Did you mean 'losses/entropy'"):
        table.plot("losses/entropie")


def test_the_legend_of_many_curves_is_below_the_axes_with_the_band_last(table):
    figure = table.plot("losses/entropy")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legend = axes.get_legend()
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == [*(setting.name for setting in table), "95 % confidence over seeds"]
    box = legend.get_window_extent()
    assert box.y0 >= 0 and box.y1 < axes.get_window_extent().y0


def test_settings_of_one_folder_share_one_run_whose_configs_are_read_once(table):
    runs = [run for setting in Sweep(table.run_dir) for run, _ in setting.runs]
    folders = {run.run_dir for run in runs}
    assert len({id(run) for run in runs}) == len(folders) < len(runs)
    assert runs[0].members is runs[0].members


def test_a_finished_sweep_is_opened_again_also_after_a_move(table, folder):
    shutil.copytree(table.run_dir, folder / "moved")
    for run_dir in (table.run_dir, folder / "moved"):
        again = Sweep(run_dir)
        assert repr(again) == repr(table)
        run, _ = again.best.runs[0]
        assert run.run_dir.is_relative_to(run_dir)
        assert_same(again.best.best.state, table.best.best.state)


def test_the_command_continues_a_sweep_of_python(table, folder, capsys):
    shutil.copytree(table.run_dir, folder / "swept")
    config = load_config("cartpole.yaml", {"env.name": make_walk, "num_shards": 1}).replace(**SMALL)
    data = read_yaml(folder / "swept/sweep.yaml")
    assert data["grid"] == ["ppo.gamma=0.5,0.9", "network.hidden=[4],[3, 3]"]
    (folder / "c.yaml").write_text(json.dumps({"total_timesteps": config.total_timesteps}))
    flags = ["--grid", "ppo.gamma=5e-1,0.90", "--grid", "network.hidden=[4],[3,3]"]
    flags += ["--config", "cartpole.yaml", "--env.name", data["env.name"], "--num_shards", "1"]
    for name in ("ppo.rollout_length", "ppo.num_minibatches", "ppo.num_epochs", "env.num_envs"):
        flags += [f"--{name}", str(data[name])]
    flags += ["--eval.num_episodes", "2", "--logging.no_tensorboard", "--network.hidden", "4"]
    flags += ["--total_timesteps", "96", "--num_seeds", "2", "--run_dir", "swept"]
    assert sweep_command.main(flags) == 0
    assert "is finished already" in capsys.readouterr().out


def test_a_sweep_of_an_object_keeps_the_object_for_its_agents():
    table = swept(env=Walk(0.25), grid={"ppo.gamma": [0.9]}, num_seeds=1, run_dir="swept")
    assert table.best.agents[0].act([0.5]) in (0, 1)
    assert evaluate(table.best, 2).returns.shape == (2,)
    with pytest.raises(ValueError, match=r"an object from Python cannot be loaded"):
        _ = Sweep("swept").best.best
    assert Sweep("swept", {"env.name": Walk(0.25)}).best.best.act([0.5]) in (0, 1)


@pytest.mark.full
def test_a_population_is_a_table_of_its_last_numbers():
    space = {"ppo.learning_rate": {"log_uniform": [1e-4, 1e-2]}}
    table = swept(search="population", search_space=space, num_trials=4, num_seeds=1, run_dir="pbt")
    assert len(table) == 4 and [len(s.seeds) for s in table] == [1] * 4
    with Path("pbt/results.csv").open(newline="") as file:
        rates = [float(row["ppo.learning_rate"]) for row in csv.DictReader(file)]
    assert [s.config.ppo.learning_rate for s in table] == rates
    assert table.best.best.act([0.5]) in (0, 1)
    assert len(table.plot("losses/entropy").axes[0].lines) == 4


@pytest.mark.full
def test_a_random_search_takes_ranges_as_a_mapping_and_prints_without_quiet(capsys):
    names = ("gamma", "gae_lambda", "clip_eps", "vf_coef", "ent_coef", "max_grad_norm")
    space = {"ppo": {name: {"uniform": [0.5012345678901234, 0.9]} for name in names}}
    assert len(str(space)) > 255  # longer than the name of a file may be
    table = swept(search="random", search_space=space, num_trials=2, quiet=False, run_dir="random")
    assert len(table) == 2 and "2 settings x 2 seeds in" in capsys.readouterr().out
    assert all(0.5 <= s.config.ppo.gamma <= 0.9 for s in table)
    quiet = swept(search="random", search_space=space, num_trials=2, run_dir="random")
    assert repr(quiet) == repr(table) and capsys.readouterr().out == ""


@pytest.mark.toy
def test_a_grid_and_a_search_space_are_read_as_from_the_command():
    grid = {
        "ppo": {"gamma": np.array([0.9, 0.99]), "learning_rate": (1e-5, 1e-3)},
        "network.hidden": [[8], [16, 16]],
        "network.activation": ["tanh", "relu"],
        "ppo.num_epochs": range(1, 3),
        "ppo.objective": ["clip", make_walk],
    }
    parsed = parse_grid(grid_texts(grid))
    assert parsed.pop("ppo.objective") == ["clip", "support.own_code:make_walk"]
    assert parsed == {
        "ppo.gamma": [0.9, 0.99],
        "ppo.learning_rate": [1e-5, 1e-3],
        "network.hidden": [(8,), (16, 16)],
        "network.activation": ["tanh", "relu"],
        "ppo.num_epochs": [1, 2],
    }
    space = {
        "ppo": {"gamma": {"uniform": [0.9, 0.99]}, "learning_rate": {"log_uniform": (1e-5, 1e-2)}},
        "network.hidden": {"choice": [[8], (16, 16)]},
    }
    assert load_ranges(space_text(space)) == {
        "ppo.gamma": Uniform(0.9, 0.99),
        "ppo.learning_rate": LogUniform(1e-5, 1e-2),
        "network.hidden": Choice(((8,), (16, 16))),
    }


ONE = {"grid": {"ppo.gamma": [0.9]}}
RANDOM = {"search": "random", "num_trials": 2}


@pytest.mark.toy
@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, r"grid is missing. Use grid=\{"),
        ({"ppo.gama": [0.9]}, r"grid: ppo\.gama: unknown key. Did you mean ppo\.gamma\?"),
        ({"ppo": {"gama": [0.9]}}, r"grid: ppo\.gama: unknown key"),
        ({"ppo.gamma": 0.9}, r"grid: ppo\.gamma = 0\.9: must be a list of values\.$"),
        ({"ppo.gamma": []}, r"grid: ppo\.gamma = \[\]: must be a list of values\.$"),
        ({"ppo.gamma": "0.9"}, r"grid: ppo\.gamma = '0\.9': must be a list of values\.$"),
        ({"ppo.gamma": [2.0]}, r"grid ppo\.gamma: ppo\.gamma = 2\.0: must be from 0 to 1"),
        ({"seed": [1]}, r"grid: a sweep cannot vary seed. Use num_seeds for several seeds"),
        ({"ppo.objective": [lambda *x: x]}, "grid: .* a sweep saves custom code by reference"),
    ],
)
def test_an_invalid_grid_gets_one_sentence_in_terms_of_python(grid, message, folder):
    assert_error(message, folder, grid=grid)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({**ONE, "selectby": "best"}, r"selectby: unknown argument. Did you mean select_by\?"),
        ({**ONE, "select_by": "all"}, r"select_by = 'all': must be one of"),
        ({**ONE, "memory_gb": -1.0}, r"memory_gb = -1\.0: must be at least"),
        ({**ONE, "ppo": {"gama": 1}}, r".*ppo\.gama: unknown key"),
        ({**ONE, "env": {"name": ""}}, r"env\.name is missing"),
        ({"search": "randm"}, r"search = 'randm': must be one of grid, random"),
        ({"search": "random"}, r'num_trials = 0: search="random" requires at least 1'),
        (RANDOM, r"search_space is missing"),
        ({**RANDOM, "search_space": "a.yaml"}, r"search_space a\.yaml: no such file"),
        (
            {**RANDOM, "search_space": {"ppo.gamma": [0, 1]}},
            r"search_space: ppo\.gamma = \[0, 1\]: must be \{uniform",
        ),
    ],
)
def test_invalid_arguments_get_one_sentence_in_terms_of_python(arguments, message, folder):
    assert_error(message, folder, **arguments)


def assert_error(message, folder, **arguments):
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        swept(run_dir="never", **{**SMALL, **arguments})
    assert "--" not in str(caught.value) and "\n" not in str(caught.value)
    assert not list(folder.iterdir())


def test_another_sweep_in_the_folder_and_a_folder_without_results_are_errors(table, folder):
    with pytest.raises(ValueError, match=r"a sweep with grid .* or clobber=True to delete"):
        swept(grid={"ppo.gamma": [0.1]}, run_dir=table.run_dir)
    with pytest.raises(ValueError, match=r"nothing: not a finished sweep .no such folder"):
        Sweep("nothing")
    with pytest.raises(ValueError, match=r"is the folder of a sweep\. Use one of the run folders"):
        load(table.run_dir)


def test_a_sweep_of_a_new_process_uses_all_cores(tmp_path):
    script = (
        "import purejaxppo as ppo; ppo.sweep(env='gymnax/CartPole-v1', grid={'ppo.gamma': [0.9]}, "
        "total_timesteps=64, devices=2, network={'hidden': [4]}, eval={'num_episodes': 0}, "
        "**{'env.num_envs': 4, 'ppo.rollout_length': 4, 'ppo.num_minibatches': 1})"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert "on 2 x cpu" in done.stdout, done.stderr
