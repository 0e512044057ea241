"""Processes that end other processes when the trainer ends, even if it is killed.

    python supervisor.py LOG LARGEST_LOG COMMAND...

starts a game, writes its output to a log, and ends with it. The exit code is the game's; it is
128 + n if signal n ended the game, and 127 if the command was not found.

    python supervisor.py --groups

reads the ids of process groups, one per line, and kills those that are left when the trainer ends.

Both import only the standard library, to start within milliseconds. Standard input is a pipe that
the trainer holds open: it closes when the trainer ends, even if it is killed.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO

GRACE_SECONDS = 2.0  # for games and workers to end by themselves after the trainer
POLL_SECONDS = 0.05  # between checks that they have ended
GROUPS = "--groups"


def end_groups() -> None:
    """Reads ids of process groups until standard input closes, then kills those that are left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    groups = [int(line) for line in sys.stdin]
    end = time.monotonic() + GRACE_SECONDS
    while any([send_signal(group, 0) for group in groups]) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    for group in groups:
        send_signal(group, signal.SIGKILL)


def send_signal(group: int, number: int) -> bool:
    """Sends a signal to a process group; False if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def supervise(log: str, largest: int, command: list[str]) -> int:
    """Runs the game until it ends, or the trainer does: -> exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
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
    copying.join(1.0)  # what it said last
    if trainer_ended.is_set():
        os.killpg(0, signal.SIGKILL)
    os.killpg(0, signal.SIGTERM)  # its children; the trainer kills those that ignore it
    return code if code >= 0 else 128 - code


def copy(source: IO[bytes], log: str, largest: int) -> None:
    """Writes lines to the log; one that has grown beyond `largest` bytes becomes `LOG.old`.

    Lines that cannot be written, as on a full disk, are dropped: otherwise the game would block.
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
    """Ends the whole group of processes once standard input closes, and sets `trainer_ended`."""
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
