"""Processes of the lowest class keep cores awake and end with their parent."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.runs import assert_same_bits, final_state, train

from purejaxppo.parallel import awake
from purejaxppo.parallel.cores import cpu_cores

linux = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="needs Linux")


@pytest.mark.toy
def test_a_system_without_the_scheduling_class_gets_a_one_sentence_error(monkeypatch):
    monkeypatch.delattr(os, "SCHED_IDLE", raising=False)
    with pytest.raises(
        ValueError, match=r"^keep_cores_awake = true: \w+ does not support .*= false\.$"
    ):
        awake.check()


@linux
def test_each_core_has_an_idle_class_process_that_ends_with_the_block():
    with awake.kept_awake(True) as processes:
        started = [process.pid for process in processes]
        assert len(started) == cpu_cores()
        wait_for(lambda: all(os.sched_getscheduler(x) == os.SCHED_IDLE for x in started))
        wait_for(lambda: sorted(map(os.sched_getaffinity, started), key=min) == each_core())
        # A terminal's Ctrl-C is sent to a process group. Sessions get equal shares of the cores.
        assert os.getpgid(0) not in map(os.getpgid, started)
        assert {os.getsid(0)} == set(map(os.getsid, started))
        assert all(map(runs, started))
    wait_for(lambda: not any(Path(f"/proc/{x}").exists() for x in started))
    with awake.kept_awake(False) as started:
        assert started == []


@linux
def test_awake_processes_end_with_a_killed_parent():
    code = (
        "import time\nfrom purejaxppo.parallel import awake\n"
        "with awake.kept_awake(True) as started:\n"
        "    print(*[x.pid for x in started], flush=True)\n    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    started = list(map(int, parent.stdout.readline().split()))
    assert started and all(map(runs, started))
    parent.kill()
    parent.communicate()
    wait_for(lambda: not any(map(runs, started)))


@linux
@pytest.mark.full
def test_awake_cores_are_printed_and_do_not_change_a_run(config_file, capsys):
    for name, flags in (("awake", ["--keep_cores_awake"]), ("asleep", [])):
        assert train(config_file, *flags, "--run_dir", name) == 0
        assert (" kept awake: " in capsys.readouterr().out) == (name == "awake")
    (awake_state, _), (other, _) = final_state("awake"), final_state("asleep")
    assert_same_bits(awake_state, other)


def wait_for(fact, seconds=20.0):
    """Wait until a condition is true. On a busy host, idle-class processes start late."""
    until = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < until
        time.sleep(0.02)


def each_core():
    return [{core} for core in sorted(os.sched_getaffinity(0))]


def runs(process):
    """Return whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").split()[2] != "Z"
    except OSError:
        return False
