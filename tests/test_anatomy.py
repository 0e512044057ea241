"""benchmarks/anatomy.py measures every piece of an environment step."""

import importlib.util
import sys

import pytest
from support.paths import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("anatomy", FOLDER / "anatomy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("machine", "ours", "turns"):
        sys.modules.pop(name, None)


def test_anatomy_measures_every_piece_of_a_host_simulator(script, monkeypatch, tmp_path, capsys):
    sizes = {
        "env": "gymnasium/CartPole-v1",
        "num_envs": 2,
        "rollout_length": 4,
        "num_minibatches": 1,
        "num_epochs": 1,
        "hidden": (4,),
        **script.COMMON,
    }
    monkeypatch.setitem(script.TASKS, "toy", sizes)
    row = script.row("toy", script.measure(sizes, 2, 0.0))
    script.show(row)
    assert "gymnasium/CartPole-v1: " in capsys.readouterr().out
    assert [name for name, _ in row["pieces"]] == ["simulator", *reversed(script.PIECES)]
    whole = sum(value for _, value in row["pieces"])
    assert whole == pytest.approx(row["microseconds"], abs=0.01)
    script.draw([row], tmp_path / "anatomy.png")
    assert (tmp_path / "anatomy.png").read_bytes().startswith(b"\x89PNG")
