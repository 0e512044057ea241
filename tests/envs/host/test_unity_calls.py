"""A player's gRPC calls: by the real client of grpcio, by frames written by hand, and by noise."""

import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from purejaxppo.envs.host.engine import EngineError
from purejaxppo.envs.host.unity import calls
from purejaxppo.envs.host.unity.calls import CallError, Calls, Ended
from purejaxppo.envs.host.unity.messages import ProtocolError
from purejaxppo.envs.host.unity.server import Gone, Server

pytestmark = pytest.mark.toy
METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
CALL = bytes.fromhex("828684")  # :method GET, :scheme http, :path /: what is there is not read


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


def frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def body_of(message):
    return struct.pack(">BI", 0, len(message)) + message


def call(stream, message):
    """A call in two frames."""
    return frame(1, 4, stream, CALL) + frame(0, 1, stream, body_of(message))


def greeting(*settings):
    pairs = b"".join(struct.pack(">HI", *pair) for pair in settings)
    return calls.PREFACE + frame(4, 0, 0, pairs)


def frames(data):
    """(kind, flags, stream, body) of each frame."""
    found = []
    while data:
        size = int.from_bytes(data[:3], "big")
        kind, flags, stream = struct.unpack_from(">BBI", data, 3)
        found.append((kind, flags, stream, data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def taken(made):
    """What it has to send, which is then sent."""
    out, made.out = made.out, b""
    return frames(out)


def begun(*settings):
    made = Calls()
    made.feed(greeting(*settings))
    made.out = b""
    return made


def message_of(found):
    """An answer's message, from its frames."""
    data = b"".join(body for kind, _, _, body in found if kind == 0)
    assert data[:1] == b"\0"
    assert int.from_bytes(data[1:5], "big") == len(data) - 5
    return data[5:]


def receive(server, seconds=10.0):
    message, end = None, time.monotonic() + seconds
    while message is None and time.monotonic() < end:
        message = server.receive(0.1)
    return message


def dial(server):
    return socket.create_connection(("127.0.0.1", server.port))


def test_a_whole_call_and_its_answer():
    made = Calls()
    assert [(kind, stream) for kind, _, stream, _ in taken(made)] == [(4, 0), (8, 0)]
    assert made.feed(greeting() + call(1, b"seen")) == b"seen"
    assert taken(made) == [(4, 1, 0, b"")]
    assert made.waiting
    made.answer(b"acted")
    head, body, tail = taken(made)
    assert head == (1, 4, 1, b"\x88\x0f\x10\x10application/grpc")
    assert body == (0, 0, 1, b"\0\0\0\0\x05acted")
    assert tail == (1, 5, 1, b"\x00\x0bgrpc-status\x010")
    assert not made.waiting
    assert made.feed(call(3, b"again")) == b"again"


def test_a_call_may_come_byte_by_byte_padded_and_in_many_frames():
    made = Calls()
    padded = bytes([3]) + body_of(b"abcdef")[:7] + b"\0\0\0"
    rest = body_of(b"abcdef")[7:]
    sent = greeting() + frame(1, 4, 1, CALL) + frame(0, 8, 1, padded) + frame(2, 0, 1, b"12345")
    sent += frame(77, 0, 0, b"unknown") + frame(0, 0, 1) + frame(0, 1, 1, rest)
    found = [made.feed(sent[i : i + 1]) for i in range(len(sent))]
    assert found[-1] == b"abcdef"
    assert set(found[:-1]) == {None}


def test_a_ping_is_answered():
    made = begun()
    made.feed(frame(6, 0, 0, b"12345678") + frame(6, 1, 0, b"87654321"))
    assert taken(made) == [(6, 1, 0, b"12345678")]


def test_an_answer_waits_for_the_room_that_the_client_grants():
    made = begun((4, 10), (5, 16_384))
    made.feed(call(1, b"x"))
    made.answer(bytes(range(100)))
    found = taken(made)
    assert [len(body) for kind, _, _, body in found if kind == 0] == [10]
    made.feed(frame(8, 0, 1, struct.pack(">I", 20)))
    found += taken(made)
    made.feed(frame(4, 0, 0, struct.pack(">HI", 4, 1_000)))  # changes the window of the open call
    found += taken(made)
    assert message_of(found) == bytes(range(100))
    assert (1, 5, 1) in [head[:3] for head in found]


def test_the_connection_has_a_window_of_its_own():
    made = begun((4, 1 << 20), (5, 20_000))
    made.feed(call(1, b"x"))
    made.answer(bytes(100_000))
    found = taken(made)
    sizes = [len(body) for kind, _, _, body in found if kind == 0]
    assert sizes == [20_000, 20_000, 20_000, 5_535]
    made.feed(frame(8, 0, 0, struct.pack(">I", 1 << 20)))
    found += taken(made)
    assert message_of(found) == bytes(100_000)


def test_the_client_is_told_that_its_messages_were_read(monkeypatch):
    monkeypatch.setattr(calls, "REPORTED", 100)
    made, told = begun(), []
    for stream in (1, 3, 5, 7):
        made.feed(call(stream, bytes(35)))
        made.answer(b"")
        told += [body for kind, _, at, body in taken(made) if (kind, at) == (8, 0)]
    assert told == [struct.pack(">I", 3 * 40)]


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (frame(1, 5, 1, CALL), "made a call without a message"),
        (call(1, b"x") + call(3, b"x"), "before the last one was answered"),
        (frame(0, 1, 1, body_of(b"x")), "outside of a call"),
        (call(1, b"x") + frame(0, 1, 1, body_of(b"x")), "outside of a call"),
        (frame(1, 4, 1, CALL) + frame(0, 1, 1, b"\1\0\0\0\1x"), "compressed"),
        (frame(1, 4, 1, CALL) + frame(0, 1, 1, b"\0\0\0\0\2x"), "6 bytes that are no message"),
        (frame(1, 4, 1, CALL) + frame(0, 1, 1, b"\0\0"), "2 bytes that are no message"),
        (frame(1, 4, 1, CALL) + frame(0, 0, 1, b"\0\xff\xff\xff\xff"), "more than 268,435,456"),
        (frame(1, 4, 1, CALL) + frame(0, 8, 1, b"\5abc"), "nothing but padding"),
        (frame(4, 0, 0, b"12345"), "settings that are none"),
        (frame(8, 0, 0, b"12345"), "window that is none"),
    ],
)
def test_what_is_no_call_is_named(sent, problem):
    with pytest.raises(CallError, match=problem):
        begun().feed(sent)


@pytest.mark.parametrize("sent", [frame(7, 0, 0, bytes(8)), frame(3, 0, 1, bytes(4))])
def test_a_client_that_gives_up_is_gone(sent):
    made = begun()
    made.feed(call(1, b"x"))
    with pytest.raises(Ended):
        made.feed(sent)


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.full)])
def test_noise_raises_nothing_else_and_takes_no_memory(count):
    draw, good, ends = random.Random(0), greeting((4, 99)) + call(1, b"x" * 60), 0
    for _ in range(count):
        data = bytearray(good + call(3, b"y" * 40))
        for _ in range(draw.randint(1, 6)):
            at = draw.randrange(len(calls.PREFACE), len(data))
            if draw.random() < 0.3:
                del data[at : at + draw.randint(1, 9)]
            else:
                data[at : at + 1] = draw.randbytes(draw.randint(1, 3))
        made = Calls()
        try:
            for at in range(0, len(data), 50):
                if made.feed(bytes(data[at : at + 50])) is not None:
                    made.answer(b"z" * 20)
        except CallError:
            ends += 1
        assert len(made.out) < 10_000
    assert ends > count // 10


def test_a_flood_of_pings_is_no_flood_of_answers(monkeypatch):
    monkeypatch.setattr(calls, "LARGEST_MESSAGE", 10_000)
    with pytest.raises(CallError, match="does not read"):
        begun().feed(frame(6, 0, 0, bytes(8)) * 1_000)


def closed(connection):
    connection.settimeout(5.0)
    while connection.recv(100):
        pass
    return True


def test_strangers_and_further_players_are_sent_away(server):
    with dial(server) as stranger, ThreadPoolExecutor() as thread:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        waiting = thread.submit(receive, server)
        with dial(server) as player:
            player.sendall(greeting() + call(1, b"first"))
            assert waiting.result() == b"first"
            assert closed(stranger)
            with dial(server) as second:
                assert server.receive(0.1) is None
                assert closed(second)
            server.reply(b"go on")
            player.sendall(call(3, b"next"))
            assert receive(server) == b"next"


def test_what_is_no_call_of_a_player_is_an_error_of_the_protocol(server):
    with dial(server) as player:
        player.sendall(greeting() + call(1, b"first"))
        assert receive(server) == b"first"
        server.reply(b"go on")
        player.sendall(frame(1, 5, 3, CALL))
        with pytest.raises(ProtocolError, match="without a message"):
            receive(server)


def test_before_the_player_whoever_makes_no_call_of_a_player_is_sent_away(server):
    with dial(server) as stranger, dial(server) as player:
        stranger.sendall(greeting() + frame(1, 5, 1, CALL))
        time.sleep(0.1)
        assert server.receive(0.2) is None
        player.sendall(greeting() + call(1, b"first"))
        assert receive(server) == b"first"


def test_a_player_that_nobody_waits_for_is_greeted(server):
    with dial(server) as player:
        player.sendall(calls.PREFACE)
        player.settimeout(5.0)
        server.serve()
        server.serve()
        assert frames(player.recv(1_000))[0][0] == 4
        player.sendall(greeting()[len(calls.PREFACE) :] + call(1, b"first"))
        time.sleep(0.1)
        server.serve()
        server.serve()
        assert server.receive(0.0) == b"first"
        server.reply(b"go on")
        player.sendall(call(3, b"next"))
        assert receive(server) == b"next"


def test_players_that_hang_are_waited_for_once():
    servers = [Server() for _ in range(4)]
    with ExitStack() as stack:
        for server in servers:
            player = stack.enter_context(dial(server))
            player.sendall(greeting() + call(1, b"first"))
            assert receive(server) == b"first"
        began = time.monotonic()
        for server in servers:
            server.hang_up()
        for server in servers:
            server.close()
    assert time.monotonic() - began < 1.5


def test_a_long_answer_is_sent_on_while_the_client_reads(server):
    with dial(server) as player, ThreadPoolExecutor() as thread:
        player.sendall(greeting((4, (1 << 31) - 1)) + frame(8, 0, 0, b"\x7f\0\0\0"))
        player.sendall(call(1, b"first"))
        assert receive(server) == b"first"
        server.reply(bytes(20_000_000))
        began = time.monotonic()
        waiting = thread.submit(receive, server)
        player.settimeout(10.0)
        data = bytearray()
        while len(data) < 20_000_000:
            data += player.recv(1 << 20)
        assert time.monotonic() - began < 5.0
        player.sendall(call(3, b"next"))
        assert waiting.result() == b"next"


def test_a_player_that_closes_is_gone(server):
    with dial(server) as player:
        player.sendall(greeting() + call(1, b"first"))
        assert receive(server) == b"first"
    with pytest.raises(Gone):
        receive(server)
    server.reply(b"too late")
    server.close()


def test_nobody_is_waited_for_no_longer_than_asked(server):
    began = time.monotonic()
    assert server.receive(0.2) is None
    assert 0.15 < time.monotonic() - began < 2.0


def test_a_port_that_is_taken_is_one_sentence(server):
    with pytest.raises(EngineError, match=f"port {server.port} of 127.0.0.1 cannot be used"):
        Server(server.port)


def test_who_calls_while_the_service_ends_hears_the_last_answer():
    server = Server()
    with dial(server) as player:
        player.sendall(greeting() + call(1, b"first"))
        assert receive(server) == b"first"
        server.reply(b"go on")
        player.sendall(call(3, b"second"))
        time.sleep(0.2)
        server.reply(b"quit")  # nobody has read the second call
        ending = threading.Thread(target=server.close)
        ending.start()
        data = b""
        while more := player.recv(10_000):
            data += more
    ending.join()
    answers = [found for found in frames(data) if found[2] == 3]
    assert message_of(answers) == b"quit"


CLIENT = """
import sys, time, grpc
with grpc.insecure_channel(f"localhost:{sys.argv[1]}") as channel:
    call = channel.unary_unary(sys.argv[2])
    for size in map(int, sys.argv[3:]):
        data = bytes(i % 251 for i in range(1000)) * (size // 1000)
        answer = call(data, wait_for_ready=True, timeout=30)
        assert answer == data[::-1], (size, len(answer))
    try:
        call(b"last", timeout=30)
    except grpc.RpcError as error:
        print(error.code().name)
"""


def test_the_client_of_grpcio_reads_and_is_read():
    """Messages up to 4 MB in both directions, past all windows, and the end of the service."""
    pytest.importorskip("grpc")
    server = Server()
    # 4 MB is the most that grpcio's client takes by default.
    sizes = ["0", "1000", "70000", "3000000", "4000000", *["1000"] * 50]
    command = [sys.executable, "-c", CLIENT, str(server.port), METHOD, *sizes]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        for _ in sizes:
            message = receive(server, 30.0)
            server.reply(message[::-1])
        assert receive(server) == b"last"
        server.close()
        assert client.communicate(timeout=30)[0].strip() == "UNAVAILABLE"
    finally:
        client.kill()
        client.wait()
