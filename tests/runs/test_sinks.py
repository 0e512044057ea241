"""Where rows go, and what a killed run leaves there."""

import sys
from types import SimpleNamespace

import pytest

from purejaxppo.config.schema import LoggingConfig
from purejaxppo.runs.sinks import HeldBack, open_sinks


class Wandb:
    """As much of W&B as a sink uses: a run by its id, whose steps only increase."""

    Error = RuntimeError

    def __init__(self):
        self.runs = {}

    def init(self, *, id, **_):
        rows = self.runs.setdefault(id, [])

        def log(row, step):
            assert not rows or step > rows[-1][0], "a backward step, which W&B drops"
            rows.append((step, row["charts/episodic_return"]))

        return SimpleNamespace(log=log, finish=lambda: None)


@pytest.fixture
def wandb(monkeypatch):
    fake = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_a_killed_run_goes_on_in_wandb_at_the_step_of_its_save(wandb, tmp_path, make_config):
    saved = []
    config = make_config(logging=LoggingConfig(tensorboard=False, wandb_project="ours"))

    def begin():
        (sink,) = open_sinks(config, tmp_path, [config], [0], lambda: saved[-1] if saved else None)
        return sink

    sink = begin()
    for step in (10, 20, 30, 40):
        sink.write({"global_step": step, "charts/episodic_return": 1.0})
        if step == 20:
            saved.append(step)
    # Killed here: no close, and no save after 20 steps. What follows is another life's.
    sink = begin()
    for step in (32, 45):
        sink.write({"global_step": step, "charts/episodic_return": 2.0})
    saved.append(45)
    sink.close()
    (rows,) = wandb.runs.values()
    assert rows == [(10, 1.0), (20, 1.0), (32, 2.0), (45, 2.0)]


def test_rows_that_no_save_covers_are_dropped_at_the_end():
    passed = []
    inner = SimpleNamespace(write=lambda row: passed.append(row["global_step"]), close=list)
    sink = HeldBack(inner, lambda: 20)
    for step in (10, 20, 30):
        sink.write({"global_step": step})
    sink.close()
    assert passed == [10, 20]
