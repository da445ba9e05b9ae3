"""One small run of a mixture of experts, and what is done with it: few-shot tasks, export, a low-rank adapter."""

import json

import jax
import numpy as np
import pytest

from jaxpt import cli, hf
from jaxpt import config as configs
from jaxpt.inference.evaluate import evaluate
from jaxpt.train import weights
from jaxpt.train.loop import train
from tests import families

pytestmark = pytest.mark.slow
TEXT = ["the cat sat on the mat and saw a dog", "a dog ran after the cat on the mat", "no one saw the dog run"] * 40
MIXTRAL = {
    "vocab_size": 300, "layers": 1, "sparse_every": 1, "shared_experts": 0, "router_normalized": True,
    "expert_dim": None, "experts": 4, "experts_per_token": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixture")
    for name in ("text.jsonl", "held_out.jsonl"):
        (path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXT))
    return path


def begun(folder, name, **sections):
    """A run of three steps."""
    files = {"path": str(folder / "text.jsonl"), "validation_path": str(folder / "held_out.jsonl")}
    train_, run = {"steps": 3, "log_every": 1, **sections.pop("train", {})}, str(folder / name)
    config = configs.build(families.tree("mixture", model=MIXTRAL, data=files, train=train_, run_dir=run, **sections))
    assert train(config) == 0
    return run


@pytest.fixture(scope="module")
def trained(folder):
    return begun(folder, "run")


def test_few_shot_tasks(folder, trained):
    rows = [{"a": f"the cat sat on the {b}", "b": f"the mat {b} a no"} for b in ("mat", "dog", "cat")]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"form": "pair", "data": {"path": "rows.jsonl"}, "choices": ["{{ a }}", "{{ b }}"]}
    (folder / "mine.yaml").write_text(json.dumps(task))
    (said,) = evaluate(trained, [str(folder / "mine.yaml")])
    assert said.metrics["acc"].value in (0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1)


def test_export_gives_its_weights(folder, trained, capsys):
    assert cli.main(["export", trained, str(folder / "out")]) == 0, capsys.readouterr().err
    assert json.loads((folder / "out/config.json").read_text())["model_type"] == "mixtral"

    def real(x):
        """Without the rows with which a table is padded."""
        return x[tuple(slice(300 if size == 384 else size) for size in x.shape)]

    saved, exported = (jax.tree.map(real, params) for params in (weights.read(trained, 3), hf.load(folder / "out")[1]))
    jax.tree.map(np.testing.assert_array_equal, saved["model"], exported["model"])


def test_adapters_of_experts_and_attention(folder, trained):
    """Each expert has its own; the experts themselves stay as they are."""
    lora = {"targets": ["*/feed_forward/up", "*/attention/query"], "rank": 2, "alpha": 4.0}
    path = begun(folder, "adapted", train={"lora": lora}, init_from={"path": trained})
    before, after = (weights.read(run, 3)["model"] for run in (trained, path))
    moved = {
        jax.tree_util.keystr(name, simple=True, separator="/"): bool((np.asarray(a) != np.asarray(b)).any())
        for (name, a), b in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    }
    assert {name.split("/")[-2] for name, has_moved in moved.items() if has_moved} == {"up", "query"}
