"""Signals end real processes at once outside `deferred`, are recorded within, and nothing on the way swallows them."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxpt.runtime import signals

ROOT = Path(__file__).parents[2]
AT_ONCE = 200
"""Seconds: less than those of any work here that a signal has to end; a loaded machine takes some."""
HEAD = """
import contextlib, multiprocessing, os, pathlib, signal, sys, time
from jaxpt.runtime import signals
def say(word):
    os.write(1, f"{word}\\n".encode())  # whole: another thread says something too
"""


def run(program, *numbers, pause=0.0):
    """Starts a program and sends it signals, each after a line of its output: (exit code, output, errors, seconds)."""
    command = [sys.executable, "-c", HEAD + program]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "start_new_session": True}
    with subprocess.Popen(command, **given) as started:
        said = []
        for number in numbers:
            said.append(started.stdout.readline())
            time.sleep(pause)
            sent = time.monotonic()
            os.kill(started.pid, number)
        try:
            out, err = started.communicate(timeout=300)  # a loaded machine is slow
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    return started.returncode, "".join(said) + out, err, time.monotonic() - sent


@pytest.mark.parametrize(("resumes", "number"), zip((True, False), signals.NUMBERS))
def test_nothing_that_catches_everything_swallows_a_signal(resumes, number):
    """Raised by a handler, the signal would end in the `except` of a library."""
    code, _, err, seconds = run(
        f"signals.set_resumable({resumes})"
        """
signals.start()
say("ready")
while True:
    try:
        sum(range(1000))
    except BaseException:
        say("swallowed")
""",
        number,
    )
    words = "; re-run the same command to resume" * resumes
    assert (code, err) == (128 + number, f"jaxpt: stopped by {number.name}{words}\n")
    assert seconds < AT_ONCE


def test_nothing_watches_after_the_block():
    """Neither a thread, nor a handler, nor a file that is open."""
    handlers, files = [signal.getsignal(number) for number in signals.NUMBERS], os.listdir("/proc/self/fd")
    with signals.watch():
        watchers = [thread for thread in threading.enumerate() if thread.name == "jaxpt-signals"]
        assert len(watchers) == 1 and [signal.getsignal(number) for number in signals.NUMBERS] != handlers
    assert not watchers[0].is_alive()
    assert [signal.getsignal(number) for number in signals.NUMBERS] == handlers
    assert os.listdir("/proc/self/fd") == files


def test_a_signal_comes_while_the_main_thread_is_in_c():
    """A hash of many rounds runs no byte code for many minutes, and lets go of the interpreter's lock, as XLA does."""
    code, _, _, seconds = run(
        """
import hashlib
signals.start()
say("ready")
hashlib.pbkdf2_hmac("sha512", b"", b"", 10**9)
""",
        signal.SIGTERM,
        pause=0.3,
    )
    assert code == 143 and seconds < AT_ONCE


def test_within_deferred_a_signal_waits_for_the_work():
    code, out, err, _ = run(
        """
signals.start()
with signals.deferred(lambda number: say(f"told {number}")):
    say("ready")
    while signals.received() is None:
        time.sleep(0.01)
    say("saved")
    signals.leave(signals.received())
say("not reached")
""",
        signal.SIGTERM,
    )
    assert code == 143 and err == "" and out.split("\n")[0] == "ready" and sorted(out.split("\n")[1:]) == [
        "", "saved", "told 15",
    ]  # fmt: skip


def test_a_signal_too_late_for_the_work_ends_the_process_after_it():
    code, out, _, _ = run(
        """
signals.start()
with signals.deferred():
    say("ready")
    time.sleep(1)
    say("done")
say("not reached")
""",
        signal.SIGINT,
    )
    assert code == 130 and out == "ready\ndone\n"


def test_one_signal_during_long_c_code_counts_once():
    """Python calls the handler seconds after the signal: no second signal, which would end the work."""
    code, out, _, _ = run(
        """
signals.start()
with signals.deferred():
    say("ready")
    os.system("sleep 2")  # which waits in C
    time.sleep(0.5)
    say("saved")
""",
        signal.SIGTERM,
        pause=0.1,
    )
    assert code == 143 and out == "ready\nsaved\n"


def test_a_second_signal_ends_the_process_at_once_but_no_echo_of_the_first():
    program = """
signals.start()
with signals.deferred():
    say("ready")
    while signals.received() is None:
        time.sleep(0.01)
    say("saving")
    time.sleep(600)
"""
    code, _, _, seconds = run(program, signal.SIGINT, signal.SIGTERM, pause=1.1)
    assert code == 143 and seconds < AT_ONCE
    code, out, _, _ = run(program.replace("600", "1"), signal.SIGINT, signal.SIGINT)
    assert code == 130 and out == "ready\nsaving\n"


def test_an_event_loop_takes_the_file_that_signals_are_written_to():
    code, _, _, seconds = run(
        """
signals.start()
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
say("ready")
while True:
    time.sleep(0.01)
""",
        signal.SIGTERM,
    )
    assert code == 143 and seconds < AT_ONCE


def test_the_signal_of_a_forked_child_is_its_own():
    code, out, _, _ = run(
        """
signals.start()
child = os.fork()
if not child:
    while True:
        time.sleep(0.01)
os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
say(os.waitstatus_to_exitcode(status))
time.sleep(0.5)
say("on")
time.sleep(600)
""",
        *[0, signal.SIGTERM],
    )
    assert out == "-15\non\n" and code == 143


def test_what_is_half_done_is_removed(tmp_path):
    code, _, _, _ = run(
        f"""
signals.start()
from jaxpt.runtime import disk
with disk.whole_directory(pathlib.Path({str(tmp_path)!r}, "half")) as directory:
    (directory / "file").write_text("half")
    say("ready")
    time.sleep(600)
""",
        signal.SIGTERM,
    )
    assert code == 143 and not list(tmp_path.iterdir())


def test_a_program_that_calls_jaxpt_is_not_ended():
    code, out, _, _ = run(
        """
handler = signal.getsignal(signal.SIGINT)
try:
    with signals.deferred():
        say("ready")
        while signals.received() is None:
            time.sleep(0.01)
        signals.leave(signals.received())
except SystemExit as error:
    say(f"exit {error.code}")
assert signal.getsignal(signal.SIGINT) is handler
""",
        signal.SIGINT,
    )
    assert (code, out) == (0, "ready\nexit 130\n")


def test_a_signal_while_the_process_ends_counts():
    code, out, _, _ = run(
        """
import atexit
atexit.register(lambda: (say("ending"), time.sleep(600)))
signals.start()
signals.finish(0)
""",
        signal.SIGTERM,
    )
    assert (code, out) == (143, "ending\n")


def test_what_is_printed_and_registered_is_not_lost_at_the_end():
    done = subprocess.run(
        [sys.executable, "-c", HEAD + "import atexit\natexit.register(lambda: print('last'))\nprint('x' * 99)\n"
         "signals.start()\nsignals.finish(3)"], cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "x" * 99 + "\nlast\n")


def test_a_save_is_asked_for_by_two_signals_that_end_nothing():
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in signals.SAVE_NUMBERS}  # not nohup's
    try:
        with signals.save_requests():
            for number in signals.SAVE_NUMBERS:
                assert not signals.save_requested()
                os.kill(os.getpid(), number)
                assert signals.save_requested()
                signals.clear_save_request()
        assert {signal.getsignal(number) for number in signals.SAVE_NUMBERS} == {signal.SIG_DFL}
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_an_ignored_hangup_stays_ignored():
    """Under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.save_requests():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.save_requested()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_process_ends_before_its_grace_is_over():
    code, _, err, seconds = run(
        """
signals.start()
with signals.deferred(signals.hard_end(1.5, lambda: "the save was not finished")):
    say("ready")
    time.sleep(600)  # a save that does not end in time
""",
        signal.SIGTERM,
    )
    assert (code, err) == (143, "jaxpt: the save was not finished\n") and 1 < seconds < AT_ONCE
