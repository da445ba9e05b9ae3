"""Calls of a run's processes to its first one over TCP, signed with the token of the job: strangers are dropped.

    listener → caller   a challenge: random digits, without which an overheard call could be sent again
    caller → listener   the message, signed with token and challenge
    listener → caller   an empty line, then the answer, signed with token and the caller's own challenge

A line is `SIGNATURE JSON`. Nothing is parsed before its signature is compared. A line has a maximum of bytes, a caller
a maximum of seconds, and all callers are heard at the same time: port scanners, health checks and connections that say
nothing hold nobody up.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

SECONDS = 5.0
"""In which a caller sends its line, and an answer is taken."""
BYTES = 1 << 17
"""Most of a line."""
_CONNECTIONS = 128
"""Most callers that have said nothing yet; of more the oldest is dropped."""
_DIGITS = 32  # of a challenge


class StrangerError(Exception):
    """The other end is no process of this run; says why."""


class EndedError(Exception):
    """The listener had taken the call, and has ended since."""


class Message(Protocol):
    """What a caller sends."""

    @property
    def challenge(self) -> str:
        """Which only this caller has: its answer is signed with it."""


M = TypeVar("M", bound=Message)


class Call(Generic[M]):
    """A call that was taken: its message, and the socket for the answer."""

    def __init__(self, connection: socket.socket, token: bytes, message: M) -> None:
        self.message = message
        self._connection, self._token = connection, token
        connection.settimeout(SECONDS)
        self._send("")

    def answer(self, words: str) -> None:
        """Tells the caller the outcome and hangs up; one that has gone is passed over."""
        self._send(words)
        self._connection.close()

    def _send(self, words: str) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(_signed(self._token, self.message.challenge, words))


class Listener(Generic[M]):
    """Takes calls on a port.

    Args:
      server: listens.
      token: of the job.
      parse: makes a message of JSON values; raises ValueError where they are none.
      note: is given a line about the first stranger; the others are dropped without a word.
    """

    def __init__(
        self, server: socket.socket, token: bytes, parse: Callable[[Any], M], note: Callable[[str], None]
    ) -> None:
        self._server, self._token, self._parse, self._note = server, token, parse, note
        self._waiting: dict[socket.socket, _Waiting] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)
        server.setblocking(False)
        self.dropped = ""
        """Of the last stranger: where it called from, and why it was dropped; "" where there was none."""

    def next(self, end: float) -> Call[M]:
        """The next call of a process of this run.

        Args:
          end: seconds of `time.monotonic` to wait for.

        Raises:
          TimeoutError: none came.
        """
        while True:
            now = time.monotonic()
            for connection in [peer for peer, waiting in self._waiting.items() if waiting.until <= now]:
                self._drop(connection, "said nothing")
            if now >= end:
                raise TimeoutError
            until = min([end, *(waiting.until for waiting in self._waiting.values())])
            for key, _ in self._selector.select(until - now):
                if key.fileobj is self._server:
                    self._accept()
                elif key.fileobj in self._waiting and (call := self._read(key.fileobj)):  # else it was the oldest
                    return call

    def close(self) -> None:
        """Hangs up on all who have not been taken."""
        for connection in list(self._waiting):
            connection.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, address = self._server.accept()
        except OSError:  # it has hung up; or there are too many files, and others will go
            return
        connection.setblocking(False)
        self._waiting[connection] = waiting = _Waiting(str(address[0]))
        self._selector.register(connection, selectors.EVENT_READ)
        try:
            connection.sendall(f"{waiting.challenge}\n".encode())
        except OSError:
            self._drop(connection, "hung up")
        if len(self._waiting) > _CONNECTIONS:
            self._drop(next(iter(self._waiting)), "said nothing")

    def _read(self, connection: Any) -> Call[M] | None:
        waiting = self._waiting[connection]
        try:
            chunk = connection.recv(1 << 16)
        except BlockingIOError:
            return None
        except OSError:
            chunk = b""
        waiting.line += chunk
        if not chunk or len(waiting.line) > BYTES:
            return self._drop(connection, "sent a line without end" if chunk else "hung up")
        line, ended, _ = bytes(waiting.line).partition(b"\n")
        if not ended:
            return None
        try:
            message = self._parse(_verified(self._token, waiting.challenge, line))
        except StrangerError as error:
            return self._drop(connection, str(error))
        except ValueError:
            return self._drop(connection, "is of another version of jaxpt")
        self._forget(connection)
        return Call(connection, self._token, message)

    def _drop(self, connection: socket.socket, why: str) -> None:
        address = self._waiting[connection].address
        self._forget(connection)
        connection.close()
        is_first, self.dropped = not self.dropped, f"{address} {why}"
        if is_first:
            self._note(self.dropped)

    def _forget(self, connection: socket.socket) -> None:
        del self._waiting[connection]
        self._selector.unregister(connection)


class _Waiting:
    """A caller whose line has not come yet."""

    def __init__(self, address: str) -> None:
        self.address, self.line, self.challenge = address, bytearray(), secrets.token_hex(_DIGITS // 2)
        self.until = time.monotonic() + SECONDS


def call(address: tuple[str, int], token: bytes, message: dict[str, Any], end: float) -> str:
    """Sends a message, and waits for the answer.

    Args:
      address: of the listener.
      token: of the job.
      message: JSON values; `challenge`, which only this caller has, among them.
      end: seconds of `time.monotonic` until an answer has to begin.

    Returns:
      The answer.

    Raises:
      StrangerError: something else listens there, or takes this caller for a stranger.
      EndedError: the listener took the call and ended.
      OSError: nothing listens there.
    """
    with socket.create_connection(address, timeout=max(end - time.monotonic(), 0.001)) as connection:
        until = min(end, time.monotonic() + SECONDS)
        lines = _Lines(connection)
        challenge = lines.next(until).decode("ascii", "replace")
        if len(challenge) != _DIGITS:
            raise StrangerError("sent no challenge")
        connection.sendall(_signed(token, challenge, message))
        if _verified(token, message["challenge"], lines.next(until + SECONDS)) != "":
            raise StrangerError("answered before it was told anything")
        try:
            return str(_verified(token, message["challenge"], lines.next(end + SECONDS)))
        except (StrangerError, OSError) as error:
            raise EndedError from error


class _Lines:
    """Lines that come over a socket, of a maximum of bytes, until a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._rest = connection, bytearray()

    def next(self, until: float) -> bytes:
        while b"\n" not in self._rest:
            self._connection.settimeout(max(until - time.monotonic(), 0.001))
            chunk = self._connection.recv(1 << 16)
            self._rest += chunk
            if not chunk or len(self._rest) > BYTES:
                raise StrangerError("sent a line without end" if chunk else "hung up")
        line, _, rest = bytes(self._rest).partition(b"\n")
        self._rest = bytearray(rest)
        return line


def _signed(token: bytes, challenge: str, message: Any) -> bytes:
    text = json.dumps(message)
    return f"{_signature(token, challenge, text.encode())} {text}\n".encode()


def _signature(token: bytes, challenge: str, text: bytes) -> str:
    return hmac.digest(token, challenge.encode() + b" " + text, "sha256").hex()


def _verified(token: bytes, challenge: str, line: bytes) -> Any:
    """The value of a line; StrangerError where it is not signed by a process of this run."""
    signature, _, text = line.partition(b" ")
    if not hmac.compare_digest(signature, _signature(token, challenge, text).encode()):
        raise StrangerError("sent a line that is not signed with the token of this run (JAXPT_TOKEN)")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise StrangerError("sent no JSON") from None
