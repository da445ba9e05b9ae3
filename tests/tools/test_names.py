"""What tools take from jaxpt is there: no test runs the benchmarks, so a renamed function would break them unseen."""

import ast
import importlib
import runpy
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def _taken(path: Path) -> list[tuple[str, str]]:
    """(module, name) of each `from jaxpt… import name` of a file."""
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [(n.module, a.name) for n in imports if (n.module or "").split(".")[0] == "jaxpt" for a in n.names]


@pytest.mark.parametrize("tool", [str(path.relative_to(TOOLS)) for path in sorted(TOOLS.rglob("*.py"))])
def test_what_a_tool_imports_is_there(tool):
    for module, name in _taken(TOOLS / tool):
        if module == "jaxpt.inference.lm_eval":
            pytest.importorskip("lm_eval")
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")  # a module that nobody imported yet, or an error that names it


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
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(path, run_name="__main__")
    assert stop.value.code == 0 and f"usage: {tool}.py" in capsys.readouterr().out
