"""The gRPC service for a Unity build, called by clients of grpcio and by other programs."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

grpc = pytest.importorskip("grpc")
from support.paths import ROOT

from purejaxppo.envs.engines.process import EngineError
from purejaxppo.envs.engines.unity.server import CallCancelled, Server

pytestmark = pytest.mark.toy
OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # otherwise channels share a connection
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
EXCHANGE = "/communicator_objects.UnityToExternalProto/Exchange"


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture
def threads():
    with ThreadPoolExecutor() as made:
        yield made


def client(server):
    """Return a channel with its own connection, and a function that makes a call."""
    channel = grpc.insecure_channel(f"localhost:{server.port}", OPTIONS)
    call = channel.unary_unary(EXCHANGE)
    return channel, lambda data, seconds=10.0: call(data, timeout=seconds, wait_for_ready=True)


def calls():
    """Return the threads that handle a call."""
    return [thread for thread in threading.enumerate() if thread.name == "unity-call"]


def test_messages_of_all_sizes_are_exchanged(server, threads):
    channel, call = client(server)
    with channel:
        for size in (0, 1, 70_000, 20_000_000):  # 4 MB is the default limit of gRPC
            message = bytes(i % 251 for i in range(1000)) * (size // 1000) or bytes(size)
            answer = threads.submit(call, message)
            assert server.receive(10.0) == message
            server.reply(message[::-1])
            assert answer.result() == message[::-1]


def test_other_clients_and_a_second_build_are_ignored(server, threads):
    (first, call), (second, other) = client(server), client(server)
    with first, second, socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = threads.submit(call, b"first")
        assert server.receive(10.0) == b"first"
        with pytest.raises(grpc.RpcError, match="another game is already connected"):
            other(b"second")
        with pytest.raises(grpc.RpcError, match="Method not found"):
            first.unary_unary("/another.Service/Method")(b"x", timeout=10.0)
        assert server.receive(0.1) is None
        server.reply(b"go on")
        assert answer.result() == b"go on"


def test_a_build_that_cancels_its_call_is_gone(server, threads):
    channel, call = client(server)
    with channel:
        answer = threads.submit(call, b"first", 0.3)
        assert server.receive(10.0) == b"first"
        with pytest.raises(grpc.RpcError, match="Deadline Exceeded"):
            answer.result()
        time.sleep(1.0)  # the service sees the end of the call after the client
        server.reply(b"too late")
        with pytest.raises(CallCancelled):
            server.receive(10.0)


def test_receive_returns_none_after_its_timeout(server):
    began = time.monotonic()
    assert server.receive(0.2) is None
    assert 0.15 < time.monotonic() - began < 2.0


def test_a_taken_port_is_reported(server):
    with pytest.raises(EngineError, match=f"port {server.port} of 127.0.0.1 cannot be opened: "):
        Server(server.port)


def test_a_call_waiting_when_the_service_ends_gets_the_last_answer(threads):
    server = Server()
    channel, call = client(server)
    with channel:
        answer = threads.submit(call, b"first")
        assert server.receive(10.0) == b"first"
        server.reply(b"quit")
        server.hang_up()
        server.close()
        assert answer.result() == b"quit"
        with pytest.raises(grpc.RpcError):
            call(b"next", 1.0)


@pytest.mark.parametrize("wait", [True, False])
def test_closing_the_service_is_quick_and_leaves_no_thread(wait, threads):
    server = Server()
    channel, call = client(server)
    with channel:
        answer = threads.submit(call, b"first")
        assert server.receive(10.0) == b"first"
        assert calls()
        began = time.monotonic()
        server.close(wait=wait)  # without an answer
        server.close(wait=wait)
        assert time.monotonic() - began < 1.5
        assert isinstance(answer.exception(), grpc.RpcError)
    end = time.monotonic() + 5.0
    while calls() and time.monotonic() < end:
        time.sleep(0.01)
    assert not calls()


UNCLOSED = """
import sys, threading, grpc
from purejaxppo.envs.engines.unity.server import Server
server = Server()
call = grpc.insecure_channel(f"localhost:{server.port}").unary_unary(sys.argv[1])
pending = call.future(b"first", timeout=60)
assert server.receive(10.0) == b"first"
"""


def test_a_process_exits_while_a_build_waits_for_its_answer():
    command = [sys.executable, "-c", UNCLOSED, EXCHANGE]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, check=False, timeout=30, env=env).returncode == 0
