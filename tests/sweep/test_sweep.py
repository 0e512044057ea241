"""Sweeps: groups, memory, interruptions, resumes, and launchers."""

import contextlib
import csv
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from support.children import environment
from support.jobs import dies_once
from support.runs import error_of, setup_of, train

with contextlib.suppress(ImportError):
    # Its import closes all log handlers, and absl's handler closes the stderr of its creation. So
    # import it here, not in a test with another stderr.
    import submitit  # noqa: F401

from purejaxppo import interrupts, restore
from purejaxppo.cli.flags import SweepFlags
from purejaxppo.cli.parser import parse_over_config
from purejaxppo.config import hints
from purejaxppo.config.files import as_text, load_config, read_yaml, to_yaml
from purejaxppo.config.references import CodeRef
from purejaxppo.config.schema import Config
from purejaxppo.runs.evaluation import evaluate
from purejaxppo.runs.folder import run_folder
from purejaxppo.runs.hooks import ShowProgress
from purejaxppo.runs.rows import read_csv
from purejaxppo.sweep import __main__ as sweep_command
from purejaxppo.sweep import packing, pictures, report, scores, session
from purejaxppo.sweep.launchers import exit_on_signals
from purejaxppo.sweep.packing import Group, batch_sizes, group_up
from purejaxppo.sweep.scores import Result, value
from purejaxppo.sweep.search import Optuna
from purejaxppo.sweep.search_space import Choice, LogUniform, Uniform, apply

CARTPOLE = """
env: {name: gymnax/CartPole-v1, num_envs: 8}
network: {hidden: [8]}
ppo: {rollout_length: 16, num_minibatches: 2, num_epochs: 1, learning_rate: 3e-3}
eval: {num_episodes: 2}
logging: {tensorboard: false}
num_shards: 1
total_timesteps: 512
"""
RATES = "ppo.learning_rate=1e-3,1e-2"
GRID = ("--grid", RATES, "--grid", "ppo.gamma=0.9,0.99", "--num_seeds", 2)
SHORT = ("--total_timesteps", 128, "--eval.num_episodes", 0)


@pytest.fixture
def config_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hints, "START", tmp_path)  # as in a new process
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "small.yaml"
    path.write_text(CARTPOLE)
    return path


def sweep(config_file, *flags):
    return sweep_command.main(["--config", str(config_file), *map(str, flags)])


@pytest.fixture(scope="module")
def sweep_once(tmp_path_factory):
    """A folder with `swept`, a finished grid of four settings with two seeds, and its output."""
    folder = tmp_path_factory.mktemp("grid")
    (folder / "small.yaml").write_text(CARTPOLE)
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.chdir(folder)
        patch.setattr(hints, "START", folder)  # as in a new process
        patch.setenv("COLUMNS", "120")
        assert sweep("small.yaml", *GRID, "--run_dir", "swept") == 0
    (folder / "out").write_text(out.getvalue())
    return folder


@pytest.fixture
def finished_sweep(sweep_once, config_file):
    """A copy of a finished sweep of `GRID` in the current folder."""
    shutil.copytree(sweep_once / "swept", "swept")
    shutil.copy(sweep_once / "out", "out")
    return Path("swept")


def table(folder):
    with (Path(folder) / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.toy
@pytest.mark.parametrize(
    ("count", "limit", "width", "sizes"),
    [
        (10, 100, 2, [10]),
        (9, 100, 2, [10]),
        (10, 4, 2, [4, 4, 2]),
        (10, 5, 2, [4, 4, 2]),
        (12, 5, 1, [4, 4, 4]),
        (7, 1, 1, [1] * 7),
        (3, 1, 2, [2, 2]),
    ],
)
def test_agents_are_divided_into_few_equal_batches(count, limit, width, sizes):
    assert batch_sizes(count, limit, width) == sizes


@pytest.mark.toy
@pytest.mark.parametrize("count", range(1, 30))
def test_every_agent_is_in_a_batch_and_no_batch_is_too_large(count):
    for limit in (1, 3, 8, 100):
        for width in (1, 2, 4):
            sizes = batch_sizes(count, limit, width)
            assert all(0 < size <= max(limit, width) and size % width == 0 for size in sizes)
            assert count <= sum(sizes) < count + width


@pytest.mark.toy
def test_settings_are_grouped_by_structure(make_config):
    base = make_config()
    configs = [
        apply(base, {"ppo.gamma": gamma, "ppo.num_epochs": epochs})
        for gamma in (0.9, 0.99)
        for epochs in (1, 2)
    ]
    groups = group_up(configs)
    assert [[c.ppo.num_epochs for c in group] for group in groups] == [[1, 1], [2, 2]]
    assert [[c.ppo.gamma for c in group] for group in groups] == [[0.9, 0.99]] * 2


def test_a_grid_is_one_program_and_equals_agents_trained_alone(finished_sweep, config_file):
    out = Path("out").read_text()
    assert "4 settings x 2 seeds in 1 program\n" in out
    assert "8 agents with 8 environments each" in out
    assert "table: swept/results.csv, figure: swept/sweep.png\n" in out
    assert " --run swept/rounds/000/" in out
    rows = table(finished_sweep)
    assert [int(row["rank"]) for row in rows] == [1, 2, 3, 4]
    means = [float(row["return_mean"]) for row in rows]
    assert means == sorted(means, reverse=True)
    assert (finished_sweep / "sweep.png").stat().st_size > 10_000
    row = rows[2]
    alone = ["--ppo.learning_rate", row["ppo.learning_rate"], "--ppo.gamma", row["ppo.gamma"]]
    alone += ["--seed", "1", "--devices", "1", "--run_dir", "alone"]
    assert train(config_file, *alone) == 0
    curve = read_csv(Path("alone/metrics.csv"))
    assert float(row["returns"].split()[1]) == pytest.approx(
        [r["eval/return_mean"] for r in curve if "eval/return_mean" in r][-1]
    )
    run, index = row["runs"].split()[1], int(row["indices"].split()[1])
    agent = restore(finished_sweep / run, "last").member(index)
    assert agent.config.seed == 1
    assert agent.config.ppo.gamma == float(row["ppo.gamma"])
    for x, y in zip(
        jax.tree.leaves(agent.state.params),
        jax.tree.leaves(restore("alone", "last").state.params),
        strict=True,
    ):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)


@pytest.fixture
def small_agents(monkeypatch):
    """Assume that an agent takes a megabyte instead of measuring compiled programs."""
    monkeypatch.setattr(packing, "measure", lambda setup, size: size * 1e6)


@pytest.mark.full
def test_metrics_are_read_once_for_all_agents_of_a_batch(finished_sweep, monkeypatch):
    (folder,) = {str(path.parent) for path in finished_sweep.rglob("metrics.csv")}
    read = []
    monkeypatch.setattr(scores, "read_csv", lambda path: read.append(path) or read_csv(path))
    every = [scores.read_members(folder) for _ in range(8)]
    assert len(read) == 1 and all(sorted(rows) == list(range(8)) for rows in every)
    with Path(folder, "metrics.csv").open("a") as file:
        file.write("damaged\n")
    scores.read_members(folder)
    assert len(read) == 2


@pytest.mark.full
def test_a_memory_budget_below_the_smallest_batch_is_an_error(small_agents, config_file, capsys):
    assert sweep(config_file, *GRID, "--run_dir", "none", "--memory_gb", 0.001) == 2
    error = capsys.readouterr().err
    assert "2 agents need 0.002 GB of device memory, but the budget is 0.001 GB" in error


def same_results(one, other):
    strip = ["rank", "ppo.learning_rate", "returns"]
    return [[r[k] for k in strip] for r in table(one)] == [
        [r[k] for k in strip] for r in table(other)
    ]


@pytest.mark.full
def test_the_memory_of_a_batch_of_agents_is_measured(config_file, capsys):
    config_file.write_text(CARTPOLE.replace("num_episodes: 2", "num_episodes: 0"))
    flags = ("--grid", RATES, "--num_seeds", 2, *SHORT, "--run_dir")
    assert sweep(config_file, *flags, "all") == 0
    members = [
        apply(
            load_config(config_file, {"total_timesteps": 128}),
            {"ppo.learning_rate": rate, "seed": seed},
        )
        for rate in (1e-3, 1e-2)
        for seed in (0, 1)
    ]
    setup = setup_of(packing.one_shard(members[0]), len(jax.devices()), members)
    needed = packing.measure(setup, 2)
    assert needed < packing.measure(setup, 4)
    assert sweep(config_file, *flags, "cut", "--memory_gb", 1.01 * needed / 1e9) == 0
    assert json.loads(Path("cut/rounds/000/group-000/batches.json").read_text()) == [2, 2]
    assert same_results("cut", "all")
    capsys.readouterr()
    assert sweep(config_file, *flags, "none", "--memory_gb", needed / 4e9) == 2
    assert "Increase --memory_gb" in capsys.readouterr().err


@pytest.mark.toy
def test_batches_are_planned_again_if_no_checkpoint_exists(tmp_path, make_config, monkeypatch):
    monkeypatch.setattr(packing, "max_batch", lambda group, *rest: int(group.memory))
    members = tuple(make_config(seed=i) for i in range(4))
    group = Group(str(tmp_path), members, memory=4)
    setup = setup_of(members[0], members=members)
    assert [len(batch) for batch in packing.plan(group, setup)] == [4]
    smaller = replace(group, memory=2)
    assert [len(batch) for batch in packing.plan(smaller, setup)] == [2, 2]
    (tmp_path / "batch-000" / "checkpoints" / "128" / "agent").mkdir(parents=True)
    assert [len(batch) for batch in packing.plan(group, setup)] == [2, 2]


@pytest.mark.toy
@pytest.mark.parametrize(
    ("agents", "width", "limit"), [(10, 2, 10), (9, 2, 10), (6, 4, 8), (12, 8, 16), (3, 1, 3)]
)
def test_agents_that_fit_into_memory_are_one_batch(
    agents, width, limit, small_agents, tmp_path, make_config
):
    members = tuple(make_config(seed=i) for i in range(agents))
    setup = setup_of(members[0], members=members)
    assert packing.max_batch(Group(str(tmp_path), members, memory=1e9), setup, width) == limit
    assert packing.batch_sizes(agents, limit, width) == [limit]


@pytest.mark.toy
def test_free_memory_respects_the_limit_of_a_container(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    whole = packing.free_memory(jax.devices())
    assert whole > 1e8
    monkeypatch.setattr(packing, "cgroups", lambda: {tmp_path})
    assert packing.free_memory(jax.devices()) == 2_000_000
    (tmp_path / "memory.stat").write_text("active_file 7\ninactive_file 500000\n")
    assert packing.free_memory(jax.devices()) == 2_500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert packing.free_memory(jax.devices()) == pytest.approx(whole, rel=0.5)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("lines", "folders"),
    [
        ("", []),
        ("0::/slurm/job_7/step_0\n", ["slurm/job_7/step_0", "slurm/job_7", "slurm"]),
        ("3:cpu,cpuacct:/a\n4:memory:/b/c\n", ["memory/b/c", "memory/b"]),
    ],
)
def test_the_control_groups_of_a_process_include_those_around_it(lines, folders, tmp_path):
    (tmp_path / "cgroup").write_text(lines)
    expected = {tmp_path, tmp_path / "memory", *(tmp_path / x for x in folders)}
    assert packing.cgroups(tmp_path, tmp_path / "cgroup") == expected


@pytest.mark.full
@pytest.mark.xdist_group("processes")
def test_a_killed_sweep_resumes(config_file, tmp_path, capsys):
    longer = ["--total_timesteps", "20000", "--checkpoint.interval", "1000"]
    flags = ["--config", str(config_file), "--grid", RATES, "--num_seeds", "2", *longer]
    command = [sys.executable, "-m", "purejaxppo.sweep", *flags, "--run_dir", "killed"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
        saves = Path("killed/rounds/000/group-000/batch-000/checkpoints")
        for _ in range(1500):
            if saves.is_dir() and any(path.name.isdigit() for path in saves.iterdir()):
                break
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        process.kill()
        process.wait()
    assert sweep_command.main([*flags, "--run_dir", "killed"]) == 0
    assert "resuming at" in capsys.readouterr().out
    assert sweep_command.main([*flags, "--run_dir", "whole"]) == 0
    assert [r["returns"] for r in table("killed")] == [r["returns"] for r in table("whole")]


@pytest.mark.full
def test_an_interrupted_sweep_reports_how_to_resume_and_resumes(
    finished_sweep, small_agents, config_file, capsys, monkeypatch
):
    def interrupting(run, row):
        interrupts._ACTIVE[-1].signal = "SIGINT"

    with monkeypatch.context() as patch:
        patch.setattr(ShowProgress, "act", interrupting)
        assert sweep(config_file, *GRID, "--run_dir", "parts") == 130
    assert "Run the same command to resume." in capsys.readouterr().out
    assert sweep(config_file, *GRID, "--run_dir", "parts") == 0
    assert "resuming at" in capsys.readouterr().out
    assert [row["returns"] for row in table("parts")] == [
        row["returns"] for row in table(finished_sweep)
    ]


@pytest.mark.full
@pytest.mark.xdist_group("processes")
def test_sigint_interrupts_a_sweep_process_which_then_resumes(config_file, tmp_path, capsys):
    flags = ["--config", str(config_file), "--grid", RATES, "--total_timesteps", "100000"]
    command = [sys.executable, "-u", "-m", "purejaxppo.sweep", *flags]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )
    for line in process.stdout:
        if "steps/s" in line:
            process.send_signal(signal.SIGINT)
            break
    rest = process.communicate(timeout=120)[0]
    assert process.returncode == 130, rest
    assert "Run the same command to resume." in rest
    assert "Traceback" not in rest
    assert sweep_command.main([*flags, "--devices", "1"]) == 0
    assert "resuming at" in capsys.readouterr().out
    assert len(table("runs/small-sweep")) == 2


def test_another_sweep_in_the_same_folder_is_rejected(finished_sweep, config_file, capsys):
    before = table(finished_sweep)
    assert sweep(config_file, "--grid", "ppo.gamma=0.9,0.99", "--run_dir", "swept") == 2
    error = error_of(capsys)
    assert "error: swept contains a sweep with num_seeds = 2, not 1" in error
    other = ("--grid", "ppo.gamma=0.9,0.99", "--num_seeds", 2, "--run_dir", "swept")
    assert sweep(config_file, *other) == 2
    error = error_of(capsys)
    assert "contains a sweep with grid = {'ppo.learning_rate': [0.001, 0.01]" in error
    assert "'ppo.gamma': [0.9, 0.99]}, not {'ppo.gamma': [0.9, 0.99]}" in error
    assert "--clobber to delete that sweep" in error
    assert table(finished_sweep) == before


def test_a_sweep_resumes_with_its_settings_if_flags_have_another_order(
    finished_sweep, config_file, capsys
):
    columns = "ppo.learning_rate", "ppo.gamma", "returns"
    before = sorted([row[name] for name in columns] for row in table(finished_sweep))
    flags = ("--grid", GRID[3], "--grid", RATES, "--num_seeds", 2, "--run_dir", "swept")
    assert sweep(config_file, *flags) == 0
    assert "is finished already" in capsys.readouterr().out
    assert sorted([row[name] for name in columns] for row in table(finished_sweep)) == before


def test_a_batch_with_other_settings_of_its_agents_is_rejected(config_file, tmp_path):
    folder = tmp_path / "batch"
    members = [
        load_config(config_file, {"eval.num_episodes": 0, "ppo.gamma": gamma, "seed": seed})
        for seed, gamma in enumerate((0.9, 0.99, 0.95))
    ]
    assert packing.train_batch(folder, setup_of(members[0], members=members)) == 0
    assert packing.train_batch(folder, setup_of(members[0], members=members)) == 0
    moved = [c.replace(seed=seed) for seed, c in enumerate(members[:1] + members[:0:-1])]
    shutil.copytree(folder, tmp_path / "started")
    shutil.rmtree(tmp_path / "started" / "checkpoints")
    fewer = setup_of(members[0], members=members[:2])
    assert packing.train_batch(tmp_path / "started", fewer) == 0  # no agent has been saved
    for others in (moved, members[:2]):
        with pytest.raises(ValueError, match="was started with other settings of its agents"):
            packing.train_batch(folder, setup_of(others[0], members=others))


@pytest.mark.toy
def test_settings_of_a_resumed_grid_have_the_saved_order_and_their_own_types():
    settings = [{"a": (8,), "b": {1: 2, "c": 3}}, {"a": (4, 4), "b": {1: 5, "c": 6}}]
    other_order = [dict(reversed(setting.items())) for setting in reversed(settings)]
    saved = json.loads(json.dumps(as_text(settings)))
    assert session.one_round(other_order)([], saved) == settings
    assert session.one_round(settings)([], None) == settings


@pytest.mark.full
@pytest.mark.parametrize("of_grid", [True, False])
def test_clobber_keeps_files_that_a_sweep_needs(of_grid, finished_sweep, config_file, capsys):
    code = finished_sweep / "code" / "own.py"
    code.parent.mkdir(exist_ok=True)
    code.write_text("def rate(x):\n    return x\n")
    space = finished_sweep / "sweep.yaml"
    before = space.read_text()
    flags = ("--grid", f"ppo.learning_rate_schedule={code}:rate,linear")
    if not of_grid:
        space.write_text(before := "ppo.gamma: {uniform: [0.9, 0.99]}")
        flags = ("--search", "random", "--num_trials", "2", "--search_space", space)
    assert sweep(config_file, *flags, "--run_dir", "swept", "--clobber") == 2
    assert "--clobber would delete " in capsys.readouterr().err
    assert code.is_file() and space.read_text() == before
    assert (finished_sweep / "results.csv").is_file()


@pytest.mark.toy
def test_sweep_yaml_restores_strings_that_look_like_numbers(config_file, tmp_path):
    words = {"a": "695e0514", "b": "1e5", "c": "yes", "d": "1:30", "e": 1e-7}
    pairs = [f"'{value}'" if isinstance(value, str) else str(value) for value in words.values()]
    options = [word for pair in zip(words, pairs, strict=True) for word in pair]
    line = [*("--config", str(config_file), "--grid", RATES, "--env.options"), *options]
    command, config = parse_over_config(SweepFlags, line)
    session.record(tmp_path, command, config)
    assert read_yaml(tmp_path / session.SWEEP)["env.options"] == words
    session.record(tmp_path, command, config)  # the same sweep, continued


@pytest.mark.toy
def test_a_sweep_prints_settings_without_effect_once(config_file, capsys):
    words = ("--config", str(config_file), "--grid", "ppo.kl_coef=0.5,0.25", "--ppo.dual_clip", "2")
    command, config = parse_over_config(SweepFlags, words)
    members = [apply(config, setting) for setting in session.search_of(command, config)[1]]
    session.check_members(members, command)
    assert capsys.readouterr().out.splitlines() == [
        "warning: ppo.kl_coef = 0.5, 0.25 has no effect. Set ppo.objective to kl or clip_kl.",
        "warning: ppo.dual_clip = 2.0 has no effect. Set ppo.objective to dual_clip.",
    ]


@pytest.mark.full
def test_clobber_restarts_a_sweep_and_best_yaml_can_be_trained(
    finished_sweep, small_agents, config_file
):
    flags = ("--grid", RATES, "--grid", "network.hidden=[8],[4,4]", *SHORT, "--run_dir", "swept")
    assert sweep(config_file, *flags, "--clobber") == 0
    best = table(finished_sweep)[0]
    config = load_config(finished_sweep / "best.yaml")
    assert str(config.ppo.learning_rate) == best["ppo.learning_rate"]
    assert " ".join(map(str, config.network.hidden)) == best["network.hidden"]
    assert train(finished_sweep / "best.yaml", "--run_dir", "again") == 0


RANGES = "ppo.learning_rate: {log_uniform: [1e-4, 1e-2]}\nppo.gamma: {uniform: [0.8, 0.99]}\n"


@pytest.mark.toy
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--grid is missing. Use --grid FIELD=VALUES, or --search random, optuna"),
        (
            ("--grid", RATES, "--search", "random", "--num_trials", 3),
            "--grid does not support --search random",
        ),
        (("--search", "random", "--num_trials", 3), "--search_space is missing"),
        (
            ("--search", "random", "--num_trials", 3, "--search_space", "no.yaml"),
            "--search_space no.yaml: no such file",
        ),
        (
            ("--search", "random", "--num_trials", -3, "--search_space", "ranges.yaml"),
            "--num_trials = -3: must be at least 0",
        ),
        (
            ("--grid", RATES, "--search_space", "ranges.yaml"),
            "--search_space requires --search random, optuna or population",
        ),
        (("--grid", "ppo.num_minibatches=3"), "is not divisible by ppo.num_minibatches = 3"),
        (("--grid", RATES, "--num_seeds", 0), "num_seeds = 0: must be at least 1"),
        (("--grid", RATES, "--devices", 64), "devices = 64: JAX finds only"),
        (("--grid", RATES, "--launcher", "cloud"), "must be one of local, ray, slurm"),
        (("--grid", RATES, "--launcher_options", "a", 1), "requires --launcher ray or slurm"),
        (("--grid", "env.name=gymnax/Nothing-v0"), "Nothing-v0"),
        (("--grid", RATES, "--num_shards", 2), "Use num_shards = 0"),
        (
            ("--grid", RATES, "--asynchronous"),
            "asynchronous = true does not support several seeds",
        ),
        (
            (
                "--search",
                "population",
                "--num_trials",
                4,
                "--search_space",
                "ranges.yaml",
                "--memory_gb",
                1,
            ),
            "does not support --memory_gb",
        ),
        (
            ("--search", "population", "--num_trials", 1, "--search_space", "ranges.yaml"),
            "--num_trials = 1: a population requires at least 2 agents",
        ),
        (
            (
                "--search",
                "population",
                "--num_trials",
                4,
                "--search_space",
                "ranges.yaml",
                "--population_share",
                0.7,
            ),
            "--population_share = 0.7: must be at most 0.5",
        ),
        (
            ("--search", "population", "--num_trials", 4, "--search_space", "sizes.yaml"),
            "supports only tunable numbers",
        ),
        (
            (
                "--search",
                "optuna",
                "--num_trials",
                4,
                "--search_space",
                "ranges.yaml",
                "--optuna_batch",
                0,
            ),
            "--optuna_batch = 0: must be at least 1",
        ),
    ],
)
def test_an_invalid_sweep_gets_a_one_sentence_error(config_file, capsys, flags, message):
    Path("ranges.yaml").write_text(RANGES)
    Path("sizes.yaml").write_text("ppo.num_epochs: {uniform: [1, 4]}\n")
    assert sweep(config_file, *flags) == 2
    assert message in error_of(capsys)
    assert not Path("runs").exists()


def test_an_invalid_sweep_deletes_nothing(finished_sweep, config_file):
    before = table(finished_sweep)
    source = finished_sweep / "rounds" / "000" / "group-000" / "batch-000"
    for flags in (
        ("--grid", "ppo.gamma=2"),
        ("--grid", "env.name=gymnax/Nothing-v0"),
        ("--grid", RATES, "--init_from", source),
    ):
        assert sweep(config_file, *flags, "--run_dir", "swept", "--clobber") == 2
        assert table(finished_sweep) == before


@pytest.mark.toy
def test_objectives_are_the_last_best_and_mean_evaluation():
    rows = [{"eval/return_mean": x} for x in (1.0, 4.0, 3.0)] + [{"charts/episodic_return": 9.0}]
    assert [value(rows, o) for o in ("last", "best", "mean")] == [3, 4, 8 / 3]
    assert value(rows[3:], "last") == 9
    assert np.isnan(value([], "last"))
    lost = {"charts/episodic_return": -5.0, "charts/episodes": 10, "charts/diverged": 90}
    assert np.isnan(value([lost], "last"))
    assert value([lost | {"charts/episodes": 810}], "last") == -5.0  # a tenth diverged
    assert np.isnan(value([lost | {"charts/episodes": 809}], "last"))
    assert value([lost | {"eval/return_mean": -59.0}], "last") == -59.0


def results_of(settings, numbers, make_config):
    return [
        Result(setting, make_config(), tuple(score), (("run", i),) * len(score))
        for i, (setting, score) in enumerate(zip(settings, numbers, strict=True))
    ]


@pytest.mark.toy
def test_settings_without_a_score_rank_last(make_config):
    settings = [{"ppo.gamma": x} for x in (0.1, 0.2, 0.3)]
    results = results_of(settings, [[1.0, 2.0], [np.nan, 5.0], [4.0, 4.0]], make_config)
    ranked = report.rank(results)
    assert [r.setting["ppo.gamma"] for r in ranked] == [0.3, 0.1, 0.2]


@pytest.mark.parametrize(
    "settings",
    [
        [{"ppo.learning_rate": x} for x in (1e-4, 1e-2, 1e-3)],
        [{"network.activation": x} for x in ("tanh", "relu")],
        [{"ppo.gamma": x, "network.hidden": y} for x in (0.9, 0.99) for y in ((8,), (4, 4))],
        [{"ppo.gamma": x, "ppo.gae_lambda": 1 - x, "ppo.num_epochs": 3} for x in (0.1, 0.5, 0.7)],
    ],
)
def test_every_kind_of_sweep_has_a_plot(tmp_path, make_config, settings):
    numbers = [[1.0 * i, np.nan if i == 1 else 2.0 * i] for i in range(len(settings))]
    results = results_of(settings, numbers, make_config)
    pictures.plot(tmp_path / "x.png", results, list(settings[0]), "title")
    assert (tmp_path / "x.png").stat().st_size > 8_000


@pytest.mark.toy
def test_a_heat_map_shows_confidence_over_seeds_and_frames_the_best_cell(make_config):
    from matplotlib.figure import Figure

    keys, levels = ["ppo.gamma", "ppo.num_epochs"], [["0.9", "0.99"], ["3", "4"]]
    settings = [{keys[0]: x, keys[1]: y} for x in (0.9, 0.99) for y in (3, 4)]
    scores = [[10.0, 12.0], [30.0, 30.0], [5.0], [np.nan]]
    figure = Figure()
    axes = figure.add_subplot()
    pictures.heat_map(figure, axes, results_of(settings, scores, make_config), keys, levels)
    # Student's t of one degree of freedom: 12.706 x sqrt(2) / sqrt(2).
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["11.0\n± 12.7", "30.0\n± 0.0", "5.000", "no score"]
    (frame,) = axes.patches
    assert frame.get_xy() == (0.5, -0.5)


@pytest.mark.toy
def test_settings_that_repeat_a_cell_have_no_heat_map(make_config):
    pairs = [(0.9, 3), (0.9, 3), (0.99, 4), (0.9, 4)]  # as many as cells, but not (0.99, 3)
    settings = [{"ppo.gamma": x, "ppo.num_epochs": y} for x, y in pairs]
    results = results_of(settings, [[1.0], [2.0], [3.0], [4.0]], make_config)
    figure = pictures.figure_of(results, list(settings[0]), "title")
    assert not figure.axes[0].images


optuna = pytest.mark.skipif(not importlib.util.find_spec("optuna"), reason="needs optuna")


@optuna
def test_optuna_improves_and_repeats_the_same_settings_on_resume():
    ranges = {
        "ppo.learning_rate": LogUniform(1e-5, 1e-1),
        "ppo.num_epochs": Uniform(1, 10, whole=True),
        "network.hidden": Choice(((8,), (16, 16))),
        "env.obs_parts": Choice(({"a": (0, 8)}, {"a": (0, 5)})),
    }

    def worth(setting):
        return -abs(np.log10(setting["ppo.learning_rate"]) + 3) + (len(setting["network.hidden"]))

    def study(known=None):
        search, scored, rounds = Optuna(ranges, 40, 10, seed=0), [], []
        while tried := search.next(scored, known.pop(0) if known else None):
            assert all(isinstance(s["ppo.num_epochs"], int) for s in tried)
            rounds.append(tried)
            scored += [(s, worth(s)) for s in tried]
        return rounds, [score for _, score in scored]

    rounds, scores = study()
    assert [len(tried) for tried in rounds] == [10] * 4
    assert np.mean(scores[-10:]) > np.mean(scores[:10]) + 0.3
    for count in (1, 2):  # rounds recorded before the sweep stopped
        again, _ = study(known=json.loads(json.dumps(as_text(rounds[:count]))))
        assert again == rounds


@optuna
def test_optuna_draws_again_if_a_setting_is_invalid():
    def check(setting):
        if setting["ppo.num_epochs"] != 3:
            raise ValueError("only 3 will do")

    ranges = {"ppo.num_epochs": Uniform(1, 4, whole=True)}
    search = Optuna(ranges, 5, 5, 0, check)
    assert search.next([], None) == [{"ppo.num_epochs": 3}] * 5
    never = Optuna({"ppo.num_epochs": Uniform(4, 9, whole=True)}, 5, 5, 0, check)
    with pytest.raises(ValueError, match="only 3 will do"):
        never.next([], None)


@optuna
@pytest.mark.full
def test_an_optuna_sweep_resumes(small_agents, config_file, capsys):
    config_file.write_text(CARTPOLE.replace("num_episodes: 2", "num_episodes: 0"))
    Path("ranges.yaml").write_text(RANGES)
    flags = (
        "--search",
        "optuna",
        "--num_trials",
        4,
        "--optuna_batch",
        2,
        "--search_space",
        "ranges.yaml",
        *SHORT,
    )
    assert sweep(config_file, *flags, "--run_dir", "whole") == 0
    shutil.copytree("whole", "parts")
    second = Path("parts/rounds/001")
    (second / "group-000" / "batch-000" / "config.yaml").unlink()  # as if killed before it started
    shutil.rmtree(second / "group-000")
    capsys.readouterr()
    assert sweep(config_file, *flags, "--run_dir", "parts") == 0
    assert "batch-000 is finished already" in capsys.readouterr().out
    assert [r["returns"] for r in table("parts")] == [r["returns"] for r in table("whole")]
    assert len(table("whole")) == 4


@pytest.mark.full
@pytest.mark.xdist_group("processes")
@pytest.mark.skipif(not importlib.util.find_spec("submitit"), reason="needs submitit")
def test_a_job_is_repeated_if_its_worker_dies(config_file, tmp_path, monkeypatch):
    from purejaxppo.sweep.launchers import slurm

    config = load_config(config_file)
    marker = tmp_path / "died"
    monkeypatch.setenv("DIES_ONCE", str(marker))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the job imports `support`
    monkeypatch.setattr(slurm, "attempt", dies_once)
    groups = [Group(str(tmp_path / "g"), (config,))]
    options = {"cluster": "local", "timeout_min": 5}
    assert slurm.launch(groups, tmp_path, options) == [0]
    assert marker.exists()
    assert evaluate(restore(tmp_path / "g" / "batch-000").member(0), 1).returns.shape == (1,)


@pytest.mark.toy
@pytest.mark.skipif(not importlib.util.find_spec("submitit"), reason="needs submitit")
@pytest.mark.parametrize(("code", "outcome"), [(143, None), (0, 0)])
def test_a_job_that_slurm_ends_is_saved_and_not_finished(code, outcome, monkeypatch):
    """SLURM's signal may also arrive after the end of training."""
    from purejaxppo.sweep.launchers import slurm

    received = []

    def train_group(group):
        with interrupts.Interrupt() as interrupt:
            signal.raise_signal(signal.SIGUSR2)
            received.append(interrupt.signal)
        return code

    monkeypatch.setattr(slurm, "train_group", train_group)
    with kept_handlers():
        assert slurm.attempt(None) == outcome
    assert received == ["SIGTERM"]
    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_CHECKS", 0.0)
    outcomes = [outcome, 0]
    job = SimpleNamespace(done=lambda: True, result=lambda: outcomes.pop(0))
    executor = SimpleNamespace(submit=lambda *args: job)
    assert slurm.run_once(executor, {3: None}) == {3: 0}  # submitted again after None
    assert len(outcomes) == (outcome is not None)


@contextlib.contextmanager
def kept_handlers():
    """Restore the signal handlers of this process at the end."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.toy
@pytest.mark.skipif(not importlib.util.find_spec("submitit"), reason="needs submitit")
@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_job_that_is_not_training_yet_ends_at_once(number, monkeypatch):
    from purejaxppo.sweep.launchers import slurm

    class Left(BaseException):
        pass

    def leave(number):
        assert number == signal.SIGTERM
        raise Left

    def train_group(group):
        signal.raise_signal(number)
        raise AssertionError("the job continued")

    monkeypatch.setattr(slurm, "exit_now", leave)
    monkeypatch.setattr(slurm, "train_group", train_group)
    with kept_handlers(), pytest.raises(Left):
        slurm.attempt(None)


@pytest.mark.toy
@pytest.mark.skipif(not importlib.util.find_spec("submitit"), reason="needs submitit")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout_min": "soon"}, "timeout_min"),
        ({"mem_gb": "4GB"}, "mem_gb"),
        ({"tasks_per_node": 2}, "--launcher_options tasks_per_node 2: a job is one process. Use"),
        ({"nodes": 2}, "--launcher_options nodes 2: a job is one process. Use 1."),
    ],
)
def test_wrong_options_of_slurm_are_one_sentence(options, words, tmp_path):
    from purejaxppo.sweep.launchers import slurm

    with pytest.raises(ValueError, match=r"^--launcher_options") as error:
        slurm.launch([None], tmp_path, {"cluster": "local", **options})
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.toy
@pytest.mark.skipif(not importlib.util.find_spec("submitit"), reason="needs submitit")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_a_sweep_cancels_its_jobs(number, tmp_path, monkeypatch, capsys):
    from purejaxppo.sweep.launchers import slurm

    cancelled = []

    def done():
        signal.raise_signal(number)

    def cancel():
        cancelled.append(1)
        signal.raise_signal(number)  # a second signal
        raise OSError("scancel failed")

    job = SimpleNamespace(done=done, cancel=cancel)
    monkeypatch.setattr(slurm.submitit, "AutoExecutor", lambda *args, **kwargs: Executor())

    class Executor:
        def update_parameters(self, **parameters):
            assert parameters["timeout_min"] == 5

        def submit(self, *args):
            return job

    with kept_handlers():
        signal.signal(number, signal.SIG_DFL)
        with pytest.raises(SystemExit) as ended:
            slurm.launch([None, None], tmp_path, {"timeout_min": 5})
        assert signal.getsignal(number) == signal.SIG_DFL
    assert ended.value.code == 128 + number and cancelled == [1, 1]
    assert "interrupted; everything saved so far is kept" in capsys.readouterr().err


@pytest.mark.toy
def test_a_signal_sets_the_exit_code_even_if_ray_replaces_it():
    with kept_handlers(), pytest.raises(SystemExit) as ended, exit_on_signals():
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            raise SystemExit(1) from None
    assert ended.value.code == 143


@pytest.mark.toy
@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs ray")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_other_tasks_save_if_a_ray_task_fails(error, monkeypatch):
    from purejaxppo.sweep.launchers import ray as launcher

    calls = []

    def get(pending):
        raise error

    monkeypatch.setattr(launcher.ray, "get", get)
    monkeypatch.setattr(launcher.ray, "cancel", calls.append)
    monkeypatch.setattr(launcher.ray, "wait", lambda tasks, **options: calls.append(list(tasks)))
    with pytest.raises(error):
        launcher.saving_all(["a", "b"])
    assert calls == ["a", "b", ["a", "b"]]


@pytest.mark.full
@pytest.mark.xdist_group("processes")
@pytest.mark.skipif(not importlib.util.find_spec("submitit"), reason="needs submitit")
def test_an_error_of_a_job_is_reported_immediately(config_file, tmp_path):
    from purejaxppo.sweep.launchers import slurm

    config = load_config(config_file, {"env.name": "gymnax/Nothing-v0"})
    group = Group(str(tmp_path / "g"), (config,))
    with pytest.raises(ValueError, match="Nothing-v0") as error:
        slurm.launch([group], tmp_path, {"cluster": "local", "timeout_min": 5})
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="--launcher_options"):
        slurm.launch([group], tmp_path, {"cluster": "local", "gpus_pernode": 5})


@pytest.mark.skipif(not importlib.util.find_spec("submitit"), reason="needs submitit")
def test_the_slurm_launcher_without_slurm_is_an_error(config_file, capsys):
    assert sweep(config_file, "--grid", RATES, "--launcher", "slurm") == 2
    error = capsys.readouterr().err
    assert "--launcher slurm" in error
    assert "Traceback" not in error


TWO_NODES = """
import sys, threading, time
from dataclasses import fields
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from purejaxppo.config.files import load_config, read_yaml, to_yaml
from purejaxppo.config.schema import Config
from purejaxppo.sweep.launchers.ray import launch
from purejaxppo.sweep.packing import Group
folder = Path(sys.argv[1])
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
first = cluster.add_node(num_cpus=1)
ray.init(address=cluster.address)
assert len(ray.nodes()) == 2
changes = {"total_timesteps": 400_000, "devices": 1, "checkpoint.interval": 10_000}
config = load_config(folder / "small.yaml", changes)
groups = [Group(str(folder / "g"), (config,))]
def run():
    print("codes", launch(groups, folder, {"num_cpus": 1}), flush=True)
launched = threading.Thread(target=run)
launched.start()
for _ in range(1500):
    if any(p.name.isdigit() for p in (folder / "g/batch-000/checkpoints").glob("*")):
        break
    time.sleep(0.1)
cluster.remove_node(first, allow_graceful=False)
print("a node is gone", flush=True)
cluster.add_node(num_cpus=1)
launched.join()
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.full
@pytest.mark.xdist_group("processes")
@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs ray")
def test_a_ray_cluster_repeats_the_job_of_a_lost_node(config_file, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", TWO_NODES, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert "a node is gone" in run.stdout, run.stderr[-3000:]
    assert "codes [0]" in run.stdout, run.stderr[-3000:]
    assert "resuming at" in run.stdout + run.stderr
    assert restore(tmp_path / "g" / "batch-000", "last").member(0).env_steps > 390_000


def test_a_batch_of_version_0_2_keeps_its_preprocessing(config_file, tmp_path, monkeypatch):
    config = replace(load_config(config_file), num_shards=1)
    saved = to_yaml(config).replace("  obs_preprocessing: by_bounds\n", "")
    assert "obs_preprocessing" not in saved
    (tmp_path / "config.yaml").write_text(saved)
    (tmp_path / "versions.json").write_text("{}")
    configs = []

    def execute(run):
        configs.append(run.config)
        return 0

    monkeypatch.setattr(packing, "execute", execute)
    assert packing.train_batch(tmp_path, setup_of(config)) == 0
    assert [x.ppo.obs_preprocessing for x in configs] == ["by_dtype"]


def stop_at_once(context):
    context.stop("enough")


class StopAfterSave:
    """Stops a run after it was saved."""

    def on_save(self, context):
        context.stop("enough")


@pytest.mark.parametrize("callback", [stop_at_once, StopAfterSave])
def test_a_batch_that_a_callback_stopped_is_finished(callback, config_file, tmp_path, capsys):
    every = {"eval.num_episodes": 0, "checkpoint.interval": 128, "checkpoint.keep": 3}
    config = load_config(config_file, {"callbacks": [callback], **every})
    for _ in range(2):
        assert packing.train_batch(tmp_path / "batch", setup_of(config)) == 0
        assert restore(tmp_path / "batch", "last").env_steps < 128, "one of four updates"
    assert "batch is finished already\n" in capsys.readouterr().out


@pytest.mark.toy
def test_a_sweep_of_0_3_with_sizes_for_a_gpu_resumes(tmp_path):
    config = load_config("cartpole.yaml")
    session.record(tmp_path, SweepFlags(), config)
    session.record(tmp_path, SweepFlags(), replace(config, gpu={}))
    assert read_yaml(tmp_path / "sweep.yaml")["gpu"] == {}


@pytest.mark.toy
def test_a_sweep_resumes_next_to_other_files(tmp_path):
    (tmp_path / "figure.png").write_text("mine")
    names = session.SWEEP_FILES
    with pytest.raises(ValueError, match=r"is not a run folder: it contains figure\.png"):
        run_folder(tmp_path, clobber=True, run_files=names).__enter__()
    (tmp_path / "sweep.yaml").write_text("method: random")  # of another program
    with pytest.raises(ValueError, match="is not a run folder"):
        run_folder(tmp_path, clobber=True, run_files=names).__enter__()
    (tmp_path / "sweep.yaml").unlink()
    session.record(tmp_path, SweepFlags(), Config())
    with run_folder(tmp_path, clobber=True, run_files=names):
        assert (tmp_path / "figure.png").read_text() == "mine"


@pytest.mark.toy
def test_a_sweep_stores_settings_and_fields_of_custom_code_as_their_text(tmp_path):
    code = CodeRef("mine.py:loss", files={"mine.py": "/copies/mine.py"})
    config = load_config("cartpole.yaml", {"ppo.objective": code})
    (tmp_path / "sweep").mkdir()
    session.record(tmp_path / "sweep", SweepFlags(), config)
    session.record(tmp_path / "sweep", SweepFlags(), config)  # unchanged: it continues
    found = session.rounds(session.one_round([{"ppo.objective": code}]), [], tmp_path)
    assert next(found) == [{"ppo.objective": "mine.py:loss"}]
    stored = json.loads((tmp_path / "rounds" / "000" / "settings.json").read_text("utf-8"))
    assert stored == [{"ppo.objective": "mine.py:loss"}]
    assert read_yaml(tmp_path / "sweep" / "sweep.yaml")["ppo.objective"] == "mine.py:loss"
