"""Benchmarks: the harness, the studies, and each script at toy size."""

import argparse
import importlib
import json
import math
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from support.children import environment
from support.paths import ROOT

from purejaxppo.cli import train
from purejaxppo.export import player

FOLDER = ROOT / "benchmarks"
RESULTS = FOLDER / "results"
WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
import harness
harness.ready(lambda: {"note": sys.argv[2]})
for _ in sys.stdin:
    with open(sys.argv[3], "a") as file:
        file.write(sys.argv[2])
    with open(sys.argv[3]) as file:
        print("speed", len(file.read()), flush=True)
"""
COMMANDS = {
    "ablations": "ppo.gamma=0.9",
    "ablations, finals": "--finals",
    "ablations, studies": "--studies",
    "engines": "--unity",
    "engines, discount": "--discount",
    "host": "--tasks hopper --contenders ours pool",
    "learning, random returns": "cartpole --random_returns",
    "learning, first minutes": "cartpole --first_minutes --contenders ours",
    "memory": "--tasks cartpole",
    "oscillator": "",
    "processes": "--contenders one-device two-processes",
    "seeds": "--contenders together plain",
    "startup": "",
    "throughput": "--tasks cartpole --contenders ours-awake random",
    "throughput, worlds": "--worlds pgx/minatar-breakout",
}
"""Benchmark -> flags of a toy run."""
AGAIN = "ablations, finals", "ablations, studies", "engines, discount", "learning, first minutes"
"""Slow tests, because other flags of the same benchmark run in `make test-all`."""


def load(name, monkeypatch):
    """Import a module of `benchmarks/`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(name)


@pytest.mark.toy
def test_contenders_alternate_and_medians_are_over_their_rounds(tmp_path, monkeypatch):
    harness = load("harness", monkeypatch)
    log = tmp_path / "log"
    commands = {
        name: [sys.executable, "-c", WORKER, str(FOLDER), name, str(log)] for name in ("a", "b")
    }
    results = harness.measure(commands, rounds=3)
    assert log.read_text() == "ababab"
    # The speed of a worker is the number of rounds of both so far.
    assert results["a"].speeds == [1, 3, 5]
    assert results["b"].median() == 4
    row = results["b"].row(task="t")
    assert (row["task"], row["note"], row["rounds"]) == ("t", "b", [2, 4, 6])


@pytest.mark.toy
def test_a_failed_contender_is_reported_with_its_last_line(monkeypatch):
    harness = load("harness", monkeypatch)
    with pytest.raises(RuntimeError, match=r"exit code 1\n(.|\n)*ValueError: no game"):
        harness.measure({"a": [sys.executable, "-c", "raise ValueError('no game')"]}, rounds=1)


@pytest.mark.toy
def test_rows_replace_those_with_equal_keys_and_record_the_device(tmp_path, monkeypatch):
    harness = load("harness", monkeypatch)
    args = harness.options("Doc.", "name").parse_args(["--results", str(tmp_path / "rows.jsonl")])
    harness.keep(args, [{"task": "a", "x": 1}, {"task": "b", "x": 2}], "task")
    harness.keep(args, [{"task": "a", "x": 3, "keep_cores_awake": True}], "task")
    other, new = harness.read_rows(args.results)
    assert (other["task"], other["x"], other["keep_cores_awake"]) == ("b", 2, False)
    assert (new["task"], new["x"], new["keep_cores_awake"]) == ("a", 3, True)
    assert new["versions"]["jax"] and new["device"] and new["cores"] >= 1


@pytest.mark.toy
def test_rows_of_a_config_are_kept_until_a_value_differs(tmp_path, monkeypatch):
    learning = load("learning", monkeypatch)
    texts = {
        "as_is": "env: {name: gymnax/CartPole-v1}",
        "default_spelled_out": "# comment\nppo: {gamma: 0.99}\nenv: {name: gymnax/CartPole-v1}",
        "other_value": "env: {name: gymnax/CartPole-v1}\nppo: {gamma: 0.98}",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    as_is, spelled_out, other = (learning.settings(str(tmp_path / f"{x}.yaml")) for x in texts)
    assert as_is == spelled_out != other


@pytest.mark.toy
def test_stored_returns_are_those_of_the_current_configs(monkeypatch):
    learning = load("learning", monkeypatch)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    peers = learning.harness.read_rows(RESULTS / "peer_returns.jsonl")
    ours = learning.harness.read_rows(RESULTS / "learning.jsonl")
    rows = [row for row in peers if row["library"].startswith("brax")]
    rows += [row for row in ours if "settings" in row]
    stored = {(row["config"], row["settings"]) for row in rows}
    assert stored == {(config, learning.settings(config)) for config, _ in stored}


@pytest.mark.toy
def test_missing_rows_are_ordered_by_seed_then_by_speed(tmp_path, monkeypatch):
    learning = load("learning", monkeypatch)
    monkeypatch.setattr(learning, "settings", lambda config: "now")
    path = tmp_path / "rows.jsonl"

    def missing(*rows):
        names = "config", "seed", "seconds", "settings"
        full = [dict(zip(names, (f"{row[0]}.yaml", *row[1:]), strict=True)) for row in rows]
        learning.harness.write_rows(path, [row | {"flags": ""} for row in full])
        args = argparse.Namespace(configs=["slow", "new", "quick"], flags="", results=path)
        return learning.missing(args)

    slow = [("slow", seed, 99.0, "now") for seed in range(5)]
    quick = ("quick", 0, 9.0, "now")
    assert missing(*slow, quick) == [
        *(("new", 0), ("quick", 1), ("new", 1), ("quick", 2), ("new", 2), ("quick", 3)),
        *(("new", 3), ("quick", 4), ("new", 4), *(("quick", seed) for seed in range(5, 10))),
    ]
    assert ("slow", 0) in missing(*slow[1:])
    assert ("slow", 0) in missing(*[(*row[:3], "old") for row in slow])


@pytest.mark.toy
def test_a_row_replaces_its_seed_and_rows_of_other_settings(tmp_path, monkeypatch):
    learning = load("learning", monkeypatch)
    path = tmp_path / "rows.jsonl"

    def row(seed, settings, steps=1, config="a.yaml"):
        scores = {"last_return_mean": 1.0, "return_mean": 1.0, "env_steps": steps, "seconds": 1.0}
        return {"config": config, "flags": "", "seed": seed, "settings": settings, **scores}

    stored = [row(0, "old"), row(1, "now"), row(2, "now"), row(1, "old", config="b.yaml")]
    learning.harness.write_rows(path, [x | {"device": "another"} for x in stored])
    learning.keep(argparse.Namespace(toy=False, results=path), row(1, "now", steps=2))
    keys = "config", "seed", "settings", "env_steps"
    found = sorted(tuple(x[key] for key in keys) for x in learning.harness.read_rows(path))
    assert found == [("a.yaml", 1, "now", 2), ("a.yaml", 2, "now", 1), ("b.yaml", 1, "old", 1)]


@pytest.mark.toy
def test_a_table_of_the_docs_is_printed_by_name(monkeypatch, capsys):
    learning = load("learning", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["learning.py", "--table", "ppo_and_friends"])
    learning.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 24 and lines[0].startswith("| task | PPO and Friends |")
    monkeypatch.setattr(sys, "argv", ["learning.py", "--table", "friends"])
    with pytest.raises(SystemExit) as caught:
        learning.main()
    assert caught.value.code == 2
    assert "--table friends: not found. Tables: speed, chosen," in capsys.readouterr().err


@pytest.mark.toy
def test_a_first_seed_after_the_last_one_is_an_error(monkeypatch, capsys):
    learning = load("learning", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["learning.py", "cartpole", "--first", "5", "--seeds", "5"])
    with pytest.raises(SystemExit) as caught:
        learning.main()
    assert caught.value.code == 2
    assert "--first 5: --seeds 5 trains seeds up to 4" in capsys.readouterr().err


@pytest.mark.toy
def test_a_command_is_interrupted_at_the_deadline(monkeypatch):
    until = load("learning", monkeypatch).until
    started = time.monotonic()
    assert not until(started + 2, [sys.executable, "-c", "import time; time.sleep(60)"])
    assert 1 < time.monotonic() - started < 30
    assert until(time.monotonic() + 60, [sys.executable, "-c", ""])
    assert not until(time.monotonic() - 1, [sys.executable, "-c", ""])
    with pytest.raises(RuntimeError, match="the reason"):
        until(math.inf, [sys.executable, "-c", "raise SystemExit('the reason')"])


@pytest.mark.toy
def test_studies_have_valid_train_flags_and_different_variants(tmp_path, monkeypatch):
    studies = load("studies", monkeypatch).STUDIES
    for study in studies.values():
        configs = []
        for flags in study.variants.values():
            words = f"{study.flags} {flags}".replace("TEACHER", str(tmp_path)).split()
            size = ["--num_seeds", "5", "--total_timesteps", str(study.steps)]
            _, command = train.start(["--config", study.config, *words, *size])
            configs.append(command)
        assert len(configs) >= 2
        assert all(configs[0] != other for other in configs[1:])


@pytest.mark.toy
def test_gains_of_options_are_normalised_by_the_random_policy_and_the_default(monkeypatch):
    ablations = load("ablations", monkeypatch)
    monkeypatch.setattr(
        ablations.harness, "read_rows", lambda path: [{"config": "a", "return_mean": -100.0}]
    )
    rows = [
        {"stage": "screen", "task": "a", "option": "", "last": [90.0, 110.0]},
        {"stage": "screen", "task": "a", "option": "ppo.gamma=1", "last": [140.0, 180.0]},
        {"stage": "finals", "task": "a", "option": "ppo.gamma=1", "last": [0.0, 0.0]},
        {"stage": "screen", "task": "b", "option": "ppo.gamma=1", "last": [7.0]},
    ]
    rows = [row | {"settings": "new"} for row in rows]
    older = {"stage": "screen", "task": "a", "option": "ppo.gamma=0.9", "last": [300.0] * 2}
    assert not ablations.scores([*rows, older | {"settings": "old"}], "screen", "ppo.gamma=0.9")
    # The default's mean is 100, 200 above the random policy.
    ((scores, default),) = ablations.scores(rows, "screen", "ppo.gamma=1").values()
    np.testing.assert_allclose(scores, [1.2, 1.4])
    np.testing.assert_allclose(default, [0.95, 1.05])
    gain, low, high = ablations.compare(rows, "screen", "ppo.gamma=1", ["a"])
    assert gain == pytest.approx(0.3)
    # The means of two draws are 1.2 to 1.4 and 0.95 to 1.05, and the latter are the new scale.
    assert (low, high) == pytest.approx((1.2 / 1.05 - 1, 1.4 / 0.95 - 1))
    assert ablations.compare(rows, "finals", "ppo.gamma=1", ["a"]) is None
    assert ablations.compare(rows, "screen", "ppo.gamma=1", ["a", "b"]) is None
    # A return that is not finite scores as the random policy.
    diverged = [rows[0], rows[1] | {"last": [math.nan, 180.0]}]
    assert ablations.compare(diverged, "screen", "ppo.gamma=1", ["a"])[0] == pytest.approx(-0.3)
    # Options are compared with the default of their settings, the latest ones.
    newer = [row | {"settings": "newer", "last": [0.0, 0.0]} for row in rows[:2]]
    assert ablations.compare([*rows, newer[0]], "screen", "ppo.gamma=1", ["a"])[0] == gain
    assert ablations.compare([*rows, *newer], "screen", "ppo.gamma=1", ["a"])[0] == 0
    # A task still counts after its config has adopted the option.
    monkeypatch.setattr(ablations, "TASKS", {"a": 1, "c": 1})
    monkeypatch.setattr(ablations, "changes", lambda task, option: False)
    assert ablations.compare(rows, "screen", "ppo.gamma=1") == (gain, low, high)


@pytest.mark.toy
def test_finished_runs_of_a_comparison_are_not_repeated(tmp_path, monkeypatch, capsys):
    ablations = load("ablations", monkeypatch)
    drawn = []
    monkeypatch.setattr(ablations, "draw", drawn.append)
    path, task = tmp_path / "rows.jsonl", "lunarlander.yaml"
    rows = [
        {"stage": "screen", "task": task, "option": option, "last": last, "cost": 1.0}
        | {"settings": ablations.text_hash(task), "seeds": len(last)}
        for option, last in [("", [100.0] * 10), ("ppo.gamma=0.9", [50.0] * 5)]
    ]
    ablations.harness.write_rows(path, rows)
    monkeypatch.setattr(
        sys, "argv", ["ablations.py", "ppo.gamma=0.9", "--tasks", task, "--results", str(path)]
    )
    ablations.main()
    assert drawn == [rows] and "ppo.gamma=0.9: -" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("ppo.objective", "option 'ppo.objective': must be NAME=VALUE"),
        ("=spo", "must be NAME=VALUE"),
        ("ppo.objectiv=spo", "ppo.objectiv: unknown key. Did you mean ppo.objective?"),
        ("ppo.objective=clip", "option 'ppo.objective=clip': equal to the configs"),
    ],
)
def test_an_invalid_option_of_the_ablations_gets_a_one_sentence_error(
    monkeypatch, capsys, option, message
):
    ablations = load("ablations", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["ablations.py", option])
    with pytest.raises(SystemExit) as caught:
        ablations.main()
    assert caught.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.toy
@pytest.mark.parametrize(
    ("script", "flags", "message"),
    [
        ("ablations", ["--studie"], "unrecognized arguments: --studie"),
        (
            "ablations",
            ["--studies", "curious"],
            "--studies curious: not found. Studies: velocities",
        ),
        ("learning", ["cartpol"], "Did you mean 'cartpole.yaml'?"),
        ("learning", ["cartpol", "--minutes", "1"], "Did you mean 'cartpole.yaml'?"),
        ("learning", [], "no config given"),
        ("host", ["--peer-python", "/no/python"], "/no/python: no such program"),
    ],
)
def test_wrong_arguments_of_benchmarks_get_an_error(monkeypatch, capsys, script, flags, message):
    module = load(script, monkeypatch)
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *flags])
    with pytest.raises(SystemExit) as caught:
        module.main()
    assert caught.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.toy
def test_options_change_the_configs_of_all_their_tasks(monkeypatch):
    ablations = load("ablations", monkeypatch)
    rows = ablations.harness.read_rows(RESULTS / "ablations.jsonl")
    # A config may have adopted an option after it was measured.
    measured = {(row["task"], row["option"]) for row in rows}
    for option, tasks in ablations.OPTIONS.items():
        for task in tasks or ablations.TASKS:
            assert (task, option) in measured or ablations.changes(task, option)


def run(script, *flags, **variables):
    """Run a benchmark at toy size, and return the rows that it prints."""
    command = [sys.executable, str(FOLDER / f"{script}.py"), "--toy", *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(**variables)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]


@pytest.mark.toy
def test_a_card_lists_the_returns_of_all_seeds(monkeypatch):
    zoo = load("zoo", monkeypatch)
    shared = {
        **{"config": "cartpole.yaml", "flags": "--ppo.gamma 0.9", "episodes": 100, "cores": 2},
        **{"return_std": 5.25, "env_steps": 1_000_000, "device": "CPU", "date": "2026-01-01"},
        **{"versions": {"jax": "0.10.2"}, "commit": "abc"},
    }
    rows = [
        {**shared, "seed": seed, "return_mean": mean, "last_return_mean": mean - 100}
        for seed, mean in ((1, 300.0), (0, 200.0))
    ]
    text = zoo.card("gymnax/CartPole-v1", rows[0], rows, has_video=False)
    assert "(seed 1), mean ± standard deviation over 100 episodes | 300.0 ± 5.2 |" in text
    # (300 - 200) / sqrt(2) = 70.7
    assert "over 2 seeds (best checkpoints) | 250.0 ± 70.7 |" in text
    assert "last checkpoints | 150.0 ± 70.7 |" in text
    assert text.index("| seed 0 | 200.0 |") < text.index("| seed 1 | 300.0 |")
    assert "`purejaxppo train --config cartpole.yaml --seed 1 --ppo.gamma 0.9`" in text


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("processes")
def test_the_best_seed_of_kept_runs_becomes_an_entry_of_the_zoo(tmp_path):
    runs, folder = tmp_path / "runs", tmp_path / "zoo"
    rows = run("learning", "--runs", str(runs))
    check(rows)
    command = [sys.executable, FOLDER / "zoo.py", "--runs", runs, "--to", folder, "--no_video"]
    subprocess.run(command, check=True, env=environment())
    entry = folder / "cartpole"
    kept = json.loads((entry / "row.json").read_text())
    assert kept["return_mean"] == rows[0]["return_mean"]
    assert f"| seed 0 | {kept['return_mean']:.1f} |" in (entry / "README.md").read_text()
    assert (entry / "policy.onnx").is_file()
    action, _ = player.load(entry / "policy.npz")(np.zeros((1, 4), np.float32))
    assert action.shape == (1,)
    command[command.index(runs)] = tmp_path
    refused = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment()
    )
    assert refused.returncode == 2 and "no runs with row.json" in refused.stderr


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow) if x in AGAIN else x for x in COMMANDS],
)
def test_each_benchmark_runs_at_toy_size_and_describes_its_rows(name):
    before = {path: path.stat().st_mtime for path in RESULTS.iterdir()}
    check(run(name.partition(",")[0], *COMMANDS[name].split()))
    assert {path: path.stat().st_mtime for path in RESULTS.iterdir()} == before


def check(rows):
    """Check that rows describe what was measured."""
    assert rows
    for row in rows:
        if row.get("name") != "":  # at the end of an item of gpu.py
            assert {"device", "versions", "commit", "date", "keep_cores_awake"} <= set(row)
        assert row.get("ok", True), row
        assert row.get("steps_per_second", 1) > 0


@pytest.mark.full
@pytest.mark.xdist_group("processes")
def test_measured_gpu_rows_are_not_repeated(tmp_path):
    path = tmp_path / "rows.jsonl"
    kept = [
        {"item": "machine", "name": "copy", "ok": True},
        {"item": "ant", "name": "", "ok": False, "why": "ended after 150 s"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    flags = ("--results", str(path), "--items", "ant", "machine")
    rows = run("gpu", *flags, JAX_NUM_CPU_DEVICES="1")
    names = [row["name"] for row in rows]
    assert names[:3] == ["copy", "", "card"] and names[-1] == "" and names.count("copy") == 1
    assert rows[-1]["item"] == "machine" and rows[-1]["ok"]
    check(rows[2:])
    assert run("gpu", *flags) == rows


@pytest.mark.full
@pytest.mark.xdist_group("processes")
@pytest.mark.timeout(600)
def test_gpu_programs_are_compiled_before_they_are_timed(tmp_path):
    path = tmp_path / "rows.jsonl"
    flags = ("--results", str(path), "--items", "balance", "--jobs", "2")
    rows = run("gpu", *flags, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "xla"))
    assert [row["name"] for row in rows] == ["cartpole_balance, 2048", ""]
    compiled = path.with_suffix(".compiled.jsonl").read_text().splitlines()
    (cold,) = (json.loads(line) for line in compiled)
    assert cold["name"] == rows[0]["name"]
    assert rows[0]["start_seconds"] < cold["start_seconds"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_gpu_items_write_rows_at_toy_size(monkeypatch, tmp_path):
    items = load("gpu_items", monkeypatch).ITEMS
    flags = ("--results", str(tmp_path / "rows.jsonl"), "--budget", "800", "--items", *items)
    rows = run("gpu", *flags)
    assert {row["item"] for row in rows if row["name"] == ""} == set(items)
    assert [row for row in rows if not row["ok"]] == []
