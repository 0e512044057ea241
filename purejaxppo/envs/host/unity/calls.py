"""The trainer's end of a player's gRPC connection: bytes in, calls out. Nothing here imports JAX.

A player makes one call at a time, whose body is one message, and each call is answered by one
message. That is little of gRPC and of HTTP/2, so it is spoken here without a server's threads:
headers are not read (all calls are of one method), and nothing is compressed.

RFC 9113; https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_MESSAGE = 1 << 28  # bytes: 256 MiB
LARGEST_FRAME = (1 << 24) - 1
WINDOW = (1 << 31) - 1  # bytes that a side may send before it hears that they were read
REPORTED = WINDOW // 2  # bytes after which the client hears that they were read
FIRST_WINDOW = 65_535
FIRST_FRAME = 16_384

HEADER = struct.Struct(">HBBBI")  # of a frame: its size, in two parts, kind, flags, stream
PREFIX = struct.Struct(">BI")  # of a message: 1 if compressed, size
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
ACK, END_STREAM, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
SET_TABLE_SIZE, SET_WINDOW, SET_FRAME = 0x1, 0x4, 0x5

# Headers in HPACK (RFC 7541), not its dynamic table: entry 8 of the static one is `:status: 200`
# and 31 the name `content-type`; a name that is not there is spelt.
ANSWER = b"\x88" + b"\x0f\x10" + b"\x10application/grpc"
TRAILERS = b"\x00\x0bgrpc-status\x010"


class CallError(Exception):
    """A client sent what is no call of a player; what it did, without a subject."""


class Ended(CallError):
    """The client ended its connection, gave up its call, or never spoke gRPC."""


class Calls:
    """The calls of one client.

    `feed` takes what was received and returns a call's message, `answer` answers it, and `out` is
    what is to be sent.
    """

    def __init__(self) -> None:
        """Greets the client: it may send as much at once as it likes."""
        settings = [(SET_TABLE_SIZE, 0), (SET_WINDOW, WINDOW), (SET_FRAME, LARGEST_FRAME)]
        self.out = frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in settings))
        self.out += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - FIRST_WINDOW))
        self._greeted = False
        self._read = bytearray()
        self._stream = 0  # of the present call
        self._newest = 0
        self._asked = bytearray()  # the call's message as far as it has arrived
        self._unreported = 0  # bytes of bodies since the client was last told that they were read
        self._whole = False  # the call waits for its answer
        self._reply = b""  # the rest of an answer
        self._window = FIRST_WINDOW  # that the client grants the connection
        self._stream_window = self._first_window = FIRST_WINDOW  # and each call
        self._largest = FIRST_FRAME

    @property
    def waiting(self) -> bool:
        """True if a call has not been answered yet."""
        return self._whole

    def feed(self, data: bytes) -> bytes | None:
        """Reads what has arrived; the message of a call that is now whole.

        Raises:
            Ended: the client ends the connection or the call, or speaks something else.
            CallError: this is no call of a player.
        """
        read = self._read
        read += data
        if not self._greeted:
            if not PREFACE.startswith(read[: len(PREFACE)]):
                raise Ended("does not speak gRPC")
            if len(read) < len(PREFACE):
                return None
            self._greeted = True
            del read[: len(PREFACE)]
        message, at, end = None, 0, len(read)
        while end - at >= HEADER.size:
            high, low, kind, flags, stream = HEADER.unpack_from(read, at)
            size = high << 8 | low
            if end - at < HEADER.size + size:
                break
            at += HEADER.size + size
            whole = self._take(kind, flags, stream & WINDOW, bytes(read[at - size : at]))
            message = whole if message is None else message
            if len(self.out) > LARGEST_MESSAGE:
                raise CallError("does not read what it is sent")
        del read[:at]
        return message

    def answer(self, message: bytes) -> None:
        """Answers the call.

        Raises:
            AssertionError: nobody waits.
        """
        assert self._whole
        self.out += frame(HEADERS, END_HEADERS, self._stream, ANSWER)
        self._reply = PREFIX.pack(0, len(message)) + message
        self._whole = False
        self._proceed()

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> bytes | None:
        """Reads a frame; the message that it completes."""
        if kind == DATA:
            return self._extend(flags, stream, body)
        if kind == HEADERS:
            self._begin(flags, stream)
        elif kind == SETTINGS:
            if not flags & ACK:
                self._set(body)
                self.out += frame(SETTINGS, ACK, 0)
        elif kind == PING:
            if not flags & ACK:
                self.out += frame(PING, ACK, 0, body)
        elif kind == WINDOW_UPDATE:
            self._widen(stream, body)
        elif kind == GOAWAY or (kind == RST_STREAM and stream == self._stream):
            raise Ended("ended its call")
        return None  # the continuation of headers, priorities, and kinds to come

    def _begin(self, flags: int, stream: int) -> None:
        """The headers of a call."""
        if stream <= self._newest or self._stream:
            raise CallError("made a call before the last one was answered")
        if flags & END_STREAM:
            raise CallError("made a call without a message")
        self._stream = self._newest = stream
        self._stream_window = self._first_window

    def _extend(self, flags: int, stream: int, body: bytes) -> bytes | None:
        """A part of a call's message; all of it once it is whole."""
        if stream != self._stream or self._whole or self._reply:
            raise CallError("sent a message outside of a call")
        self._unreported += len(body)
        if self._unreported > REPORTED:
            self.out += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unreported))
            self._unreported = 0
        if flags & PADDED:
            if not body or body[0] >= len(body):
                raise CallError("sent a frame of nothing but padding")
            body = body[1 : len(body) - body[0]]
        asked = self._asked
        asked += body
        compressed, size = PREFIX.unpack_from(asked) if len(asked) >= PREFIX.size else (0, 0)
        if compressed:
            raise CallError("sent a compressed message, which players do not")
        if max(size, len(asked) - PREFIX.size) > LARGEST_MESSAGE:
            raise CallError(f"sent a message of more than {LARGEST_MESSAGE:,} bytes")
        if not flags & END_STREAM:
            return None
        if len(asked) != PREFIX.size + size:
            raise CallError(f"sent {len(asked)} bytes that are no message of gRPC")
        self._asked, self._whole = bytearray(), True
        return bytes(asked[PREFIX.size :])

    def _set(self, body: bytes) -> None:
        """The client's settings."""
        if len(body) % 6:
            raise CallError("sent settings that are none")
        for key, value in struct.iter_unpack(">HI", body):
            if key == SET_FRAME:
                self._largest = max(FIRST_FRAME, min(value, LARGEST_FRAME))
            elif key == SET_WINDOW:
                self._stream_window += value - self._first_window
                self._first_window = value
        self._proceed()

    def _widen(self, stream: int, body: bytes) -> None:
        """The client has read some of what it was sent."""
        if len(body) != 4:
            raise CallError("sent a window that is none")
        more = int.from_bytes(body, "big") & WINDOW
        if stream == 0:
            self._window += more
        elif stream == self._stream:
            self._stream_window += more
        self._proceed()

    def _proceed(self) -> None:
        """Sends as much of an answer as the client has room for."""
        while self._reply:
            size = min(len(self._reply), self._largest, self._window, self._stream_window)
            if size <= 0:
                return
            self.out += frame(DATA, 0, self._stream, self._reply[:size])
            self._reply = self._reply[size:]
            self._window -= size
            self._stream_window -= size
            if not self._reply:
                self.out += frame(HEADERS, END_HEADERS | END_STREAM, self._stream, TRAILERS)
                self._stream = 0


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return HEADER.pack(len(body) >> 8, len(body) & 0xFF, kind, flags, stream) + body
