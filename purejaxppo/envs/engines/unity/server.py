"""The gRPC service that a Unity game calls with observations. It replies with actions.

It listens on the loopback interface only. This module does not import JAX.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import grpc

from purejaxppo.envs.engines.process import listen

SERVICE, METHOD = "communicator_objects.UnityToExternalProto", "Exchange"
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
]
GOODBYE_SECONDS = 0.5  # for a game to read the last reply


class CallCancelled(Exception):
    """The game cancelled a call that waited for a reply."""


class DaemonThreads(Executor):
    """An executor with one daemon thread per task, which does not delay the end of the process."""

    def submit(self, task: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Start a task."""
        result: Future[Any] = Future()

        def run() -> None:
            try:
                result.set_result(task(*args, **options))
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=run, name="unity-call", daemon=True).start()
        return result


class Server:
    """Serves one game, the first client that calls: `receive` and `reply` alternate.

    Args:
        port: port to listen on; 0: a free port.

    Raises:
        EngineError: the port cannot be opened.
    """

    def __init__(self, port: int = 0) -> None:
        """Start to listen."""
        if port:
            listen(port).close()  # its error names the reason, gRPC's does not
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._client = ""  # address of the first client
        self._server = grpc.server(DaemonThreads(), options=OPTIONS)
        methods = {METHOD: grpc.unary_unary_rpc_method_handler(self._exchange)}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, methods),)
        )
        self.port: int = self._server.add_insecure_port(f"localhost:{port}")
        self._server.start()

    def receive(self, seconds: float) -> bytes | None:
        """Return the game's next message; None after `seconds` without one.

        Raises:
            CallCancelled: the game cancelled its call.
        """
        try:
            message = self._messages.get(timeout=seconds)
        except queue.Empty:
            return None
        if message is None:
            raise CallCancelled
        return message

    def reply(self, message: bytes) -> None:
        """Reply to the waiting call or, if the last one was answered, to the next call."""
        self._replies.put(message)

    def hang_up(self) -> None:
        """End the service: reject new calls, but deliver pending replies."""
        self._replies.put(None)
        self._server.stop(GOODBYE_SECONDS)

    def close(self, *, wait: bool = True) -> None:
        """End the service. A second call does nothing.

        Args:
            wait: wait until the game has read its last reply.
        """
        self.hang_up()
        self._server.stop(GOODBYE_SECONDS if wait else None).wait()

    def _exchange(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Handle a call in its thread: pass the message on and wait for the reply."""
        with self._lock:
            self._client = self._client or context.peer()
        if context.peer() != self._client:
            context.abort(
                grpc.StatusCode.UNAVAILABLE, "another game is already connected to this port"
            )
        self._messages.put(message)
        reply = self._replies.get()
        if reply is None:
            self._replies.put(None)  # for other waiting calls
            context.abort(grpc.StatusCode.UNAVAILABLE, "the trainer has ended")
        elif not context.is_active():
            self._messages.put(None)
        return reply or b""
