"""Lines that a run prints about its progress."""

import pytest

from purejaxppo.runs.console import Console

pytestmark = pytest.mark.toy


def test_a_line_has_the_last_return_and_the_last_evaluation(capsys):
    console = Console(100, lines=True)
    rows = (
        {},
        {"charts/episodic_return": 0.0},
        {"eval/return_mean": 0.94},
        {"charts/episodic_return": 0.0, "eval/return_mean": float("nan")},
    )
    for i, row in enumerate(rows):
        console.progress(25 * (i + 1), 1000 * (i + 1), 50.0, row, 1.5 - 0.5 * i)
    assert capsys.readouterr().out.splitlines() == [
        " 25%  1k steps  50 steps/s  return -  0:02 left",
        " 50%  2k steps  50 steps/s  return 0.0  0:01 left",
        " 75%  3k steps  50 steps/s  return 0.0  eval 0.940  0:00 left",
        "100%  4k steps  50 steps/s  return 0.0  eval -  0:00 left",
    ]
