"""A study's fine-tunings: the same search for all, paired differences, and nothing lost by a kill."""

import dataclasses
import json
import math
import os
import re
import signal
import statistics
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.config import AnyTask
from jaxpt.config.finetunings import KEEP, cells, fine_tuning
from jaxpt.config.studies import load_study
from jaxpt.errors import UserError
from jaxpt.metrics import describe, jackknife
from jaxpt.study import finetuned, finetunings, pretrainings, tables
from tests import grids
from tests.config.helpers import ROOT
from tests.study.test_pretrainings import (  # noqa: F401 (a fixture)
    names,
    read_until,
    stand_in,
    start,
    statuses,
    table,
    write_study,
)  # fmt: skip

SEEDS = (0, 1)


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


def found(tmp_path):
    return json.loads((tmp_path / "study" / "table.json").read_text())["finetuned"]


@pytest.mark.slow
@pytest.mark.parametrize("twice", grids.cases([True, False], False))
def test_killed_and_continued_gives_the_same_tables(tmp_path, twice):
    """Two rows of the same settings, each fine-tuned; the study is killed in the second row's fine-tunings.

    `twice`: before that in the second row, too. Each start and each row is a process; `tests/train/test_resume.py`
    kills rows alone.
    """
    path = write(tmp_path, seeds=[0])
    tree = yaml.safe_load(path.read_text())
    tree["set"] = {"train": {"steps": 12, "log_every": 1, "eval_every": 4}}
    tree["rows"] = [{"name": name, "recipe": "bert.yaml"} for name in ("whole", "killed")]
    path.write_text(yaml.safe_dump(tree))

    def kill_at(pattern):
        started = start(path)
        read_until(started, pattern)
        os.kill(started.pid, signal.SIGKILL)
        started.communicate()

    if twice:
        kill_at(r"^\[killed\] step 5/")
        assert statuses(tmp_path) == {"whole": "finished", "killed": "not started"}  # when the table was written
    kill_at(r"^\[killed/mood/pretrained/all/learning_rate=0.01/seed 0\] test: accuracy")
    made = {name: len(list((tmp_path / "cache" / name).iterdir())) for name in ("tokenizers", "records")}
    assert made == {"tokenizers": 1, "records": 4}, "rows of equal data share them, their fine-tunings others"
    last = start(path)
    output = last.communicate()[0]
    assert last.returncode == 0, output
    assert all(f"[{row}] is finished at step 12" in output for row in ("whole", "killed"))
    tuned = re.findall(r"^\[(.*)/seed 0\] test: ", output, re.MULTILINE)
    assert not [name for name in tuned if not name.startswith("killed/mood/random/")], "what was finished"

    rows = table(tmp_path)
    assert rows["killed"]["status"] == "finished" and rows["killed"]["margin"] is not None
    measured = {"name": "whole", "train_seconds": rows["whole"]["train_seconds"]}
    assert rows["killed"] | measured == rows["whole"]
    whole, killed = ([one for one in found(tmp_path) if one["row"] == row] for row in ("whole", "killed"))
    assert [(one["start"], *one["by_seed"]) for one in killed] == [("pretrained", "0"), ("random", "0")]
    assert [one | {"row": "whole"} for one in killed] == whole and {one["searched"] for one in whole} == {2}
    for start_from in ("pretrained", "random"):
        run = tmp_path / "study" / "finetune" / "killed" / "mood" / start_from / "all" / "learning_rate=0.01" / "seed_0"
        said = (run / "log.txt").read_text()
        assert ("all weights are random" in said) == (start_from == "random") and "60 rows" in said
    written = (tmp_path / "study" / "table.md").read_text()
    assert "\n| constant baseline |  | 50.0 |  |\n" in written
    assert "| killed | mood | pretrained − random |" in written and "mood, accuracy" in written


def test_each_run_has_its_own_place_and_settings(tmp_path):
    strategies = [{"name": "all"}, {"name": "low_rank", "set": {"train.lora.rank": 2}}]
    plan = load_study(write(tmp_path, strategies=strategies))
    runs = [fine_tuning(plan, cell, point, seed) for cell in cells(plan) for point in (0, 1) for seed in SEEDS]
    assert len({one.run_dir for one in runs}) == len(runs) == 2 * 2 * 2 * 2
    assert {"train.lora.rank=2" in one.overrides for one in runs if "low_rank" in one.name} == {True}
    assert all(("init_from.random=true" in one.overrides) == ("random" in one.name) for one in runs)
    assert {one.recipe for one in runs} == {str(tmp_path / "task.yaml")}


def test_a_row_that_is_there_for_others_is_not_fine_tuned(tmp_path):
    path = write(tmp_path)
    tree = yaml.safe_load(path.read_text())
    vectors = {"name": "vectors", "recipe": "bert.yaml", "set": {"objective": {"kind": "skip_gram"}}, "finetune": None}
    begins = {"init_from": {"path": "{study}/vectors", "partial": True}}
    tree["rows"] = [vectors, *tree["rows"]]
    tree["rows"][1]["set"] = begins | {"data.tokenizer.path": "{study}/vectors/tokenizer"}
    path.write_text(yaml.safe_dump(tree))
    plan = load_study(path)
    assert {cell.row.name for cell in cells(plan)} == {"bert"}
    found = pretrainings.check_finetunings(plan, "study")  # before either of them is trained
    assert {name.partition("/")[0] for name in found} == {"bert"} and len(found) == 2
    assert {config.data.tokenizer.path for config in found.values()} == {None}, "of what is not there yet"


@pytest.mark.parametrize(
    "finetune, message",
    [
        ({"grid": {"optimizer.learning_rate": 0.1}}, "optimizer.learning_rate wants a list of values, got 0.1"),
        ({"grid": 0.1}, "evaluate.finetune.grid: wants a list"),
        ({"tasks": []}, "evaluate.finetune.tasks"),
        ({"seeds": [1, 1]}, "seeds: 1 stands there twice"),
        ({"starts": ["pretraned"]}, "pretrained"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, finetune, message):
    with pytest.raises(UserError, match=message):
        load_study(write(tmp_path, **finetune))


@pytest.mark.parametrize(
    "finetune, message",
    [
        ({"set": {"train.stepz": 3}}, "unknown key train.stepz; did you mean train.steps?"),
        ({"set": {"data.test_path": "none.tsv"}}, "data.test_path: none.tsv: no such file"),
        ({"grid": {"model.pooler": [1]}}, "model.pooler"),
        (
            {"tasks": [{"name": "mood", "recipe": "task.yaml", "metric": "acuracy"}]},
            "metric: 'acuracy' is not measured; did you mean accuracy?",
        ),
    ],
)
def test_fine_tunings_are_checked_before_a_row_is_trained(tmp_path, finetune, message):
    path = write(tmp_path, **finetune)
    with pytest.raises(UserError, match=rf"study.yaml: fine-tuning bert/mood/pretrained/all: .*{re.escape(message)}"):
        pretrainings.study(str(path))
    assert not (tmp_path / "study").exists()


TABLES = {
    "classify_tiny": "text\tmodule\nreads a file\tio\nsends a mail\temail\n",
    "match_tiny": "signature\tsummary\tmatch\ndef f(x)\tAdds x.\tyes\ndef g(x)\tOpens x.\tno\n",
}


@pytest.mark.parametrize("recipe", TABLES)
def test_the_model_of_every_smoke_recipe_can_be_fine_tuned(monkeypatch, tmp_path, recipe):
    """With the row's model and vocabulary, as the task's recipe says and the study sets."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "rows.tsv").write_text(TABLES[recipe])  # the built-in ones take seconds to parse
    of_file = {"data.source": "auto", "data.path": str(tmp_path / "rows.tsv"), "data.test_path": None}
    tasks = [{"name": "task", "recipe": f"../finetune/smoke/{recipe}.yaml"}]
    settings = {"tasks": tasks, "set": {"data.length": 32, "data.validation_fraction": 0.5, **of_file}}
    plan = load_study(
        "configs/studies/smoke.yaml", [f"evaluate.finetune.{key}={json.dumps(x)}" for key, x in settings.items()]
    )
    found = pretrainings.check_finetunings(plan, "smoke")
    rows = {row.name: configs.load(row.recipe, plan.overrides(row)) for row in plan.rows}
    assert {name.partition("/")[0] for name in found} == set(rows) and len(rows) > 15
    for name, config in found.items():
        row = rows[name.partition("/")[0]]
        assert config.model == row.model and config.data.length == 32
        assert config.data.tokenizer.kind == row.data.tokenizer.kind
        assert config.task.kind == "classification" and set(config.objective.heads(config.model)) >= {"classes"}
        assert (config.task.pair is None) == (recipe == "classify_tiny")


def test_differences_of_given_predictions(tmp_path):
    """Beside the formulas for accuracy, where the jackknife over single examples is exact."""
    plan = load_study(write(tmp_path, grid={}))
    rng, count, right = np.random.default_rng(0), 40, {}
    for cell in cells(plan):
        for seed in SEEDS:
            one = fine_tuning(plan, cell, 0, seed)
            (one.run_dir / "evaluations").mkdir(parents=True)
            correct = rng.random(count) < (0.9 if cell.start == "pretrained" else 0.6)
            right[cell.start, seed] = correct
            rows = [{"id": i, "target": "good", "prediction": "good" if c else "bad"} for i, c in enumerate(correct)]
            (one.run_dir / "evaluations" / "predictions_test.jsonl").write_text("\n".join(map(json.dumps, rows)))
            receipt = {"finished": True, "best_value": 1.0, "best_mode": "max", "test": {"accuracy": correct.mean()}}
            receipt["test_constant"] = {"accuracy": 0.5}
            (one.run_dir / "run.json").write_text(json.dumps(receipt))
            tree = yaml.safe_load((tmp_path / "task.yaml").read_text())
            tree["task"]["labels"] = ["bad", "good"]
            tree["model"] = {"kind": "bert", "layers": 1, "embed_dim": 8, "heads": 2, "mlp_dim": 8, "vocab_size": 99}
            tree["data"]["tokenizer"] = {"kind": "wordpiece"}
            (one.run_dir / "config.yaml").write_text(yaml.safe_dump(tree))
            (one.run_dir / finetunings.BEGUN).write_text(finetunings.identity(one))
    pretrained, random = cells(plan)
    difference = finetuned.difference(plan, pretrained, random)
    of_seeds = [right["pretrained", seed].mean() - right["random", seed].mean() for seed in SEEDS]
    assert difference.mean == pytest.approx(statistics.fmean(of_seeds))
    assert difference.over_seeds == pytest.approx(statistics.stdev(of_seeds) / math.sqrt(2))
    of_examples = np.mean([right["pretrained", seed].astype(float) - right["random", seed] for seed in SEEDS], 0)
    assert difference.over_examples == pytest.approx(of_examples.std(ddof=1) / math.sqrt(count))
    assert difference.error == pytest.approx(math.hypot(difference.over_seeds, difference.over_examples))
    assert "\n| constant baseline |  | 50.0 |  |\n" in finetuned.markdown(plan)
    # Predictions that are written anew are read anew, whatever ends of lines are in them.
    for seed in SEEDS:
        file = fine_tuning(plan, pretrained, 0, seed).run_dir / "evaluations" / "predictions_test.jsonl"
        rows = [{"id": i, "text": "a\u2028b", "target": "good", "prediction": "good"} for i in range(count)]
        file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
        os.utime(file, ns=(1, 1))
    of_random = np.mean([right["random", seed].astype(float) for seed in SEEDS], 0)
    now = finetuned.difference(plan, pretrained, random).over_examples
    assert now == pytest.approx(of_random.std(ddof=1) / math.sqrt(count))


def test_other_test_sets_are_not_compared_by_example(tmp_path):
    plan = load_study(write(tmp_path, grid={}, seeds=[0]))
    for number, cell in enumerate(cells(plan)):
        one = fine_tuning(plan, cell, 0, 0)
        finished(one, test={"accuracy": 0.5})
        rows = [{"id": i + number, "target": "good", "prediction": "good" if i % 2 else "bad"} for i in range(30)]
        (one.run_dir / "evaluations" / "predictions_test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = finetuned.difference(plan, *cells(plan))
    assert found.over_examples is None and found.over_seeds is None and found.error is None
    assert finetuned.tables(plan)[1].rows == (("bert", "mood", "pretrained − random", "+0.0", "", "", "", ""),)


def test_models_are_compared_with_the_first_where_none_is_random(tmp_path):
    path = write(tmp_path, grid={}, starts=["pretrained"])
    tree = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(tree | {"rows": [*tree["rows"], {"name": "second", "recipe": "bert.yaml"}]}))
    plan = load_study(path)
    for cell in cells(plan):
        for seed in SEEDS:
            one = fine_tuning(plan, cell, 0, seed)
            finished(one, test={"accuracy": 0.9 if cell.row.name == "second" else 0.6})
            right = np.arange(30) % 10 < (9 if cell.row.name == "second" else 6)
            rows = [{"id": i, "target": "good", "prediction": "good" if c else "bad"} for i, c in enumerate(right)]
            (one.run_dir / "evaluations" / "predictions_test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ((model, task, difference, by, error, of_seeds, of_examples, t),) = finetuned.tables(plan)[1].rows
    assert (model, task, difference, by, of_seeds) == ("second", "mood", "second − bert", "+30.0", "0.0")
    # Of 30 differences 9 are 1, the others 0.
    assert of_examples == error == f"{100 * np.std([1] * 9 + [0] * 21, ddof=1) / math.sqrt(30):.1f}"
    assert float(t) == pytest.approx(30 / float(error), abs=0.05)


def test_a_simple_model_is_a_row_that_models_are_compared_with(tmp_path, monkeypatch, capsys):
    """It is trained here, with each seed; the fine-tunings beside it are finished ones."""
    path = write(tmp_path)
    tree = yaml.safe_load(path.read_text())
    tree["rows"] = [{"name": "linear", "simple_model": "words_svm"}, *tree["rows"]]
    path.write_text(yaml.safe_dump(tree))
    plan = load_study(path)
    assert [row.name for row in plan.rows if row.is_trained] == ["bert"]
    assert cells(plan)[0].name == "linear/mood/simple/all" and len(cells(plan)) == 3
    assert "linear/mood/simple/all/as_it_is/seed 0" in pretrainings.check_finetunings(plan, "study")
    wrong_half = [{"id": n, "target": "good", "prediction": "bad" if n % 2 else "good"} for n in range(60)]
    trained(plan)
    for cell in cells(plan)[1:]:
        for point, seed in ((0, 0), (1, 0), (0, 1)):
            one = fine_tuning(plan, cell, point, seed)
            finished(one, test={"accuracy": 0.5})
            (one.run_dir / "evaluations" / "predictions_test.jsonl").write_text("\n".join(map(json.dumps, wrong_half)))
    commands = []

    def run(worker, words):
        commands.append(words)
        code = cli.main(["--quiet", *words])
        lines = capsys.readouterr()
        return lines.out.splitlines(), lines.err if code else ""

    monkeypatch.setattr(finetunings.Worker, "run", run)
    lines = []
    for _ in range(2):  # what is finished is not run again
        assert finetunings.run(plan, lines.append, lambda pid: None, lambda: None, {}) == {}
    assert [words[:2] + words[-3:] for words in commands] == [
        ["baseline", str(tmp_path / "task.yaml"), "--save", "--models", "words_svm"]
    ] * len(SEEDS)
    assert [f"seed={seed}" in words for seed, words in zip(SEEDS, commands)] == [True, True]
    said = "[linear/mood/simple/all/as_it_is/seed 0] best on the validation set: words_svm, accuracy 1.0"
    assert lines[1].startswith(said)
    tuned, differences = finetuned.tables(plan)
    assert [row[:2] for row in tuned.rows] == [
        ("constant baseline", ""), ("linear", "simple: words_svm"), ("bert", "pretrained"), ("bert", "random"),
    ]  # fmt: skip
    assert tuned.rows[1][2].startswith("100.0 ± 0.0")
    assert [(row[2], row[3]) for row in differences.rows] == [
        ("pretrained − random", "+0.0"), ("bert − linear", "-50.0"),
    ]  # fmt: skip
    assert tables.write(plan) and "simple: words_svm" in (tmp_path / "study" / "table.md").read_text()
    changed = plan.rows[0].model_copy(update={"simple_model": "best"})
    other = fine_tuning(plan, cells(plan)[0]._replace(row=changed), 0, 0)
    assert not finetunings.is_finished(other) and other.command[-1] == "--save"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"simple_model": "words_smv"}, "rows.0.simple_model"),
        ({"simple_model": "best", "recipe": "bert.yaml"}, "linear: a simple model takes neither recipe nor set"),
        ({"simple_model": "best", "model": "runs/x"}, "linear: a row has either model or simple_model"),
        ({"simple_model": "best", "finetune": None}, "linear: a simple model learns tasks alone"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_simple_model_is_named(tmp_path, row, message):
    path = write(tmp_path)
    tree = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(tree | {"rows": [{"name": "linear", **row}]}))
    with pytest.raises(UserError, match=message):
        load_study(path)


@pytest.mark.parametrize("metric", ["exact_match", "rouge", "bleu"])
def test_a_mean_is_scored_once_for_each_group(metric):
    task = TypeAdapter(AnyTask).validate_python({"kind": "generation", "metrics": [metric], "inputs": "{text}"})
    texts = [f"the cat sat on mat {n}" for n in range(7)]
    found = [text if n % 3 else "the cat sat there" for n, text in enumerate(texts)]
    value = describe(metric).selection_value
    quick = jackknife.without_groups(task, texts, found, value, 3)
    slow = [
        task.score(*[[one for i, one in enumerate(of) if i % 3 != group] for of in (found, texts)], metric)[value]
        for group in range(3)
    ]
    np.testing.assert_allclose(quick, slow, rtol=1e-12)


def test_an_average_has_one_value_of_each_metric_in_percent(tmp_path):
    plan = load_study(write(tmp_path, grid={}, seeds=[0]))
    task = TypeAdapter(AnyTask).validate_python(
        {"kind": "generation", "metrics": ["exact_match", "rouge"], "inputs": "{a}"}
    )
    means = {"exact_match": 0.5, "rouge1": 80.0, "rouge2": 60.0, "rougeL": 70.0, "rougeLsum": 70.0}
    assert finetuned.others(task, "exact_match", [means]) == {"rouge2": 60.0}
    assert finetuned.others(task, "rouge1", [means]) == {"exact_match": 50.0}
    regression = TypeAdapter(AnyTask).validate_python({"kind": "regression", "metrics": ["pearson", "spearman", "mse"]})
    assert finetuned.others(regression, "pearson", [{"pearson": 0.9, "spearman": 0.7, "mse": 2.0}]) == {
        "spearman": 70.0
    }
    one = finetuned.Scores(
        "bert", "mood", "random", "all", "mse", None, {0: 2.0, 1: 3.0}, {}, "number", {}, lower_is_better=True
    )
    assert one.average is None and finetuned._scored(one).endswith("(2.5, 2.0; 2)")
    old = {**dataclasses.asdict(one), "in_percent": False, "falls": False, "metric": "pearson"}
    old["others"] = {"spearman": 0.7}
    old = {name: value for name, value in old.items() if name not in ("unit", "lower_is_better")}
    assert finetuned.Scores.of_json(old | {"by_seed": {0: 0.9}}).average == pytest.approx(80.0)
    finished(fine_tuning(plan, cells(plan)[0], 0, 0), test={"accuracy": 0.5})
    assert finetuned.scores(plan, cells(plan)[0]).average == 50.0


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


def test_fine_tunings_of_other_weights_or_another_recipe_are_not_kept(tmp_path):
    plan = load_study(write(tmp_path, grid={}))
    trained(plan)
    one = fine_tuning(plan, cells(plan)[0], 0, 0)
    finished(one)
    assert finetunings.is_finished(one)
    recipe = tmp_path / "task.yaml"
    before = recipe.read_text()
    recipe.write_text(before.replace("0.001", "0.002"))
    assert recipe.read_text() != before and not finetunings.is_finished(one)
    recipe.write_text(before)
    elsewhere = tmp_path / "other.yaml"
    recipe.rename(elsewhere)
    assert finetunings.is_finished(one._replace(recipe=str(elsewhere))), "its settings count, not its path"
    elsewhere.rename(recipe)
    trained(plan, "b")  # as many steps
    assert not finetunings.is_finished(one)
    started = []
    failures = finetunings.run(plan, print, started.append, lambda: None, {}, stop=True)
    assert started == [] and list(failures) == [one.name]
    said = r"seed_0: began from .*bert as it was before; delete it, or set another run_dir"
    assert re.search(said, failures[one.name])


def test_a_row_that_begins_from_another_one_is_not_kept_when_that_one_changed(tmp_path, stand_in):  # noqa: F811
    path = write(tmp_path)
    tree = yaml.safe_load(path.read_text())
    del tree["evaluate"]
    second = {"name": "second", "recipe": "bert.yaml", "set": {"init_from.path": "{study}/bert"}}
    path.write_text(yaml.safe_dump(tree | {"rows": [*tree["rows"], second]}))
    plan = load_study(path)
    trained(plan)
    first = configs.load(plan.rows[0].recipe, plan.overrides(plan.rows[0]))
    (Path(first.run_dir) / "config.yaml").write_text(configs.to_yaml(first))
    assert pretrainings.study(str(path)) == 0 and names(stand_in()) == ["second"]
    origins = finetunings.begun(Path(plan.run_dir) / "second")
    assert origins == {"bert": finetunings.weights(first.run_dir)} and finetunings.begun(Path(first.run_dir)) == {}
    assert pretrainings.study(str(path)) == 0 and names(stand_in()) == ["second"], "it goes on"
    trained(plan, "b")
    assert pretrainings.study(str(path)) == 1 and stand_in() == []
    assert re.search(
        r"second: began from bert as before; delete it, or choose another run_dir", statuses(tmp_path)["second"]
    )


def test_a_fine_tuning_with_other_steps_does_not_go_on(tmp_path):
    """With 4 steps instead of 2 its schedule would have a kink, and those that begin now would not."""
    plan = load_study(write(tmp_path, grid={}))
    one = fine_tuning(plan, cells(plan)[0], 0, 0)
    finished(one)
    more = yaml.safe_load((one.run_dir / "config.yaml").read_text())
    config = configs.load(one.run_dir, [f"run_dir={one.run_dir}"])
    finetunings.check_unchanged(config)
    for key, value, message in (("steps", 4, "train.steps=2, the study has 4"), ("log_every", 7, None)):
        changed = config.model_copy(update={"train": config.train.model_copy(update={key: value})})
        if message is None:
            finetunings.check_unchanged(changed)
            continue
        with pytest.raises(UserError, match=message):
            finetunings.check_unchanged(changed)
    assert more["train"]["steps"] == 2


def test_checkpoints_that_are_kept_are_no_other_settings(tmp_path):
    one = fine_tuning(load_study(write(tmp_path, grid={})), *cells(load_study(tmp_path / "study.yaml"))[:1], 0, 0)
    assert KEEP in one.overrides and KEEP not in json.loads(finetunings.identity(one))["overrides"]


def test_without_a_test_set_the_best_checkpoint_counts(tmp_path):
    plan = load_study(write(tmp_path, grid={}, seeds=[0]))
    for cell in cells(plan):
        one = fine_tuning(plan, cell, 0, 0)
        finished(one, task={"accuracy": 0.5}, best={"accuracy": 0.9}, task_constant={"accuracy": 0.4})
        rows = [{"target": "good", "prediction": "good" if n % 3 else "bad"} for n in range(30)]
        (one.run_dir / "evaluations" / "predictions_validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    first, other = cells(plan)
    found = finetuned.scores(plan, first)
    assert found.by_seed == {0: 0.9} and found.constant == {"accuracy": 0.4}
    assert finetuned.difference(plan, first, other).over_examples == 0.0


def test_a_metric_that_was_not_measured_is_named(tmp_path):
    plan = load_study(
        write(tmp_path, grid={}, seeds=[0], tasks=[{"name": "mood", "recipe": "task.yaml", "metric": "acuracy"}])
    )
    finished(fine_tuning(plan, cells(plan)[0], 0, 0), test={"accuracy": 0.9})
    with pytest.raises(UserError, match="tasks: mood: metric: no 'acuracy' was measured; there is accuracy"):
        finetuned.scores(plan, cells(plan)[0])


def test_a_best_metric_that_was_not_measured_chooses_no_point(tmp_path):
    plan = load_study(write(tmp_path, seeds=[0]))
    finished(fine_tuning(plan, cells(plan)[0], 0, 0), best_value=None)
    assert finetunings.best_point(plan, cells(plan)[0]) is None
    finished(fine_tuning(plan, cells(plan)[0], 1, 0), best_value=0.2)
    assert finetunings.best_point(plan, cells(plan)[0]) == 1


def test_a_search_that_lost_points_says_so(tmp_path):
    plan = load_study(write(tmp_path, seeds=[0]))
    first, other = cells(plan)
    for cell, points in ((first, (0,)), (other, (0, 1))):
        for point in points:
            finished(fine_tuning(plan, cell, point, 0), test={"accuracy": 0.5})
    rows = finetuned.tables(plan)[0].rows
    assert [row[2] for row in rows] == ["50.0 (50.0, 50.0; 1; 1 of 2 points)", "50.0 (50.0, 50.0; 1)"]
