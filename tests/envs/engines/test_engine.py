"""Processes of games: starts, timeouts, logs, and ends together with the trainer."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from support.paths import ROOT
from support.ports import free_port

from purejaxppo.envs.engines.process import (
    TAIL_LINES,
    EngineError,
    GameProcess,
    accept,
    close_all,
    has_display,
    listen,
)

pytestmark = [
    pytest.mark.toy,
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(os.name != "posix", reason="games can only be started on Linux and macOS"),
]
CONNECT = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.recv(1)"
)


def start(tmp_path, code, *arguments, name="my game"):
    command = [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]
    return GameProcess(name, command, tmp_path)


def group(number):
    """Return the processes of a group without zombies."""
    listed = subprocess.run(
        ["ps", "-eo", "pgid=,stat="], check=True, capture_output=True, text=True
    ).stdout
    pairs = (line.split() for line in listed.splitlines())
    return [stat for pgid, stat in pairs if int(pgid) == number and not stat.startswith("Z")]


def has_ended(number, seconds=8.0):
    end = time.monotonic() + seconds
    while group(number) and time.monotonic() < end:
        time.sleep(0.05)
    return not group(number)


def test_a_game_connects_and_exits_when_its_connection_closes(tmp_path):
    with listen() as server:
        engine = start(tmp_path, CONNECT, server.getsockname()[1])
        connection = engine.wait_for(lambda seconds: accept(server, seconds), "connect", 10.0)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.close()
    began = time.monotonic()
    engine.close()
    engine.close()
    assert time.monotonic() - began < 2.0
    assert not group(engine.pid)
    assert not tmp_path.exists()  # its log is not needed


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "import sys; print('no such scene'); sys.exit(3)",
            "ended with exit code 3 while",
        ),
        ("import os; print('no such scene', flush=True); os.kill(os.getpid(), 11)", "by SIGSEGV"),
    ],
)
def test_a_game_that_exits_before_connecting_is_reported_with_its_log(tmp_path, code, words):
    engine = start(tmp_path, code)
    with listen() as server, pytest.raises(EngineError) as caught:
        engine.wait_for(lambda seconds: accept(server, seconds), "connect", 10.0)
    message = str(caught.value)
    assert message.startswith("my game ")
    assert words in message
    assert "no such scene" in message
    assert str(tmp_path / "game.log") in message


def test_a_missing_program_is_reported(tmp_path):
    engine = GameProcess("my game", [str(tmp_path / "nothing")], tmp_path)
    with pytest.raises(EngineError, match="No such file"):
        engine.wait_for(time.sleep, "connect", 10.0)


def test_a_game_that_never_connects_is_an_error_after_the_timeout(tmp_path):
    engine = start(tmp_path, "import time; print('here I am', flush=True); time.sleep(60)")
    with listen() as server, pytest.raises(EngineError, match=r"did not connect within 0\.5 s"):
        engine.wait_for(lambda seconds: accept(server, seconds), "connect", 0.5)
    engine.kill()
    engine.close()
    assert has_ended(engine.pid)
    assert "here I am" in (tmp_path / "game.log").read_text()


def test_the_size_of_a_log_is_limited(tmp_path):
    code = "for i in range(60_000): print(f'{i:06d}', 'x' * 50)"
    engine = start(tmp_path, code)
    assert engine._process.wait(20.0) == 0
    size = sum(path.stat().st_size for path in tmp_path.glob("game.log*"))
    assert 1 << 20 < size <= 2 << 20
    tail = engine.log_tail()
    assert tail.count("\n") == TAIL_LINES
    assert tail.splitlines()[-1].startswith("  059999 x")


def test_a_game_does_not_block_on_a_log_that_cannot_be_written(tmp_path):
    """A game would block when the pipe of its output is full."""
    code = "import sys\nfor _ in range(80_000): print('a line of some length')\nsys.exit(3)"
    (tmp_path / "game.log.old").mkdir()  # a long log cannot be renamed to it
    engine = start(tmp_path, code)
    with pytest.raises(EngineError, match="ended with exit code 3"):
        engine.wait_for(time.sleep, "connect", 10.0)
    engine.close()


def test_lines_written_late_are_in_the_tail_of_the_log(tmp_path):
    engine = GameProcess.__new__(GameProcess)
    engine.log = tmp_path / "log"
    engine.log.write_bytes(b"")
    threading.Timer(0.1, engine.log.write_text, ["out of memory\n"]).start()
    assert engine.log_tail().endswith(":\n  out of memory")


def test_several_games_end_together_with_their_children(tmp_path):
    code = (
        "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); "
        "print('there', flush=True); time.sleep(60)"
    )
    engines = []
    for i in range(3):
        (tmp_path / str(i)).mkdir()
        engines.append(start(tmp_path / str(i), code))
    for engine in engines:
        engine.wait_for(lambda seconds, e=engine: "there" in e.log_tail() or None, "speak", 10.0)
        assert len(group(engine.pid)) == 3  # supervisor, game, and the game's child
    began = time.monotonic()
    close_all(engines)
    assert time.monotonic() - began < 5.0
    assert all(has_ended(engine.pid) for engine in engines)


def test_a_killed_trainer_leaves_no_game(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from purejaxppo.envs.engines.process import GameProcess
engine = GameProcess("game", ["sleep", "60"], Path({str(tmp_path)!r}))
print(engine.pid, flush=True)
import time
time.sleep(60)
"""
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    number = int(trainer.stdout.readline())
    assert group(number)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    assert has_ended(number)


def test_a_child_that_ignores_sigterm_ends_with_a_game_that_quits(tmp_path):
    script = "trap '' TERM HUP; echo there; while true; do sleep 0.5; done"
    code = f"""
import subprocess, sys
child = subprocess.Popen(["sh", "-c", {script!r}], stdout=subprocess.PIPE)
child.stdout.readline()
"""
    engine = start(tmp_path, code)
    engine._process.wait(10.0)
    assert group(engine.pid)
    engine.close()
    assert has_ended(engine.pid)


def test_a_free_port_can_be_used_and_a_taken_one_is_reported():
    port = free_port()
    with (
        listen(port),
        pytest.raises(EngineError, match=f"port {port} of 127.0.0.1 cannot be opened"),
    ):
        listen(port)


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_a_display_counts_only_if_a_server_answers(monkeypatch, tmp_path):
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for nobody in ("", ":", ":nine", ":98765", "127.0.0.1:1"):
        monkeypatch.setenv("DISPLAY", nobody)
        assert not has_display()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0/tmp/.X11-unix/X98765")
        server.listen()
        for there in (":98765", ":98765.0", "unix:98765"):
            monkeypatch.setenv("DISPLAY", there)
            assert has_display()
    monkeypatch.setenv("DISPLAY", ":98765")
    assert not has_display()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert not has_display()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "wayland-0"))
        server.listen()
        assert has_display()
