"""The gRPC service that a Unity player calls with observations, and that answers with actions.

It listens on the loopback interface only. Nothing here imports JAX.
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
GOODBYE_SECONDS = 0.5  # for a player to read the last answer


class CallCancelled(Exception):
    """The player gave up a call that waited for an answer."""


class DaemonThreads(Executor):
    """A thread for each task, which does not keep the process from ending while it waits."""

    def submit(self, task: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Starts a task."""
        result: Future[Any] = Future()

        def run() -> None:
            try:
                result.set_result(task(*args, **options))
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=run, name="unity-call", daemon=True).start()
        return result


class Server:
    """Serves one player, the first client that calls: `receive` and `reply` take turns.

    Args:
        port: to listen on; 0 takes a free one.

    Raises:
        EngineError: the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        """Starts to listen."""
        if port:
            listen(port).close()  # its error has a reason, unlike gRPC's
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._player = ""  # address of the first client
        self._server = grpc.server(DaemonThreads(), options=OPTIONS)
        methods = {METHOD: grpc.unary_unary_rpc_method_handler(self._exchange)}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, methods),)
        )
        self.port: int = self._server.add_insecure_port(f"localhost:{port}")
        self._server.start()

    def receive(self, seconds: float) -> bytes | None:
        """Returns the player's next message; None after `seconds` without one.

        Raises:
            Gone: the player gave up its call.
        """
        try:
            message = self._messages.get(timeout=seconds)
        except queue.Empty:
            return None
        if message is None:
            raise CallCancelled
        return message

    def reply(self, message: bytes) -> None:
        """Answers the waiting call or, if the last one was answered, the next call."""
        self._answers.put(message)

    def hang_up(self) -> None:
        """Ends the service: new calls are rejected, and answers on their way still arrive."""
        self._answers.put(None)
        self._server.stop(GOODBYE_SECONDS)

    def close(self, *, wait: bool = True) -> None:
        """Ends the service; a second call does nothing.

        Args:
            wait: until the player has read its last answer.
        """
        self.hang_up()
        self._server.stop(GOODBYE_SECONDS if wait else None).wait()

    def _exchange(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Handles a call in its own thread: passes the message on and waits for the answer."""
        with self._lock:
            self._player = self._player or context.peer()
        if context.peer() != self._player:
            context.abort(
                grpc.StatusCode.UNAVAILABLE, "another game is already connected to this port"
            )
        self._messages.put(message)
        answer = self._answers.get()
        if answer is None:
            self._answers.put(None)  # for other waiting calls
            context.abort(grpc.StatusCode.UNAVAILABLE, "the trainer has ended")
        elif not context.is_active():
            self._messages.put(None)
        return answer or b""
