"""Processes of game engines: start, logs, restarts and end. This module does not import JAX."""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from purejaxppo.envs.host.workers import supervisor
from purejaxppo.envs.host.workers.errors import MakeError

logger = logging.getLogger("purejaxppo")

T = TypeVar("T")

EDITOR = "editor"
"""Task name for a game that the user starts in the editor."""
LOOPBACK = "127.0.0.1"
LARGEST_LOG = 1 << 20  # bytes; twice as much with `LOG.old`
TAIL_LINES = 12  # of a log, in messages
LOG_SECONDS = 0.5  # for the output of a game to reach its log
POLL_SECONDS = 0.1  # between checks that a process is alive


class EngineError(RuntimeError):
    """A game ended, timed out, did not connect, or violated the protocol."""

    def __init__(self, summary: str, log_tail: str = "") -> None:
        """Store the summary, one sentence, and the text that follows it in the message."""
        super().__init__(summary + log_tail)
        self.summary = summary


def listen(port: int = 0) -> socket.socket:
    """Return a socket that listens on the loopback interface; port 0 selects a free port.

    Raises:
        EngineError: the port cannot be opened.
    """
    try:
        return socket.create_server((LOOPBACK, port), reuse_port=False)
    except OSError as error:
        raise EngineError(
            f"port {port} of {LOOPBACK} cannot be opened: {error.strerror}. Close the program that "
            f"uses it, or set another port in env.options.port and in the game. Evaluations during "
            f"training need a second game: with the editor, set eval.num_episodes = 0."
        ) from error


class GameHandle:
    """A game that the user started, such as in the editor. It quits when its connection closes.

    Args:
        name: name of the game, for messages.
    """

    def __init__(self, name: str) -> None:
        """Store the name."""
        self.name = name

    def alive(self) -> bool:
        """Return True if the game runs, or if this is unknown."""
        return True

    def log_tail(self) -> str:
        """Return the last printed lines, if known."""
        return ""

    def describe_exit(self) -> str:
        """Describe how the game ended."""
        return "closed its connection"

    def error(self, problem: str) -> EngineError:
        """Return an error with the game's name, the problem and the end of its log."""
        return EngineError(f"{self.name} {problem}", self.log_tail())

    def exit_error(self, phase: str) -> EngineError:
        """Return the error for a game that has ended."""
        return self.error(f"{self.describe_exit()} while it was supposed to {phase}")

    def wait_for(self, attempt: Callable[[float], T | None], phase: str, seconds: float) -> T:
        """Call `attempt` with a time limit in seconds until it returns a result other than None.

        Raises:
            EngineError: the game ended, or `seconds` passed without a result.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            result = attempt(max(0.0, min(left, POLL_SECONDS)))
            if result is not None:
                return result
            if not self.alive():
                raise self.exit_error(phase)
            if left <= 0:
                raise self.error(f"did not {phase} within {seconds:g} s (env.options.timeout)")

    def request_exit(self) -> None:
        """Ask a game that was started here to exit, and return without waiting."""

    def close(self) -> None:
        """End a game that was started here. A second call does nothing."""

    def kill(self) -> None:
        """Kill a game that was started here and may hang."""


class GameProcess(GameHandle):
    """A game in a separate process group. It is killed when this process ends, even by SIGKILL.

    Args:
        name: name of the game, for messages.
        command: program and arguments.
        folder: folder for the log, which stays below 2 MiB. `close` removes it, `kill` keeps it.

    Raises:
        EngineError: the system is not Linux or macOS.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        """Start the process without waiting for it."""
        super().__init__(name)
        if os.name != "posix":
            raise EngineError(f"{name}: games can only be started on Linux and macOS.")
        self.log = folder / "game.log"
        self.log.write_bytes(b"")
        self._killed = False
        boot = [sys.executable, "-I", "-S", supervisor.__file__, str(self.log), str(LARGEST_LOG)]
        self._process = subprocess.Popen(
            [*boot, *command],
            stdin=subprocess.PIPE,
            stdout=2,
            start_new_session=True,  # a process group, to end it with its children
        )
        self._stop = weakref.finalize(self, _end, self._process)

    @property
    def pid(self) -> int:
        """Return the id of the game's process group, which is that of its first process."""
        return self._process.pid

    def alive(self) -> bool:
        """Return True if the game runs."""
        return self._process.poll() is None

    def log_tail(self) -> str:
        """Return the last printed lines, indented, and the path of the log.

        Waits briefly while the log is empty, because another process writes it.
        """
        deadline = time.monotonic() + LOG_SECONDS
        with contextlib.suppress(OSError):
            while not self.log.stat().st_size and time.monotonic() < deadline:
                time.sleep(0.01)
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line]
            if lines:
                last = "\n".join(f"  {line[:200]}" for line in lines[-TAIL_LINES:])
                return f". The end of its log, {self.log}:\n{last}"
        return ". Its log is empty."

    def describe_exit(self) -> str:
        """Describe how the game ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # the connection closes shortly before the process ends
        code = self._process.poll()
        if code is None:
            return super().describe_exit()
        if code < 0:
            return "was killed"
        if code <= 128:
            return f"ended with exit code {code}"
        with contextlib.suppress(ValueError):
            number = signal.Signals(code - 128)
            hint = " (possibly out of memory)" if number == signal.SIGKILL else ""
            return f"was killed by {number.name}{hint}"
        return f"ended with exit code {code}"

    def request_exit(self) -> None:
        """Ask the game to exit, and return without waiting."""
        _request_exit(self._process)

    def close(self) -> None:
        """End the game and all its child processes. A second call does nothing.

        After `request_exit`, the game has a short time to exit.
        """
        self._stop()
        if not self._killed:
            shutil.rmtree(self.log.parent, ignore_errors=True)

    def kill(self) -> None:
        """Kill a game that may hang, and keep its log."""
        self._killed = True
        supervisor.send_signal(self.pid, signal.SIGKILL)
        self._stop()


class Game(Protocol):
    """A game of a `GameGroup`."""

    def request_exit(self) -> None:
        """Ask the game to exit, and return without waiting."""

    def close(self) -> None:
        """End the game. A second call does nothing."""

    def kill(self) -> None:
        """Kill a game that may hang, and keep its log."""


G = TypeVar("G", bound=Game)


class GameGroup(Generic[G]):
    """Games that step together. Failed games are restarted, and all games end together.

    Args:
        start: function (index, seed) that starts game `index` and returns immediately.
        seed: seed of game 0; game i has seed + i, and restarted games get new seeds.
        restarts: maximum number of restarts of failed games, in total.
    """

    def __init__(self, start: Callable[[int, int], G], seed: int, restarts: int) -> None:
        """Start no game yet."""
        self.games: list[G] = []
        self.restarts, self._most_restarts = 0, restarts
        self._start, self._seed = start, seed
        self._failure: EngineError | None = None
        self._stop = weakref.finalize(self, close_all, self.games)

    def extend(self, count: int) -> None:
        """Start games until there are `count`."""
        for number in range(len(self.games), count):
            self.games.append(self._start(number, (self._seed + number) % 2**31))

    def restart(self, index: int, error: EngineError) -> G:
        """Kill a failed game and start it again.

        Args:
            index: index of the game.
            error: error of the game.

        Raises:
            EngineError: no restarts are left.
        """
        self.games[index].kill()
        if self.restarts >= self._most_restarts:
            raise error
        self.restarts += 1
        logger.warning(
            f"{error.summary}. Restarting it ({self.restarts} of {self._most_restarts} restarts)."
        )
        seed = self._seed + index + len(self.games) * self.restarts
        self.games[index] = self._start(index, seed % 2**31)
        return self.games[index]

    def check(self) -> None:
        """Raise the error that ended the games, or RuntimeError if they are closed."""
        if self._failure is not None:
            raise self._failure
        if not self._stop.alive:
            raise RuntimeError("the games are closed")

    @contextlib.contextmanager
    def killed_after_error(self) -> Iterator[None]:
        """Kill all games at any error, and keep their logs."""
        try:
            yield
        except BaseException as error:
            self._failure = error if isinstance(error, EngineError) else None
            for game in self.games:
                game.kill()
            self.close()
            raise

    def close(self) -> None:
        """End the games. A second call does nothing."""
        self._stop()


def close_all(games: Sequence[Game]) -> None:
    """Close several games in parallel."""
    for game in games:
        game.request_exit()
    for game in games:
        game.close()


def new_folder() -> Path:
    """Create a folder for the files of a game."""
    return Path(tempfile.mkdtemp(prefix="purejaxppo-game-"))


def runnable(file: Path) -> str:
    """Return the absolute path of a program.

    Raises:
        MakeError: the file is not executable.
    """
    if not os.access(file, os.X_OK):
        raise MakeError(f"env.name: {file} is not executable. Run: chmod +x {file}")
    return str(file.resolve())


def has_display() -> bool:
    """Return True if a program can open a window: always on macOS; on Linux if a server replies."""
    if sys.platform == "darwin":
        return True
    servers: list[tuple[socket.AddressFamily, Any]] = []
    if wayland := os.environ.get("WAYLAND_DISPLAY"):
        folder = os.environ.get("XDG_RUNTIME_DIR", "")
        servers.append((socket.AF_UNIX, os.path.join(folder, wayland)))
    host, _, number = os.environ.get("DISPLAY", "").rpartition(":")
    number = number.partition(".")[0]
    if number.isdigit() and host in ("", "unix"):
        local = f"/tmp/.X11-unix/X{number}"
        servers += [(socket.AF_UNIX, local), (socket.AF_UNIX, f"\0{local}")]
    elif number.isdigit():
        servers.append((socket.AF_INET, (host, 6000 + int(number))))
    return any(_accepts_connections(*server) for server in servers)


def _accepts_connections(family: socket.AddressFamily, address: Any) -> bool:
    """Return True if a server listens at the address."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(address)
        except (OSError, OverflowError):
            return False
    return True


def accept(server: socket.socket, seconds: float) -> socket.socket | None:
    """Return the next connection, without delay of small packets; None after `seconds`."""
    server.settimeout(max(seconds, 1e-3))
    try:
        connection, _ = server.accept()
    except (TimeoutError, ConnectionAbortedError):
        return None
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _request_exit(process: subprocess.Popen[bytes]) -> None:
    """Close the supervisor's standard input, on which it ends the process group."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a few seconds, then kill the remaining processes of the group."""
    _request_exit(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(supervisor.GRACE_SECONDS + 1.0)
    supervisor.send_signal(process.pid, signal.SIGKILL)
    process.wait()
