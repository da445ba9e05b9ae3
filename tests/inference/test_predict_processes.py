"""Neither processes, nor meshes, nor batch sizes change what a fine-tuned model says, whatever the number of rows."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.cli.evaluate import evaluate
from jaxpt.config import CheckpointConfig, DistributedConfig
from jaxpt.data import tokenizers
from jaxpt.data.labelled import examples
from jaxpt.evals import predictors
from jaxpt.inference.predict import predict
from jaxpt.parallel import processes
from jaxpt.train import checkpoint, state
from jaxpt.train.loop import train
from tests import fine_tuning, grids
from tests.inference.test_predict_tokens import asked, tagged
from tests.processes import run

pytestmark = pytest.mark.slow
ROWS = 13


def chosen(count, seed=0):
    """Two or three endings of a text, of which one says the same."""
    for n, row in enumerate(fine_tuning.rows(count, seed)):
        endings = ["good", "bad", "so so"][: 2 + n % 2]
        yield {"id": row["id"], "text": row["text"], "choices": endings, "label": row["label"]}


KINDS = {
    "classification": (fine_tuning.rows, {}, None),
    "regression": (fine_tuning.rows, {"label": "score"}, None),
    "multi_label": (fine_tuning.rows, {"label": "topics", "labels": ["film", "play"]}, None),
    "tagging": (tagged, {"metrics": ["tag_accuracy", "span_f1"]}, None),
    "question_answering": (asked, {"metrics": ["squad_v2"]}, {"stride": 5, "max_query": 3, "max_answer": 3}),
    "multiple_choice": (chosen, {}, None),
}

# The others' runs are trained in the grid alone.
WITH_PROCESSES = ("classification", "multiple_choice", "tagging", "question_answering")


def rows_of(kind, count, seed=0):
    made = list(KINDS[kind][0](count, seed))
    if kind == "multi_label":
        made = [row | {"topics": row["topics"] + ["play"] * (n % 3 == 0)} for n, row in enumerate(made)]
    return made


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """kind → directory of a finished run, with a validation set of `ROWS` rows."""

    @functools.cache
    def made(kind):
        (_, task, objective), directory = KINDS[kind], tmp_path_factory.mktemp(kind)
        held = fine_tuning.write(directory / "held.jsonl", rows_of(kind, ROWS, seed=1))
        config = fine_tuning.recipe(
            directory, made=rows_of(kind, 48), task={"kind": kind, **task}, objective=objective, model={"layers": 1},
            data={"validation_path": held, "length": 16}, train={"steps": 2, "eval_every": 2},
        )  # fmt: skip
        assert train(config) == 0
        return directory

    return made


def kept(directory):
    """The predictions of the validation set that a run keeps."""
    return directory / "run" / "evaluations" / "predictions_validation.jsonl"


@pytest.mark.parametrize(
    "kind", grids.cases(["classification", "regression", "multi_label", "multiple_choice"], *WITH_PROCESSES[:2])
)
def test_the_mean_loss_of_the_rows_is_the_held_out_loss(kind, run_of):
    """Of kinds with one target for each row."""
    losses = [json.loads(line)["loss"] for line in kept(run_of(kind)).read_text("utf-8").splitlines()]
    lines = (run_of(kind) / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    measured = {name: value for line in lines for name, value in json.loads(line).items()}
    assert len(losses) == ROWS and np.mean(losses) == pytest.approx(measured["validation/loss"], rel=1e-5)


def process(number, runs, folder):
    """Predictions and metrics of all kinds; the first run is finished, and ends again."""
    processes.start(DistributedConfig())
    metrics = {}
    for kind, directory in runs.items():
        predict(str(directory / "run"), str(directory / "held.jsonl"), str(folder / f"{kind}.jsonl"))
        metrics[kind] = evaluate(str(directory / "run"), ["evals=[{kind: task}]"])
    (folder / f"metrics_{number}.json").write_text(json.dumps(metrics))
    train(configs.load(next(iter(runs.values())) / "run"))


@pytest.mark.parametrize("several", grids.cases([2, 4], 2))
def test_one_and_several_processes_write_the_same(run_of, tmp_path, several):
    """On the same four devices; of regression and several labels too each row has one target, as in classification."""
    runs = {kind: run_of(kind) for kind in WITH_PROCESSES}
    of_run, written, metrics = kept(next(iter(runs.values()))), [], []
    for count in (1, several):
        folder = tmp_path / str(count)
        folder.mkdir()
        of_run.unlink()
        codes, logs = run(process, count, 4 // count, tmp_path / f"log_{count}", runs, folder)
        assert codes == [0] * count, logs
        shutil.copy(of_run, folder)
        written.append({path.name: path.read_bytes() for path in folder.glob("*.jsonl*")})
        metrics += [json.loads((folder / f"metrics_{number}.json").read_text()) for number in range(count)]
    assert written[0].keys() == {of_run.name, *(f"{kind}.jsonl" for kind in runs)}
    assert all(lines.count(b"\n") == ROWS for lines in written[0].values())
    assert written[0] == written[1]
    assert metrics[0].keys() == runs.keys() and all(metrics[0].values())
    assert all(one == metrics[0] for one in metrics) and len(metrics) == 1 + several


@pytest.mark.parametrize("kind", grids.cases(KINDS, *WITH_PROCESSES))
def test_batches_and_meshes_change_no_prediction(kind, run_of, monkeypatch):
    run_dir, step = checkpoint.find(run_of(kind) / "run")
    config = configs.load(run_dir)
    tokenizer = tokenizers.load(run_dir / "tokenizer", config.data.tokenizer.kind)
    found = examples.examples(config, tokenizer, examples.split_rows(config, "validation"))
    reader = checkpoint.Checkpoints(run_dir, CheckpointConfig(), read_only=True)
    outputs, decisions = [], []
    for mesh, devices, rows in (({"data": 1}, 1, 32), ({"data": 1}, 1, 5), ({"data": 2, "fsdp": 2, "tensor": 2}, 8, 8)):
        monkeypatch.setattr(predictors, "ROWS", rows)
        own = config.model_copy(update={"mesh": config.mesh.model_copy(update=mesh)})
        setup = state.setup(own, jax.devices()[:devices]).for_evaluation()
        outputs.append(predictors.build(setup, tokenizer)(reader.restore_params(setup, step), found.records))
        of_rows = zip(examples.by_row(found, outputs[-1]), found.rows)
        decisions.append([config.objective.decide(of_row, row.row, row.where) for of_row, row in of_rows])
    reader.close()
    for others, decided in zip(outputs[1:], decisions[1:]):
        for one, other in zip(outputs[0], others, strict=True):
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)
        if kind == "regression":
            np.testing.assert_allclose(decided, decisions[0], atol=1e-6)
        elif kind == "question_answering":
            assert [found[:2] for found in decided] == [found[:2] for found in decisions[0]]
        else:
            assert decided == decisions[0]
