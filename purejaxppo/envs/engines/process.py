"""Processes of game engines: their start, logs, restarts and end. Nothing here imports JAX."""

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
"""The task of game engines for a game that the user starts."""
LOOPBACK = "127.0.0.1"
LARGEST_LOG = 1 << 20  # bytes; twice as many with the part before
TAIL_LINES = 12  # of a log, in messages
LOG_SECONDS = 0.5  # for the output of a game to reach its log
POLL_SECONDS = 0.1  # between checks that a process is alive


class EngineError(RuntimeError):
    """A game ended, hangs, did not connect, or violated the protocol."""

    def __init__(self, summary: str, log_tail: str = "") -> None:
        """Stores one sentence, and the text after it in the message."""
        super().__init__(summary + log_tail)
        self.summary = summary


def listen(port: int = 0) -> socket.socket:
    """A socket that listens on the loopback interface; port 0 takes a free one.

    Raises:
        EngineError: the port is taken.
    """
    try:
        return socket.create_server((LOOPBACK, port), reuse_port=False)
    except OSError as error:
        raise EngineError(
            f"port {port} of {LOOPBACK} cannot be opened: {error.strerror}. Close the program that "
            f"uses it, or set another port in env.options.port and in the game. Evaluations during "
            f"training need a second port: if the editor is used, set eval.num_episodes = 0."
        ) from error


def free_port() -> int:
    """Return a free port, for servers that open it themselves."""
    with listen() as server:
        return server.getsockname()[1]


class GameHandle:
    """A game that the user started, such as the editor: it quits when its connection closes.

    Args:
        name: of the game, for messages.
    """

    def __init__(self, name: str) -> None:
        """Stores the name."""
        self.name = name

    def alive(self) -> bool:
        """True if the game runs, or nothing is known about it."""
        return True

    def log_tail(self) -> str:
        """The last lines that the game printed, if they are known."""
        return ""

    def describe_exit(self) -> str:
        """Describes how the game ended."""
        return "closed its connection"

    def error(self, problem: str) -> EngineError:
        """An error that names the game and ends with the last lines of its log."""
        return EngineError(f"{self.name} {problem}", self.log_tail())

    def exit_error(self, doing: str) -> EngineError:
        """The error of a game that has ended."""
        return self.error(f"{self.describe_exit()} while it was supposed to {doing}")

    def wait_for(self, attempt: Callable[[float], T | None], doing: str, seconds: float) -> T:
        """Calls `attempt` with a time limit in seconds until it returns something.

        Raises:
            EngineError: the game ended, or nothing was returned within `seconds`.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            result = attempt(max(0.0, min(left, POLL_SECONDS)))
            if result is not None:
                return result
            if not self.alive():
                raise self.exit_error(doing)
            if left <= 0:
                raise self.error(f"did not {doing} within {seconds:g} s (env.options.timeout)")

    def request_exit(self) -> None:
        """Lets a game that was started here end, without waiting for it."""

    def close(self) -> None:
        """Ends a game that was started here; a second call does nothing."""

    def kill(self) -> None:
        """Ends a game that was started here and may hang, at once."""


class GameProcess(GameHandle):
    """A game in a process group of its own, which ends with this process, even by SIGKILL.

    Args:
        name: of the game, for messages.
        command: program and arguments.
        folder: for its log, which is kept below 2 MiB; `close` removes it and `kill` keeps it.

    Raises:
        EngineError: this is not Linux or macOS.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        """Starts the process, and does not wait for it."""
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
            start_new_session=True,  # so that it can be ended with its own children
        )
        self._stop = weakref.finalize(self, _end, self._process)

    @property
    def pid(self) -> int:
        """The number of its process group."""
        return self._process.pid

    def alive(self) -> bool:
        """True if the game runs."""
        return self._process.poll() is None

    def log_tail(self) -> str:
        """The last lines that the game printed, indented, and the path of its log.

        Waits briefly if the log is empty, because another process writes it.
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
        """Describes how the game ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # its connection closes a moment before it ends
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
        """Lets the game end, without waiting for it."""
        _request_exit(self._process)

    def close(self) -> None:
        """Ends the game and all processes that it started; a second call does nothing.

        A game that was told to quit gets a short time to do so.
        """
        self._stop()
        if not self._killed:
            shutil.rmtree(self.log.parent, ignore_errors=True)

    def kill(self) -> None:
        """Ends a game that may hang, at once, and keeps its log."""
        self._killed = True
        _kill(self._process)
        self._stop()


class Game(Protocol):
    """A game of a `GameGroup`."""

    def request_exit(self) -> None:
        """Lets the game end, without waiting for it."""

    def close(self) -> None:
        """Ends the game; a second call does nothing."""

    def kill(self) -> None:
        """Ends a game that may hang, at once, and keeps its log."""


G = TypeVar("G", bound=Game)


class GameGroup(Generic[G]):
    """Games that step together: failed ones are started again, and all end together.

    Args:
        start: (number, seed) -> a game that is started and not waited for.
        seed: of game 0; game i has seed + i, and games that are started again have further ones.
        restarts: largest number of restarts of failed games, over all games.
    """

    def __init__(self, start: Callable[[int, int], G], seed: int, restarts: int) -> None:
        """Starts no game yet."""
        self.games: list[G] = []
        self.restarts, self._most_restarts = 0, restarts
        self._start, self._seed = start, seed
        self._failure: EngineError | None = None
        self._stop = weakref.finalize(self, close_all, self.games)

    def extend(self, count: int) -> None:
        """Starts further games, so that there are `count`."""
        for number in range(len(self.games), count):
            self.games.append(self._start(number, (self._seed + number) % 2**31))

    def restart(self, index: int, error: EngineError) -> G:
        """Ends a failed game and starts it again.

        Args:
            index: of the game.
            error: of the game.

        Raises:
            EngineError: the restarts are used up.
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
        """Raises the error that ended the games, or RuntimeError if they are closed."""
        if self._failure is not None:
            raise self._failure
        if not self._stop.alive:
            raise RuntimeError("the games are closed")

    @contextlib.contextmanager
    def killed_after_error(self) -> Iterator[None]:
        """Ends all games at any error, and keeps their logs."""
        try:
            yield
        except BaseException as error:
            self._failure = error if isinstance(error, EngineError) else None
            for game in self.games:
                game.kill()
            self.close()
            raise

    def close(self) -> None:
        """Ends the games; a second call does nothing."""
        self._stop()


def close_all(games: Sequence[Game]) -> None:
    """Closes several games at once."""
    for game in games:
        game.request_exit()
    for game in games:
        game.close()


def new_folder() -> Path:
    """A new folder for the files of a game."""
    return Path(tempfile.mkdtemp(prefix="purejaxppo-game-"))


def runnable(file: Path) -> str:
    """The absolute path of a program.

    Raises:
        MakeError: the file is not executable.
    """
    if not os.access(file, os.X_OK):
        raise MakeError(f"env.name: {file} is not executable. Run: chmod +x {file}")
    return str(file.resolve())


def has_display() -> bool:
    """True if a program can open a window: always on macOS, on Linux where a server answers."""
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
    """True if a server listens at the address."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(address)
        except (OSError, OverflowError):
            return False
    return True


def accept(server: socket.socket, seconds: float) -> socket.socket | None:
    """The next connection, without delay of small packets; None after `seconds` without one."""
    server.settimeout(max(seconds, 1e-3))
    try:
        connection, _ = server.accept()
    except (TimeoutError, ConnectionAbortedError):
        return None
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _request_exit(process: subprocess.Popen[bytes]) -> None:
    """Closes the supervisor's standard input, which makes it end the group."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Waits for a few seconds, then kills the remaining processes of the group."""
    _request_exit(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(supervisor.GRACE_SECONDS + 1.0)
    _kill(process)
    process.wait()
