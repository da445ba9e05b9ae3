"""A study's fine-tunings: the same search for all, and nothing lost by a kill."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import yaml

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.config.finetunings import KEEP, cells, fine_tuning
from jaxpt.config.studies import load_study
from jaxpt.errors import UserError
from jaxpt.study import finetuned, finetunings, pretrainings, tables
from tests.config.helpers import ROOT
from tests.study.helpers import (
    SEEDS,
    finished,
    names,
    predicted,
    read_until,
    start,
    statuses,
    table,
    trained,
    write,
)  # fmt: skip


def found(tmp_path):
    return json.loads((tmp_path / "study" / "table.json").read_text())["finetuned"]


@pytest.mark.slow
def test_killed_and_continued_gives_the_same_tables(tmp_path):
    """Two rows of the same settings, each fine-tuned; the study is killed in the second row and in its fine-tunings."""
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

    kill_at(r"^\[killed\] step 5/")
    assert statuses(tmp_path) == {"whole": "finished", "killed": "not started"}  # when the table was written
    made = {name: len(list((tmp_path / "cache" / name).iterdir())) for name in ("tokenizers", "records")}
    assert made == {"tokenizers": 1, "records": 2}, "rows of equal data share them"
    kill_at(r"^\[killed/mood/pretrained/all/learning_rate=0.01/seed 0\] test: accuracy")
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
        ({"grid": 0.1}, "evaluate.finetune.grid: wants keys with lists of values"),
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
            {"set": {"checkpoint.copy_to": "copy"}},
            "checkpoint.copy_to: would be the copy of several runs; leave it out",
        ),
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
            predicted(one, wrong_half)
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


def test_a_row_that_begins_from_another_one_is_not_kept_when_that_one_changed(tmp_path, stand_in):
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
    assert pretrainings.study(str(path)) == 2 and stand_in() == []
    assert re.search(
        r"second: began from bert as before; delete it, or choose another run_dir", statuses(tmp_path)["second"]
    )


@pytest.mark.parametrize(("devices", "visible"), [("3,5", "3"), (None, "0,7")])
def test_fine_tunings_see_a_listed_device_alone(tmp_path, monkeypatch, devices, visible):
    path = write(tmp_path, grid={})
    plan = load_study(path)
    trained(plan)
    config = configs.load(plan.rows[0].recipe, plan.overrides(plan.rows[0]))
    (Path(config.run_dir) / "config.yaml").write_text(configs.to_yaml(config))

    def started(command, env, **options):
        raise ChildProcessError(env["CUDA_VISIBLE_DEVICES"])

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,7")
    monkeypatch.setattr(finetunings.subprocess, "Popen", started)
    with pytest.raises(ChildProcessError, match=f"^{visible}$"):
        pretrainings.study(str(path), devices=devices)


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


def test_a_best_metric_that_was_not_measured_chooses_no_point(tmp_path):
    plan = load_study(write(tmp_path, seeds=[0]))
    finished(fine_tuning(plan, cells(plan)[0], 0, 0), best_value=None)
    assert finetunings.best_point(plan, cells(plan)[0]) is None
    finished(fine_tuning(plan, cells(plan)[0], 1, 0), best_value=0.2)
    assert finetunings.best_point(plan, cells(plan)[0]) == 1
