"""Time in which the host waits for batches, and what is said where that bounds a run; memory of devices."""

import time

import jax
import jax.numpy as jnp
import pytest

from jaxpt.train import display, resources


def feed(seconds):
    while True:
        time.sleep(seconds)
        yield {}


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(resources.os, "cpu_count", lambda: 8)


def test_waiting_for_input_is_measured_and_said_once(cores):
    there = {"loss": jax.block_until_ready(jnp.zeros(()))}
    wait = resources.InputWait(feed(0.02), readers=0)
    wait.next()  # before the first step
    assert wait.share(1.0) == (0.0, "")
    for _ in range(4):
        wait.next(there)
    share, hint = wait.share(0.16)
    assert 0.5 <= share <= 1
    assert hint == (
        f"{share:.0%} of the step time goes into waiting for the next batch; "
        "raise data.readers=4 (this host has 8 cores)"
    )
    for _ in range(4):
        wait.next(there)
    share, hint = wait.share(0.16)
    assert share >= 0.5 and hint == ""


def test_cores_are_what_is_missing_where_all_are_used(cores):
    wait = resources.InputWait(feed(0.01), readers=8)
    wait.next({"loss": jax.block_until_ready(jnp.zeros(()))})
    hint = wait.share(0.01)[1]
    assert hint.endswith("data.readers=8 threads already use the 8 cores of this host: more cores are needed")


def test_nothing_is_advised_while_the_device_is_at_work():
    class AtWork:
        def is_ready(self):
            return False

    wait = resources.InputWait(feed(0.02), readers=0)
    wait.next({"loss": AtWork()})
    share, hint = wait.share(0.02)
    assert share > resources.NOTABLE and hint == ""


def test_the_fullest_device_counts(monkeypatch):
    class Device:
        def __init__(self, stats):
            self.memory_stats = lambda: stats

    devices = [Device({"bytes_in_use": used, "peak_bytes_in_use": 2 * used, "bytes_limit": 99}) for used in (3, 7)]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert resources.device_memory() == {"bytes_in_use": 7.0, "peak_bytes_in_use": 14.0}
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(None), Device({})])
    assert resources.device_memory() == {"bytes_in_use": None, "peak_bytes_in_use": None}


def test_the_log_line_shows_it_where_it_matters(capsys):
    shown = display.Display(0, 10, tokens_per_step=64, flops_per_step=1.0, peak=None)
    rates = {"steps_per_second": 1.0, "tokens_per_second": 64.0, "seconds_left": 5.0}
    for wait in (0.62, 0.1):
        shown.step(5, 2.0, 1e-3, rates | {"input_wait": wait})
    first, second = capsys.readouterr().out.splitlines()
    assert first == "step 5/10  loss 2.0000  lr 1.00e-03  64 tokens/s  input 62%  5s left"
    assert second == "step 5/10  loss 2.0000  lr 1.00e-03  64 tokens/s  5s left"
