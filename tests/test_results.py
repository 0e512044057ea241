"""The results page follows the rows that the benchmarks wrote."""

import importlib.util
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "make_results.py"


def load_script():
    spec = importlib.util.spec_from_file_location("make_results", SCRIPT)
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


def test_tables_without_rows_are_left_out():
    script = load_script()
    assert script.host([]) == script.anatomy([]) == script.processes([]) == []


def test_results_page_is_up_to_date():
    check = subprocess.run([sys.executable, SCRIPT, "--check"], check=False)
    assert check.returncode == 0, "run: python docs/make_results.py"
