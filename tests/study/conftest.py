import sys

import pytest

from jaxpt.study import pretrainings

STAND_IN = """
import pathlib, sys
here = pathlib.Path(__file__).parent
row = next(pathlib.Path(word.strip('"')).name for word in sys.argv if word.startswith("run_dir="))
with open(here / "ran", "a") as file:
    print(row, *sys.argv[1:], file=file)
if (here / f"{row}.does").exists():
    exec((here / f"{row}.does").read_text())
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Rows are not trained: a process does what is said here, or nothing. Gives the rows that were run since.

    Real rows are those of the slow tests.
    """
    (tmp_path / "program.py").write_text(STAND_IN)
    monkeypatch.setattr(pretrainings, "PROGRAM", (sys.executable, "-I", "-S", str(tmp_path / "program.py")))

    def ran(**does):
        for name, code in does.items():
            (tmp_path / f"{name}.does").write_text(code)
        lines = (tmp_path / "ran").read_text().splitlines() if (tmp_path / "ran").exists() else []
        (tmp_path / "ran").unlink(missing_ok=True)
        return [line.split() for line in lines]

    return ran
