"""A run's log file, and what other loggers print meanwhile."""

import logging

from support.disk import file_size_limit

from purejaxppo.config.schema import LoggingConfig
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


def test_late_errors_of_a_failed_save_are_not_printed(make_config, tmp_path, caplog):
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
