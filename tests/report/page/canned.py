"""Runs as training leaves them, written by hand, with texts that would be markup if they were not escaped."""

import json

import yaml

from tests import families

EVIL = '<script>alert("1")</script> & <img src=http://evil.example/x.png> \x1b[31m'
DEVICES = {"platform": "gpu", "kind": "NVIDIA H100 80GB HBM3", "count": 8}
CPU = {"platform": "cpu", "kind": "cpu", "count": 8}


def lines(steps=40, every=10, loss=6.0, start=1e9, **more):
    """Lines of metrics: two seconds a step, and five for each validation."""
    found = [{"step": 0, "time": start, "phase/text_tokens_per_step": 100.0, "phase/flops_per_step": 1e9}]
    time = start
    for step in range(every, steps + 1, every):
        time += 2 * every
        figures = {"train/loss": loss - step / 20, "train/gradient_norm": 1.5, "learning_rate": 1e-3 * step}
        speed = {"speed/steps_per_second": 0.5, "speed/tokens_per_second": 50.0, "speed/input_wait": 0.25}
        found.append({"step": step, "time": time, **figures, **speed})
        time += 5
        held = {"validation/loss": loss - step / 25, "validation/target_loss": loss - step / 30}
        found.append({"step": step, "time": time, **held, **{key: value + step for key, value in more.items()}})
    return found


def write(path, family="bert", metrics=(), receipt=None, evaluations=None, **sections):
    """A run's directory."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(families.tree(family, **sections)))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    if receipt is not None:
        (path / "run.json").write_text(json.dumps(receipt))
    for name, rows in (evaluations or {}).items():
        (path / "evaluations").mkdir(exist_ok=True)
        (path / "evaluations" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pretrained(path, family="bert", **sections):
    """A finished run, with samples of a hostile text."""
    counts = {"documents": 12, "empty": 0, "records": 34, "tokens": 2000}
    receipt = {
        "finished": True, "step": 40, "parameters": 12345, "wall_seconds": 130.0, "baseline": 5.25, "train_loss": 4.0,
        "data": {"summary": {"train": counts, "validation": counts}},
        "environment": {"devices": DEVICES, "processes": 1, "command": ["jaxpt", "train", EVIL]},
    }  # fmt: skip
    said = [{"evaluator": "samples", "lines": ["a few validation examples:", f"  text   {EVIL}"]}]
    sections = {"evals": [{"kind": "heldout"}, {"kind": "samples"}], **sections}
    return write(path, family, lines(), receipt, {"lines.jsonl": said}, **sections)


LABELS = ["good", "bad", "<b>odd</b>"]


def tuned(path, **more):
    """A finished fine-tuning with three labels."""
    rows = [
        {"id": n, "target": LABELS[n % 3], "prediction": LABELS[0 if n % 4 == 0 else n % 3], "loss": n / 10}
        for n in range(30)
    ]
    rows[5]["prediction"] = None
    part = {
        "task": "", "labels": {"train": {"good": 300, "bad": 100}, "test": dict.fromkeys(LABELS, 10)},
        "worst": [row | {"text": f"row {row['id']}: {EVIL}"} for row in rows[:-3:-1]],
    }  # fmt: skip
    receipt = {
        "finished": True, "step": 40, "parameters": 12345, "wall_seconds": 140.0, "test": {"accuracy": 0.7},
        "test_constant": {"accuracy": 0.4}, "best_step": 30, "task": {"accuracy": 0.75},
        "environment": {"devices": CPU, "processes": 1},
    }  # fmt: skip
    task = {"kind": "classification", "labels": LABELS}
    return write(
        path, "bert", lines(**{"task/accuracy": 0.5}), receipt | more,
        {"predictions_test.jsonl": rows, "mistakes_test.jsonl": [part]},
        task=task, objective={"kind": "classification"}, data={"path": "x.tsv"},
        checkpoint={"best_metric": "task/accuracy"},
    )  # fmt: skip


def label_sets(path):
    """A finished fine-tuning whose rows have any number of labels."""
    sets = [["good"], ["good", "bad"], [], ["bad"]]
    rows = [
        {"id": n, "target": sets[n % 4], "prediction": sets[n % 4] if n else ["bad"], "loss": n / 10} for n in range(40)
    ]
    reliability = {
        "bins": [[0.1, 0.2, 30], [0.9, 0.8, 50]], "errors": {"good": 0.0625, "bad": 0.125},
        "thresholds": {"good": 0.375, "bad": 0.4375},
    }  # fmt: skip
    part = {"labels": {"train": {"good": 30, "bad": 10}}, "reliability": reliability, "task": ""}
    part["worst"] = [row | {"text": f"row {row['id']}: {EVIL}"} for row in rows[:-21:-1]]
    receipt = {"finished": True, "step": 40, "parameters": 12345, "wall_seconds": 140.0, "best_step": 30}
    task = {"kind": "multi_label", "labels": ["good", "bad"]}
    return write(
        path, "bert", lines(), receipt, {"predictions_validation.jsonl": rows, "mistakes_validation.jsonl": [part]},
        task=task, objective={"kind": "classification"}, data={"path": "x.tsv"},
    )  # fmt: skip
