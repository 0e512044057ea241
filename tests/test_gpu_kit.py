"""The command that measures a GPU, rehearsed on a CPU: the same rows, with small sizes."""

import json
import subprocess
import sys

import pytest
from support.children import environment
from support.paths import ROOT
from test_gpu_programs import load_script

pytestmark = pytest.mark.xdist_group("processes")
SCRIPT = ROOT / "benchmarks" / "gpu.py"
MAY_FAIL = ("one run", "gpu tests", "ant", "seeds", "mjx", "oscillator", "balance", "sizes")
"""Items with rows that need a package, a simulator or JAX's plugin for them."""
ALIKE = ("cells", "sizes", "widths")
"""Items of many trainings, which are rehearsed one by one in the others."""


def rehearse(path, *flags):
    """Runs the command; returns its output and all rows."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "--rehearse", "--results", path, *flags],
        capture_output=True,
        text=True,
        check=False,
        env=environment(JAX_NUM_CPU_DEVICES="1"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, [json.loads(x) for x in path.read_text(encoding="utf-8").splitlines()]


def test_an_item_that_its_limit_ended_is_not_tried_again_and_its_rows_stay(tmp_path):
    path = tmp_path / "rows.jsonl"
    _, rows = rehearse(path, "--items", "machine", "--limit", "0.01")
    (ended,) = rows
    assert not ended["ok"] and ended["why"] == "ended after 0 s"
    path.write_text(json.dumps({"item": "machine", "name": "launch", "ok": True}) + "\n")
    _, rows = rehearse(path, "--items", "machine")
    names = [row["name"] for row in rows]
    assert names[0] == "launch" and names.count("launch") == 1 and names[-1] == ""
    assert {"versions", "bandwidth", "products, highest", "products, high"} < set(names)
    again, rows_again = rehearse(path, "--items", "machine")
    assert rows_again == rows
    assert "machine: launch, ok" in again


@pytest.mark.toy
def test_a_line_says_what_was_reached(tmp_path):
    script = load_script("gpu")
    row = {
        "item": "cartpole",
        "name": "cartpole, 4096",
        "ok": True,
        "sizes": "4096 x 32",
        "compile_seconds": 12.34,
        "update_us": 5000.0,
        "launches": 2500,
        "launch_us": 2.0,
        "peak_gib": None,
        "predicted": [17e6, 34e6],
        "steps_per_second": 26e6,
        "rounds": [25e6, 26e6, 27e6],
        "ratio": 2.0,
        "rival": "Brax's PPO",
    }
    assert script.line(row) == (
        "cartpole: cartpole, 4096, 4096 x 32, ok, compiled in 12.3 s, 5,000 us per update, "
        "2,500 launches, 2.00 us per launch, predicted 17,000,000-34,000,000, "
        "26,000,000 (25,000,000-27,000,000) steps/s, target 10,000,000 met, "
        "2.00 times Brax's PPO"
    )
    assert script.line({"item": "x", "name": "y", "ok": False, "why": "no z"}) == "x: y, no z"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("left_out", "least"),
    [
        pytest.param(ALIKE, 25, marks=pytest.mark.slow),
        pytest.param((), 50, marks=pytest.mark.slow),
    ],
    ids=["one of each kind", "whole"],
)
def test_a_rehearsal_has_every_row(left_out, least, tmp_path):
    items = [item for item in load_script("gpu").ITEMS if item not in left_out]
    _, rows = rehearse(tmp_path / "rows.jsonl", "--budget", "800", "--items", *items)
    assert {row["item"] for row in rows if row["name"] == ""} == set(items)
    failed = [row for row in rows if not row["ok"] and row["item"] not in (*MAY_FAIL, "envpool")]
    assert failed == []
    assert all(len(row["rounds"]) for row in rows if "rounds" in row)
    assert len([row for row in rows if row["name"]]) > least
