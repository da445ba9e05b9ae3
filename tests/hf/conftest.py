"""Fixtures of Hugging Face directories that are changed and imported."""

import shutil
import signal

import pytest

from jaxpt import hf
from jaxpt.cli import main
from tests.hf.test_directory import AS_READ, fresh
from tests.models.helpers import EVERY

SECONDS = 60  # of a hang; the machine may be busy


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """{architecture: directory}, made once; a case changes a copy."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            hf.save(made[name], *fresh(EVERY[name](**AS_READ)))
        return made[name]

    return of


@pytest.fixture
def attempt(sources, tmp_path, capsys):
    """Imports a changed copy of a directory; gives exit code and what was printed."""

    def run(change, of="bert", *options):
        directory = tmp_path / "hf"
        shutil.copytree(sources(of), directory)
        change(directory)

        def late(*_):
            raise TimeoutError("too slow")

        before = signal.signal(signal.SIGALRM, late)
        signal.alarm(SECONDS)
        try:
            code = main(["import", str(directory), str(tmp_path / "run"), *options])
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        out, err = capsys.readouterr()
        assert all(line.isprintable() for line in (out + err).splitlines()), repr(out + err)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", *["run"] * (code == 0)]
        if code:
            assert code == 2 and len(err.splitlines()) == 1, err
        assert len(max((out + err).splitlines(), key=len)) < 1500
        return code, out + err

    return run
