"""Cores are kept awake by processes of the lowest class, which end with their parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from support.runs import assert_same_bits, final_state, train

from purejaxppo.parallel import awake
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.parallel.shards import Shards

linux = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="needs Linux")
CPU = jax.devices("cpu")
VIRTUAL = "processor : 0\nflags : fpu vme hypervisor avx2\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Writes what the system says of itself; by itself a virtual machine of two cores."""

    def write(cpuinfo=VIRTUAL, smt="0\n", cgroup="0::/\n", cores=2, **quotas):
        for name, text in (("PROCESSOR", cpuinfo), ("HYPERTHREADS", smt), ("OWN_CGROUPS", cgroup)):
            path = tmp_path / name
            path.write_text(text, encoding="utf-8")
            monkeypatch.setattr(awake, name, path)
        monkeypatch.setattr(awake, "CGROUPS", tmp_path / "groups")
        for name, text in quotas.items():
            path = tmp_path / "groups" / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        monkeypatch.setattr(awake, "cpu_cores", lambda: cores)

    write()
    return write


@pytest.mark.toy
@linux
def test_auto_keeps_the_cores_of_a_virtual_machine_awake_where_shards_wait_for_each_other(machine):
    assert awake.wanted("auto", Shards(2, CPU[:2]))
    assert awake.wanted("auto", Shards(4, CPU[:2]))
    assert not awake.wanted("auto", Shards(1, CPU[:2])), "one device waits for nobody"
    assert not awake.wanted("auto", Shards(1, CPU[:2], 2)), "agents do not wait for each other"
    assert not awake.wanted("never", Shards(2, CPU[:2]))
    machine(cores=4)
    assert not awake.wanted("auto", Shards(2, CPU[:2])), "others may have the cores that are left"


@pytest.mark.toy
@linux
@pytest.mark.parametrize(
    "said",
    [
        {"cpuinfo": "flags : fpu vme avx2\n"},
        {"smt": "1\n"},
        {"cpu_dot_max": "150000 100000\n"},
        {"cgroup": "0::/pods/one\n", "pods__one__cpu_dot_max": "max 100000\n"}
        | {"pods__cpu_dot_max": "200000 100000\n"},
        {"cgroup": "3:cpu,cpuacct:/job\n", "cpu,cpuacct__job__cpu_dot_cfs_quota_us": "50000\n"},
        {"cgroup": "3:cpuacct,cpu:/job\n", "cpu,cpuacct__job__cpu_dot_cfs_quota_us": "50000\n"},
    ],
)
def test_auto_leaves_other_machines_alone(machine, said):
    machine(**said)
    assert not awake.wanted("auto", Shards(2, CPU[:2]))
    assert awake.wanted("always", Shards(2, CPU[:2]))


@pytest.mark.toy
@linux
@pytest.mark.parametrize(
    "said",
    [
        {"cpu_dot_max": "max 100000\n"},
        {"cgroup": "3:cpu:/job\n2:memory:/x\n", "cpu__job__cpu_dot_cfs_quota_us": "-1\n"},
    ],
)
def test_a_group_without_a_quota_is_none(machine, said):
    machine(**said)
    assert awake.wanted("auto", Shards(2, CPU[:2]))


@pytest.mark.toy
def test_a_system_without_the_class_is_told_so_in_a_sentence(monkeypatch):
    monkeypatch.delattr(os, "SCHED_IDLE", raising=False)
    awake.check("auto")
    assert not awake.wanted("always", Shards(2, CPU[:2]))
    with pytest.raises(ValueError, match=r"keep_cores_awake = always needs .*auto does without"):
        awake.check("always")


@linux
def test_each_core_has_a_process_of_the_lowest_class_that_ends_with_the_block():
    with awake.kept_awake(True) as started:
        assert len(started) == cpu_cores()
        wait_for(lambda: all(os.sched_getscheduler(x) == os.SCHED_IDLE for x in started))
        wait_for(lambda: sorted(map(os.sched_getaffinity, started), key=min) == each_core())
        assert all(ignores(x, signal.SIGINT) for x in started)  # a Ctrl-C reaches all of a terminal
        assert all(map(runs, started))
    wait_for(lambda: not any(Path(f"/proc/{x}").exists() for x in started))
    with awake.kept_awake(False) as started:
        assert started == []


@linux
def test_one_that_has_ended_is_not_ended_again(monkeypatch):
    killed = []
    with awake.kept_awake(True) as started:
        os.kill(started[0], signal.SIGKILL)
        os.waitpid(started[0], 0)  # by another part of the program; the id may be anybody's now
        kill = os.kill
        monkeypatch.setattr(os, "kill", lambda *given: killed.append(given[0]) or kill(*given))
    assert killed == started[1:]


@linux
def test_they_end_with_a_parent_that_is_killed():
    code = (
        "import time\nfrom purejaxppo.parallel import awake\n"
        "with awake.kept_awake(True) as started:\n"
        "    print(*started, flush=True)\n    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    started = list(map(int, parent.stdout.readline().split()))
    assert started and all(map(runs, started))
    parent.kill()
    parent.communicate()
    wait_for(lambda: not any(map(runs, started)))


@linux
@pytest.mark.full
def test_a_run_says_so_and_learns_the_same(config_file, capsys):
    for when in ("always", "never"):
        assert train(config_file, "--keep_cores_awake", when, "--run_dir", when) == 0
        assert (" kept awake, " in capsys.readouterr().out) == (when == "always")
    (awake_state, _), (other, _) = final_state("always"), final_state("never")
    assert_same_bits(awake_state, other)


def wait_for(fact, seconds=20.0):
    """Until a fact is true: processes of the lowest class begin late on a busy machine."""
    until = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < until
        time.sleep(0.02)


def ignores(process, number):
    """True if a process does not hear a signal, whenever it was started."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    blocked = next(line.split()[1] for line in lines if line.startswith("SigBlk"))
    return bool(int(blocked, 16) >> (number - 1) & 1)


def each_core():
    return [{core} for core in sorted(os.sched_getaffinity(0))]


def runs(process):
    """True if there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").split()[2] != "Z"
    except OSError:
        return False
