"""Loggers: where rows are written, and what a killed run leaves there."""

import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support.disk import file_size_limit
from tensorboardX.proto.event_pb2 import Event

from purejaxppo.config.files import write_whole
from purejaxppo.config.schema import LoggingConfig
from purejaxppo.runs.console import message_of
from purejaxppo.runs.loggers import (
    CsvLogger,
    DelayedLogger,
    Loggers,
    TensorBoardLogger,
    open_loggers,
)
from purejaxppo.runs.rows import read_csv


class Wandb:
    """As much of W&B as a logger uses: a run by its id, whose steps only increase."""

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


def test_a_killed_run_continues_in_wandb_at_the_step_of_its_checkpoint(
    wandb, tmp_path, make_config
):
    saved = []
    config = make_config(logging=LoggingConfig(tensorboard=False, wandb_project="ours"))

    def begin():
        opened = Loggers()
        open_loggers(opened, config, tmp_path, [config], [0], lambda: saved[-1] if saved else None)
        (logger,) = opened.loggers
        return logger

    logger = begin()
    for step in (10, 20, 30, 40):
        logger.write({"global_step": step, "charts/episodic_return": 1.0})
        if step == 20:
            saved.append(step)
    # Killed here: no close, and no checkpoint after 20 steps. The rest is the resumed run.
    logger = begin()
    for step in (32, 45):
        logger.write({"global_step": step, "charts/episodic_return": 2.0})
    saved.append(45)
    logger.close()
    (rows,) = wandb.runs.values()
    assert rows == [(10, 1.0), (20, 1.0), (32, 2.0), (45, 2.0)]


def test_rows_after_the_last_checkpoint_are_dropped_at_the_end():
    passed = []
    inner = SimpleNamespace(write=lambda row: passed.append(row["global_step"]), close=list)
    logger = DelayedLogger(inner, lambda: 20)
    for step in (10, 20, 30):
        logger.write({"global_step": step})
    logger.close()
    assert passed == [10, 20]


def events(folder):
    """Yield the events of the files in a folder. A record is length, checksum, data, checksum."""
    for path in sorted(folder.glob("events.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("Q", data[:8])
            yield Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def test_tensorboard_files_hold_rows_and_the_values_of_callbacks(tmp_path):
    logger = TensorBoardLogger(tmp_path, 7)
    logger.write({"global_step": 10, "update": 3, "charts/a": 1.5, "charts/b": float("nan")})
    logger.writer.add_histogram("mine/weights", np.arange(4.0), 10)
    logger.writer.add_scalars("mine", {"left": 1.0, "right": 2.0}, 10)
    logger.writer.add_scalars("mine", {"left": 3.0}, 20)
    logger.close()
    found = list(events(tmp_path))
    assert [event.step for event in found] == [0, 8, 8, 10, 10]  # a header, the purge, two values
    assert found[2].session_log.status == 1  # steps from 8 on in older files are void
    values = [value for event in found for value in event.summary.value]
    assert [value.tag for value in values] == ["charts/a", "mine/weights"]
    assert values[0].simple_value == 1.5
    assert values[1].histo.num == 4
    left = [v for event in events(tmp_path / "mine/left") for v in event.summary.value]
    assert [(value.tag, value.simple_value) for value in left] == [("mine", 1.0), ("mine", 3.0)]


@pytest.mark.parametrize("make", [TensorBoardLogger, CsvLogger])
def test_a_row_that_cannot_be_written_is_an_error_that_names_the_path(make, tmp_path):
    """tensorboardX alone would block at the eleventh value on a full disk."""
    place = tmp_path / "there"
    logger = make(place, 0)
    row = {"global_step": 1, "update": 1} | {f"charts/{i}": 0.123456789 for i in range(100)}
    with file_size_limit(8192):
        with pytest.raises(OSError, match="written") as failed:
            for _ in range(100):
                logger.write(row)
        with pytest.raises(OSError, match="written"):
            logger.close()
    assert str(failed.value) == f"{place} cannot be written (file too large)"


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_kept(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("old")
    with file_size_limit(100), pytest.raises(OSError, match="large") as failed:
        write_whole(path, "x" * 1000)
    assert message_of(failed.value) == f"{path}: file too large"
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    "damage",
    [
        b"30,3,1.5",  # a whole number of cells, but the last one may be cut off
        b"30,3",
        b"30,3,\xff\xfe\r\n",
        b"30,3,1.5,7\r\n",
        b"30,,1.5\r\n",
        b"\x00\x00\x00\r\n",
        b'"30,3\r\n',
        b"\r\n",
    ],
)
def test_damaged_rows_are_left_out_with_a_warning_and_the_others_kept(damage, tmp_path, caplog):
    path = tmp_path / "metrics.csv"
    whole = b"10,1,0.5\r\n20,2,\r\n"
    path.write_bytes(b"global_step,update,charts/a\r\n" + whole + damage)
    rows = [{"global_step": 10, "update": 1, "charts/a": 0.5}, {"global_step": 20, "update": 2}]
    assert read_csv(path) == rows
    assert caplog.messages == [f"{path}: skipped 1 corrupt row(s), the first on line 4"]
    logger = CsvLogger(path, 2, ("global_step", "update", "charts/a"))
    logger.write({"global_step": 30, "update": 3, "charts/a": 2.0})
    logger.close()
    caplog.clear()
    assert read_csv(path) == [*rows, {"global_step": 30, "update": 3, "charts/a": 2.0}]
    assert caplog.messages == []
