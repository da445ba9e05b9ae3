"""What keeps the suite: grids, mutants and the budget."""

import doctest
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import costs, grids

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import full_disk  # noqa: E402
import grids as grid_runs  # noqa: E402
import mistakes  # noqa: E402
import mutants  # noqa: E402
import torture  # noqa: E402


def test_examples_in_docstrings():
    assert doctest.testmod(grids) == (0, 2)
    assert doctest.testmod(costs) == (0, 1)


def test_costs_stand_beside_the_budget():
    rows = [
        {"part": "quick", "test": "a", "cpu": 3.0},
        {"part": "quick", "test": "b", "cpu": 4.5},
        {"part": "slow", "test": "c", "cpu": 2.0},
    ]
    lines = list(costs.report(rows, {"quick": 7, "slow": 5}))
    assert [line.split() for line in lines[1:4]] == [
        ["quick", "2", "8", "7", "over"], ["slow", "1", "2", "5"], ["sum", "3", "10", "12"],
    ]  # fmt: skip
    assert [line.split()[-1] for line in lines[5:]] == ["b", "a", "c"]
    assert costs.budget(costs.README.read_text("utf-8")).keys() >= {"quick", "slow", "parity", "other"}


def test_the_last_run_of_each_grid_is_shown(tmp_path, monkeypatch, capsys):
    runs = [
        {"grid": "tests/a.py::test_b", "date": "2026-01-02", "commit": "abc", "passed": 3, "exit": 0},
        {"grid": "tests/a.py::test_b", "date": "2026-01-03", "commit": "def", "passed": 2, "failed": 1, "exit": 1},
        {"grid": "tests/a.py::test_e", "date": "today", "commit": "abc", "seed": 0, "from": 0, "to": 25, "exit": 4},
        {"grid": "tests/a.py::test_e", "commit": "abc", "seed": 0, "from": 25, "to": 26, "passed": 1, "exit": 0},
        {"grid": "tests/a.py::test_d", "commit": "def", "seed": 0, "from": 0, "to": 25, "passed": 20, "failed": 5},
        {"grid": "tests/a.py::test_d", "commit": "abc", "seed": 0, "from": 0, "to": 25, "passed": 24, "failed": 1},
        {"grid": "tests/a.py::test_d", "commit": "abc", "seed": 0, "from": 25, "to": 50, "passed": 25, "date": "today"},
    ]
    monkeypatch.setattr(grid_runs, "RESULTS", tmp_path / "grids.jsonl")
    (tmp_path / "grids.jsonl").write_text("".join(json.dumps(row) + "\n" for row in runs))
    counts = {"b": 3, "c": 1, "d": 60, "e": 26}
    grid_runs.show({f"tests/a.py::test_{name}": ["x"] * count for name, count in counts.items()})
    assert capsys.readouterr().out.splitlines() == [
        "   3 cases  tests/a.py::test_b: 2026-01-03 on def, 2 passed, 1 FAILED",
        "   1 cases  tests/a.py::test_c: never ran",
        "  60 cases  tests/a.py::test_d: today on abc, 49 passed, 1 FAILED, stopped after 50",
        "  26 cases  tests/a.py::test_e: today on abc, 1 passed, FAILED with 4",
    ]


TINY = """
import pytest
from tests import grids

@pytest.mark.parametrize("seed", grids.seeds(1, 2))
def test_tiny(seed):
    assert seed < 5

@pytest.mark.parametrize("seed", grids.seeds(1, 1))
def test_other(seed):
    pass
"""


def grid_tool(monkeypatch, folder, *words):
    """The exit code of `tools/grids.py` on the tests in a folder."""
    monkeypatch.setattr(grid_runs, "ROOT", folder)
    monkeypatch.setattr(grid_runs, "RESULTS", folder / "grids.jsonl")
    monkeypatch.setattr(grid_runs, "revision", lambda: "abc")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(sys, "argv", ["grids.py", *words])
    try:
        return grid_runs.main()
    except SystemExit as stopped:
        return stopped.code


@pytest.mark.slow
def test_the_cases_of_a_seed_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = grid\n")
    (tmp_path / "test_a.py").write_text(TINY)
    assert grid_tool(monkeypatch, tmp_path, "run", "test_t", "--seed", "1") == 0  # seeds 3 and 4
    assert grid_tool(monkeypatch, tmp_path, "run", "test_t", "--seed", "2") == 1  # 5 and 6
    rows = grid_runs.results()
    assert [(row.get("passed"), row.get("failed"), row["exit"]) for row in rows] == [(2, None, 0), (None, 2, 1)]
    assert {row["grid"] for row in rows} == {"test_a.py::test_tiny"}
    capsys.readouterr()
    assert grid_tool(monkeypatch, tmp_path, "run", "nosuch") == 2
    (tmp_path / "test_b.py").write_text("import nosuch")
    assert grid_tool(monkeypatch, tmp_path, "run", "test_t") == 2 and grid_runs.results() == rows
    unknown, broken = capsys.readouterr().err.splitlines()
    assert unknown == "grids.py: no grid has nosuch in its name; tools/grids.py lists them"
    assert broken.startswith("grids.py: pytest could not collect the tests, exit code 2: test_b.py")


@pytest.mark.slow
def test_mutants_are_drawn_by_seed_and_change_one_place():
    drawn = mutants.draw(0, 30)
    assert mutants.draw(0, 30) == drawn != mutants.draw(1, 30)
    assert len(drawn) == 30 and {mutant.kind for mutant in drawn} == set(mutants.KINDS)
    assert len({mutant.package for mutant in drawn}) > 10
    for mutant in drawn:
        text = (ROOT / mutant.file).read_text("utf-8")
        start = mutants.place(mutant, text)
        changed = text[:start] + mutant.new + text[start + len(mutant.old) :]
        assert changed != text
        compile(changed, mutant.file, "exec")


def test_a_mutant_is_found_again_where_its_lines_have_moved():
    mutant = mutants.Mutant(0, "p", "f.py", 1, "bound", "x < y", "x <= y")
    assert mutants.place(mutant, "x < y\nx < y\n") == 0
    assert mutants.place(mutant, "\n\nx < y\n") == 2
    assert mutants.place(mutant, "\nx < y\nx < y\n") is None
    assert mutants.place(mutant, "x > y\n") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "names, outcome, by",
    [
        ("test_less", "caught", "test_a.py::test_less"),
        ("test_less[a b]", "error", "pytest ended with 4: "),
        ("test_wrong", "error", "fails without the mutant too: test_a.py::test_wrong"),
    ],
)
def test_only_a_test_that_the_mutant_fails_catches_it(tmp_path, monkeypatch, names, outcome, by):
    (tmp_path / "f.py").write_text("def less(x, y):\n    return x < y\n")
    tests = "from f import less\n\ndef test_less():\n    assert not less(1, 1)\n\ndef test_wrong():\n    assert 0\n"
    (tmp_path / "test_a.py").write_text(tests)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(mutants, "tests_of_lines", lambda *_: [f"test_a.py::{names}"])  # without coverage data
    runner = mutants.Runner(tmp_path, tmp_path, None, 1)
    mutant = mutants.Mutant(3, "p", "f.py", 2, "bound", "    return x < y", "    return x <= y")
    row = runner(mutant)
    shutil.rmtree(runner.top)
    assert (row["number"], row["outcome"]) == (3, outcome) and row["by"].startswith(by)


def test_a_campaign_counts_what_its_parts_say():
    signals = "10 signals; reaction: median 0.3 s, longest 1.2 s, within 2 s 10 of 10; final state bit-equal: "
    assert torture.counts("cold_kills", f"{signals}True", 0) == (10, 0)
    assert torture.counts("cold_kills", f"{signals}False\nWRONG steps 2\nWRONG end 1", 1) == (10, 3)
    assert torture.counts("cold_kills", "0 signals; \nWRONG last\nWRONG steps", 1) == (2, 2)
    assert torture.counts("fuzz", "2 of 100 wrong; at most 1 s", 1) == (100, 2)
    assert torture.counts("flips", "0 of 200 wrong; 9 s", 0) == (200, 0)
    assert torture.counts("kills", "gpt2 4 kills, 9 s\n0 of 40 wrong; 6 chains; seed 0", 0) == (40, 0)
    assert torture.counts("flips", "Traceback", 1) == (1, 1)  # it did not come to its end
    rows = [{"part": "kills", "trials": 150, "wrong": 0}, {"part": "kills", "trials": 150, "wrong": 0}]
    assert torture.table(rows)[1].split() == ["kills", "300", "0", "0.99%"]  # about 3/n
    assert torture.wanting(rows, ("kills", "flips")) == ["kills", "flips"]  # of 1,000 and 10,000
    assert torture.wanting([*rows, {"part": "kills", "trials": 700}], ("kills", "flips")) == ["flips"]
    assert torture.upper_bound(1, 300) == pytest.approx(0.0157, abs=1e-4) and torture.upper_bound(3, 3) == 1


def test_what_was_prepared_by_half_is_not_used(tmp_path, monkeypatch, capsys):
    def stopped(folder):
        (folder / "half").touch()
        raise KeyboardInterrupt

    used = []
    monkeypatch.setattr(mistakes, "answers", lambda folder, *_: used.append(sorted(folder.iterdir())) or iter(()))
    monkeypatch.setattr(sys, "argv", ["mistakes.py", "--prepared", str(tmp_path / "kept")])
    monkeypatch.setattr(mistakes, "prepare", stopped)
    with pytest.raises(KeyboardInterrupt):
        mistakes.main()
    monkeypatch.setattr(mistakes, "prepare", lambda folder: (folder / "whole").touch())
    for _ in range(2):
        with pytest.raises(SystemExit):
            mistakes.main()
        monkeypatch.setattr(mistakes, "prepare", stopped)  # it is there now
    assert used == 2 * [[tmp_path / "kept" / "whole"]] and not (tmp_path / "kept.partial").exists()


def test_another_seed_has_other_sizes_of_disks():
    sizes = [full_disk.sizes(40_000, 30_000, 6, True, seed) for seed in range(3)]
    assert sizes[0][0] == ("disk", 0) and sizes[0][2:4] == [("disk", 48_000), ("file", 64)]
    assert len({tuple(of_seed) for of_seed in sizes}) == 3 and full_disk.sizes(40_000, 30_000, 6, True, 2) == sizes[2]
    for of_seed in sizes:
        assert [what for what, _ in of_seed] == 3 * ["disk"] + 3 * ["file"]
        assert all(0 <= size <= 48_000 for _, size in of_seed)
    assert len(full_disk.sizes(40_000, 30_000, 2, True, 0)) == 2


def test_trials_of_changed_code_are_not_those_of_the_commit(tmp_path, monkeypatch, capsys):
    def git(*words):
        name = ("-c", "user.name=a", "-c", "user.email=a")
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(grid_runs, "ROOT", tmp_path)
    assert grid_runs.revision() == "+"  # outside of git
    (tmp_path / "tools").mkdir()
    git("init")
    git("commit", "--allow-empty", "-m", "a")
    commit = grid_runs.revision()
    (tmp_path / "tools" / "torture.jsonl").touch()
    assert "+" not in commit and grid_runs.revision() == commit
    (tmp_path / "tools" / "new.py").touch()
    assert grid_runs.revision() == commit + "+"
    row = {"commit": commit + "+", "part": "fuzz", "seed": 0, "trials": 100, "wrong": 1}
    (tmp_path / "rows").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr(sys, "argv", ["torture.py", "--minutes", "0", "--results", str(tmp_path / "rows")])
    assert torture.main() == 0 and "fuzz" not in capsys.readouterr().out


@pytest.mark.parametrize("only, parts", [("kills", ["kills"]), ("signals,flips", ["flips"]), ("signals", None)])
def test_a_short_campaign_has_the_parts_that_are_asked_for(only, parts, monkeypatch, capsys):
    done = []
    row = {"trials": 1, "wrong": 0}
    monkeypatch.setattr(torture, "run_part", lambda part, *_: done.append(part) or row | {"part": part})
    monkeypatch.setattr(sys, "argv", ["torture.py", "--short", "--only", only])
    if parts is None:
        with pytest.raises(SystemExit, match="2"):
            torture.main()
        assert "--only: --short has kills, fuzz, flips" in capsys.readouterr().err
    else:
        assert torture.main() == 0 and done == parts
