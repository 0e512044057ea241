"""Progress lines of a run, and streams that cannot be written."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.children import environment

from purejaxppo.runs.console import Console, SafeStream, fail, format_short

pytestmark = pytest.mark.toy


def test_a_progress_line_has_the_last_return_and_the_last_evaluation(capsys):
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


def test_a_wait_is_announced_once_unless_it_is_short_or_quiet(capsys):
    quiet = Console(100, quiet=True)
    for console in (Console(100), quiet):
        with console.announced("compiling ...", after=60.0):
            pass
    with Console(100).announced("compiling ...", after=0.0), quiet.announced("other", after=0.0):
        time.sleep(0.1)
    assert capsys.readouterr().out == "compiling ...\n"


def test_forced_colours_do_not_turn_lines_into_a_live_bar(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter does
    console = Console(100)
    with console:
        console.progress(50, 1000, 50.0, {}, left=2.0)
        console.print_line("one")
    out = capsys.readouterr().out
    assert out.count("\n") == 2 and "\r" not in out and "\x1b[?25l" not in out


def test_output_that_cannot_be_written_is_dropped():
    reader, writer = os.pipe()
    os.close(reader)
    closed = io.StringIO()
    closed.close()
    full = io.TextIOWrapper(io.FileIO(os.open("/dev/full", os.O_WRONLY), "w"), write_through=True)
    with open(writer, "w") as unread, full:
        for stream in (unread, full, closed, None):
            printed = SafeStream(stream)
            print("x" * 100_000, file=printed, flush=True)
            printed.write("more")
            printed.flush()


def test_characters_outside_a_streams_encoding_are_replaced():
    raw = io.BytesIO()
    printed = SafeStream(io.TextIOWrapper(raw, encoding="ascii"))
    print("größe: 1 ± 2 \udcff", file=printed, flush=True)
    assert raw.getvalue() == b"gr\\xf6\\xdfe: 1 +- 2 \\udcff\n"


def test_a_run_continues_without_a_reader_of_its_output(monkeypatch):
    """Rich alone would end the process."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        console = Console(100)
        console.print_line("one")
        console.progress(50, 1000, 50.0, {}, left=2.0)
        assert fail("two") == 2


def test_a_file_never_gets_the_descriptor_of_a_closed_stream(tmp_path):
    """Otherwise the output of libraries could be written to metrics.csv."""
    script = (
        "from purejaxppo.cli import begin_process\n"
        "begin_process()\n"
        "file = open('out', 'w')\n"
        "print('lost', flush=True)\n"
        "file.write(str(file.fileno() > 2))\n"
    )
    closed = [
        sys.executable,
        "-c",
        f"import os; os.closerange(0, 3); os.execv({sys.executable!r}, "
        f"[{sys.executable!r}, '-c', {script!r}])",
    ]
    subprocess.run(closed, cwd=tmp_path, env=environment(), check=True)
    assert Path(tmp_path, "out").read_text() == "True"


@pytest.mark.parametrize("log_file", ["", "run.log"])
def test_a_command_prints_warnings_once_without_the_name_of_the_logger(log_file, tmp_path):
    script = (
        "import logging, sys\n"
        "from pathlib import Path\n"
        "from purejaxppo.cli import begin_process\n"
        "from purejaxppo.config.schema import Config, LoggingConfig\n"
        "from purejaxppo.runs.logs import logs\n"
        "begin_process()\n"
        "logging.basicConfig()\n"
        "log = logging.getLogger('purejaxppo')\n"
        f"with logs(Config(logging=LoggingConfig(log_file={log_file!r})), Path(sys.argv[1])):\n"
        "    log.debug('detail')\n"
        "    log.warning('%s steps', 3)\n"
        "log.warning('after')\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["warning: 3 steps", "warning: after"]


def test_a_warning_is_printed_once_without_a_prefix_and_reaches_log_files(tmp_path):
    """Also with a handler that prints, as Orbax and `logging.basicConfig` add to the root."""
    code = (
        "import logging\n"
        "from purejaxppo.runs.console import print_warnings\n"
        "logging.basicConfig()\n"
        "logging.getLogger().addHandler(logging.FileHandler('all.log'))\n"
        "print_warnings()\n"
        "print_warnings()\n"
        "logging.getLogger('purejaxppo').warning('too few')\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), cwd=tmp_path, check=True
    )
    assert done.stdout + done.stderr == "warning: too few\n"
    assert (tmp_path / "all.log").read_text() == "too few\n"


@pytest.mark.toy
@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999.4, "999"),
        (999.7, "1k"),
        (-1234, "-1.23k"),
        (999_936, "1M"),
        (999_600_000, "1G"),
        (1_234_567, "1.23M"),
    ],
)
def test_numbers_are_rounded_to_three_digits(number, text):
    assert format_short(number) == text
