"""What the subprocess that compiles says, and what it waits for; under a made-up compiler."""

import time
from pathlib import Path

import pytest

from jaxpt.errors import UserError
from jaxpt.plan import gpus, isolated

NEEDED = ("memory-usage-report", "live-range", "buffer-assignment", "after_optimizations")
"""Endings of the files, without .txt, from which a plan is read."""
REFUSING = """
from jaxpt.errors import UserError
from jaxpt.plan import isolated

def work(job, directory):
    raise UserError(f"{job['what']}: does not fit, says {directory.name}")

isolated.answer(work)
"""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Asks a process of its own, with a program."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def ask(program, **job):
        (tmp_path / "made_up_compiling.py").write_text(program, "utf-8")
        return isolated.ask("made_up_compiling", {"topology": None, **job}, "a v5e")

    return ask


@pytest.mark.slow
def test_what_is_wrong_with_a_job_is_one_line(asked):
    with pytest.raises(UserError, match=r"^mesh\.data: does not fit, says jaxpt-plan-\w+$"):
        asked(REFUSING, what="mesh.data")


TRACE = "Traceback (most recent call last):\n  File x.py\nValueError: 2 does not divide 25\n----\nFrames left out.\n"


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (TRACE, "ValueError: 2 does not divide 25"),
        (f"F1122 x.cc:3] Check failed: a == b\n{TRACE}", "F1122 x.cc:3] Check failed: a == b"),
        ("\nkilled\n", "killed"),
        ("", "no word"),
    ],
)
def test_a_process_that_ends_says_why(asked, stderr, reason):
    with pytest.raises(UserError) as error:
        asked(f"import sys; sys.stderr.write({stderr!r}); sys.exit(3)")
    assert str(error.value) == f"compiling the step for a v5e ended with code 3: {reason}"


def test_a_file_that_comes_after_the_last_one_is_waited_for(tmp_path):
    """As on a busy machine, where the compiler's threads write in another order."""
    last = "after_optimizations-buffer-assignment-values"

    class Lowered:
        def compile(self, compiler_options):
            for name in (last, "after_optimizations", *NEEDED[:3]):
                dump = Path(compiler_options["xla_dump_to"])
                dump.mkdir(exist_ok=True)
                (dump / f"module_1.jit_step.{name}.txt").write_text(f"{name}.txt")
                time.sleep(0.3)

    found = isolated.compile_(Lowered(), tmp_path, "jit_step", "cpu")
    assert found == {name: f"{name}.txt" for name in NEEDED}


@pytest.mark.parametrize(
    ("platform", "reason", "tried"),
    [("gpu", "no tile sizes for f32[4,3]", 2), ("gpu", "out of registers", 1), ("tpu", "tile sizes", 1)],
)
def test_products_of_a_gpu_that_have_no_tiles_are_left_to_cublas(tmp_path, platform, reason, tried):
    seen = []

    class Lowered:
        def compile(self, compiler_options):
            seen.append(compiler_options)
            dump = Path(compiler_options["xla_dump_to"])
            if not gpus.CUBLAS.items() <= compiler_options.items():
                raise ValueError(reason)
            dump.mkdir()
            for name in NEEDED:
                (dump / f"module_1.jit_run.{name}.txt").write_text(name)

    try:
        assert isolated.compile_(Lowered(), tmp_path, "jit_run", platform).keys() == set(NEEDED)
        assert tried == 2
    except UserError as error:
        assert tried == 1 and reason in str(error)
    assert len(seen) == tried and len({one["xla_dump_to"] for one in seen}) == tried
