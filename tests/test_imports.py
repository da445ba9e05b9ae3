"""Dependencies point one way, and a train step, an export or a generation starts without TensorFlow."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "jaxpt").rglob("*.py"))
TENSORFLOW = {"tensorflow", "tensorflow_datasets", "seqio"}

# Each part with the parts that it may import when it is itself imported; all see BASE.
ALLOWED = {
    "errors": set(),
    "disk": set(),
    "safetensors": set(),
    "signals": set(),
    "config": set(),
    "parallel": set(),
    "losses": {"parallel"},
    "models": {"parallel", "losses"},
    "objectives": {"losses", "models"},
    "data": {"objectives"},
    "hf": {"models", "parallel"},
    "plan": {"models", "parallel", "objectives", "losses", "train"},
    "generate": {"models", "parallel"},
    "evals": {"models", "parallel", "objectives", "losses", "train", "generate"},
    "train": {"models", "parallel", "objectives", "losses", "evals", "plan", "generate", "hf"},
    "convert": {"models", "train", "hf"},
    "report": {"objectives", "evals", "train", "plan"},
    "study": {"objectives", "train", "report"},
    "doctor": set(),
    "cli": set(),
    "__main__": {"cli"},
    "__init__": set(),
}
BASE = {"config", "disk", "errors", "safetensors", "signals", "__version__"}
# Parts that no function may reach either: they run where TensorFlow is not installed.
WITHOUT_DATA = ("config", "parallel", "losses", "models", "objectives", "hf", "plan", "generate", "errors")


def part(path):
    """models for jaxpt/models/t5.py, cli for jaxpt/cli.py"""
    return path.relative_to(ROOT / "jaxpt").parts[0].removesuffix(".py")


def name(path):
    return str(path.relative_to(ROOT))


def imports(path, everywhere=False):
    """Dotted names of what a file imports when it is imported, or anywhere in it; types alone do not count."""
    found = []

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not everywhere:
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}: imports are absolute"
            found.extend(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text("utf-8")))
    return found


def parts(names):
    """The parts of jaxpt among imported names: `from jaxpt import losses` counts as losses."""
    return {dotted.split(".")[1] for dotted in names if dotted.startswith("jaxpt.")}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_dependencies_point_one_way(path):
    own = part(path)
    assert own in ALLOWED, f"say in tests/test_imports.py what {own} may import"
    wrong = parts(imports(path)) - ALLOWED[own] - {own, *BASE}
    assert not wrong, f"{name(path)} imports {wrong}"


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in WITHOUT_DATA], ids=name)
def test_no_function_of_these_reaches_into_data(path):
    assert "data" not in parts(imports(path, everywhere=True))


@pytest.mark.parametrize("path", [p for p in FILES if part(p) != "data"], ids=name)
def test_tensorflow_is_imported_in_data_alone(path):
    assert not {dotted.split(".")[0] for dotted in imports(path, everywhere=True)} & TENSORFLOW


def loaded(code):
    """Top-level modules that a fresh process has after running `code`."""
    code += "\nimport sys; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.slow
def test_training_starts_without_tensorflow():
    wanted = ("train", "models", "objectives", "losses", "parallel", "config", "hf", "plan")
    modules = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in FILES if part(p) in wanted]
    code = "\n".join(f"import {module.removesuffix('.__init__')}" for module in modules)
    assert not loaded(code) & (TENSORFLOW | {"torch", "transformers"})


def test_config_loads_neither_jax_nor_tensorflow():
    assert not loaded("import jaxpt.config") & {"jax", "flax", "numpy", *TENSORFLOW}


def test_the_command_line_loads_neither_jax_nor_pydantic():
    assert not loaded("import jaxpt.cli") & {"jax", "flax", "pydantic", "yaml", "numpy", *TENSORFLOW}
