"""Several tasks in a run: metrics of each, best checkpoint by their average, resumes, predictions, export, new runs."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import yaml

from jaxpt.cli import main
from jaxpt.data import checks, datasets
from jaxpt.data.labelled import examples
from jaxpt.data.parts import each_task
from jaxpt.errors import UserError
from jaxpt.evals import predictors
from jaxpt.hf import convert
from jaxpt.inference.predict import predict
from jaxpt.study import recipes
from jaxpt.train import checkpoint, initial, state, weights
from jaxpt.train.loop import train
from tests import compilations, families, fine_tuning
from tests.runs import assert_bit_equal, final

SECTIONS = {"train": {"steps": 4, "eval_every": 2, "log_every": 2}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A directory with a finished run of three tasks; one has a test set."""
    directory = tmp_path_factory.mktemp("mixture")
    test = fine_tuning.write(directory / "test.jsonl", fine_tuning.rows(9, seed=5))
    assert train(fine_tuning.mixture(directory, f"data.mixture.0.test_path={test}", **SECTIONS)) == 0
    return directory


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_each_task_has_its_metrics_and_their_average_chooses(run):
    metrics = lines(run / "run/metrics.jsonl")
    values = {one["step"]: one for one in metrics if "task/average" in one}
    last = values[4]
    of_grade = (last["task/grade/pearson"] + last["task/grade/spearman"]) / 2
    of_about = np.mean([last[f"task/about/{name}"] for name in ("micro_f1", "macro_f1", "exact_match")])
    average = np.mean([last["task/mood/accuracy"], of_grade, of_about])
    np.testing.assert_allclose(last["task/average"], average, atol=1e-6)
    receipt = json.loads((run / "run/run.json").read_text())
    best = max(values, key=lambda step: (values[step]["task/average"], -step))
    assert receipt["best_step"] == best
    assert set(receipt["test"]) == {"mood/accuracy"}
    logged = {key for one in metrics for key in one}
    assert {"train/mood/loss", "train/grade/loss", "validation/about/loss", "validation/mood/accuracy"} <= logged
    assert "validation/grade/accuracy" not in logged  # a regression has none
    saved = yaml.safe_load((run / "run/config.yaml").read_text())
    assert saved["task"]["tasks"][0]["labels"] == ["bad", "good"]
    assert saved["checkpoint"]["best_metric"] == "task/average"


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_same_bits(run, tmp_path, capsys):
    shutil.copytree(run / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/4")
    assert train(fine_tuning.mixture(tmp_path, data={"cache_dir": str(run / "cache")}, **SECTIONS)) == 0
    assert "resuming from step 2" in capsys.readouterr().out
    assert_bit_equal(final(run / "run", 4), final(tmp_path / "run", 4))


@pytest.mark.slow
@pytest.mark.parametrize("packing", [False, True])
def test_processes_share_the_rows_of_a_batch(packing, tmp_path):
    data = datasets.prepare(fine_tuning.mixture(tmp_path, f"data.packing={packing}".lower()))
    assert [task.name for task in data.train.tasks] == ["mood", "grade", "about"]
    whole = [batch for batch, _ in zip(data.train.batches(), range(3))]
    halves = [data.train.batches(start=1, rows=np.arange(first, 8, 2)) for first in (0, 1)]
    for batch, *of_processes in zip(whole[1:], *halves):
        for name, x in batch.items():
            together = np.empty_like(x)
            together[0::2], together[1::2] = (one[name] for one in of_processes)
            np.testing.assert_array_equal(together, x)
        weights_of = [batch[f"{task.name}/label_weights"].any(-1) for task in data.train.tasks]
        assert (np.sum(weights_of, 0) == 1).all()  # a row is of one task


@pytest.mark.slow
def test_tasks_with_the_same_head_share_a_program_that_gives_each_its_own_outputs(tmp_path):
    tasks = [*fine_tuning.TASKS[:2], {**fine_tuning.TASKS[0], "name": "again", "pair": "other"}]
    config = fine_tuning.mixture(tmp_path, tasks=tasks)
    data, setup = datasets.prepare(config), state.setup(config)
    params, made = families.begin(setup).params, []
    rows = {
        name: examples.examples(one, data.tokenizer, examples.split_rows(one, "validation")).records
        for name, one in each_task(config).items()
    }
    for name, one in each_task(config).items():
        predictor = predictors.build(dataclasses.replace(setup, config=one), data.tokenizer, made)
        made.append(predictor)
        if name == "mood":  # pairs of texts are longer than its rows
            predictor.compile([*rows["mood"], *rows["again"]])
        with compilations.seen() as programs:
            outputs = predictor(params, rows[name])
        assert not programs
        features = one.objective.collate_fn(data.vocabulary)(rows[name], 32)
        wanted = one.objective.predict(setup.network.bind(jax.device_get(params)), features)  # without a mesh
        np.testing.assert_allclose(np.stack(outputs), wanted, atol=1e-5)


@pytest.mark.slow
def test_predictions_are_of_the_task_that_is_named(run, tmp_path):
    rows = str(run / "test.jsonl")
    with pytest.raises(UserError, match=r"task\.use is missing: choose one of the model's tasks: mood, grade, about"):
        predict(str(run / "run"), rows, str(tmp_path / "p.jsonl"))
    predict(str(run / "run"), rows, str(tmp_path / "mood.jsonl"), ["task.use=mood"])
    predict(str(run / "run"), rows, str(tmp_path / "grade.jsonl"), ["task.use=grade"])
    found = lines(tmp_path / "mood.jsonl")
    columns = set(fine_tuning.rows(1)[0])
    assert [set(one) - columns for one in found] == [{"predicted_label", "probability", "probabilities"}] * 9
    assert [set(one) - columns for one in lines(tmp_path / "grade.jsonl")] == [{"value"}] * 9
    right = [one["predicted_label"] == row["label"] for one, row in zip(found, fine_tuning.rows(9, seed=5))]
    assert np.mean(right) == pytest.approx(json.loads((run / "run/run.json").read_text())["test"]["mood/accuracy"])


@pytest.mark.slow
def test_the_head_of_a_task_is_exported_with_its_labels(run, tmp_path, capsys):
    assert main(["export", str(run / "run"), str(tmp_path / "hf")]) == 2
    assert "--task NAME chooses one of mood, grade, about and is missing" in capsys.readouterr().err
    convert.export(run / "run", tmp_path / "hf", task="mood", report=lambda line: None)
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "bad", "1": "good"}
    _, saved = next(
        item
        for item in weights.open_weights(tmp_path / "hf", partial=True)[0]
        if item[0] == "heads/classes/dense/kernel"
    )
    _, step = checkpoint.find(run / "run")
    mine = weights.Saved(run / "run", step)["heads/classes_mood/dense/kernel"]
    np.testing.assert_array_equal(saved, mine)


@pytest.mark.slow
def test_a_run_starts_from_several_tasks_and_keeps_the_heads_with_its_labels(run, tmp_path):
    origin = f"init_from.path={run / 'run'}"

    def new(config):
        """The line of a start that names what is not taken."""
        said = []
        initial.start(state.setup(config), config.init_from, said.append)
        (line,) = [line for line in said if line.startswith("  new: ")]
        return line

    tasks = [{**fine_tuning.TASKS[0], "labels": ["good", "bad"]}, *fine_tuning.TASKS[1:]]
    several = new(fine_tuning.mixture(tmp_path, origin, tasks=tasks))
    assert "classes_mood" in several and "classes_grade" not in several and "classes_about" not in several
    assert "heads/classes/dense/kernel" in new(fine_tuning.recipe(tmp_path, origin))


@pytest.mark.slow
def test_text_to_text_answers_by_each_tasks_own_words(tmp_path):
    vocabulary = {"tokenizer": {"kind": "sentencepiece", "path": None, "lowercase": False}}
    tasks = [
        {"kind": "classification", "name": "mood"},
        {"kind": "classification", "name": "grade", "label": "score", "pair": "other", "names": ["low", "high"],
         "labels": ["0.25", "1.25"]},
    ]  # fmt: skip
    config = fine_tuning.mixture(
        tmp_path, tasks=tasks, of="t5", data=vocabulary, model={**fine_tuning.MODELS["t5"], "vocab_size": 200},
        objective={"kind": "text_to_text", "targets_length": 12, "decide_by": "likelihood"}, train={"steps": 2},
    )  # fmt: skip
    assert train(config) == 0
    predict(str(tmp_path / "run"), str(tmp_path / "mood.jsonl"), str(tmp_path / "p.jsonl"), ["task.use=grade"])
    assert {tuple(sorted(one["probabilities"])) for one in lines(tmp_path / "p.jsonl")} == {("high", "low")}
    metrics = [one for one in lines(tmp_path / "run/metrics.jsonl") if "task/average" in one][-1]
    average = (metrics["task/mood/accuracy"] + metrics["task/grade/accuracy"]) / 2
    np.testing.assert_allclose(metrics["task/average"], average, atol=1e-6)


def test_balanced_weights_and_labels_are_of_each_tasks_rows(tmp_path):
    overrides = ["objective.tasks={mood: {class_weights: balanced}}"]
    config = fine_tuning.mixture(tmp_path, *overrides)
    trained = [row.row.values["label"] for row in examples.split_rows(each_task(config)["mood"], "train")]
    weights = config.objective.parts["mood"].class_weights
    expected = [len(trained) / (2 * trained.count(label)) for label in ("bad", "good")]
    assert len(trained) == 36
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert config.objective.parts["grade"].task.kind == "regression"
    again = recipes.load(tmp_path / "recipe.yaml", overrides)
    assert again == config


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.mixture=[]"], "data.mixture is missing: the files of each task: [{name: mood, path: …}"),
        (["data.mixture.0.name=moods"], "task.tasks: mood: data.mixture names no files for it; did you mean moods?"),
        (["task.tasks.0.name=grade"], "tasks: two have the name 'grade'; rename one of them"),
        (["task.tasks.0.name=null"], "tasks: task 0 has no name; data.mixture names its files by it"),
        (["task.tasks.0.metrics=[pearson]"], "a task of kind classification has no such metric; one of: accuracy"),
        (["task.metrics=[accuracy]"], "metrics: belongs into the tasks of a mixture; checkpoint.best_metric, such as"),
        (["data.mixture.0.rate=0"], "data.mixture.0.rate: wants a number above 0.0, got 0"),
        (["objective.kind=classification"], "objective.kind: classification is for one task; several want"),
        (["task.tasks.0.kind=dialogue"], "tasks: mood: kind: dialogue cannot be part of a mixture"),
        (["task.use=moods"], "use: 'moods' is none of the tasks; did you mean mood?"),
        (["checkpoint.best_metric=task/moods/f1"], "or a task's own, such as task/mood/accuracy; did you mean mood?"),
        (["task.tasks.1.metrics=[mse]"], "task/average: task grade has no metric of which high values are better"),
        (["data.path=rows.jsonl"], "path belongs into the tasks of mixture, where there is a mixture"),
    ],
)  # fmt: skip
def test_what_is_refused_in_one_line(overrides, words, tmp_path):
    with pytest.raises(UserError) as caught:
        checks.check(fine_tuning.mixture(tmp_path, *overrides))
    assert words in str(caught.value) and "\n" not in str(caught.value)
