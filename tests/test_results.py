"""The results page follows the rows that the benchmarks wrote."""

import importlib.util

import numpy as np
import pytest
from scipy import stats
from support.paths import ROOT

pytestmark = pytest.mark.toy


def load_script(name="make_results"):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def host_row(contender, kind, env, num_envs, speed):
    sizes = {
        "env": env,
        "num_envs": num_envs,
        "rollout_length": 4,
        "num_minibatches": 2,
        "num_epochs": 3,
    }
    return {
        "task": "hopper",
        "contender": contender,
        "about": f"about {contender}",
        "kind": kind,
        "sizes": sizes,
        "steps_per_second": speed,
        "rounds": [speed],
        "device": "CPU",
        "cores": 2,
        "versions": {},
    }


def test_host_table_compares_with_the_same_simulator_and_with_each_peer():
    rows = [
        host_row("ours", "training", "envpool/H", 8, 600),
        host_row("sb3", "training", "gymnasium/H", 8, 300),
        host_row("pool", "simulator", "envpool/H", 8, 1000),
        host_row("pool-jit", "simulator", "envpool/H", 8, 1200),
        host_row("pool-wide", "simulator", "envpool/H", 64, 9000),
    ]
    lines = load_script().host(rows)
    assert (
        "| about ours | 8 x 4, 2 minibatches, 3 epochs | 600 | 600 to 600 | 0.50 | 2.00 |" in lines
    )
    assert "| about sb3 | 8 x 4, 2 minibatches, 3 epochs | 300 | 300 to 300 |  | 1.00 |" in lines
    assert "| about pool | 8 x 4 | 1,000 | 1,000 to 1,000 | 0.83 | 3.33 |" in lines


def test_start_table_divides_by_the_version_before_and_by_a_part_alone():
    common = {"what": "hopper", "device": "CPU", "cores": 2}
    rounds = {"ours": [3.0, 2.0, 9.0], "before": [6.0, 12.0, 5.0], "imports": [2.0, 2.0, 2.0]}
    rows = [{**common, "contender": name, "rounds": taken} for name, taken in rounds.items()]
    lines = load_script().startup(rows)
    assert (
        "| hopper | 3.0 (2.0 to 9.0) | 6.0 (5.0 to 12.0) | 0.50 | importing JAX and Brax | "
        "2.0 (2.0 to 2.0) | 1.50 |" in lines
    )
    (line,) = load_script().startup(rows[:1])[-1:]
    assert line == "| hopper | 3.0 (2.0 to 9.0) |  |  |  |  |  |"


def test_jax_table_divides_our_speed_by_that_of_the_simulators_own_reset():
    common = {"env": "craftax/C", "num_envs": 256, "device": "CPU"}
    rows = [
        {**common, "contender": "ours", "steps_per_second": 300.4, "rounds": [290, 310]},
        {**common, "contender": "own", "steps_per_second": 200.0, "rounds": [200]},
    ]
    row = "| craftax/C | 256 | 300 | 290 to 310 | 200 | 200 to 200 | 1.50 |"
    assert f"{row}  |" in load_script().jax_world(rows)
    last = {**common, "contender": "own, last", "steps_per_second": 100.0, "rounds": [100]}
    assert f"{row} 3.00 |" in load_script().jax_world([*rows, last])


def learning_row(config, seed, last, best, **more):
    return {
        "config": config,
        "flags": "",
        "seed": seed,
        "return_mean": best,
        "last_return_mean": last,
        "env_steps": 2_000_000,
        "train_seconds": 10.0,
        "seconds": 20.0,
        **DEVICE,
        **more,
    }


def test_the_last_checkpoint_comes_first_and_one_seed_stands_apart_without_spread():
    rows = [
        learning_row("cartpole.yaml", 0, 100.0, 300.0),
        learning_row("ant.yaml", 0, 50.0, 60.0),
        learning_row("cartpole.yaml", 1, 102.0, 310.0),
    ]
    lines = load_script().learning(rows)
    apart = lines.index("### One seed")
    (several,) = [line for line in lines[:apart] if line.startswith("| `")]
    (single,) = [line for line in lines[apart:] if line.startswith("| `")]
    assert several.startswith(
        "| `cartpole.yaml` | 2 | 101.0 ± 1.4 | 100.0, 102.0 | 305.0 ± 7.1 | 500 ± 0 (SB3 zoo: "
    )
    assert single == "| `ant.yaml` | 50.0 | 60.0 |  | 2.00 M | 10 | 20 | 2 x CPU |"


def test_each_published_number_says_whose_it_is_after_what_budget_and_of_what_kind():
    kinds = (
        "over its episodes",
        "of one seed",
        "over 3 seeds",
        "over seeds",
        "of seeds",
        "one agent",
        "read off its plots",
        "not said",
    )
    script = load_script()
    for numbers in script.PUBLISHED.values():
        for about in numbers.values():
            who, what = about.split(": ", 1)
            assert who and any(kind in what for kind in kinds)
            assert "steps" in what or who == "PPO and Friends" or "REPPO" in who
    assert script.published("bipedalwalker.yaml").startswith(
        "287.9 ± 2.4 (SB3 zoo: v3, 5 M steps; "
    )


def test_what_is_said_of_a_row_has_the_rows_own_numbers():
    row = learning_row("minatar_freeway.yaml", 0, 51.2, 52.0)
    assert load_script().learning([row])[-1].startswith("* Freeway stands at 51 where")


def test_first_comments_of_configs_say_what_the_last_checkpoint_reached(tmp_path, monkeypatch):
    script = load_script()
    monkeypatch.setattr(script, "CONFIGS", tmp_path)
    (tmp_path / "a.yaml").write_text("# Task: return 1\nseed: 0\n")
    (tmp_path / "b.yaml").write_text("# Other, alone: not measured\n")
    rows = [
        learning_row("a.yaml", 0, 7.0, 7.0, flags="--seed 7"),
        learning_row("a.yaml", 0, 2000.0, 2100.0),
        learning_row("a.yaml", 1, 2002.0, 2104.0),
        learning_row("b.yaml", 0, 18.49, 15.84),
        learning_row("gone.yaml", 0, 1.0, 1.0),
    ]
    assert script.commented(rows) == {
        tmp_path / "a.yaml": "# Task: return 2,001 ± 1 over 2 seeds after 2.0 M steps (best "
        "checkpoint 2,102 ± 3)\nseed: 0\n",
        tmp_path / "b.yaml": "# Other, alone: return 18.5 of one seed after 2.0 M steps (best "
        "checkpoint 15.8)\n",
    }


def ablation_row(study, config, flags, last, **more):
    variant = (flags.split() or ["-"])[-1]
    names = {"study": study, "variant": variant, "config": config, "flags": flags}
    return {**names, "last": last, "steps": [5e4, 1e5], "seeds": len(last), **more}


def test_each_study_names_all_its_flags_and_says_where_it_is_saturated():
    rows = [
        ablation_row("rate", "cartpole.yaml", "--a.b 1 -2 --lr 3", [499.0, 500.0]),
        ablation_row("rate", "cartpole.yaml", "--a.b 1 -2 --lr 4 --c", [488.0, 490.0]),
        ablation_row("start", "cartpole.yaml", " --x", [400.0, 500.0], teacher="--steps 9"),
        ablation_row("start", "cartpole.yaml", " ", [500.0, 500.0], teacher="--steps 9"),
    ]
    script = load_script()
    lines = script.ablations(rows)
    assert lines[0] == "**Rate**, `cartpole.yaml` `--a.b 1 -2`, 100 k steps, 2 seeds:"
    assert lines[2] == script.SATURATED
    assert "| 3 | `--lr 3` | 500 ± 1 |" in lines
    assert "| --c | `--lr 4 --c` | 489 ± 1 |" in lines
    start = lines.index(
        "**Start**, `cartpole.yaml`, 100 k steps, 2 seeds; the teacher's flags: `--steps 9`:"
    )
    assert script.SATURATED not in lines[start:]
    assert "| - |  | 500 ± 0 |" in lines


def test_tables_without_rows_are_left_out():
    script = load_script()
    assert script.host([]) == script.anatomy([]) == script.processes([]) == []
    assert script.seeds([]) == script.scaling([]) == script.batch([]) == []
    assert script.communication([]) == script.costs([]) == script.roofline([]) == []


DEVICE = {"device": "CPU", "cores": 2}


def seeds_row(contender, speed, **more):
    return {
        "contender": contender,
        "about": f"about {contender}",
        "seeds": 4,
        "steps": 100,
        "steps_per_second": speed,
        "rounds": [speed],
        "compile_seconds": 2.5,
        "peak_mb": 1500,
        **DEVICE,
        **more,
    }


def test_seeds_table_compares_with_purejaxrls_plan_at_the_same_number_of_seeds():
    rows = [
        seeds_row("together", 800),
        seeds_row("plain", 200),
        seeds_row("together", 900, seeds=8, device_peak_mb=70),
    ]
    lines = load_script().seeds(rows)
    assert "| 4 | about together | 800 | 800 to 800 | 0.50 | 2.5 | 1,500 MB | 4.00 |" in lines
    assert "| 8 | about together | 900 | 900 to 900 | 0.89 | 2.5 | 70 MB |  |" in lines


def test_batch_table_has_a_column_per_learning_rate():
    def row(growth, rate, seed, score):
        return {
            "task": "cartpole",
            "factor": 4,
            "growth": growth,
            "sizes": {"num_envs": 64, "num_minibatches": 4 * growth},
            "rate": rate,
            "learning_rate": rate * 1e-3,
            "seed": seed,
            "curve": [[50, 1.0], [100, score]],
            "gradient_steps": 32 * growth,
            "program_seconds": 1.5,
            **DEVICE,
        }

    rows = [row(1, 1, 0, 10.0), row(1, 1, 1, 20.0), row(1, 2, 0, 30.0), row(4, 2, 0, 40.0)]
    lines = load_script().batch(rows)
    assert "**cartpole**, learning rate 0.001, 100 steps, 2 seeds, 2 x CPU:" in lines
    assert "| 64 | 4 | 32 | 1.5 | 15.0 ± 7.1 | 30.0 |" in lines
    assert "| 64 | 16 | 128 | 1.5 |  | 40.0 |" in lines


def test_growing_sizes_are_told_per_step():
    row = {
        "task": "cartpole",
        "axis": "width",
        "value": 64,
        "steps_per_second": 500_000,
        "program_mb": 1.44,
        **DEVICE,
    }
    assert "| cartpole | width | 64 | 2.00 | 1.4 MB | 2 x CPU |" in load_script().scaling([row])


def test_an_update_is_compared_with_its_gradients_cpu_time():
    row = {
        "task": "cartpole",
        "contenders": [["gradients", "alone"], ["update", "all"]],
        "microseconds": {"gradients": 300.0, "update": 450.0},
        "cpu_microseconds": {"gradients": 400.0, "update": 600.0},
        "rounds": {"gradients": [299.0, 300.0, 302.0], "update": [440.0, 450.0, 470.0]},
        **DEVICE,
    }
    lines = load_script().roofline([row])
    assert "| alone | 300 | 299 to 302 | 400 | 1.00 |" in lines
    assert "| all | 450 | 440 to 470 | 600 | 1.50 |" in lines


def test_communication_bounds_the_speed():
    row = {
        "case": "case",
        "steps_per_update": 1000,
        "num_envs": 100,
        "sums": 9,
        "bytes": 4000,
        "gradient_sums": 2,
        "gradient_bytes": 1900,
        "costs": [
            {
                "about": "one node",
                "devices": 8,
                "latency": 2e-6,
                "bandwidth": 3e11,
                "gradient_seconds": 2e-5,
                "seconds": 1e-3,
            }
        ],
    }
    script = load_script()
    lines = script.communication([row]) + script.costs([row])
    assert "| case | 1,000 | 9 | 2 | 1,900 | 4,000 |" in lines
    assert "| case | 8, one node | 2 µs | 300 GB/s | 20 µs | 1.0 ms | 1.00 M | 8 M |" in lines


def test_blocks_of_a_page_are_written_anew(tmp_path, monkeypatch):
    script = load_script()
    page = "a\n<!-- seeds -->\nold\n<!-- end -->\nb\n"
    monkeypatch.setattr(script, "ROWS", tmp_path)
    assert script.filled(page) == "a\n<!-- seeds -->\n<!-- end -->\nb\n"
    (tmp_path / "seeds.jsonl").write_text("{}\n")
    assert "(pictures/seeds.png)" in script.filled(page)
    assert script.filled(script.filled(page)) == script.filled(page)


def test_results_page_is_up_to_date(monkeypatch):
    monkeypatch.setattr("sys.argv", ["make_results.py", "--check"])
    assert load_script().main() == 0, "run: python docs/make_results.py"


def test_interquartile_means_and_their_intervals():
    """Against numbers by hand, and scipy's own bootstrap of two tasks."""
    curves = load_script("learning_curves")
    assert curves.iqm(np.array([100.0, 1.0, 3.0, 2.0, 4.0])) == 3.0
    one, other = np.array([1.0, 2.0, 3.0, 4.0, 9.0]), np.array([0.0, 5.0, 6.0, 7.0, 8.0])
    middle, low, high = curves.interval([one, other])
    assert middle == pytest.approx(np.mean([2, 3, 4, 5, 6, 7]))
    reference = stats.bootstrap(
        (one, other),
        lambda x, y, axis: stats.trim_mean(np.concatenate([x, y], axis), 0.25, axis),
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert (low, high) == pytest.approx(tuple(reference), abs=0.25)
    assert low < middle < high


def test_tasks_with_different_numbers_of_runs_have_the_same_weight():
    """Without weights, the six runs at 4 make the middle half, whose mean is 4."""
    curves = load_script("learning_curves")
    tasks = [np.full(2, 0.0), np.full(6, 4.0)]
    assert curves.interval(tasks) == (2.0, 2.0, 2.0)
    np.testing.assert_array_equal(curves.pooled(tasks), [0.0] * 6 + [4.0] * 6)
    rows = [learning_row("hopper_v5.yaml", seed, seed, seed) for seed in range(3)]
    flags = [row | {"flags": "--seed 3"} for row in rows]
    randoms = dict.fromkeys(curves.SUITES["MuJoCo v5"], 0.0)
    others = [learning_row(config, seed, 1, 1) for config in list(randoms)[1:] for seed in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        random_rows = [{"config": config, "return_mean": 0.0} for config in randoms]
        patch.setattr(curves.results, "read", lambda name: random_rows)
        (line,) = [x for x in curves.suites([*rows, *flags, *others]) if "**MuJoCo v5**" in x]
    assert line.startswith("| **MuJoCo v5**, 5 tasks | 11 |")  # without the runs with flags


def test_returns_are_normalised_between_random_actions_and_what_others_publish():
    curves = load_script("learning_curves")
    rows = [learning_row("hopper_v5.yaml", seed, last, last) for seed, last in ((0, 0), (1, 2410))]
    found = curves.normalised(rows, {"hopper_v5.yaml": 383.0})
    np.testing.assert_allclose(found, [-383 / 2027, 1.0], atol=1e-4)
