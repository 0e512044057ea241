"""Loggers: where rows are written, and what a killed run leaves there."""

import io
import math
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image
from support.disk import file_size_limit
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from purejaxppo.config.files import write_whole
from purejaxppo.config.schema import EnvConfig, LoggingConfig
from purejaxppo.envs import registry
from purejaxppo.runs.console import message_of
from purejaxppo.runs.folder import record_run
from purejaxppo.runs.loggers import (
    CsvLogger,
    DelayedLogger,
    Logger,
    Loggers,
    Opening,
    TensorBoardLogger,
    custom_loggers,
    open_loggers,
)
from purejaxppo.runs.rows import csv_cells, read_csv
from purejaxppo.video import video


class Wandb:
    """As much of W&B as a logger uses: runs by their id, whose steps only increase."""

    Error = RuntimeError

    def __init__(self):
        self.runs, self.settings = {}, {}

    def init(self, *, id, **settings):
        rows = self.runs.setdefault(id, [])
        self.settings[id] = settings

        def log(row, step):
            assert not rows or step >= rows[-1][0], "a backward step, which W&B drops"
            rows.append((step, row))

        return SimpleNamespace(log=log, finish=lambda: None)

    def Video(self, path, format):
        assert format == "mp4"
        return Path(path).name


@pytest.fixture
def wandb(monkeypatch):
    fake = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


OURS = LoggingConfig(tensorboard=False, wandb_project="ours", wandb_tags=("a", "b"))


def open_all(folder, members, saved=lambda: 10**9, custom=()):
    """Return the open loggers of a run with these agents."""
    opened, steps = Loggers(), [0] * len(members)
    open_loggers(opened, Opening(members[0], folder, members, steps, saved), custom)
    return opened


def rows_at(step, *returns):
    return [{"global_step": step, "member": i, "eval/a": x} for i, x in enumerate(returns)]


def test_a_killed_run_continues_in_wandb_at_the_step_of_its_checkpoint(
    wandb, tmp_path, make_config
):
    saved = []
    config = make_config(logging=OURS)

    def begin():
        return open_all(tmp_path, [config], lambda: saved[-1] if saved else None)

    logger = begin()
    for step in (10, 20, 30, 40):
        logger.write(rows_at(step, 1.0))
        if step == 20:
            logger.video(Path("20.mp4"), [20])
            saved.append(step)
    # Killed here: no close, and no checkpoint after 20 steps. The rest is the resumed run.
    logger = begin()
    for step in (32, 45):
        logger.write(rows_at(step, 2.0))
    saved.append(45)
    logger.close()
    (rows,) = wandb.runs.values()
    assert [(step, row.get("eval/a")) for step, row in rows] == [
        (10, 1.0),
        (20, 1.0),
        (20, None),
        (32, 2.0),
        (45, 2.0),
    ]
    assert rows[2][1] == {"eval/video": "20.mp4"}
    (settings,) = wandb.settings.values()
    assert settings["tags"] == ["a", "b"] and settings["group"] is None
    assert settings["name"] == tmp_path.name and settings["config"]["env.num_envs"] == 4


def test_each_agent_is_a_wandb_run_of_one_group_and_copies_are_left_out(
    wandb, tmp_path, make_config
):
    members = [make_config(logging=OURS, ppo={"gamma": x}) for x in (0.9, 0.99, 0.99)]
    logger = open_all(tmp_path, members)
    logger.write(rows_at(10, 1.0, 2.0, 2.0))
    logger.close()
    assert len((tmp_path / "wandb_id").read_text().split()) == 3
    assert [rows for rows in wandb.runs.values()] == [
        [(10, {"global_step": 10, "eval/a": 1.0})],
        [(10, {"global_step": 10, "eval/a": 2.0})],
    ]
    names = [settings["name"] for settings in wandb.settings.values()]
    assert names == [f"{tmp_path.name} ppo.gamma = {x}" for x in ("0.9", "0.99")]
    assert {settings["group"] for settings in wandb.settings.values()} == {tmp_path.name}
    assert [settings["config"]["ppo.gamma"] for settings in wandb.settings.values()] == [0.9, 0.99]


def test_a_start_without_a_checkpoint_leaves_no_logs_behind(tmp_path, make_config):
    """Its number of agents may have been another one."""
    (tmp_path / "tensorboard").mkdir()
    for name in ("wandb_id", "tensorboard/events", "notes.txt"):
        (tmp_path / name).write_text("abc")
    record_run(make_config(), tmp_path)
    assert not (tmp_path / "wandb_id").exists() and not (tmp_path / "tensorboard").exists()
    (tmp_path / "wandb_id").write_text("abc")
    (tmp_path / "checkpoints/10/agent").mkdir(parents=True)
    record_run(make_config(), tmp_path)
    assert (tmp_path / "wandb_id").exists() and (tmp_path / "notes.txt").exists()


def test_whole_numbers_are_written_with_all_digits():
    row = {"global_step": 12_345_678_901, "update": np.int64(3), "a": 1 / 3, "b": math.inf}
    cells = csv_cells(row)
    assert list(cells.values()) == ["12345678901", "3", "0.3333333333", "inf"]
    assert csv_cells({name: float(cell) for name, cell in cells.items()}) == cells


def test_a_run_of_version_0_2_continues_the_mean_of_its_seeds_in_wandb(
    wandb, tmp_path, make_config
):
    (tmp_path / "wandb_id").write_text("abc")
    members = [make_config(logging=OURS, seed=seed) for seed in (0, 1)]
    logger = open_all(tmp_path, members)
    logger.write(rows_at(10, 1.0, 2.0))
    assert wandb.runs == {"abc": [(10, {"global_step": 10.0, "eval/a": 1.5})]}


class Recording(Logger):
    """A custom logger that stores its calls."""

    def __init__(self):
        self.calls = []

    def start(self, context):
        self.calls.append((context.name, context.config["seed"]))

    def metrics(self, row, step):
        self.calls.append((step, row["eval/a"]))


def test_a_class_logs_each_agent_and_an_object_their_mean(tmp_path, make_config):
    one = Recording()
    settings = LoggingConfig(loggers=(Recording, one), tensorboard=False)
    members = [make_config(logging=settings, seed=seed) for seed in (3, 4)]
    made = custom_loggers(members[0], 2)
    logger = open_all(tmp_path, members, custom=made)
    logger.write(rows_at(10, 1.0, 2.0))
    logger.close()
    name = tmp_path.name
    first, second = made[0].loggers
    assert first.calls == [(f"{name} seed = 3", 3), (10, 1.0)]
    assert second.calls == [(f"{name} seed = 4", 4), (10, 2.0)]
    assert one.calls == [(name, 3), (10, 1.5)]


def test_a_logger_that_raises_is_reported_once_and_gets_the_next_rows(
    tmp_path, make_config, caplog
):
    class Broken(Recording):
        def metrics(self, row, step):
            super().metrics(row, step)
            raise ConnectionError("no server")

        def close(self):
            raise ConnectionError("no server")

    config = make_config(logging=LoggingConfig(loggers=(Broken,), tensorboard=False))
    members = [config, config.replace(seed=1)]
    made = custom_loggers(config, 2)
    logger = open_all(tmp_path, members, custom=made)
    for step in (10, 20):
        logger.write(rows_at(step, 1.0, 2.0))
    logger.close()
    assert made[0].loggers[1].calls[1:] == [(10, 2.0), (20, 2.0)]
    (warning,) = [x.getMessage() for x in caplog.records if x.levelname == "WARNING"]
    assert "logging.loggers = object of" in warning and "Broken: metrics: line " in warning
    assert warning.endswith(
        "raises ConnectionError: no server. metrics.csv is complete, and the run continues."
    )


def test_rows_after_the_last_checkpoint_are_dropped_at_the_end():
    passed = []
    inner = SimpleNamespace(write=lambda rows: passed.append(rows[0]["global_step"]), close=list)
    logger = DelayedLogger(inner, lambda: 20)
    for step in (10, 20, 30):
        logger.write([{"global_step": step}])
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
    logger.metrics({"update": 3, "charts/a": 1.5, "charts/b": float("nan")}, 10)
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
    for folder in (tmp_path, tmp_path / "mine/left"):  # steps from 8 on in older files are void
        starts = [event.step for event in events(folder) if event.session_log.status == 1]
        assert starts == [8]


def test_tensorboard_files_hold_the_config_its_hyperparameters_and_videos(tmp_path, make_config):
    path = tmp_path / "a.mp4"
    task = registry.make_task(EnvConfig(name="gymnax/CartPole-v1"))
    state = jax.device_get(task.reset(jax.random.key(0))[0])
    video.record(task, [state] * 20, path)
    logger = TensorBoardLogger(tmp_path / "board", 0, make_config(ppo={"gamma": 0.875}))
    logger.video(path, 10)
    logger.close()
    found = {v.tag: v for event in events(tmp_path / "board") for v in event.summary.value}
    assert b"gamma: 0.875" in found["config/text_summary"].tensor.string_val[0]
    start = found["_hparams_/session_start_info"].metadata.plugin_data.content
    hparams = HParamsPluginData.FromString(start).session_start_info.hparams
    assert hparams["ppo.gamma"].number_value == 0.875 and hparams["seed"].number_value == 0
    assert "logging.interval" not in hparams
    image = found["eval/video"].image
    with Image.open(io.BytesIO(image.encoded_image_string)) as gif:
        assert (gif.width, gif.height) == (image.width, image.height) == (400, 300)
        assert gif.n_frames > 2


@pytest.mark.parametrize("make", [TensorBoardLogger, CsvLogger])
def test_a_row_that_cannot_be_written_is_an_error_that_names_the_path(make, tmp_path):
    """tensorboardX alone would block at the eleventh value on a full disk."""
    place = tmp_path / "there"
    logger = make(place, 0)
    row = {"global_step": 1, "update": 1} | {f"charts/{i}": 0.123456789 for i in range(100)}
    with file_size_limit(8192):
        with pytest.raises(OSError, match="written") as failed:
            for _ in range(100):
                logger.write([row]) if make is CsvLogger else logger.metrics(row, 1)
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
    assert caplog.messages == [f"{path}: skipped 1 corrupt row, the first on line 4"]
    logger = CsvLogger(path, 2, ("global_step", "update", "charts/a"))
    logger.write([{"global_step": 30, "update": 3, "charts/a": 2.0}])
    logger.close()
    caplog.clear()
    assert read_csv(path) == [*rows, {"global_step": 30, "update": 3, "charts/a": 2.0}]
    assert caplog.messages == []
