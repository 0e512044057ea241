"""Tables of measurements on the pages are generated from the rows of the benchmarks."""

import importlib.util
import re
import sys

import numpy as np
import pytest
from scipy import stats
from support.paths import ROOT

pytestmark = pytest.mark.toy

DEVICE = {"device": "CPU", "cores": 2}


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs" / "make_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def replace_rows(script, monkeypatch):
    """A function that replaces the stored rows, by the stem of their file."""

    def store(**rows):
        monkeypatch.setattr(script, "read", lambda name: rows.get(name, []))

    return store


def test_pages_and_comments_of_configs_are_up_to_date(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["make_results.py", "--check"])
    assert script.main() == 0, capsys.readouterr().err


def test_every_results_file_is_on_a_page(script):
    pages = "".join(path.read_text(encoding="utf-8") for path in script.PAGES)
    blocks = set(re.findall(r"^<!-- (\w+) -->$", pages, re.MULTILINE)) - {"end"}
    assert blocks == {*script.TABLES, *script.TEXTS}


def test_the_default_is_not_an_option_of_the_ablations(script):
    rows = [line for line in script.ablations() if line.startswith("| `")]
    assert rows and not any(line.startswith("| `` |") for line in rows)


def test_minutes_of_other_libraries_are_those_of_this_librarys_processor(script, replace_rows):
    """Brax's PPO trains for a time, so its returns are also those of this processor."""

    def row(seed, device, minutes, last, **own):
        common = {"config": "hopper_v5.yaml", "flags": "", "cores": 1, "env_steps": 1_000_000}
        own |= {"seed": seed, "device": device, "last_return_mean": last, "return_mean": last}
        return {**common, **own, "train_seconds": 60 * minutes, "seconds": 70 * minutes}

    peers = [
        row(seed, device, minutes, last, library=library)
        for library in ("sb3", "brax")
        for seed, device, minutes, last in ((0, "here", 10, 100), (1, "there", 30, 200))
    ]
    only_there = row(0, "there", 30, 50, library="sbx")
    other_cores = row(2, "here", 1, 0, library="sb3") | {"cores": 2}
    without_ours = row(0, "here", 1, 0, library="sb3") | {"config": "ant.yaml"}
    replace_rows(
        learning=[row(2, "there", 9, 700), row(0, "here", 2, 300), row(1, "here", 4, 500)],
        peer_returns=[*peers, only_there, other_cores, without_ours],
    )
    ours, sb3, brax, sbx = script.peer_returns()
    assert [ours["seeds"], ours["minutes"], ours["timed"], ours["device"]] == [3, "3.0", 2, "here"]
    assert ours["last"].startswith("500")
    assert [sb3["seeds"], sb3["minutes"], sb3["timed"], sb3["device"]] == [3, "10.0", 1, "here"]
    assert sb3["last"].startswith("100")
    assert [brax["seeds"], brax["minutes"], brax["last"]] == [1, "10.0", "100.0"]
    assert [sbx["seeds"], sbx["minutes"], sbx["timed"], sbx["device"]] == [1, "", 0, "there"]
    (training,) = script.several_seeds()
    assert [training[key] for key in ("seeds", "train_seconds", "device")] == [3, 180, "here"]


def test_ratios_use_the_contender_of_the_same_group(script, replace_rows):
    common = {"steps": 100, "compile_seconds": 2.5, "peak_mb": 1500, **DEVICE}

    def row(contender, seeds, speed):
        rounds = [speed - 10, speed, speed + 10]
        own = {"contender": contender, "about": f"about {contender}", "seeds": seeds}
        return {**common, **own, "steps_per_second": speed, "rounds": rounds}

    replace_rows(seeds=[row("together", 4, 800), row("plain", 4, 200), row("together", 8, 900)])
    lines = script.tables("seeds")
    head = next(line for line in lines if line.startswith("| seeds"))
    assert head.endswith("| of PureJaxRL's plan |")
    assert "| 4 | about together | 800 | 790 to 810 | 2.5 | 1,500 MB | 4.00 |" in lines
    assert "| 8 | about together | 900 | 890 to 910 | 2.5 | 1,500 MB |  |" in lines


def test_host_speeds_are_divided_by_the_fastest_simulator_of_equal_size(script, replace_rows):
    def row(contender, kind, num_envs, speed):
        counts = {"rollout_length": 4, "num_minibatches": 2, "num_epochs": 3}
        sizes = {"env": "envpool/H", "num_envs": num_envs, **counts}
        own = {"contender": contender, "about": contender, "kind": kind, "sizes": sizes}
        return {
            "task": "hopper",
            **own,
            "steps_per_second": speed,
            "rounds": [speed],
            "versions": {},
            **DEVICE,
        }

    replace_rows(
        host=[
            row("ours", "training", 8, 600),
            row("sb3", "training", 8, 300),
            row("pool", "simulator", 8, 1000),
            row("pool-jit", "simulator", 8, 1200),
            row("pool-wide", "simulator", 64, 9000),
        ]
    )
    lines = script.tables("host")
    assert "| ours | 8 x 4, 2 minibatches, 3 epochs | 600 | 600 to 600 | 0.50 | 2.00 |" in lines
    assert "| pool | 8 x 4 | 1,000 | 1,000 to 1,000 | 0.83 | 3.33 |" in lines


def learning_row(config, seed, last, best, flags=""):
    returns = {"last_return_mean": last, "return_mean": best}
    cost = {"env_steps": 2_000_000, "train_seconds": 10.0, "seconds": 20.0}
    return {"config": config, "flags": flags, "seed": seed, **returns, **cost, **DEVICE}


def test_several_seeds_have_a_spread_and_one_seed_has_none(script, replace_rows):
    replace_rows(
        learning=[
            learning_row("cartpole.yaml", 0, 100.0, 300.0),
            learning_row("bipedalwalker.yaml", 0, 251.2, 262.0),
            learning_row("cartpole.yaml", 1, 102.0, 310.0),
        ]
    )
    *_, several, _ = script.tables("several_seeds")
    assert several.startswith("| `cartpole` | 2 | 101.0 ± 1.4 | 100.0, 102.0 | 305.0 ± 7.1 |")
    *_, single, _ = script.tables("one_seed")
    assert single == (
        "| `bipedalwalker` | 251.2 | 262.0 | 287.9 ± 2.4[^sb3-zoo] (v3, 5 M steps) "
        "| 2.00 M | 10 (20) | 2 x CPU |"
    )
    assert "Last checkpoints reach 251" in script.remarks()[1]


def test_first_comments_of_configs_give_the_return_of_the_last_checkpoint(
    script, replace_rows, tmp_path, monkeypatch
):
    monkeypatch.setattr(script, "CONFIGS", tmp_path)
    (tmp_path / "a.yaml").write_text("# Task: return 1\nseed: 0\n")
    (tmp_path / "b.yaml").write_text("# Other, alone: not measured\n")
    replace_rows(
        learning=[
            learning_row("a.yaml", 0, 7.0, 7.0, flags="--seed 7"),
            learning_row("a.yaml", 0, 2000.0, 2100.0),
            learning_row("a.yaml", 1, 2002.0, 2104.0),
            learning_row("b.yaml", 0, 18.49, 15.84),
            learning_row("gone.yaml", 0, 1.0, 1.0),
        ]
    )
    assert script.first_comments() == {
        tmp_path / "a.yaml": "# Task: return 2,001 ± 1 over 2 seeds after 2.0 M steps (best "
        "checkpoint 2,102 ± 3)\nseed: 0\n",
        tmp_path / "b.yaml": "# Other, alone: return 18.5 of one seed after 2.0 M steps (best "
        "checkpoint 15.8)\n",
    }


def test_every_published_number_has_a_source(script):
    published = script.PUBLISHED
    libraries = {library for numbers in published["numbers"].values() for library in numbers}
    assert libraries == set(published["sources"])
    configs = {path.name for path in (ROOT / "configs").glob("*.yaml")}
    for section in ("numbers", "remarks", "largest"):
        assert set(published[section]) <= configs


def test_interquartile_mean_and_stratified_bootstrap(script):
    iqm = script.harness.iqm
    assert iqm(np.array([100.0, 1.0, 3.0, 2.0, 5.0])) == pytest.approx((1.5 + 3 + 0.75 * 5) / 2.5)
    one, other = np.array([1.0, 2.0, 3.0, 4.0, 9.0]), np.array([0.0, 5.0, 6.0, 7.0, 8.0])
    middle, low, high = script.harness.iqm_interval([one, other])
    assert middle == pytest.approx((2 / 2 + 3 + 4 + 5 + 6 + 7 / 2) / 5)
    rng = np.random.default_rng(1)  # the runs of a task are drawn only from that task
    drawn = [np.concatenate([rng.choice(x, 5) for x in (one, other)]) for _ in range(4000)]
    quarters = [stats.trim_mean(np.repeat(x, 4), 0.25) for x in drawn]
    expected = np.quantile(quarters, [0.025, 0.975])
    assert (low, high) == pytest.approx(tuple(expected), abs=0.25)


def test_every_resampled_base_sets_the_scale_of_a_difference(script):
    runs, base = np.array([3.0, 5.0, 7.0, 9.0]), np.array([1.0, 2.0, 2.0, 3.0])
    middle, low, high = script.harness.iqm_interval([runs], [base])
    # The means of the middle two over the mean of the base.
    assert middle == pytest.approx(6 / 2 - 2 / 2)
    rng = np.random.default_rng(1)
    drawn = [(rng.choice(runs, 4), rng.choice(base, 4)) for _ in range(20_000)]
    differences = [
        (stats.trim_mean(x, 0.25) - stats.trim_mean(y, 0.25)) / y.mean() for x, y in drawn
    ]
    expected = np.quantile(differences, [0.025, 0.975])
    assert (low, high) == pytest.approx(tuple(expected), abs=0.1)


def test_tasks_with_different_numbers_of_runs_have_equal_weight(script):
    tasks = [np.full(2, 0.0), np.full(6, 4.0)]
    middle = script.harness.iqm_interval(tasks)
    assert middle == pytest.approx((2.0, 2.0, 2.0))  # without weights it would be 4


def test_each_run_twice_gives_the_same_interquartile_mean(script):
    tasks = [np.array([0.2, 0.9, 1.0, 1.1, 1.8]), np.array([0.1, 0.5, 1.0, 1.2, 2.2])]
    twice = [np.tile(runs, 2) for runs in tasks]
    assert script.harness.iqm(*twice) == pytest.approx(script.harness.iqm(*tasks), rel=1e-12)


def test_suites_normalise_between_random_and_the_highest_published_number(
    script, replace_rows, monkeypatch
):
    configs = script.PUBLISHED["suites"]["MuJoCo v5"]
    monkeypatch.setitem(script.PUBLISHED, "suites", {"MuJoCo v5": configs})
    last = {config: script.highest(config)[0] for config in configs}
    runs = [learning_row(config, seed, last[config], 0) for config in configs for seed in (0, 1)]
    other = learning_row(configs[0], 0, -1e6, 0, flags="--seed 3")  # not the config as it is
    replace_rows(
        learning=[*runs, other],
        random_returns=[{"config": config, "return_mean": -100.0} for config in configs],
    )
    assert script.highest("hopper_v5.yaml") == (3211.0, "PPO and Friends")
    tasks = len(configs)
    (total,) = (line for line in script.suites() if f"{tasks} tasks |" in line)
    assert total == f"| **MuJoCo v5**, {tasks} tasks | {2 * tasks} | 1.00 (1.00 to 1.00) |"
    assert [line for line in script.suite_means() if "tasks |" in line] == [total]


def test_sources_that_publish_all_tasks_of_a_suite_have_a_row(script, replace_rows, monkeypatch):
    configs = ["acrobot.yaml", "pendulum.yaml"]
    monkeypatch.setitem(script.PUBLISHED, "suites", {"Both": configs})
    numbers = {
        "acrobot.yaml": {"SB3 zoo": ["50 ± 9", ""], "Tianshou": [100, ""], "Pgx": [90, ""]},
        "pendulum.yaml": {"SB3 zoo": [0, ""], "Tianshou": ["-80 ± 1", ""]},
    }
    monkeypatch.setitem(script.PUBLISHED, "numbers", numbers)
    replace_rows(
        learning=[learning_row(config, seed, 0, 0) for config in configs for seed in (0, 1)],
        random_returns=[
            {"config": "acrobot.yaml", "return_mean": 0.0},
            {"config": "pendulum.yaml", "return_mean": -100.0},
        ],
    )
    rows = [line for line in script.suite_means() if "published" in line]
    assert rows == [  # SB3: (0.5 + 1) / 2; Tianshou: (1 + 0.2) / 2; Pgx has one task
        "| **Both**, 2 tasks, means published by SB3 zoo |  | 0.75 |",
        "| **Both**, 2 tasks, means published by Tianshou |  | 0.60 |",
    ]


def test_seeds_succeed_from_the_named_return_on(script, replace_rows, monkeypatch):
    tasks = [
        {"task": "Walker", "score": 319, "config": "bipedalwalker.yaml", "at_least": 300},
        {"task": "Tag", "score": "1, -1", "config": "mpe_tag.yaml"},
        {"task": "Absent", "score": 1, "reason": "no package is available"},
    ]
    monkeypatch.setitem(script.PUBLISHED, "ppo_and_friends", tasks)
    walker = [
        learning_row("bipedalwalker.yaml", seed, x, 0) for seed, x in enumerate((299, 300, 301))
    ]
    metrics = {"return_mean/hunters": 4.0, "return_mean/prey": -3.0, "caught": 1.0}
    tag = learning_row("mpe_tag.yaml", 0, 0.5, 0) | {"last_metrics": metrics}
    replace_rows(learning=[*walker, tag])
    first, second, third = script.ppo_and_friends()
    assert (first["least"], first["passed"], first["ours"]) == ("300", "2 of 3", "300.0 ± 1.0")
    assert (second["passed"], second["ours"]) == ("", "hunters 4.0, prey -3.0")
    assert (third["label"], third["ours"]) == ("", "no package is available")


def test_studies_name_shared_flags_once_and_report_saturation(script, replace_rows):
    def row(study, variant, flags, last):
        names = {"study": study, "variant": variant, "flags": flags, "config": "cartpole.yaml"}
        return {**names, "last": last, "steps": [5e4, 1e5], "seeds": len(last)}

    replace_rows(
        studies=[
            row("rate", "3", "--a.b 1 -2 --lr 3", [499.0, 500.0]),
            row("rate", "c", "--a.b 1 -2 --lr 4 --c", [488.0, 490.0]),
            row("start", "x", " --x", [400.0, 500.0]),
            row("start", "-", " ", [500.0, 500.0]),
        ]
    )
    lines = script.studies()
    saturated = [line for line in lines if "within 3 %" in line]
    assert "**Rate**, `cartpole.yaml` `--a.b 1 -2`, 100 k steps, 2 seeds:" in lines
    assert "| 3 | `--lr 3` | 500 ± 1 |" in lines
    assert "| c | `--lr 4 --c` | 489 ± 1 |" in lines
    assert len(saturated) == 1 and lines.index(saturated[0]) < lines.index(
        "**Start**, `cartpole.yaml`, 100 k steps, 2 seeds:"
    )


def test_every_footnote_of_a_page_has_one_definition_and_is_used(script):
    for path in script.PAGES:
        text = path.read_text(encoding="utf-8")
        defined = re.findall(r"^\[\^([\w-]+)\]: ", text, re.MULTILINE)
        used = re.findall(r"\[\^([\w-]+)\](?!: )", text)
        assert len(defined) == len(set(defined))
        assert set(defined) == set(used)


def test_speeds_of_the_first_page_are_those_of_both_contenders(script, monkeypatch, replace_rows):
    entry = {"rows": "throughput", "where": {"task": "a"}, "compare": ["ours", "brax"]}
    speed = {"hopper": {**entry, "peer": "Brax", "see": "speed"}}
    monkeypatch.setattr(script, "PUBLISHED", {"speed": speed})
    rows = [("a", "ours", 30), ("a", "brax", 20), ("b", "ours", 50), ("b", "brax", 10)]
    names = "task", "contender", "steps_per_second"
    replace_rows(throughput=[dict(zip(names, row, strict=True)) | DEVICE for row in rows])
    *_, line, _ = script.tables("speed")
    link = "[hopper](results_details.md#speed)"
    assert line == f"| {link} | 30 | Brax | 20 | 1.50 | 2 x CPU |"
