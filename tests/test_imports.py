"""Dependencies point one way, no files form an import cycle, and TensorFlow waits until data are wanted."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
TENSORFLOW = {"tensorflow", "tensorflow_datasets", "seqio"}

CORE = (
    "__version__", "errors", "runtime", "metrics", "config", "parallel", "models", "data", "objectives", "train",
)  # fmt: skip
APPLICATIONS = ("hf", "decode", "evals", "plan", "study", "report", "inference", "cli", "__main__")
ORDER = (*CORE, *APPLICATIONS)
"""The rooms of jaxpt: each imports those before it alone, inside of functions as well."""
NAMED = "jaxpt/config/applications.py"
"""The file of the core that names applications."""
MOST_ENTRIES = 20
"""Of jaxpt/, README and `__init__` counted."""
MAX_FLOORS = 10
"""Rooms in the longest chain of which each imports the next, the command line and `errors` counted."""
LAZY = {
    "jaxpt/__init__.py": "`import jaxpt` starts at once: `jaxpt.load` and `jaxpt.fit` import what they run",
    "jaxpt/cli": "`jaxpt --help` starts in a tenth of a second: each command imports what it runs",
    "jaxpt/train/foreign.py": "applications, which the core does not import",
    "jaxpt/plan/program.py": "JAX takes a second; `jaxpt plan` leaves it to the processes that compile",
    "jaxpt/study/recipes.py": "JAX takes a second: recipes are checked before it",
    "jaxpt/models/kernels.py": "Pallas takes a tenth of a second, and is for TPUs alone",
    "jaxpt/data/parts.py": "recipes are checked before TensorFlow is imported",
    "jaxpt/evals/few_shot/templates.py": "Jinja takes a tenth of a second: what a harness has is listed without it",
    "jaxpt/data/preparing.py": "prepared batches need no TensorFlow",
    "jaxpt/evals/": "an evaluation of a run_dir alone needs the checkpoints",
}
"""Files whose functions import other files of jaxpt. All functions may import data: TensorFlow takes seconds."""
LIGHT = {f"jaxpt.data.{name}" for name in ("calls", "chat_template", "parts", "spec", "subwords")} | {
    f"jaxpt.data.labelled.{name}"
    for name in (
        "choices", "dialogue", "files", "layout", "question_answering", "rows", "tagging", "text_pairs",
        "texts", "windows",
    )
}  # fmt: skip
"""All of data that files may import that run where TensorFlow is not installed."""
WITHOUT_DATA = ("parallel", "models", "objectives", "plan")


class Import(NamedTuple):
    """An import of a module, or of a name in it."""

    file: str
    """From ROOT on."""
    line: int
    target: str
    """A module of jaxpt, or a dotted name that is none."""
    lazy: bool
    """Inside of a function."""


def module(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imports(root: Path = ROOT) -> list[Import]:
    """All imports of jaxpt's files; those for types alone do not count."""
    files = sorted((root / "jaxpt").rglob("*.py"))
    modules = {module(file, root) for file in files}
    found: list[Import] = []

    def visit(node: ast.AST, file: str, lazy: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        lazy |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            inner = name if name in modules else name.rpartition(".")[0]
            found.append(Import(file, node.lineno, inner if inner in modules - {"jaxpt"} else name, lazy))
        for child in ast.iter_child_nodes(node):
            visit(child, file, lazy)

    for file in files:
        visit(ast.parse(file.read_text("utf-8")), str(file.relative_to(root)), False)
    return found


def part(name: str) -> str:
    """models for jaxpt/models/t5.py and for jaxpt.models.t5"""
    return name.removesuffix(".py").replace("/", ".").split(".")[1]


def upward(found: list[Import]) -> list[Import]:
    """Imports of a part that does not come before the importing one in ORDER."""
    return [
        one for one in found
        if one.target.startswith("jaxpt.") and part(one.file) not in (part(one.target), "__init__")
        and ORDER.index(part(one.target)) >= ORDER.index(part(one.file))
    ]  # fmt: skip


def cycles(found: list[Import]) -> list[set[str]]:
    """Sets of files that form an import cycle, functions' imports included (Tarjan's algorithm)."""
    edges: dict[str, set[str]] = {}
    for one in found:
        edges.setdefault(module(ROOT / one.file, ROOT), set()).add(one.target)
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[set[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        stack.append(name)
        for other in edges.get(name, ()):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == number[name]:
            at = stack.index(name)
            if len(stack) > at + 1:
                groups.append(set(stack[at:]))
            del stack[at:]

    for name in edges:
        if name not in number:
            visit(name)
    return groups


def longest_chain(found: list[Import]) -> tuple[str, ...]:
    """The parts of the longest chain of which each imports the next; they form no cycle."""
    below: dict[str, set[str]] = {}
    for one in found:
        if one.target.startswith("jaxpt.") and part(one.file) not in (part(one.target), "__init__"):
            below.setdefault(part(one.file), set()).add(part(one.target))

    @functools.cache
    def chain(room: str) -> tuple[str, ...]:
        return (room, *max((chain(lower) for lower in below.get(room, ())), key=len, default=()))

    return max(map(chain, below), key=len)


def counts(root: Path = ROOT) -> Iterator[str]:
    """`python -m tests.test_imports [ROOT]`: how many imports of each doubtful kind there are."""
    found = imports(root)
    lazy = [one for one in found if one.lazy]
    ours = [one for one in lazy if one.target.startswith("jaxpt.")]
    yield f"function-level imports: {len(lazy)}, of jaxpt's own files: {len(ours)}"
    in_objectives = [one for one in lazy if part(one.file) == "objectives"]
    yield f"function-level imports in objectives/: {len(in_objectives)}"
    yield f"upward imports: {len(upward(found))}"
    yield f"floors: {' → '.join(longest_chain(found))}"
    yield f"cycles of files: {len(cycles(found))}"
    yield from ("  " + " ".join(sorted(cycle)) for cycle in cycles(found))


def test_dependencies_point_one_way():
    assert {part(one.file) for one in imports()} <= {*ORDER, "__init__"}, "ORDER says where each part stands"
    assert not upward(imports()), f"ORDER has these the other way: {upward(imports())}"


def test_the_house_has_few_floors():
    assert len(longest_chain(imports())) <= MAX_FLOORS, longest_chain(imports())


def test_no_files_import_each_other_in_a_cycle():
    assert not cycles(imports())


def test_functions_import_other_files_to_start_sooner_alone():
    wrong = [
        one for one in imports()
        if one.lazy and one.target.startswith("jaxpt.") and not one.file.startswith(tuple(LAZY))
        and (part(one.file) == "data" or not one.target.startswith("jaxpt.data"))
    ]  # fmt: skip
    assert not wrong, f"these stand at the top of their files, or LAZY says why not: {wrong}"


def test_no_function_of_these_reaches_into_data():
    wrong = [
        one for one in imports()
        if part(one.file) in WITHOUT_DATA and one.target.startswith("jaxpt.data") and one.target not in LIGHT
    ]  # fmt: skip
    assert not wrong


def test_tensorflow_is_imported_in_data_alone():
    assert not [one for one in imports() if part(one.file) != "data" and one.target.split(".")[0] in TENSORFLOW]


def test_the_core_does_not_name_applications():
    """Not in strings either, but for one table."""
    named = re.compile(rf"""["']jaxpt\.({"|".join(APPLICATIONS)})\b""")
    files = [file for room in CORE[2:] for file in (ROOT / "jaxpt" / room).rglob("*.py")]
    assert [file for file in files if named.search(file.read_text("utf-8"))] == [ROOT / NAMED]


def test_the_house_has_few_rooms():
    """What git has: a folder that moved leaves its compiled files behind."""
    files = (file.relative_to(ROOT / "jaxpt") for file in (ROOT / "jaxpt").rglob("*") if file.is_file())
    assert len({file.parts[0] for file in files if file.suffix != ".pyc"}) <= MOST_ENTRIES


def test_cycles_and_directions_are_found():
    """The finders find."""
    bad = [
        Import("jaxpt/train/a.py", 1, "jaxpt.train.b", False), Import("jaxpt/train/b.py", 1, "jaxpt.train.c", True),
        Import("jaxpt/train/c.py", 1, "jaxpt.train.a", False), Import("jaxpt/train/c.py", 2, "jaxpt.plan.d", True),
    ]  # fmt: skip
    assert cycles(bad) == [{"jaxpt.train.a", "jaxpt.train.b", "jaxpt.train.c"}]
    assert upward(bad) == bad[3:]
    assert longest_chain(bad) == ("train", "plan")


def loaded(code):
    """Top-level modules that a fresh process has after running `code`."""
    code += "\nimport sys; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.slow
def test_training_starts_without_tensorflow():
    wanted = ("train", "models", "objectives", "parallel", "config", "plan")
    modules = sorted({module(ROOT / one.file, ROOT) for one in imports() if part(one.file) in wanted})
    code = "\n".join(f"import {name}" for name in modules)
    assert not loaded(code) & (TENSORFLOW | {"torch", "transformers"})


def test_config_loads_neither_jax_nor_tensorflow():
    assert not loaded("import jaxpt.config") & {"jax", "flax", "numpy", *TENSORFLOW}


def test_tables_load_neither_jax_nor_tensorflow():
    assert not loaded("import jaxpt.data.tables") & {"jax", "flax", "pyarrow", *TENSORFLOW}


def test_the_command_line_loads_neither_jax_nor_pydantic():
    assert not loaded("import jaxpt.cli") & {"jax", "flax", "pydantic", "yaml", "numpy", *TENSORFLOW}


if __name__ == "__main__":
    print("\n".join(counts(*map(Path, sys.argv[1:]))))
