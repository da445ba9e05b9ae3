"""`jaxpt doctor` finds what is there, names what is missing and says how to get it."""

import io

import pytest
from rich.console import Console

from jaxpt import doctor


def test_versions_are_compared_by_number():
    assert doctor._numbers("0.12.8rc1") == (0, 12, 8)
    assert doctor._numbers("0.9.1") < doctor._numbers("0.10")


@pytest.mark.parametrize(
    ("requirement", "ok", "advice"),
    [
        ("pytest>=1", True, ""),
        ("pytest", True, ""),
        ("pytest>=999.1", False, "pip install -U 'pytest>=999.1'"),
        ("no-such-package-here>=2", False, "pip install 'no-such-package-here>=2'"),
    ],
)
def test_packages(requirement, ok, advice):
    row = doctor._package(requirement)
    assert (row.ok, row.advice) == (ok, advice)


def test_a_probe_that_fails_or_hangs_is_a_line(monkeypatch):
    assert doctor._finish(doctor._start("print('noise'); print('[1, 2]')")) == ([1, 2], "")
    assert doctor._finish(doctor._start("raise ImportError('libcudart.so')")) == (None, "ImportError: libcudart.so")
    assert doctor._finish(doctor._start("import os; os.abort()"))[0] is None
    monkeypatch.setattr(doctor, "_PROBE_SECONDS", 0.2)
    assert "no answer" in doctor._finish(doctor._start("import time; time.sleep(60)"))[1]


def test_unwritable_directories_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    row = doctor._disk("disk", tmp_path / "a" / "b")
    assert not row.ok and row.advice == f"{tmp_path} is not writable"


@pytest.mark.parametrize(
    ("step", "pipeline", "code"), [("[['cpu','x',None]]", "56", 0), ("1/0", "56", 1), ("[]", "55", 1)]
)
def test_exit_code(monkeypatch, step, pipeline, code):
    """0 only where a compiled step and a pipeline run."""
    monkeypatch.setattr(doctor, "_DEVICES", f"import json; print(json.dumps({step}))")
    monkeypatch.setattr(doctor, "_PIPELINE", f"print({pipeline})")
    console = Console(file=io.StringIO(), width=200)
    assert doctor.doctor(console) == code
    said = console.file.getvalue()
    assert ("Training works on this machine." in said) == (code == 0)
    assert "jax" in said and "CPU cores" in said


def test_attention_kernels_are_compared():
    """A wrong one, and one that does not compile, say what to set."""
    rows = doctor._attention(doctor._start('print(\'{"cudnn": 0.004, "flash": 0.3}\')'))
    assert [(row.what, row.ok) for row in rows] == [("attention, cudnn", True), ("attention, flash", False)]
    assert rows[1].advice == "set model.attention=xla" and "0.3000" in rows[1].found and not rows[0].advice
    (row,) = doctor._attention(doctor._start("raise RuntimeError('no PTX for sm_70')"))
    assert not row.ok and "no PTX for sm_70; set model.attention=xla" in row.advice
    assert doctor._attention(doctor._start(doctor._ATTENTION)) == []


@pytest.mark.slow
def test_this_machine_can_train():
    console = Console(file=io.StringIO(), width=200)
    assert doctor.doctor(console) == 0, console.file.getvalue()
