"""The table and the picture of a study, from run_dirs as training leaves them."""

import dataclasses
import doctest
import json
import os
import re
from pathlib import Path

import pytest
import yaml

from jaxpt import config as configs
from jaxpt.config.studies import load_study
from jaxpt.study import curves, tables
from tests import families

PAPER = {"bert": "GLUE 79.6"}


def record(step, **values):
    return json.dumps({"step": step, "time": 0.0, **{name.replace("__", "/"): x for name, x in values.items()}})


def canned(plan, name, receipt=None, metrics=()):
    """A run_dir of a row."""
    row = next(row for row in plan.rows if row.name == name)
    config = configs.load(row.recipe, plan.overrides(row))
    directory = Path(plan.run_dir) / name
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(configs.to_yaml(config))
    (directory / "metrics.jsonl").write_text("\n".join(metrics))
    if receipt:
        data = {"records": {"train": "x", "validation": "y"}, "tokenizer": "t", "transforms": config.objective.kind}
        data |= {"packing": False, "length": 32, "seed": 0, "phase": 0}
        receipt = {"finished": True, "parameters": 12345, "wall_seconds": 75.0, "data": {"fingerprint": data}} | receipt
        (directory / "run.json").write_text(json.dumps(receipt))


@pytest.fixture
def plan(tmp_path):
    """Five rows: two finished ones of one task, a finished one of another, one under way, and one not started."""
    rows = {"bert": "bert", "bert_wide": "bert", "gpt2": "gpt2", "t5": "t5", "later": "t5"}
    for family in families.FAMILIES:
        (tmp_path / f"{family}.yaml").write_text(yaml.safe_dump(families.tree(family)))
    tree = {"question": "which is best?", "run_dir": str(tmp_path / "study"), "tokens": 2000}
    tree["evaluate"] = {"probe": {"path": "a.csv", "test_path": "b.csv"}}
    tree["rows"] = [{"name": n, "recipe": f"{f}.yaml", "paper": PAPER.get(n)} for n, f in rows.items()]
    tree["rows"][1]["set"] = {"model.mlp_dim": 128}
    (tmp_path / "which.yaml").write_text(yaml.safe_dump(tree))
    plan = load_study(tmp_path / "which.yaml")
    means = {"loss": 3.5, "masked_lm": 3.0, "next_sentence": 0.5, "target_loss": 2.9}
    curve = [
        record(0, phase__text_tokens_per_step=100.0, phase__flops_per_step=1e6),
        record(10, validation__loss=5.0, validation__target_loss=4.0),
        record(10, phase__text_tokens_per_step=100.0, phase__flops_per_step=1e6),
        record(20, validation__loss=4.0, validation__target_loss=2.9),
    ]
    for name in ("bert", "bert_wide", "gpt2"):
        own = means if name != "gpt2" else {"loss": 3.0, "causal_lm": 3.0, "target_loss": 3.0}
        canned(plan, name, {"validation": own, "baseline": 4.4, "step": 20}, curve)
    for name, step in (("bert", 20), ("gpt2", 10)):  # the second one is of an earlier checkpoint
        (path := Path(plan.run_dir) / name / "evaluations" / "probe.json").parent.mkdir()
        settings = plan.evaluate.probe.model_dump(mode="json")
        path.write_text(json.dumps({"settings": settings, "step": step, "accuracy": 0.5, "untrained": 0.4}))
    canned(plan, "t5", metrics=[*curve[:2], '{"step": 11, "train/lo'])
    return plan


def test_text_and_flops_add_up_over_phases(tmp_path):
    lines = [
        record(0, phase__text_tokens_per_step=10.0, phase__flops_per_step=3.0),
        record(5, train__loss=1.0),
        record(8, validation__loss=2.0),
        record(8, phase__text_tokens_per_step=100.0, phase__flops_per_step=30.0),
        record(10, validation__loss=None),
        '{"step": 11, "valid',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert curves.points(tmp_path) == [
        curves.Point(8, 80.0, 24.0, {"loss": 2.0}),
        curves.Point(10, 280.0, 84.0, {"loss": None}),
    ]
    assert curves.points(tmp_path / "none") == []


def test_table(plan):
    rows = {result.name: result for result in tables.write(plan)}
    bert = rows["bert"]
    assert (bert.architecture, bert.objective, bert.parameters) == ("bert", "masked_lm", 12345)
    assert (bert.text_tokens, bert.steps, bert.flops, bert.wall_seconds) == (2000, 20, 2e7, 75.0)
    assert bert.margin == pytest.approx(1.5) and bert.status == "finished"
    assert [rows[name].task for name in rows] == ["A", "A", "B", None, None]
    assert [rows[name].status for name in ("gpt2", "t5", "later")] == ["finished", "under way", "not started"]
    assert (rows["t5"].steps, rows["t5"].margin, rows["later"].architecture) == (10, None, "t5")
    directory = Path(plan.run_dir)
    assert rows["gpt2"].probe is None
    saved = json.loads((directory / "table.json").read_text())
    assert [row["name"] for row in saved["rows"]] == list(rows)
    assert saved["rows"][0]["validation"]["next_sentence"] == 0.5
    text = (directory / "table.md").read_text()
    cells = [cell.strip() for cell in next(x for x in text.splitlines() if x.startswith("| bert |")).split("|")[1:-1]]
    assert cells == [
        "bert", "bert", "masked_lm", "12,345", "2,000", "20", "20M", "1m15s", "masked_lm 3.000, next_sentence 0.500",
        "2.900", "4.400", "1.500", "A", "50.0%", "40.0%", "GLUE 79.6", "finished",
    ]  # fmt: skip
    assert "which is best?" in text and "2,000 tokens of text in each row" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {18}, "one width for all rows of the table"


def test_notes_are_of_what_the_study_has(plan):
    results = tables.write(plan)
    said = tables.notes(plan, results)
    assert "- **probe**: " in said and "FLOPs, the probe and time" in said and "GloVe" not in said
    plan = plan.model_copy(update={"evaluate": plan.evaluate.model_copy(update={"probe": None})})
    said = tables.notes(plan, [*results, dataclasses.replace(results[0], objective="glove (window 5)")])
    assert "GloVe has none" in said and "probe" not in said and not {*"{}"} & {*said}


def test_a_failure_is_dropped_when_its_row_has_finished_since(plan):
    table, receipt = (Path(plan.run_dir) / name for name in ("table.json", "bert/run.json"))
    tables.write(plan, {"bert": "the probe failed", "t5": "killed"})
    for now, status in ((1, "failed: the probe failed"), (3, "finished")):
        os.utime(table, ns=(2, 2))
        os.utime(receipt, ns=(now, now))
        rows = {result.name: result.status for result in tables.write(plan)}
        assert (rows["bert"], rows["t5"]) == (status, "failed: killed")


def test_picture(plan):
    """A curve and a baseline for each run that has validated, with its name; written again alike.

    Rows of one task share two panels; each of the others has one, and no panel has losses that cannot be compared.
    """
    plan = plan.model_copy(update={"question": "is $1 (50%_of) as good as $2?"})  # no formula
    tables.write(plan)
    directory = Path(plan.run_dir)
    svg = (directory / "picture.svg").read_text()
    assert svg.count("stroke-dasharray: 4.5,3.6") == 2 * 2 + 1, "the baselines of the three that are finished"
    assert svg.count("<!-- dashed: trivial baseline -->") == 2 + 1, "no word of it where none is drawn"
    titles = re.findall(r"<!-- (?:validation loss at the objective's)? ?(targets, nats; .*?) -->", svg)
    assert titles == ["targets, nats; task A"] * 2 + ["targets, nats; task B", "targets, nats; span_corruption"]
    assert (directory / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "is $1 (50%_of) as good as $2?" in (directory / "table.md").read_text()
    tables.write(plan)
    assert (directory / "picture.svg").read_text() == svg
    assert not list(directory.glob(".*tmp")) + list(directory.glob("*.tmp"))


def test_tasks_beyond_the_alphabet_have_numbers(plan):
    """Each run has its letter again when the table is written once more, and seeds of one row share theirs."""
    directory = Path(plan.run_dir) / "bert"
    config, receipt = configs.load(directory), json.loads((directory / "run.json").read_text())

    def letters(known):
        data = receipt["data"]["fingerprint"]
        others = [{"data": {"fingerprint": data | {"length": length}}} for length in range(28)]
        return [tables.letter_of(config, other, known, None) for other in others]

    known = {}
    assert letters(known) == letters(known) == [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "26", "27"]
    seeds = [{"data": {"fingerprint": receipt["data"]["fingerprint"] | {"length": length}}} for length in (99, 98)]
    assert {tables.letter_of(config, seed, known, "row") for seed in seeds} == {"28"}


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(tables)
    assert tried and not failed


def test_a_wrapped_objective_is_described_like_others():
    recipe = Path(__file__).parents[2] / "configs/smoke/distilbert_tiny.yaml"
    objective = configs.load(str(recipe)).objective
    assert tables.describe(objective) == "distillation (teacher runs/bert_tiny, of masked_lm (next_sentence false))"
