"""Calls of a run's processes to process 0 over TCP, signed with the token of the job.

    process 0 → caller   a challenge: random digits, without which an overheard call could be sent again
    caller → process 0   the message, signed with token and challenge
    process 0 → caller   an empty line, then the answer, signed with token and the caller's own challenge

A line is `SIGNATURE JSON`. It has a maximum of bytes and of seconds, and nothing is parsed before its signature is
compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets

import pydantic

SECONDS = 5.0
"""The time that a caller has to send its line."""
BYTES = 1 << 17
"""Maximum size of a line."""
_DIGITS = 32  # of a challenge


class StrangerError(Exception):
    """The other end is no process of this run; says why."""


class EndedError(Exception):
    """Process 0 had taken the call, and has ended since."""


class Caller(pydantic.BaseModel, frozen=True, strict=True, extra="forbid"):
    """What a process tells process 0."""

    process: int = pydantic.Field(gt=0)
    processes: int = pydantic.Field(gt=0)
    host: str
    failure: str = ""
    """Why it has failed already; "" where it has not."""
    challenge: str = pydantic.Field(default_factory=lambda: secrets.token_hex(_DIGITS // 2))
    """Random digits: the caller is known by them, and the answer is signed with them."""


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> Caller:
    """Takes a call, in process 0.

    Args:
      reader: what the caller sends.
      writer: what it is sent.
      token: the job's.

    Raises:
      StrangerError: the caller is no process of this run.
    """
    challenge = secrets.token_hex(_DIGITS // 2)
    try:
        async with asyncio.timeout(SECONDS):
            writer.write(f"{challenge}\n".encode())
            caller = Caller.model_validate_json(_verified(token, challenge, await _line(reader)))
    except TimeoutError:
        raise StrangerError("said nothing") from None
    except OSError:
        raise StrangerError("hung up") from None
    except pydantic.ValidationError:
        raise StrangerError("is of another version of jaxpt") from None
    answer(writer, token, caller, "")
    return caller


def answer(writer: asyncio.StreamWriter, token: bytes, caller: Caller, words: str) -> None:
    """Sends a line to a caller; one that has hung up is passed over."""
    writer.write(_signed(token, caller.challenge, json.dumps(words)))


async def call(address: tuple[str, int], token: bytes, caller: Caller, end: float, patience: float) -> str:
    """Calls process 0, and waits for its answer.

    Args:
      address: where process 0 listens.
      token: the job's.
      caller: what this process says.
      end: when process 0 has to be there, in seconds of `time.monotonic`.
      patience: seconds to wait for the answer of a process 0 that has taken the call.

    Returns:
      The answer.

    Raises:
      StrangerError: something else listens there, or takes this caller for a stranger.
      EndedError: process 0 took the call and ended.
      OSError: nothing listens there.
    """
    async with asyncio.timeout_at(end):
        reader, writer = await asyncio.open_connection(*address, limit=BYTES)
    with contextlib.closing(writer):
        async with asyncio.timeout(SECONDS):
            challenge = (await _line(reader)).decode("ascii", "replace")
            if len(challenge) != _DIGITS:
                raise StrangerError("sent no challenge")
            writer.write(_signed(token, challenge, caller.model_dump_json()))
            if _verified(token, caller.challenge, await _line(reader)) != b'""':
                raise StrangerError("answered before it was told anything")
        try:
            async with asyncio.timeout(patience + SECONDS):
                return str(json.loads(_verified(token, caller.challenge, await _line(reader))))
        except (StrangerError, OSError) as error:
            raise EndedError from error


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readline()
    except ValueError:
        raise StrangerError("sent a line without end") from None
    if not line.endswith(b"\n"):
        raise StrangerError("hung up")
    return line[:-1]


def _signed(token: bytes, challenge: str, text: str) -> bytes:
    return f"{_signature(token, challenge, text.encode())} {text}\n".encode()


def _signature(token: bytes, challenge: str, text: bytes) -> str:
    return hmac.digest(token, challenge.encode() + b" " + text, "sha256").hex()


def _verified(token: bytes, challenge: str, line: bytes) -> bytes:
    """The JSON of a line; StrangerError where it is not signed by a process of this run."""
    signature, _, text = line.partition(b" ")
    if not hmac.compare_digest(signature, _signature(token, challenge, text).encode()):
        raise StrangerError("sent a line that is not signed with the token of this run (JAXPT_TOKEN)")
    return text
