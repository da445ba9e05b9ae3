"""The notebooks run from their first cell to their last, with fewer steps on a small corpus and on one device."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "tools" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells) and cells[0]["cell_type"] == "markdown"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1"))
    text = path.read_text("utf-8").replace('Path(\\"../..\\")', f'Path(\\"{ROOT}\\")')
    text, count = re.subn(r"STEPS = \d+", "STEPS = 6", text)
    assert count == 1
    sentences = (f"A list of {n} items has a number, and item {n * n} is a word." for n in range(300))
    (tmp_path / "corpus.txt").write_text("\n".join(sentences))
    # Each recipe of `configs/smoke` would prepare the built-in corpus, which tests/test_page_commands.py does.
    small = r"data={\"path\": \"corpus.txt\", \"cache_dir\": \"cache\"},"
    text, count = re.subn(r'configs/smoke/\w+\.yaml\\",', lambda found: f"{found[0]} {small}", text)
    assert count == 1
    copy = Path(shutil.copy(path, tmp_path))
    copy.write_text(text, encoding="utf-8")
    notebook = nbformat.read(copy, as_version=4)
    client.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    figures = [out for cell in notebook.cells for out in cell.get("outputs", ()) if "image/png" in out.get("data", {})]
    assert figures
