"""What the subprocess that compiles says, and what it waits for; under a made-up compiler."""

import time
from pathlib import Path

import pytest

from jaxpt.errors import UserError
from jaxpt.plan import gpus, isolated


def test_a_process_that_ends_says_why():
    trace = (
        "Traceback (most recent call last):\n  File x.py\nValueError: 2 does not divide 25\n----\nFrames left out.\n"
    )
    assert isolated._reason(trace) == "ValueError: 2 does not divide 25"
    assert isolated._reason(f"F1122 x.cc:3] Check failed: a == b\n{trace}") == "F1122 x.cc:3] Check failed: a == b"
    assert isolated._reason("\nkilled\n") == "killed" and isolated._reason("") == "no word"


def test_a_file_that_comes_after_the_last_one_is_waited_for(tmp_path):
    """As on a busy machine, where the compiler's threads write in another order."""

    class Lowered:
        def compile(self, compiler_options):
            names = [*isolated._WRITTEN_LAST, *(f"{name}.txt" for name in isolated._NEEDED)]
            for name in dict.fromkeys(names):
                dump = Path(compiler_options["xla_dump_to"])
                dump.mkdir(exist_ok=True)
                (dump / f"module_1.jit_step.{name}").write_text(name)
                time.sleep(0.3)

    found = isolated.compile_(Lowered(), tmp_path, "jit_step", "cpu")
    assert found == {name: f"{name}.txt" for name in isolated._NEEDED}


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
            for name in isolated._NEEDED:
                (dump / f"module_1.jit_run.{name}.txt").write_text(name)

    try:
        assert isolated.compile_(Lowered(), tmp_path, "jit_run", platform).keys() == set(isolated._NEEDED)
        assert tried == 2
    except UserError as error:
        assert tried == 1 and reason in str(error)
    assert len(seen) == tried and len({one["xla_dump_to"] for one in seen}) == tried
