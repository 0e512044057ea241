"""Keeper of a game: a process that starts it, writes its output to a log, and ends with it.

    python keeper.py LOG LARGEST_LOG COMMAND...

It imports the standard library alone, so that it starts within milliseconds. Its standard input is
a pipe that the trainer holds open: when the trainer ends, however it ends, the pipe closes, and the
game and all processes that it started are ended. The exit code is the game's; 128 + n says that
signal n ended the game, and 127 that there was nothing to start.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 2.0  # for a game to end by itself after the trainer has


def keep(log: str, largest: int, command: list[str]) -> int:
    """Runs the game until it ends, or the trainer does: -> exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    try:
        game = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        with open(log, "w") as file:
            file.write(f"{command[0]}: {error.strerror}\n")
        return 127
    copying = threading.Thread(target=copy, args=(game.stdout, log, largest), daemon=True)
    copying.start()
    threading.Thread(target=end_with_trainer, args=(game,), daemon=True).start()
    code = game.wait()
    copying.join(1.0)  # what it said last
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # its own children
    return code if code >= 0 else 128 - code


def copy(source, log: str, largest: int) -> None:
    """Writes lines to the log; one that has grown beyond `largest` bytes becomes `LOG.old`."""
    file = open(log, "wb", buffering=0)  # noqa: SIM115 - it changes
    for line in iter(lambda: source.readline(1 << 16), b""):
        if file.tell() + len(line) > largest:
            file.close()
            os.replace(log, f"{log}.old")
            file = open(log, "wb", buffering=0)  # noqa: SIM115
        file.write(line)


def end_with_trainer(game: subprocess.Popen) -> None:
    """Ends the whole group of processes once standard input closes."""
    while os.read(0, 4096):
        pass
    end = time.monotonic() + GRACE_SECONDS
    while game.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
