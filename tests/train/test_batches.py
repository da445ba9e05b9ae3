"""Runs from prepared batches, in a process that can import neither TensorFlow nor SeqIO nor tensorboardX."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpt.config import to_yaml
from jaxpt.data.batches.write import write_batches
from jaxpt.evals import baseline
from jaxpt.train.loop import train
from tests import families, fine_tuning, runs

ROOT = Path(__file__).parents[2]
WITHOUT = """
import sys
for name in ("tensorflow", "tensorflow_datasets", "seqio", "tensorboardX"):
    sys.modules[name] = None
from jaxpt import cli

def run(*words):
    code = cli.main(["train", *words])
    assert code == 0, (words, code)
"""


def measured(run_dir):
    """Figures of a run by step, without what the clock and the memory say, and what is said again at a resume."""
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {
        (line["step"], name): value
        for line in lines
        for name, value in line.items()
        if not name.startswith(("speed/", "memory/", "phase/", "time", "crc32"))
    }


def pretraining(folder):
    """GPT-2 in two phases: the second begins between the two starts of the run."""
    (folder / "a.txt").write_text("\n".join(f"Line {i} speaks of {w}, and ends." for i in range(40) for w in "abc"))
    return families.config(
        "gpt2",
        model={"vocab_size": 300},
        data={"path": str(folder / "a.txt"), "cache_dir": str(folder / "cache"), "validation_fraction": 0.2},
        train={"steps": 6, "log_every": 1, "phases": [{"steps": 2, "set": {"data.length": 16}}, {}]},
        evals=[{"kind": "heldout"}, {"kind": "baseline"}],
        run_dir=str(folder / "stream"),
    )


@pytest.mark.slow
def test_they_equal_those_of_the_stream(tmp_path):
    folders = [tmp_path / name for name in ("text", "rows")]
    for folder in folders:
        folder.mkdir()
    recipes = [pretraining(folders[0]), fine_tuning.recipe(folders[1], run_dir=str(folders[1] / "stream"))]
    for config, folder in zip(recipes, folders):
        write_batches(config, config.train.steps, folder / "batches", baseline.baseline, report=lambda line: None)
        (folder / "recipe.yaml").write_text(to_yaml(config))
        train(config)
    (folders[0] / "a.txt").unlink()
    (folders[1] / "train.jsonl").unlink()
    code = (
        WITHOUT
        + f"""
for folder, steps in (({str(folders[0])!r}, 6), ({str(folders[1])!r}, 4)):
    words = [folder + "/recipe.yaml", "data.source=batches"]
    words += [f"data.path={{folder}}/batches", f"run_dir={{folder}}/files"]
    if steps == 6:  # stopped in its second phase, and resumed
        run(*words, "train.steps=3")
    run(*words)
assert not {{"tensorflow", "seqio"}} & {{name for name, module in sys.modules.items() if module}}
"""
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for config, folder in zip(recipes, folders):
        assert measured(folder / "files") == measured(folder / "stream") != {}
        steps = config.train.steps
        runs.assert_bit_equal(runs.final(folder / "files", steps), runs.final(folder / "stream", steps))
        assert (folder / "files" / "tokenizer").is_dir()
    assert any(step == 4 and name.endswith("/accuracy") for step, name in measured(folders[1] / "files"))
