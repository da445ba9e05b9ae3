"""What an objective carries from batch to batch is part of a run: kept, restored, started anew where batches change."""

import json
import random
import shutil

import jax
import numpy as np
import pytest
import yaml

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.train import state, step
from tests import families
from tests.runs import assert_bit_equal, final

WORDS = ("the", "of", "and", "to", "in", "a", "is", "was", "for", "on", "with", "as", "by", "at", "from", "that", "it")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recipe of two phases, the second one of smaller batches."""
    folder, rng = tmp_path_factory.mktemp("carry"), random.Random(0)
    lines = [". ".join(" ".join(rng.choices(WORDS, k=6)).capitalize() for _ in range(6)) + "." for _ in range(20)]
    (folder / "text.txt").write_text("\n".join(lines))
    tree = {
        "model": {
            "kind": "xlnet", "vocab_size": 90, "layers": 1, "embed_dim": 16, "heads": 2, "mlp_dim": 32, "dropout": 0.1,
            "dtype": "float32", "memory_length": 12, "reuse_length": 8,
        },
        "objective": {"kind": "permutation_lm"},
        "data": {
            "path": str(folder / "text.txt"), "cache_dir": str(folder / "cache"), "validation_fraction": 0.3,
            "length": 16, "batch_size": 32, "tokenizer": {"kind": "wordpiece", "lowercase": True},
        },
        "optimizer": {"kind": "adamw", "learning_rate": 1e-2},
        "train": {
            "steps": 6, "eval_every": 6, "log_every": 1, "phases": [{"steps": 2}, {"set": {"data.batch_size": 16}}],
        },
        "mesh": {"data": 8},
        "checkpoint": {"every": 2}, "log": {"tensorboard": False},
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return folder


def run(folder, name, *overrides):
    assert cli.main(["train", str(folder / "recipe.yaml"), f"run_dir={folder / name}", *overrides]) == 0


@pytest.mark.slow
def test_a_run_goes_on_with_its_carry(folder, capsys):
    """From a checkpoint in the second phase, whose carry has other sizes than the first one's."""
    run(folder, "whole")
    shutil.copytree(folder / "whole", folder / "again")
    shutil.rmtree(folder / "again" / "checkpoints" / "6")
    first = capsys.readouterr().out
    assert "predicted tokens" in first and "⟨?⟩" in first
    run(folder, "again")
    assert "resuming from step 4" in capsys.readouterr().out
    one, two = (final(folder / name, 6) for name in ("whole", "again"))
    (memory,) = jax.tree.leaves(one.carry)
    assert memory.shape == (16, 1, 12, 16) and memory.any()
    assert_bit_equal(one, two)
    losses = [
        [x["validation/loss"] for x in map(json.loads, (folder / n / "metrics.jsonl").open()) if "validation/loss" in x]
        for n in ("whole", "again")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 1


@pytest.mark.slow
def test_rows_that_go_on_want_enough_records_and_one_task(folder, capsys):
    recipe = str(folder / "recipe.yaml")
    assert cli.main(["train", recipe, f"run_dir={folder / 'few'}", "data.length=64", "model.reuse_length=32"]) == 2
    assert "data.batch_size: 32 rows that continue" in capsys.readouterr().err.replace("\n", " ")
    tree = yaml.safe_load((folder / "recipe.yaml").read_text())
    path = tree["data"].pop("path")
    del tree["data"]["validation_fraction"]
    tree["data"]["mixture"] = [{"name": n, "path": path, "validation_fraction": 0.3} for n in ("a", "b")]
    (folder / "mixed.yaml").write_text(yaml.safe_dump(tree))
    assert cli.main(["train", str(folder / "mixed.yaml"), f"run_dir={folder / 'mixed'}"]) == 2
    assert "data.mixture: the rows of" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.slow
def test_stages_carry_what_accumulation_carries(folder):
    """Two steps and an evaluation: the memories of both layers, each made on its own stage."""

    def two_steps(mesh):
        tree = yaml.safe_load((folder / "recipe.yaml").read_text())
        tree["model"]["layers"], tree["mesh"] = 2, mesh
        tree["data"]["batch_size"], tree["train"] = 4, {"steps": 2, "grad_accum_steps": 2}
        config = configs.build(tree)
        setup = state.setup(config, jax.devices()[: mesh.get("pipeline", 1)])
        step.check(config, setup)
        batches = [families.batch(config, seed) for seed in range(2)]
        for batch in batches:
            batch["encoder_order"] = np.tile(np.arange(16, dtype=np.int32), (4, 1))
        with setup.use():
            update, after = step.make_train_step(setup, config.objective), families.begin(setup)
            for batch in batches:
                after, metrics = update(after, step.put(batch, setup))
            evaluate = step.make_eval_step(setup, config.objective)
            return metrics["loss"], after.carry, evaluate(after.params, step.put(batch, setup), after.carry)

    one, two = two_steps({"data": 1}), two_steps({"data": 1, "pipeline": 2})
    assert jax.tree.leaves(one[1])[0].any()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5), *jax.device_get((one, two)))
