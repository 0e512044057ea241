"""Signals where the handlers of Python do not run: in a computation, a compiler, a hang."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="calls the C library"),
    pytest.mark.xdist_group("processes"),
]

BUSY = """
import ctypes, os, pathlib, sys
from purejaxppo import interrupts

interrupts.handle_signals()
if "take" in sys.argv:
    taker = interrupts.Interrupt()
with interrupts.atomic_write(pathlib.Path("video.gif")) as partial:
    partial.write_text("half of it")
    print("not flushed")
    lock, wait = ctypes.create_string_buffer(64), ctypes.CDLL(None).sem_wait
    ctypes.CDLL(None).sem_init(lock, 0, 0)
    os.write(1, b"ready\\n")  # past the buffer
    while wait(lock):  # back at once after a signal, and no exception
        pass
"""
TAKEN = "saving and stopping after the current updates; press Ctrl-C again to exit immediately"


@pytest.fixture
def start_busy(tmp_path):
    """A function that starts a process with an endless computation."""
    started = []

    def start(*words, prefix=()):
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", BUSY, *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_process_that_never_returns_to_python(number, start_busy, tmp_path):
    process = start_busy()
    assert (tmp_path / ".video.gif").exists()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert err == "error: interrupted; everything saved so far is kept\n"
    assert out == "not flushed\n"
    assert list(tmp_path.iterdir()) == []


def test_the_first_signal_goes_to_the_installed_handler_and_the_second_ends_the_process(start_busy):
    process = start_busy("take")
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == f"{TAKEN}\n"
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == "error: interrupted; everything saved so far is kept\n"


def test_a_second_sighup_is_ignored_and_sigterm_then_ends(start_busy):
    """When a terminal closes, the shell sends one SIGHUP and the system another."""
    process = start_busy("take")
    for _ in range(2):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 143
    assert err == "error: interrupted; everything saved so far is kept\n"


def test_a_second_sigterm_ends_the_process_unless_it_follows_within_a_second(start_busy):
    """The command `timeout` sends one SIGTERM to the process, and one to its group."""
    process = start_busy("take")
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert process.poll() is None
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 143
    assert err == "error: interrupted; everything saved so far is kept\n"


@pytest.mark.parametrize("words", [(), ("take",)])
def test_sighup_is_ignored_under_nohup(words, start_busy):
    process = start_busy(*words, prefix=["nohup"])
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    if words:  # saves at the first signal that is not ignored
        time.sleep(1.2)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143


LIBRARY = """
import signal, time
from purejaxppo import interrupts

before = signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM)
interrupt = interrupts.Interrupt()
signal.raise_signal(signal.SIGHUP)
signal.raise_signal(signal.SIGHUP)
print(interrupt.signal, signal.getsignal(signal.SIGTERM) is before[1])
interrupt.restore()
print((signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM)) == before, flush=True)
signal.raise_signal(signal.SIGHUP)
"""
TWO_SIGTERMS = """
import signal, time
from purejaxppo import interrupts

interrupt = interrupts.Interrupt()
signal.raise_signal(signal.SIGTERM)
signal.raise_signal(signal.SIGTERM)
print(interrupt.signal, flush=True)
time.sleep(1.1)
signal.raise_signal(signal.SIGTERM)
"""


def test_training_from_python_handles_sighup_and_restores_the_handlers():
    process = subprocess.run(
        [sys.executable, "-c", LIBRARY], check=False, capture_output=True, text=True
    )
    assert process.stdout == "SIGHUP True\nTrue\n"
    assert process.returncode == -signal.SIGHUP


def test_training_from_python_ends_at_a_second_sigterm_unless_it_follows_within_a_second():
    process = subprocess.run(
        [sys.executable, "-c", TWO_SIGTERMS], check=False, capture_output=True, text=True
    )
    assert process.stdout == "SIGTERM\n"
    assert process.returncode == -signal.SIGTERM


def test_a_signal_just_before_the_handler_is_installed_is_not_lost():
    """The thread may read it after the handler of the run is installed, which did not get it."""
    code = """
import os, signal
from purejaxppo import interrupts

class Taker:
    signal = None
    store = interrupts.Interrupt.store

read, write = os.pipe()
os.write(write, bytes([signal.SIGTERM]))
os.close(write)
interrupts._ACTIVE.append(Taker())
interrupts._read_signals(read)
print(interrupts._ACTIVE[0].signal)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert process.stdout == "SIGTERM\n"
