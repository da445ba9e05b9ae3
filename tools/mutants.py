"""Changes one place of jaxpt's code at a time and asks whether a test notices.

    python tools/mutants.py draw --seed 0 --count 60 > tools/mutants.jsonl
    python tools/mutants.py run --coverage .coverage --costs costs.jsonl --results before.jsonl [--checkout DIR]
    python tools/mutants.py compare before.jsonl after.jsonl

`draw` takes places at random, spread over the packages by their lines of code and over five kinds of mistake. `run`
applies each mutant to a copy of the checkout and runs the tests that execute its line, cheapest files first, until one
fails; a mutant that survives them meets the whole quick suite. Which tests execute a line is read from coverage data
with a context per test (`JAXPT_TEST_COSTS=costs.jsonl pytest --cov=jaxpt --cov-branch --cov-context=test`), what they
cost from `costs.jsonl`. Results are appended one by one: the same command continues an interrupted one. Where pytest
did not run, or a test fails without the mutant too, that is an error: it is printed, not appended, and the exit code is
1. `compare` lists the mutants that only one of two runs caught.
"""

import argparse
import ast
import collections
import concurrent.futures
import functools
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import command_line

ROOT = Path(__file__).parents[1]
MUTANTS = ROOT / "tools" / "mutants.jsonl"
SECONDS = 900
"""After so many seconds, and five times what its tests cost, a mutant's tests are ended: it hangs, and somebody
notices."""
COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
}  # fmt: skip
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"), ast.BitOr: ("|", "&"), ast.BitAnd: ("&", "|"),
}  # fmt: skip
KINDS = ("operator", "bound", "off_by_one", "dropped_line", "swapped_arguments")


class Mutant(NamedTuple):
    """One changed place."""

    number: int
    package: str
    file: str
    line: int
    kind: str
    old: str
    """The lines that change, from `line` on."""
    new: str


# ---- drawing ---------------------------------------------------------------------------------------------------------


class _Source:
    """A file's text with positions as Python's parser counts them: lines from 1, columns in bytes."""

    def __init__(self, file: Path):
        self.text = file.read_bytes()
        self.tree = ast.parse(self.text)
        self.starts = [0]
        for line in self.text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    @functools.cached_property
    def code_lines(self) -> int:
        lines = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                lines.add(node.lineno)
        return len(lines)

    @functools.cached_property
    def changes(self) -> list[tuple[str, int, int, str]]:
        """(kind, start, end, new text), offsets in bytes."""
        return list(self._below(self.tree))

    def _below(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for one in child if isinstance(child, list) else [child]:
                # Texts of errors are no property to test word by word.
                if isinstance(one, ast.AST) and not isinstance(one, ast.Raise | ast.JoinedStr | ast.Import):
                    yield from self._at(one)
                    yield from self._below(one)

    def _at(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        match node:
            case ast.Compare(left, [op], [right]) if type(op) in COMPARISONS:
                kind = "bound" if isinstance(op, ORDERED) else "operator"
                yield from self._between(kind, left, right, *COMPARISONS[type(op)])
            case ast.BinOp(left, op, right) if type(op) in ARITHMETIC and not _is_text(left, right):
                yield from self._between("operator", left, right, *ARITHMETIC[type(op)])
            case ast.BoolOp(op, [left, right, *_]):
                words = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield from self._between("operator", left, right, *words)
            case ast.UnaryOp(ast.Not(), operand):
                yield "operator", self.span(node)[0], self.span(operand)[0], ""
            case ast.Constant(int(number)) if not isinstance(number, bool):
                yield "off_by_one", *self.span(node), str(number + 1)
            case ast.Call(_, [first, second, *_]) if not {type(first), type(second)} & {ast.Starred}:
                (a, b), (c, d) = self.span(first), self.span(second)
                if self.text[a:b] != self.text[c:d]:
                    yield "swapped_arguments", a, d, (self.text[c:d] + self.text[b:c] + self.text[a:b]).decode()
            case ast.AugAssign() | ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
                yield "dropped_line", *self.span(node), "pass"
            case ast.If(orelse=[], body=[ast.Return() | ast.Continue() | ast.Raise() | ast.Break()]):
                yield "dropped_line", *self.span(node), "pass"

    def _between(
        self, kind: str, left: ast.AST, right: ast.AST, old: str, new: str
    ) -> Iterator[tuple[str, int, int, str]]:
        start, end = self.span(left)[1], self.span(right)[0]
        word = re.escape(old.encode())
        place = re.search(rb"\b" + word + rb"\b" if old[0].isalpha() else word, self.text[start:end])
        if place:
            yield kind, start + place.start(), start + place.end(), new


source_of = functools.cache(_Source)


def _is_text(*nodes: ast.AST) -> bool:
    return any(isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str) for node in nodes)


def package(file: Path) -> str:
    parts = file.relative_to(ROOT / "jaxpt").parts
    return parts[0] if len(parts) > 1 else "(modules)"


def shares(lines: dict[str, int], count: int) -> dict[str, int]:
    """`count` shared out by lines; at least one for each, largest remainders first."""
    total = sum(lines.values())
    exact = {name: count * number / total for name, number in lines.items()}
    shared = {name: max(1, int(share)) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: int(exact[name]) - exact[name])[: max(0, count - sum(shared.values()))]:
        shared[name] += 1
    return shared


def draw(seed: int, count: int) -> list[Mutant]:
    rng = random.Random(seed)
    lines: collections.Counter[str] = collections.Counter()
    changes: dict[str, dict[str, list]] = {}
    for file in sorted((ROOT / "jaxpt").rglob("*.py")):
        source, name = source_of(file), package(file)
        lines[name] += source.code_lines
        of_package = changes.setdefault(name, {kind: [] for kind in KINDS})
        for kind, *change in source.changes:
            of_package[kind].append((file, source, *change))
    mutants: list[Mutant] = []
    for name, number in shares(lines, count).items():
        by_kind = changes[name]
        for _ in range(number):
            drawn = collections.Counter(mutant.kind for mutant in mutants)
            kind = min((kind for kind in KINDS if by_kind[kind]), key=lambda kind: (drawn[kind], rng.random()))
            file, source, start, end, new = by_kind[kind].pop(rng.randrange(len(by_kind[kind])))
            mutants.append(_mutant(len(mutants), file, source, kind, start, end, new))
    return mutants


def _mutant(number: int, file: Path, source: _Source, kind: str, start: int, end: int, new: str) -> Mutant:
    first = source.text.rfind(b"\n", 0, start) + 1
    last = source.text.find(b"\n", end)
    old = source.text[first:last].decode()
    changed = (source.text[first:start] + new.encode() + source.text[end:last]).decode()
    line = source.text.count(b"\n", 0, first) + 1
    return Mutant(number, package(file), str(file.relative_to(ROOT)), line, kind, old, changed)


# ---- running ---------------------------------------------------------------------------------------------------------


def place(mutant: Mutant, text: str) -> int | None:
    """Where the mutant's lines start in a file's text now: at their line, or elsewhere if they stand there once."""
    starts = [match.start() for match in re.finditer(re.escape(mutant.old), text)]
    exact = [start for start in starts if text.count("\n", 0, start) + 1 == mutant.line]
    return exact[0] if exact else starts[0] if len(starts) == 1 else None


def tests_of_lines(coverage: Path, costs: dict[str, float], checkout: Path, mutant: Mutant) -> list[str]:
    """The tests that execute a line of the mutant, by coverage data; cheap files first.

    Args:
      coverage: the data.
      costs: {test: seconds of CPU}.
      checkout: the files that were measured.
      mutant: one of its places.
    """
    from coverage import CoverageData

    data = CoverageData(str(coverage))
    data.read()
    text = (checkout / mutant.file).read_text("utf-8")
    start = place(mutant, text)
    first = text.count("\n", 0, start) + 1
    lines = range(first, first + mutant.old.count("\n") + 1)
    measured = next((file for file in data.measured_files() if file.endswith(mutant.file)), None)
    contexts = data.contexts_by_lineno(measured) if measured else {}
    tests = {context.rpartition("|")[0] for line in lines for context in contexts.get(line, ()) if "|" in context}
    by_file: dict[str, list[str]] = {}
    for test in sorted(tests):
        by_file.setdefault(test.partition("::")[0], []).append(test)
    price = {file: sum(costs.get(test, 1.0) for test in of_file) for file, of_file in by_file.items()}
    return [test for file in sorted(by_file, key=lambda file: (price[file], file)) for test in by_file[file]]


class NotRunError(Exception):
    """Pytest ran no test, or one that fails on the unchanged code too."""


class Runner:
    """Copies of a checkout, one for each job, and pytest in them."""

    def __init__(self, checkout: Path, coverage: Path, costs: Path | None, jobs: int):
        self.checkout, self.coverage = checkout, coverage
        rows = [] if costs is None else read_results(costs)
        self.costs = {row["test"]: row["cpu"] for row in rows}
        self.top = Path(tempfile.mkdtemp(prefix="mutants-"))
        if (checkout.parent / "shared").exists():
            (self.top / "shared").symlink_to(checkout.parent / "shared")
        self.copies: queue.Queue[Path] = queue.Queue()
        files = subprocess.run(["git", "ls-files"], cwd=checkout, check=True, capture_output=True, text=True).stdout
        for job in range(jobs):
            copy = self.top / f"copy{job}"
            for file in files.splitlines():
                (copy / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(checkout / file, copy / file)
            subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
            subprocess.run(["git", "add", "-A"], cwd=copy, check=True)
            self.copies.put(copy)

    def __call__(self, mutant: Mutant) -> dict:
        copy = self.copies.get()
        file = copy / mutant.file
        text = file.read_text("utf-8")
        start = place(mutant, text)
        if start is None:
            self.copies.put(copy)
            return {"number": mutant.number, "outcome": "gone"}
        try:
            file.write_text(text[:start] + mutant.new + text[start + len(mutant.old) :], "utf-8")
            row = self._outcome(mutant, copy)
            file.write_text(text, "utf-8")
            if row["by"]:
                again = [row["by"]] if "::" in row["by"] else ["--collect-only"]
                if self._pytest(copy, ["-n", "0", "-m", "", *again], 5 * SECONDS):
                    raise NotRunError(f"fails without the mutant too: {row['by']}")
            return {"number": mutant.number} | row
        except NotRunError as error:
            return {"number": mutant.number, "outcome": "error", "by": str(error)}
        finally:
            file.write_text(text, "utf-8")
            self.copies.put(copy)

    def _outcome(self, mutant: Mutant, copy: Path) -> dict:
        tests = tests_of_lines(self.coverage, self.costs, self.checkout, mutant)
        if tests:
            names = copy / ".tests"
            names.write_text("\n".join(tests), "utf-8")
            seconds = max(SECONDS, 5 * sum(self.costs.get(test, 1.0) for test in tests))
            outcome = self._pytest(copy, ["-n", "0", "-m", "", f"@{names}"], seconds)
            if outcome:
                return {"outcome": "caught", "tests": len(tests), "by": outcome}
        outcome = self._pytest(copy, ["-n", "1"], 5 * SECONDS)
        return {"outcome": "caught by another" if outcome else "survived", "tests": len(tests), "by": outcome}

    @staticmethod
    def _pytest(copy: Path, arguments: list[str], seconds: float) -> str | None:
        """The first test that fails; None if all pass.

        Raises:
          NotRunError: pytest had an error of its own, a test is not there, or there is none.
        """
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-rfE", *arguments]
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return "(no end)"
        if done.returncode == 0:
            return None
        said = (done.stdout + done.stderr).strip()
        if done.returncode in (3, 4, 5) and "while loading conftest" not in said:  # which a mutant can be the cause of
            raise NotRunError(f"pytest ended with {done.returncode}: {said[-200:]}")
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.M)
        return failed[1] if failed else f"(pytest itself) {said[-200:]}"


def run(options: argparse.Namespace) -> int:
    mutants = read_mutants(options.mutants)
    if unknown := set(options.only or ()) - {mutant.number for mutant in mutants}:
        print(f"mutants.py: --only: {options.mutants} has no mutant {sorted(unknown)}", file=sys.stderr)
        return 2
    done = {row["number"] for row in read_results(options.results)} if options.results.exists() else set()
    wanted = [m for m in mutants if m.number not in done and (not options.only or m.number in options.only)]
    runner = Runner(options.checkout.resolve(), options.coverage.resolve(), options.costs, options.jobs)
    errors = 0
    try:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for row in concurrent.futures.as_completed([pool.submit(runner, mutant) for mutant in wanted]):
                print(json.dumps(row.result()), flush=True)
                if row.result()["outcome"] == "error":
                    errors += 1
                    continue
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row.result()) + "\n")
    finally:
        shutil.rmtree(runner.top)
    return int(errors > 0)


# ---- results ---------------------------------------------------------------------------------------------------------


def read_mutants(file: Path) -> list[Mutant]:
    return [Mutant(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]


def read_results(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def compare(before: Path, after: Path, mutants: Path) -> None:
    outcomes = [{row["number"]: row for row in read_results(file)} for file in (before, after)]
    caught = [{n: row["outcome"].startswith("caught") for n, row in rows.items()} for rows in outcomes]
    for mutant in read_mutants(mutants):
        pair = [rows.get(mutant.number) for rows in caught]
        if pair != [True, True]:
            words = ["not run" if one is None else "caught" if one else "survived" for one in pair]
            print(f"{mutant.number}  {mutant.file}:{mutant.line}  {mutant.kind}: {words[0]} before, {words[1]} after")
            print(f"    - {mutant.old.strip()}\n    + {mutant.new.strip()}")
    print(*(f"{sum(rows.values())} of {len(rows)} caught {when}" for rows, when in zip(caught, ("before", "after"))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--count", type=int, default=60)
    running = commands.add_parser("run")
    running.add_argument("--coverage", type=command_line.existing, required=True)
    running.add_argument("--costs", type=command_line.existing, help="what tests cost, by JAXPT_TEST_COSTS")
    running.add_argument("--results", type=Path, required=True)
    running.add_argument("--checkout", type=Path, default=ROOT)
    running.add_argument("--jobs", type=command_line.count, default=2)
    running.add_argument("--only", type=int, nargs="*")
    running.add_argument("--mutants", type=command_line.existing, default=MUTANTS)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=command_line.existing)
    comparing.add_argument("after", type=command_line.existing)
    comparing.add_argument("--mutants", type=command_line.existing, default=MUTANTS)
    options = parser.parse_args()
    if options.command == "draw":
        for mutant in draw(options.seed, options.count):
            print(json.dumps(mutant._asdict()))
    elif options.command == "run":
        return run(options)
    else:
        compare(options.before, options.after, options.mutants)
    return 0


if __name__ == "__main__":
    sys.exit(main())
