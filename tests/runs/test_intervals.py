"""When rows, evaluations and checkpoints are due."""

import pytest

from purejaxppo.config.schema import CheckpointConfig, LoggingConfig
from purejaxppo.runs.intervals import Intervals
from purejaxppo.runs.progress import Progress

pytestmark = pytest.mark.toy


@pytest.mark.parametrize(
    ("interval", "keep", "update", "saved", "age", "due"),
    [
        (0, 2, 2, 0, 11.0, True),  # a tenth of 20 updates
        (0, 2, 2, 0, 9.0, False),  # the last checkpoint is recent
        (0, 2, 3, 0, 11.0, True),  # later, the missed one is due
        (0, 2, 3, 2, 11.0, False),
        (0, 2, 3, 2, 301.0, True),
        (0, 3, 2, 0, 0.1, True),  # with keep > 2 every checkpoint is written
        (96, 2, 2, 0, 0.1, True),  # an explicit interval ignores the age of the last one
        (96, 2, 1, 0, 11.0, False),
        (96, 2, 1, 0, 301.0, True),
    ],
)
def test_a_checkpoint_is_due_at_its_interval_unless_the_last_is_recent(
    interval, keep, update, saved, age, due, make_config
):
    """Updates have 48 steps. A checkpoint is at most 300 s old."""
    checkpoint = CheckpointConfig(interval=interval, keep=keep, max_seconds=300.0)
    config = make_config(total_timesteps=20 * 48, checkpoint=checkpoint)
    every = Intervals(config)
    every.begin(saved)
    assert every.save_due(update, age) is due
    assert 0 <= every.age() < 5


def test_max_seconds_below_ten_is_respected(make_config):
    config = make_config(total_timesteps=20 * 48, checkpoint=CheckpointConfig(max_seconds=2.0))
    assert Intervals(config).save_due(1, 2.1)
    assert not Intervals(config).save_due(2, 1.9)


def test_default_intervals_are_whole_updates(make_config):
    """200 updates: rows every 2, evaluations every 10, checkpoints every 20."""
    every = Intervals(make_config(total_timesteps=200 * 48, eval={"num_episodes": 4}))
    progress = Progress.of(1)
    assert (every.log, every.eval, every.save) == (2, 10, 20)
    assert [every.until_next(update) for update in (0, 1, 19, 199)] == [2, 1, 1, 1]
    progress.update = 10
    assert every.due(every.eval, progress, 9)
    progress.update = 11
    assert not every.due(every.eval, progress, 10)


def test_videos_are_off_by_default_and_due_at_whole_updates(make_config):
    """Updates have 48 steps."""
    assert Intervals(make_config()).video == 0
    every = Intervals(
        make_config(total_timesteps=200 * 48, logging=LoggingConfig(video_interval=150))
    )
    assert every.video == 3
    assert [every.until_next(update) for update in (0, 1, 2)] == [2, 1, 1]


def test_intervals_with_absent_agents_count_decisions(make_config):
    """200 updates of 48 rows: rows of metrics every 96 decisions, evaluations every 480."""
    config = make_config(total_timesteps=200 * 48, eval={"num_episodes": 4})
    every = Intervals(config, sparse=True)
    assert (every.total, every.log, every.eval, every.save) == (9600, 96, 480, 960)
    progress = Progress(update=50, member_steps=[500, 490])
    assert every.done(progress) == 490
    assert every.due(every.eval, progress, 479) and not every.due(every.eval, progress, 480)
    assert every.until_next(490) == 1


def test_a_run_with_absent_agents_ends_after_its_decisions_or_a_hundred_times_its_rows(make_config):
    every = Intervals(make_config(total_timesteps=200 * 48), sparse=True)
    assert not every.ended(Progress(update=200, member_steps=[9599]))
    assert every.ended(Progress(update=201, member_steps=[9600]))
    assert not every.ended(Progress(update=199, member_steps=[9600, 9599]))
    assert not every.ended(Progress(update=20_000 - 1, member_steps=[0]))
    assert every.ended(Progress(update=20_000, member_steps=[0]))
