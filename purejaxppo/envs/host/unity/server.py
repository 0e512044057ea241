"""The service that a Unity player calls: it sends what it observes, and is answered with actions.

Only the loopback interface is listened on. Nothing here imports JAX.
"""

import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # games are started after this was imported
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from purejaxppo.envs.host.engine import LOOPBACK, EngineError

SERVICE, METHOD = "communicator_objects.UnityToExternalProto", "Exchange"
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
]


class Gone(Exception):
    """The player closed its connection while it waited for an answer."""


class Threads(Executor):
    """Threads that do not keep this process from ending while they wait for an answer.

    Args:
        count: their number.
    """

    def __init__(self, count: int) -> None:
        """Starts them."""
        self._work: queue.SimpleQueue[tuple[Future, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._run, daemon=True).start()

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """See `Executor`."""
        future: Future = Future()
        self._work.put((future, functools.partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads once they have nothing to do."""
        del wait, cancel_futures
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


class Server:
    """Serves one player: `receive` and `reply` take turns.

    Args:
        port: to listen on; 0 takes a free one.

    Raises:
        EngineError: the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        """Starts to listen."""
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._peer = ""
        handler = grpc.unary_unary_rpc_method_handler(self._exchange)  # bytes as they are
        # One thread waits for the answer, the other turns further players away.
        self._threads = Threads(2)
        self._server = grpc.server(self._threads, options=OPTIONS)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        try:
            self.port: int = self._server.add_insecure_port(f"{LOOPBACK}:{port}")
        except RuntimeError as error:
            raise EngineError(
                f"port {port} of {LOOPBACK} cannot be used: another program listens on it"
            ) from error
        with contextlib.suppress(RuntimeError):  # "localhost" may be this one
            self._server.add_insecure_port(f"[::1]:{self.port}")
        self._server.start()

    def receive(self, seconds: float) -> bytes | None:
        """The player's next message; None if there is none in time.

        Raises:
            Gone: the player closed its connection.
        """
        try:
            request = self._requests.get(timeout=max(seconds, 1e-3))
        except queue.Empty:
            return None
        if request is None:
            raise Gone
        return request

    def reply(self, message: bytes) -> None:
        """Answers the message that was received last."""
        self._replies.put(message)

    def close(self) -> None:
        """Ends the service; a player that waits for an answer finds its connection closed."""
        self._replies.put(None)
        self._server.stop(0.5).wait(2.0)
        self._threads.shutdown()

    def _exchange(self, request: bytes, context: Any) -> bytes:
        """Hands a request over and waits for its answer."""
        with self._lock:
            self._peer = self._peer or context.peer()
            if context.peer() != self._peer:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "another player is connected")
        answered = threading.Event()

        def ended() -> None:
            if not answered.is_set():
                self._requests.put(None)
                self._replies.put(None)

        if not context.add_callback(ended):
            ended()
        self._requests.put(request)
        reply = self._replies.get()
        answered.set()
        if reply is not None:
            return reply
        context.abort(grpc.StatusCode.UNAVAILABLE, "the trainer has ended")
        raise Gone
