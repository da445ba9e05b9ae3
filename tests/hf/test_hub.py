"""A name of the hub works wherever a directory does: import, init_from, tokenizers, teachers, `load`."""

import pytest

from jaxpt.cli import main
from jaxpt.data import tokenizers
from jaxpt.errors import UserError
from jaxpt.inference import opening
from jaxpt.study import recipes
from jaxpt.train import foreign, preflight, teachers, weights
from tests import families
from tests.hf.test_convert import made
from tests.runtime import hub_server
from tests.runtime.test_hub import use

pytest.importorskip("huggingface_hub")
NAME = "lab/tiny-bert"
TEXTS = ["the cat sat on the mat", "a dog ran after the cat", "no one saw the dog run away"] * 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bert") / "hf"
    made(directory, "bert", TEXTS)
    return directory


@pytest.fixture
def server(model, tmp_path, monkeypatch):
    with hub_server.serve({NAME: {"main": model}}) as (url, requests):
        use(monkeypatch, url, tmp_path / "cache")
        monkeypatch.chdir(tmp_path)
        yield requests


def test_import(server, model, tmp_path):
    assert main(["import", NAME, str(tmp_path / "run")]) == 0
    assert main(["import", str(model), str(tmp_path / "other")]) == 0
    of_name, of_directory = ((tmp_path / run / "config.yaml").read_text() for run in ("run", "other"))
    strip = [line for line in of_name.splitlines() if "run_dir" not in line and not line.startswith("#")]
    assert strip == [line for line in of_directory.splitlines() if "run_dir" not in line and not line.startswith("#")]


def test_weights_and_tokenizer(server, model):
    (mine, network, _), (theirs, *_) = weights.open_weights(NAME), weights.open_weights(model)
    assert network.config.kind == "bert"
    assert all(p == q and (a == b).all() for (p, a), (q, b) in zip(mine, theirs, strict=True))
    assert tokenizers.load(f"{NAME}@main").digest() == tokenizers.load(model).digest()
    opened = opening.open_model(NAME)
    assert opened.network.config == network.config and opened.path.is_dir()


def test_a_task_takes_model_and_vocabulary_from_it(server, tmp_path):
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(TEXTS)))
    recipe = tmp_path / "task.yaml"
    recipe.write_text(
        f"run_dir: {tmp_path / 'run'}\ninit_from: {{path: {NAME}}}\n"
        "data: {path: train.tsv, length: 16, batch_size: 2}\n"
        "task: {kind: classification, labels: ['0', '1'], text: text}\n"
        "optimizer: {kind: adamw, learning_rate: 1.0e-4, schedule: {kind: constant}}\ntrain: {steps: 2}\n"
    )
    config = recipes.load(recipe)
    assert config.model.kind == "bert" and config.data.tokenizer.path == NAME, "the name stays, for another machine"
    preflight.check_recipe(config)


def test_a_teacher(server):
    config = families.config("bert", objective={"kind": "distillation", "teacher": NAME, "of": {"kind": "masked_lm"}})
    assert teachers.find_all(config) == {"teacher": {"path": NAME, "step": None}}


def test_where_it_cannot_be_had_the_hint_is_one(server, tmp_path):
    hint = "a model of the hub: hf download lab/gone --local-dir DIR"
    config = families.config("bert", init_from={"path": "lab/gone"}, run_dir=str(tmp_path / "new"))
    for attempt in (
        lambda: preflight.check_recipe(config),
        lambda: opening.open_model("lab/gone"),
        lambda: tokenizers.load("lab/gone"),
        lambda: foreign.reader("lab/gone"),
    ):
        with pytest.raises(UserError, match=f"lab/gone: no such directory, and the hub has no such model.*{hint}"):
            attempt()
