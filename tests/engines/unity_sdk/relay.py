"""Run a game with the real package of ML-Agents. Its gRPC call goes over pipes, since the package
has no native gRPC library for Mono.

    python relay.py GAME_EXE [--record FILE] --mlagents-port PORT [ARGUMENT ...]

FILE gets the messages of the game, each after its length in 4 bytes, compressed by gzip.
"""

import contextlib
import gzip
import itertools
import struct
import subprocess
import sys

import grpc

EXCHANGE = "/communicator_objects.UnityToExternalProto/Exchange"


def main(program: str, arguments: list[str]) -> int:
    """Relay messages until the game or the trainer ends, and return the exit code of the game."""
    words = dict(itertools.pairwise(arguments))
    channel = grpc.insecure_channel(f"localhost:{words['--mlagents-port']}")
    call = channel.unary_unary(EXCHANGE)
    with contextlib.ExitStack() as stack:
        record = words.get("--record")
        file = stack.enter_context(gzip.open(record, "wb")) if record else None
        game = stack.enter_context(
            subprocess.Popen(
                ["mono", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        while head := game.stdout.read(4):
            (length,) = struct.unpack("<i", head)
            data = game.stdout.read(length)
            if file:
                file.write(head + data)
            try:
                answer = call(data, wait_for_ready=True, timeout=120)
            except grpc.RpcError:
                game.stdin.close()
                break
            game.stdin.write(struct.pack("<i", len(answer)) + answer)
            game.stdin.flush()
        return game.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
