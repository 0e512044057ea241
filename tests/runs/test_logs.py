"""The log file of a run, and the output of other loggers."""

import contextlib
import logging
import sys
from concurrent.futures import ThreadPoolExecutor

from support.disk import file_size_limit

from purejaxppo.config.schema import Config, LoggingConfig
from purejaxppo.runs.logs import logs


def test_a_log_file_on_a_full_disk_does_not_end_a_run(make_config, tmp_path, capfd):
    config = make_config(logging=LoggingConfig(log_file="debug.log"))
    with file_size_limit(4096), logs(config, tmp_path):
        for _ in range(100):
            logging.getLogger("purejaxppo").debug("a line of some length" * 10)
            logging.getLogger("absl").error("a thread of a save failed")
    assert capfd.readouterr() == ("", "")
    assert "a thread of a save failed" in (tmp_path / "debug.log").read_text()
    assert not logging.getLogger("purejaxppo").handlers


def test_late_errors_of_a_failed_checkpoint_are_not_printed(make_config, tmp_path, caplog):
    asyncio = logging.getLogger("asyncio")
    with logs(make_config(), tmp_path):
        pass
    asyncio.error("Task exception was never retrieved\nfuture: <Task orbax/checkpoint>")
    trace = {}
    exec(compile("def save(): raise OSError(28, 'No space')", "orbax/path.py", "exec"), trace)
    try:
        trace["save"]()
    except OSError as error:
        asyncio.error("Future exception was never retrieved", exc_info=error)
    asyncio.error("Task exception was never retrieved\nfuture: <Task own.py>")
    assert [record.getMessage()[-8:] for record in caplog.records] == [" own.py>"]


class Run:
    """The log of a run in its own thread."""

    def __init__(self, folder, log_file="run.log"):
        self.thread, self.stack = ThreadPoolExecutor(1), contextlib.ExitStack()
        self.file = folder / log_file
        self.context = logs(Config(logging=LoggingConfig(log_file=log_file)), folder)

    def call(self, function, *args):
        return self.thread.submit(function, *args).result()

    def begin(self):
        self.call(self.stack.enter_context, self.context)

    def end(self):
        self.call(self.stack.close)
        self.thread.shutdown()

    def lines(self):
        return [line.rpartition(" ")[2] for line in self.file.read_text().splitlines()]


def test_runs_in_threads_log_only_their_own_lines(tmp_path, caplog):
    one, other = (Run(tmp_path / name) for name in ("one", "other"))
    ours, absl = logging.getLogger("purejaxppo"), logging.getLogger("absl")

    def state():
        hook, handlers = sys.unraisablehook, [*ours.handlers, *absl.handlers]
        return hook, handlers, ours.level, ours.propagate, absl.propagate

    before = state()
    one.begin()
    one.call(ours.debug, "first")
    other.begin()
    other.call(ours.debug, "second")
    one.call(ours.warning, "third")
    ours.debug("everyone")
    one.end()  # the other one's log is still open
    other.call(ours.debug, "fourth")
    other.call(ours.warning, "fifth")
    other.call(absl.debug, "no level for debug detail")
    other.call(absl.error, "sixth")
    other.end()
    ours.debug("none")
    assert one.lines() == ["first", "third", "everyone"]
    assert other.lines() == ["second", "everyone", "fourth", "fifth", "sixth"]
    assert [record.getMessage() for record in caplog.records] == ["third", "fifth"]
    assert state() == before
