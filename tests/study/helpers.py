"""Studies of tiny rows for tests, and what their runs leave."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from jaxpt.study import finetunings
from tests import families
from tests.config.helpers import ROOT

SEEDS = (0, 1)
SIZES = {"gpt2": 300, "t5": 160, "bert": 160}


def write_study(tmp_path, rows=("gpt2", "t5"), **top):
    """A study of tiny rows on a small corpus."""
    lines = [
        f"document number {n} says that the cat sat on the mat and the dog ran to house {n * n}" for n in range(90)
    ]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    for family in rows:
        sections = {"log": {"tensorboard": False}, "evals": families.EVALUATED[:2]}
        tree = families.tree(family, model={"vocab_size": SIZES[family], "layers": 1}, **sections)
        tree["data"] |= {"path": str(tmp_path / "corpus.txt"), "cache_dir": str(tmp_path / "cache"), "length": 16}
        tree["data"]["validation_fraction"] = 0.1
        if family == "bert":
            tree["objective"]["next_sentence"] = False
        (tmp_path / f"{family}.yaml").write_text(yaml.safe_dump(tree))
    tree = {"question": "which?", "run_dir": str(tmp_path / "study"), **top}
    tree["rows"] = [{"name": family, "recipe": f"{family}.yaml"} for family in rows]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path / "study.yaml"


def start(path, *arguments):
    command = [sys.executable, "-m", "jaxpt", "study", str(path), *arguments]
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_until(started, pattern):
    for line in started.stdout:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"ended without {pattern}")


def table(tmp_path):
    """The table's rows without what the clock says."""
    rows = json.loads((tmp_path / "study" / "table.json").read_text())["rows"]
    return {
        row["name"]: {k: v for k, v in row.items() if k not in ("wall_seconds", "run_dir", "recipe")} for row in rows
    }


def statuses(tmp_path):
    return {name: row["status"] for name, row in table(tmp_path).items()}


def names(ran):
    return [row for row, *_ in ran]


def write(tmp_path, **finetune):
    """A study of one tiny encoder and a task of two labels."""
    path = write_study(tmp_path, ["bert"])
    words = {"good": "fine great nice", "bad": "awful poor sad"}
    rows = [
        f"the cat is {word} and house {n}\t{label}"
        for n in range(30)
        for label, of in words.items()
        for word in of.split()
    ]
    for name, chosen in (("train", rows[:120]), ("test", rows[120:])):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *chosen]) + "\n")
    task = {
        "task": {"kind": "classification"},
        "data": {
            "path": str(tmp_path / "train.tsv"), "test_path": str(tmp_path / "test.tsv"), "length": 16, "batch_size": 8,
            "validation_fraction": 0.2, "cache_dir": str(tmp_path / "cache"), "train_rows": 60,
        },
        "optimizer": {"kind": "adamw", "learning_rate": 1e-3},
        "train": {"steps": 2, "eval_every": 2},
    }  # fmt: skip
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    tree = yaml.safe_load(path.read_text())
    tree["set"] = {"train": {"steps": 2, "eval_every": 2}}
    of_study = {"tasks": [{"name": "mood", "recipe": "task.yaml"}], "seeds": list(SEEDS)}
    of_study["grid"] = {"optimizer.learning_rate": [1e-3, 1e-2]}
    tree["evaluate"] = {"finetune": of_study | finetune}
    path.write_text(yaml.safe_dump(tree))
    return path


def finished(one, **receipt):
    """Writes what a finished fine-tuning leaves."""
    (one.run_dir / "evaluations").mkdir(parents=True, exist_ok=True)
    known = {"finished": True, "best_value": 1.0, "best_mode": "max"} | receipt
    (one.run_dir / "run.json").write_text(json.dumps(known))
    model = {"kind": "bert", "layers": 1, "embed_dim": 8, "heads": 2, "mlp_dim": 8, "vocab_size": 99}
    tree = yaml.safe_load(Path(one.recipe).read_text()) | {"model": model}
    tree["task"]["labels"] = ["bad", "good"]
    tree["data"]["tokenizer"] = {"kind": "wordpiece"}
    (one.run_dir / "config.yaml").write_text(yaml.safe_dump(tree))
    (one.run_dir / finetunings.BEGUN).write_text(finetunings.identity(one))


def trained(plan, checksums="a"):
    """A row with a checkpoint, as far as its identity goes."""
    state = Path(plan.run_dir) / "bert" / "checkpoints" / "2" / "state"
    state.mkdir(parents=True, exist_ok=True)
    (state / "checksums.json").write_text(checksums)
    drawn = dict.fromkeys(("tokenizer", "transforms", "packing", "length", "seed", "phase"))
    receipt = {"finished": True, "step": 2, "parameters": 9, "wall_seconds": 1.0}
    receipt["data"] = {"fingerprint": {"records": {}, **drawn}}
    (Path(plan.run_dir) / "bert" / "run.json").write_text(json.dumps(receipt))


def predicted(one, rows, split="test"):
    """Writes a fine-tuning's predictions."""
    folder = one.run_dir / "evaluations"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"predictions_{split}.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
