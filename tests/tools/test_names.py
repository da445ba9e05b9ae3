"""What tools take from jaxpt is there: no test runs the benchmarks, so a renamed function would break them unseen."""

import ast
import importlib
import runpy
import sys
import types
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def _modules(tree: ast.AST) -> dict[str, types.ModuleType]:
    """{name in a file: the module of jaxpt that it stands for}; imports what the file imports."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in [alias for alias in node.names if alias.name.split(".")[0] == "jaxpt"]:
                module = importlib.import_module(alias.name)
                found[alias.asname or "jaxpt"] = module if alias.asname else sys.modules["jaxpt"]
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaxpt":
            if node.module == "jaxpt.inference.lm_eval":
                pytest.importorskip("lm_eval")
            for alias in node.names:
                if not hasattr(importlib.import_module(node.module), alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")  # nobody did yet, or an error that names it
                found[alias.asname or alias.name] = getattr(importlib.import_module(node.module), alias.name)
    return {name: value for name, value in found.items() if isinstance(value, types.ModuleType)}


@pytest.mark.parametrize("tool", [str(path.relative_to(TOOLS)) for path in sorted(TOOLS.rglob("*.py"))])
def test_what_a_tool_takes_from_jaxpt_is_there(tool):
    """What it imports, and the names `module.name` of modules that it imports."""
    tree = ast.parse((TOOLS / tool).read_text())
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    modules = {name: module for name, module in _modules(tree).items() if name not in arguments | assigned}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (path := ast.unparse(node)).replace(".", "").isidentifier():
            name, *rest = path.split(".")
            owner = modules.get(name)
            for attribute in rest if owner is not None else ():
                if not isinstance(owner, types.ModuleType):
                    break
                assert hasattr(owner, attribute), f"{tool}:{node.lineno}: {path} is not there"
                owner = getattr(owner, attribute)


@pytest.mark.parametrize(
    "tool",
    [
        "bench_data_peers", "bench_harness_peer", "compare_lm_eval", "first_batch", "import_memory", "parity_table",
        "plan_memory", "plan_scaling", "t5_oracle",
    ],
)  # fmt: skip
def test_help_starts_no_work(tool, monkeypatch, capsys):
    path = str(TOOLS / f"{tool}.py")
    monkeypatch.setattr(sys, "argv", [path, "--help"])
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(path, run_name="__main__")
    assert stop.value.code == 0 and f"usage: {tool}.py" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, message",
    [
        ("plan_memory.py /nowhere.yaml", "plan_memory.py: /nowhere.yaml"),
        ("plan_scaling.py /nowhere.yaml 1 v5e-8", "plan_scaling.py: /nowhere.yaml"),
        ("bench_vectors.py /nowhere.yaml", "bench_vectors.py: /nowhere.yaml"),
        ("bench_objectives.py text --only nosuch", "argument --only: invalid choice: 'nosuch'"),
        ("first_step.py r.yaml --tree .", "argument --tree: wants NAME=DIRECTORY of a checkout, got '.'"),
        ("compare_lm_eval.py run --data d --tasks nosuch", "argument --tasks: there is no 'nosuch'; there are lambada"),
        ("mistakes.py --only 9999", "--only: there is no mistake 9999"),
        ("mistakes.py --only x", "argument --only: expected numbers such as 0,5, got 'x'"),
        ("mutants.py compare /nowhere /nowhere", "argument before: there is no file /nowhere"),
        ("interrupt.py --signals SIGTREM", "argument --signals: there is no 'SIGTREM'; there are SIGINT, SIGTERM"),
        ("interrupt.py --stages nosuch", "argument --stages: there is no 'nosuch'; there are imports,"),
        ("kills.py --only nosuch", "argument --only: there is no 'nosuch'; there are bert,"),
        ("fuzz.py --cases 0", "argument --cases: expected a positive integer, got '0'"),
        ("flips.py --jobs 0", "argument --jobs: expected a positive integer, got '0'"),
        ("full_disk.py --sizes 0", "argument --sizes: expected a positive integer, got '0'"),
    ],
)
def test_mistakes_are_a_line_and_exit_code_2(command, message, monkeypatch, capsys):
    tool, *words = command.split()
    monkeypatch.setattr(sys, "argv", [str(TOOLS / tool), *words])
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(TOOLS / tool), run_name="__main__")
    assert stop.value.code == 2 and message in capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def tool(monkeypatch):
    """`tool(name, *words)`: the module of a tool, with these words on its command line."""
    monkeypatch.syspath_prepend(str(TOOLS))

    def load(name, *words):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        return importlib.import_module(name)

    return load


def test_the_recipe_of_each_row_of_objectives(tool):
    bench = tool("bench_objectives")
    for family, rows in bench.ROWS.items():
        for name, settings in rows.items():
            config = bench.configuration(family, name, Path("text.jsonl"), 64)
            assert config.objective.network(config.model) and config.objective.kind == settings["kind"]


def test_relative_paths_are_the_callers_for_each_tree(tool, monkeypatch, tmp_path, capsys):
    """Each start was in its tree: the second one found neither the recipe's text nor its own."""
    monkeypatch.chdir(tmp_path)
    Path("text").touch()
    for folder in ("new", "new/old"):
        Path(folder, "jaxpt").mkdir(parents=True)
        Path(folder, "jaxpt/__main__.py").write_text(
            "import pathlib, sys, time\n"
            "assert pathlib.Path(sys.argv[-1].removeprefix('data.path=')).exists()\n"
            "print('end of the first step: 3.0 s')\n"
            "print('2.0 s  of', pathlib.Path(__file__).parents[1].name)\n"
            "print('beside the data:', flush=True)\n"
            "time.sleep(60)\n"
        )
    monkeypatch.chdir(tmp_path / "new")
    words = ("r.yaml", "data.path=../text", "--tree", "new=.", "--tree", "old=old", "--repeats", "1")
    tool("first_step", *words).main()
    rows = {line[:56].strip(): line[56:].split() for line in capsys.readouterr().out.splitlines()}
    assert rows["of new"] == ["2.0", "0.0"] and rows["of old"] == ["0.0", "2.0"]


def test_an_import_in_a_relative_directory(tool, monkeypatch, tmp_path):
    """`jaxpt import` is started elsewhere."""
    made = []
    module = tool("import_memory", "here")
    monkeypatch.setattr(module, "make", lambda directory: made.append(directory) or sys.exit())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        module.main()
    assert made == [tmp_path / "here/import_memory/hf"]
