"""What is written of a recipe is read as the same recipe."""

import doctest

import pytest

from jaxpt.config import build, differences, dump, load, plain, to_yaml
from tests import grids
from tests.config.helpers import ROOT, write

RECIPES = sorted((ROOT / "configs").glob("[ps][rm]*/*.yaml"))
# One of each objective, model, optimizer and schedule that they have.
KEPT = (
    "pretrain/albert_base", "pretrain/deberta_v3_base", "pretrain/distilbert", "pretrain/electra_small",
    "pretrain/gpt3_13b", "pretrain/llama3_8b", "pretrain/mbart_large_cc25", "pretrain/modernbert_base",
    "pretrain/spanbert_base", "pretrain/t5_base", "pretrain/ul2_base", "pretrain/unilm_base", "pretrain/xlm_tlm",
    "pretrain/xlnet_base", "smoke/bart_tiny", "smoke/gpt2_fim_tiny", "smoke/gpt2_prefix_tiny", "smoke/mass_tiny",
    "smoke/skip_gram_tiny", "smoke/t5_denoising_tiny", "smoke/t5_salient_tiny",
)  # fmt: skip


@pytest.mark.parametrize(
    "path", grids.cases(RECIPES, *(ROOT / "configs" / f"{name}.yaml" for name in KEPT)), ids=lambda p: p.stem
)
def test_recipes_of_the_repository_load_and_round_trip(tmp_path, path):
    config = load(path)
    saved = write(tmp_path / "config.yaml", to_yaml(config))
    assert load(saved) == config
    assert build(dump(config)) == config
    assert not any(differences(config, load(saved), role) for role in ("identity", "execution", "extensible"))


@pytest.mark.parametrize(
    "text",
    [
        "1e5",
        "1",
        "null",
        "~",
        "true",
        "010",
        "1_0",
        "0x1",
        "=",
        "no",
        "2020-01-01",
        "a: b",
        "#x",
        "*x",
        "",
        " x",
        "é☃",
        "'",
    ],
)
def test_strings_round_trip(tmp_path, recipe, text):
    """A string that our reader would take for a number has to be quoted."""
    config = load(recipe)
    config = config.model_copy(update={"data": config.data.model_copy(update={"field": text})})
    assert load(write(tmp_path / "c.yaml", to_yaml(config))).data.field == text


@pytest.mark.parametrize("value", [1e-5, 1e-12, 1e16, 0.1, 1 / 3, 3e-4, 1e22])
def test_floats_round_trip(tmp_path, recipe, value):
    config = load(recipe, [f"optimizer.learning_rate={value!r}"])
    assert load(write(tmp_path / "c.yaml", to_yaml(config))).optimizer.learning_rate == value


def test_examples_in_docstrings(monkeypatch):
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testmod(plain)
    assert tried and not failed
