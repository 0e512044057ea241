"""Processes that end other processes when the trainer ends, even if the trainer is killed.

    python supervisor.py LOG LARGEST_LOG COMMAND...

starts a game, writes its output to a log, and ends with it. The exit code is the game's, 128 + n if
signal n killed the game, or 127 if the command was not found.

    python supervisor.py --groups

reads process group ids, one per line, and kills the remaining ones when the trainer ends.

Both use only the standard library, to start within milliseconds. Standard input is a pipe from the
trainer, which closes when the trainer ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO

GRACE_SECONDS = 2.0  # for games and workers to exit after the trainer
POLL_SECONDS = 0.05  # between checks that they have ended
GROUPS = "--groups"


def end_groups() -> None:
    """Read process group ids until standard input closes, then kill the remaining groups."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    groups = [int(line) for line in sys.stdin]
    end = time.monotonic() + GRACE_SECONDS
    while any([send_signal(group, 0) for group in groups]) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    for group in groups:
        send_signal(group, signal.SIGKILL)


def send_signal(group: int, number: int) -> bool:
    """Send a signal to a process group; return False if the group has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def supervise(log: str, largest: int, command: list[str]) -> int:
    """Run the game until the game or the trainer ends; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C
    signal.signal(signal.SIGTERM, lambda *_: None)  # a handler, which the game does not inherit
    try:
        game = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        with contextlib.suppress(OSError), open(log, "w") as file:
            file.write(f"{command[0]}: {error.strerror}\n")
        return 127
    copying = threading.Thread(target=copy, args=(game.stdout, log, largest), daemon=True)
    copying.start()
    trainer_ended = threading.Event()
    threading.Thread(target=end_with_trainer, args=(game, trainer_ended), daemon=True).start()
    code = game.wait()
    copying.join(1.0)  # for the last output
    if trainer_ended.is_set():
        os.killpg(0, signal.SIGKILL)
    os.killpg(0, signal.SIGTERM)  # for its children; the trainer kills those that ignore it
    return code if code >= 0 else 128 - code


def copy(source: IO[bytes], log: str, largest: int) -> None:
    """Write lines to the log. A log beyond `largest` bytes is renamed to `LOG.old`.

    Lines that cannot be written, such as on a full disk, are dropped. Otherwise the game would
    block.
    """
    file = None
    for line in iter(lambda: source.readline(1 << 16), b""):
        with contextlib.suppress(OSError):
            if file is not None and file.tell() + len(line) > largest:
                file.close()
                file = None
                os.replace(log, f"{log}.old")
            if file is None:
                file = open(log, "wb", buffering=0)  # noqa: SIM115 - closed above and at exit
            file.write(line)


def end_with_trainer(game: subprocess.Popen[bytes], trainer_ended: threading.Event) -> None:
    """Kill the process group after standard input closes, and set `trainer_ended`."""
    while os.read(0, 4096):
        pass
    trainer_ended.set()
    end = time.monotonic() + GRACE_SECONDS
    while game.poll() is None and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == GROUPS:
        end_groups()
    else:
        sys.exit(supervise(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
