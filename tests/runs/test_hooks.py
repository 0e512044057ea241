"""Hooks of a run: progress, videos during training, the debug log."""

import re
from types import SimpleNamespace

import pytest
from support.runs import train

from purejaxppo.config.schema import Config
from purejaxppo.runs.hooks import ShowProgress
from purejaxppo.runs.intervals import Intervals
from purejaxppo.runs.progress import Progress
from purejaxppo.runs.rows import read_csv

CONFIG = """
env: {name: gymnax/CartPole-v1, num_envs: 4}
network: {hidden: [8]}
ppo: {rollout_length: 8, num_minibatches: 2, num_epochs: 1}
eval: {num_episodes: 2, interval: 64}
num_shards: 1
total_timesteps: 128
"""
LOGGER = """
from purejaxppo import Logger

class Paths(Logger):
    def start(self, context):
        self.file = (context.run_dir / "videos.log").open("w")

    def video(self, path, step):
        print(path.name, step, path.stat().st_size > 1000, file=self.file)

    def close(self):
        self.file.close()
"""
BLIND = """
from support.own_code import Walk

class Blind(Walk):
    def draw(self, states, *, height, width):
        raise RuntimeError("an OpenGL platform library has not been loaded.")
"""


def test_the_time_left_counts_evaluations_but_not_compilation():
    """Of 10 updates, each trains for 1 s; the rest is spent in evaluations.

    After update 1: 9 s of training. After update 3: 2 updates took 6 s, so 7 take 21 s. Update 4
    compiles the evaluation: 6 s of training are left. After update 6: 2 took 8 s, so 4 take 16 s.
    """
    config = Config().replace(total_timesteps=10 * Config().steps_per_update)
    shown, times = [], iter([100.0, 106.0, 199.0, 207.0, 223.0])
    console = SimpleNamespace(progress=lambda *values: shown.append(values[-1]))
    hook = ShowProgress(lambda: next(times))
    for update in (1, 3, 4, 6, 10):
        hook.act(
            SimpleNamespace(
                progress=Progress(update, float(update), [update]),
                intervals=Intervals(config),
                members=[config],
                console=console,
                speed=1.0,
                rows=[{"update": update}],
                evaluated=update in (4, 6),
            )
        )
    assert shown == [9.0, 21.0, 6.0, 16.0, 0.0]


@pytest.fixture
def config_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paths.py").write_text(LOGGER)
    path = tmp_path / "small.yaml"
    path.write_text(CONFIG)
    return path


def rows_of(run):
    """Return the rows of a run without measured times."""
    timed = ("seconds", "charts/SPS")
    return [{k: x for k, x in row.items() if k not in timed} for row in read_csv(run)]


def test_videos_are_files_go_to_loggers_and_do_not_change_a_run(config_file, tmp_path):
    flags = ["--logging.video_interval", 64, "--logging.loggers", "paths.py:Paths"]
    assert train(config_file, "--run_dir", "filmed", *flags) == 0
    assert train(config_file, "--run_dir", "plain") == 0
    rows = rows_of(tmp_path / "filmed/metrics.csv")
    assert rows == rows_of(tmp_path / "plain/metrics.csv")
    steps = [int(row["global_step"]) for row in rows if row["update"] in (2, 4)]
    names = sorted(path.name for path in (tmp_path / "filmed/videos").iterdir())
    assert names == sorted(f"{step}.mp4" for step in steps)
    lines = (tmp_path / "filmed/videos.log").read_text().splitlines()
    assert lines == [f"{step}.mp4 {step} True" for step in steps]
    events = b"".join(x.read_bytes() for x in (tmp_path / "filmed/tensorboard").iterdir())
    assert events.count(b"eval/video") == 2
    assert train(config_file, "--run_dir", "filmed", "--clobber") == 0
    assert not (tmp_path / "filmed/videos").exists()


def test_a_video_of_several_agents_has_the_steps_of_the_first(config_file, tmp_path):
    flags = ["--logging.video_interval", 64, "--logging.loggers", "paths.py:Paths"]
    assert train(config_file, "--run_dir", "run", "--num_seeds", 3, "--seed", 4, *flags) == 0
    rows = read_csv(tmp_path / "run/metrics.csv")
    steps = [int(row["global_step"]) for row in rows if row["update"] == 4]
    assert len(set(steps)) > 1  # episodes end at different steps
    *_, line = (tmp_path / "run/videos.log").read_text().splitlines()
    assert line.split()[:2] == [f"{sum(steps) // 3}.mp4", str(steps[0])]


def test_clobber_deletes_the_debug_log(config_file, tmp_path):
    for _ in range(2):
        flags = ["--logging.log_file", "logs/debug.log", "--clobber"]
        assert train(config_file, "--run_dir", "run", *flags) == 0
    assert (tmp_path / "run/logs/debug.log").read_text().count("train traced") == 1


def test_a_video_that_cannot_be_drawn_is_one_warning_and_the_run_completes(
    config_file, tmp_path, capsys
):
    (tmp_path / "blind.py").write_text(BLIND)
    flags = ["--logging.video_interval", 32, "--env.name", "jax/blind.py:Blind"]
    assert train(config_file, "--run_dir", "run", *flags) == 0
    out = capsys.readouterr().out
    assert out.count("no more videos") == 1
    assert (
        "warning: no more videos: an OpenGL platform library has not been loaded. Training "
        "continues.\n"
    ) in out
    assert read_csv(tmp_path / "run/metrics.csv")[-1]["update"] == 4


def test_the_debug_log_has_lines_of_each_component(config_file, tmp_path):
    flags = ["--logging.log_file", "debug.log", "--logging.tensorboard", "false"]
    assert train(config_file, "--run_dir", "run", "--logging.video_interval", 64, *flags) == 0
    text = (tmp_path / "run/debug.log").read_text()
    for pattern in (
        r"compile: train traced in \d+\.\d s, compiled in \d+\.\d s\n",
        r"train: 1 updates to update 1 in \d+\.\d+ s\n",
        r"row of agent 0: .*losses/entropy 0\.\d+",
        r"rollout: obs float32 \[1, 1, 4, 4\] from -?\d\S* to \d\S*, mean \S+, 0 not finite\n",
        r"update: params float32 \[\d+\] from ",
        r"evaluation: \[1, 2\] episodes in \d+\.\d\d s\n",
        r"video: \d+\.mp4 in \d+\.\d\d s\n",
        r"checkpoint: 12\d steps, 0\.\d\d MB, training waited ",
        r"console: evaluate: ",
    ):
        assert re.search(pattern, text), pattern
