"""`jaxpt doctor` finds what is there, names what is missing and says how to get it."""

import io
import json
import re

import pytest
from rich.console import Console

from jaxpt.cli import doctor


def run(**probes):
    """(exit code, what is printed) with other probes than the real ones."""
    console = Console(file=io.StringIO(), width=200)
    return doctor.doctor(console, doctor.PROBES | probes), console.file.getvalue()


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
    row = doctor.package(requirement)
    assert (row.ok, row.advice) == (ok, advice)


@pytest.mark.parametrize(
    ("version", "least", "ok"),
    [("0.9.1", "0.10", False), ("0.12.8rc1", "0.12.8", True), ("0.12.8rc1", "0.12.9", False), ("1.10", "1.9.5", True)],
)
def test_versions_are_compared_by_number(monkeypatch, version, least, ok):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: version)
    assert doctor.package(f"jax>={least}").ok == ok


@pytest.mark.parametrize(
    ("lost", "code", "words"),
    [
        ({"tensorflow", "seqio"}, 0, "Training works from prepared batches (data.source: batches); to prepare data, "
         "fix: seqio, tensorflow, a tf.data pipeline."),
        ({"tensorboardX"}, 0, "Training works on this machine."),
        ({"flax"}, 2, "Training does not work; fix: flax."),
        ({"flax", "tensorflow"}, 2, "Training does not work; fix: flax, tensorflow"),
    ],
)  # fmt: skip
def test_what_computes_is_told_apart_from_what_prepares_data(monkeypatch, lost, code, words):
    """`lost` are not installed; in a machine without TensorFlow runs train from prepared batches."""
    version = doctor.importlib.metadata.version

    def installed(name):
        if name in lost:
            raise doctor.importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", installed)
    devices, pipeline = 'print(\'[["cpu", "x", null]]\')', "import no_tf" if "tensorflow" in lost else "print(56)"
    found, said = run(devices=devices, pipeline=pipeline, attention="print('{}')")
    assert found == code and words in said
    computes, prepares = said.index("What computes"), said.index("What prepares data")
    assert computes < said.index(" flax ") < prepares < said.index(" seqio ")


def test_what_is_required_is_known_without_an_installation(monkeypatch):
    installed = doctor.requirements()

    def requires(name):
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "requires", requires)
    names = {re.match(r"[\w.-]+", text)[0] for text in doctor.requirements()}
    assert {"jax", "seqio", "pydantic"} <= names
    assert names == {re.match(r"[\w.-]+", text)[0] for text in installed if "extra ==" not in text}
    assert {*doctor.PREPARES, *doctor.SOME} <= names


def test_a_probe_that_fails_or_hangs_is_a_line():
    assert doctor.finish(doctor.start("print('noise'); print('[1, 2]')")) == ([1, 2], "")
    assert doctor.finish(doctor.start("raise ImportError('libcudart.so')")) == (None, "ImportError: libcudart.so")
    assert doctor.finish(doctor.start("import os; os.abort()"))[0] is None
    hangs = doctor.finish(doctor.start("import time; time.sleep(60)"), seconds=0.2)
    assert hangs == (None, "no answer within 0.2 s; is another process using the device?")


def test_unwritable_directories_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    row = doctor.space("disk", tmp_path / "a" / "b")
    assert not row.ok and row.advice == f"{tmp_path} is not writable"


@pytest.mark.parametrize(
    ("step", "pipeline", "code"), [("[['cpu','x',None]]", "56", 0), ("1/0", "56", 2), ("[]", "55", 2)]
)
def test_exit_code(step, pipeline, code):
    """0 only where a compiled step and a pipeline run."""
    devices = f"import json; print(json.dumps({step}))"
    found, said = run(devices=devices, pipeline=f"print({pipeline})", attention="print('{}')")
    assert found == code
    assert ("Training works on this machine." in said) == (code == 0)
    assert "jax" in said and "CPU cores" in said and "attention" not in said


@pytest.mark.parametrize("fails", [False, True])
def test_attention_kernels_are_compared(fails):
    """A wrong one, and one that does not compile, say what to set."""
    others = {"devices": 'print(\'[["cpu", "x", null]]\')', "pipeline": "print(56)"}
    if fails:
        code, said = run(attention="raise RuntimeError('no PTX for sm_70')", **others)
        assert "no PTX for sm_70; set model.attention=xla" in said and "fix: attention kernels." in said
    else:
        code, said = run(attention='print(\'{"cudnn": 0.004, "flash": 0.3}\')', **others)
        lines = [line.split() for line in said.splitlines() if "from plain attention" in line]
        assert [(line[0], line[2]) for line in lines] == [("ok", "cudnn"), ("!!", "flash")]
        assert " ".join(lines[1]).endswith("set model.attention=xla") and "0.3000" in lines[1]
        assert "set" not in lines[0] and "fix: attention, flash." in said
    assert code == 2


def test_a_cpu_has_no_attention_kernels(capsys):
    exec(doctor.PROBES["attention"], {})
    assert json.loads(capsys.readouterr().out) == {}


@pytest.mark.slow
def test_this_machine_can_train():
    code, said = run()
    assert code == 0, said
