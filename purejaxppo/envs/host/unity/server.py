"""The service that a Unity player calls: it sends what it observes, and is answered with actions.

Only the loopback interface is listened on. There are no threads: the player is served while
`receive` waits for it. Nothing here imports JAX.
"""

import contextlib
import selectors
import socket
import time
from typing import Any

from purejaxppo.envs.host.engine import listen
from purejaxppo.envs.host.unity.calls import CallError, Calls, Ended
from purejaxppo.envs.host.unity.messages import ProtocolError

LOOPBACK_6 = "::1"  # `localhost` may be this one
CHUNK = 1 << 16
PATIENCE_SECONDS = 0.1  # for a client to read what it is sent, before it is tried again
GOODBYE_SECONDS = 0.5  # for a player to read the last answer


class Gone(Exception):
    """The player closed its connection while it waited for an answer."""


class Server:
    """Serves one player, the first client that calls: `receive` and `reply` take turns.

    Args:
        port: to listen on; 0 takes a free one.

    Raises:
        EngineError: the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        """Starts to listen."""
        self._listeners = [listen(port)]
        self.port: int = self._listeners[0].getsockname()[1]
        with contextlib.suppress(OSError):
            self._listeners.append(
                socket.create_server((LOOPBACK_6, self.port), family=socket.AF_INET6)
            )
        for listener in self._listeners:
            listener.setblocking(False)
        self._clients: dict[socket.socket, Calls] = {}  # connected, and have not called yet
        self._player: socket.socket | None = None
        self._calls = Calls()  # of the player
        self._farewell = b""
        self._early: bytes | None = None  # a first message that nobody has asked for yet
        self._closing = 0.0  # the time until which the player may read the last answer

    def serve(self) -> None:
        """Greets a player that nobody waits for yet: it gives up after 20 s without a greeting."""
        if self._player is None and self._listeners:
            self._early = self._find(0.0)

    def receive(self, seconds: float) -> bytes | None:
        """The player's next message; None if there is none in time.

        Raises:
            Gone: the player closed its connection.
            ProtocolError: it sent what is no call.
        """
        if self._early is not None:
            early, self._early = self._early, None
            return early
        if self._player is None:
            return self._find(seconds)
        deadline = time.monotonic() + seconds
        while True:
            message = _read(self._player, self._calls, max(deadline - time.monotonic(), 1e-3))
            if message is not None:
                return message
            if time.monotonic() >= deadline:
                self._turn_away()
                return None

    def reply(self, message: bytes) -> None:
        """Answers the message that was received last, or, if it was answered, one yet to come."""
        if self._player is None or not self._calls.waiting:
            self._farewell = message
            return
        self._calls.answer(message)
        with contextlib.suppress(OSError):  # which `receive` finds, too
            _send(self._player, self._calls, PATIENCE_SECONDS)

    def hang_up(self) -> None:
        """Ends the service; a player that waits for an answer finds its connection closed."""
        if self._player is not None and not self._closing:
            self._closing = time.monotonic() + GOODBYE_SECONDS
            with contextlib.suppress(OSError, Gone, ProtocolError):
                self._say_goodbye(self._player)

    def close(self, *, wait: bool = True) -> None:
        """Closes all connections, once the player has read its last answer if there is time."""
        self.hang_up()
        if self._player is not None:
            with contextlib.suppress(OSError):
                while wait and (left := self._closing - time.monotonic()) > 0:
                    self._player.settimeout(left)
                    if not self._player.recv(CHUNK):
                        break
            self._player.close()
        self._player = None
        self._turn_away()
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    def _find(self, seconds: float) -> bytes | None:
        """Waits for the first call; who makes it is the player."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as ready:
            for one in [*self._listeners, *self._clients]:
                ready.register(one, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select(max(deadline - time.monotonic(), 0.0)):
                    there: Any = key.fileobj
                    if there in self._listeners:
                        self._welcome(there, ready)
                    elif (message := self._first_call(there, ready)) is not None:
                        return message
                if time.monotonic() >= deadline:
                    return None

    def _welcome(self, listener: socket.socket, ready: selectors.BaseSelector) -> None:
        """A new client, if it has not gone again."""
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._clients[client] = Calls()
            ready.register(client, selectors.EVENT_READ)

    def _first_call(self, client: socket.socket, ready: selectors.BaseSelector) -> bytes | None:
        """Words of a client that may be the player."""
        calls = self._clients[client]
        try:
            message = _read(client, calls, PATIENCE_SECONDS)
        except (Gone, ProtocolError):  # another address of the same player, or a stranger
            ready.unregister(client)
            del self._clients[client]
            client.close()
            return None
        if message is not None:
            del self._clients[client]
            self._player, self._calls = client, calls
            self._turn_away()
        return message

    def _turn_away(self) -> None:
        """Closes the connections of all others; the port remains ours."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()
        for client in self._clients:
            client.close()
        self._clients = {}

    def _say_goodbye(self, player: socket.socket) -> None:
        """Lets a player read its last answer: sockets that are closed before lose it."""
        late = self._farewell and not self._calls.waiting
        if late and _read(player, self._calls, 1e-3) is not None:
            self._calls.answer(self._farewell)
        _send(player, self._calls, PATIENCE_SECONDS)
        player.shutdown(socket.SHUT_WR)


def _read(client: socket.socket, calls: Calls, seconds: float) -> bytes | None:
    """Reads once what has arrived, and sends what is to be sent; a whole message, if there is one.

    Raises:
        Gone: the connection was closed.
        ProtocolError: it sent what is no call.
    """
    try:
        if calls.out:
            _send(client, calls, seconds)
        client.settimeout(min(seconds, 0.01) if calls.out else seconds)
        data = client.recv(CHUNK)
        if not data:
            raise Gone
        message = calls.feed(data)
        if calls.out:
            _send(client, calls, seconds)
    except TimeoutError:
        return None
    except (Ended, OSError):
        raise Gone from None
    except CallError as error:
        raise ProtocolError(str(error)) from error
    return message


def _send(client: socket.socket, calls: Calls, seconds: float) -> None:
    """Sends as much as the client takes; the rest stays."""
    client.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        calls.out = calls.out[client.send(calls.out) :]
