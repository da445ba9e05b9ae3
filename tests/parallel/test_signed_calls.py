"""Who calls process 0 and is no process of the run: dropped with one note, and the start goes on. Real sockets."""

import asyncio
import concurrent.futures
import contextlib
import functools
import socket
import struct
import threading
import time
from types import SimpleNamespace

import pytest

from jaxpt import errors
from jaxpt.errors import UserError
from jaxpt.parallel import roll_call, signed_calls
from tests.processes import free_port
from tests.waiting import LIMIT, until

STRANGERS = {
    "half-open": b"",
    "no line": b"GET / HTTP/1.1",
    "health check": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x00\xa5\x01\n",
    "no UTF-8": b"\xff\xfe\n",
    "a list for a number": b'[[1],2,"h",""]\n',
    "a word for a number": b'["x",2,"h",""]\n',
    "forged failure": b'[1,2,"h","pay me"]\n',
    "forged signature": b'%s {"process": 1, "processes": 2, "host": "h", "failure": "pay me"}\n' % (b"0" * 64),
    "nested": b"[" * 100_000 + b"\n",
    "no end": b"a" * (1 << 20),
}


@pytest.fixture
def notes(monkeypatch):
    found: list[str] = []
    monkeypatch.setattr(errors, "note", found.append)
    monkeypatch.delenv("JAXPT_TOKEN", raising=False)
    return found


def heard(coordinator, number, timeout=LIMIT, processes=2):
    """What a process hears; "" when all are there."""
    try:
        roll_call.call_roll(roll_call.ProcessInfo(coordinator, processes, number), timeout)
    except UserError as error:
        return str(error).removeprefix(f"distributed.coordinator: {coordinator}: ")
    return ""


def connected(port):
    """A connection, as soon as somebody listens."""

    def connect():
        with contextlib.suppress(OSError):
            return socket.create_connection(("localhost", port))

    return until(connect)


@pytest.fixture
def dropped(monkeypatch):
    """An event: a stranger was dropped. The time of process 0 is over then, and that of one which looks for it."""
    event = threading.Event()

    class Roll(roll_call._Roll):
        def _drop(self, who):
            super()._drop(who)
            if not event.is_set():
                self._deadline.reschedule(0.0)
            event.set()

    monkeypatch.setattr(roll_call, "_Roll", Roll)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 2 * LIMIT * event.is_set())
    monkeypatch.setattr(roll_call, "time", clock)
    return event


def test_strangers_are_dropped_with_one_note_and_the_start_goes_on(notes):
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        first = pool.submit(heard, f"localhost:{port}", 0)
        for line in STRANGERS.values():
            connection = stack.enter_context(connected(port))
            with contextlib.suppress(OSError):  # it hangs up before the end of a line without one
                connection.sendall(line)
        connected(port).close()  # a scanner
        reset = connected(port)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
        assert heard(f"localhost:{port}", 1) == first.result() == ""
    (note,) = notes
    assert " a caller from 127.0.0.1 " in note and note.endswith("no process of this run; dropped, the start goes on")


def test_more_connections_than_a_listener_holds_drop_the_oldest(notes, monkeypatch):
    monkeypatch.setattr(roll_call, "_CONNECTIONS", 3)
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        first = pool.submit(heard, f"localhost:{port}", 0)
        for _ in range(8):
            stack.enter_context(connected(port))
        assert heard(f"localhost:{port}", 1) == first.result() == ""


def test_one_that_sends_a_byte_at_a_time_has_no_more_time_than_others(notes, dropped, monkeypatch):
    monkeypatch.setattr(signed_calls, "SECONDS", 0.1)
    port = free_port()

    def drip():
        with connected(port) as connection, contextlib.suppress(OSError):
            while not dropped.wait(0.02):
                connection.sendall(b"a")

    with concurrent.futures.ThreadPoolExecutor() as pool:
        dripping = pool.submit(drip)
        words = heard(f"localhost:{port}", 0)
        dripping.result()
    assert words == (
        "of 2 processes 1 did not come in time (distributed.timeout); the last that was dropped: 127.0.0.1 said nothing"
    )


def test_one_that_hangs_up_is_said(notes, dropped):
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(heard, f"localhost:{port}", 0)
        connection = connected(port)
        assert len(connection.recv(64)) == signed_calls._DIGITS + 1  # the challenge: it is heard
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # a reset, no end of what it sends
    assert first.result() == (
        "of 2 processes 1 did not come in time (distributed.timeout); the last that was dropped: 127.0.0.1 hung up"
    )


@pytest.mark.parametrize(
    "message",
    [
        '{"process": 1, "processes": 2}',
        '{"process": 1, "processes": 2, "host": "h", "kind": "x"}',
        '{"process": "1", "processes": 2, "host": "h"}',
        '{"process": 0, "processes": 2, "host": "h"}',
        "[]",
    ],
)
def test_one_of_another_version_is_said(notes, message):
    """It knows the token, and says something else than process 0 takes."""

    async def hear(ended, reader, writer):
        with contextlib.closing(writer):
            try:
                ended.set_result(await signed_calls.accept(reader, writer, b"token"))
            except signed_calls.StrangerError as error:
                ended.set_result(str(error))

    async def call():
        ended = asyncio.get_running_loop().create_future()
        async with await asyncio.start_server(functools.partial(hear, ended), "localhost", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            with contextlib.closing(writer):
                challenge = (await reader.readline()).decode().strip()
                writer.write(signed_calls._signed(b"token", challenge, message))
                assert await reader.read() == b"", "it is told nothing"
                return await ended

    assert asyncio.run(call()) == "is of another version of jaxpt"


def test_another_token_is_named_at_both_ends(notes, dropped, monkeypatch):
    port = free_port()
    monkeypatch.setattr(roll_call, "_token", lambda info, environment: b"own" if info.process else b"another")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(heard, f"localhost:{port}", 0)
        second = heard(f"localhost:{port}", 1)
    assert "sent a line that is not signed with the token of this run (JAXPT_TOKEN)" in first.result()
    assert second.endswith("what listens there hung up: another run, or another JAXPT_TOKEN?")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"f" * 32 + b"\nprocess 0 failed: pay me\n"])
def test_a_stranger_that_listens_is_not_believed(notes, answer):
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        words = heard(f"localhost:{port}", 1, 0.3)
        server.shutdown(socket.SHUT_RDWR)
    assert "did not find process 0 there in time" in words and "pay me" not in words and "400" not in words


def test_an_overheard_line_is_of_no_use(notes, dropped):
    """What a process has signed for one call is refused in the next one."""
    port = free_port()
    info = roll_call.ProcessInfo(f"localhost:{port}", 2, 1)
    token = roll_call._token(info, {})
    caller = signed_calls.Caller(process=1, processes=2, host="h", failure="gone", challenge="c")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(heard, f"localhost:{port}", 0)
        with connected(port) as connection:
            connection.recv(64)
            connection.sendall(signed_calls._signed(token, "the challenge of another call", caller.model_dump_json()))
            assert connection.recv(64) == b""
        assert "did not come in time" in first.result()


def test_the_token_is_that_of_the_job():
    place = roll_call.ProcessInfo("a:1", 2, 0)
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    told = [{}, step, step | {"SLURM_JOB_ID": "8"}, {"JAXPT_TOKEN": "x"}, step | {"JAXPT_TOKEN": "y"}]
    assert len({roll_call._token(place, environment) for environment in told}) == len(told)
    other = roll_call.ProcessInfo("10.0.0.1:1", 2, 1)  # another name of the same host
    assert roll_call._token(other, step) == roll_call._token(place, step)


def test_it_listens_where_the_others_are_told_to_call():
    with roll_call._server(roll_call.ProcessInfo(f"127.0.0.1:{free_port()}", 2, 0)) as server:
        assert server.getsockname()[0] == "127.0.0.1"
    with roll_call._server(roll_call.ProcessInfo(f"192.0.2.1:{free_port()}", 2, 0)) as server:  # behind a NAT
        assert server.getsockname()[0] == "0.0.0.0"
    with roll_call._server(roll_call.ProcessInfo(f"{socket.gethostname()}:{free_port()}", 2, 0)) as server:
        assert server.getsockname()[0] == "0.0.0.0"  # the name may stand for loopback here
