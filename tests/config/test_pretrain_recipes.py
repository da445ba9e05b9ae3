"""The recipes of configs/pretrain: every value that batches or updates depend on is in the table, with its source."""

from pathlib import Path

import pytest

from jaxpt.config import load
from jaxpt.config.files import parse
from jaxpt.config.plain import leaves
from tests.config import settings

ROOT = Path(__file__).parents[2] / "configs/pretrain"
RECIPES = {path.stem: path for path in sorted(ROOT.glob("*.yaml"))}
ROWS = settings.read(ROOT / "settings.csv")
OURS = (
    "base", "checkpoint", "mesh", "model.remat", "plan", "train.eval_every", "train.eval_examples",
    "train.grad_accum_steps", "train.log_every",
)  # fmt: skip
"""Not published: what is computed where and how often, which changes no update."""


def own(name):
    """The values that a recipe sets itself."""
    tree = parse(RECIPES[name].read_text("utf-8"), name)
    return {key: value for key, value in leaves(tree) if not f"{key}.".startswith(tuple(f"{one}." for one in OURS))}


def test_rows_are_sorted_by_recipe_and_name_a_source():
    names = [row["recipe"] for row in ROWS]
    assert names == sorted(names) and set(names) == set(RECIPES)
    assert len({(row["recipe"], row["key"]) for row in ROWS}) == len(ROWS)
    assert all(row["source"] for row in ROWS)


@pytest.mark.parametrize("name", RECIPES)
def test_values_are_those_of_the_table(name):
    """Rows may also have what a recipe takes from its base or from a default."""
    given = {row["key"]: settings.value(row["value"]) for row in ROWS if row["recipe"] == name}
    found = dict(leaves(load(RECIPES[name]).model_dump(mode="json"))) | own(name)
    assert own(name).keys() <= given.keys()
    assert {key: found[key] for key in given} == given


def test_settings_of_unilms_own_model_are_those_of_its_paper():
    """The header's Paper line is a run: one phase of its steps, at its length."""
    header = RECIPES["unilm_base"].read_text("utf-8").partition("# Code:")[0]
    overrides = [word.strip("),") for word in header.partition("# Paper:")[2].split() if "=" in word]
    config = load(RECIPES["unilm_base"], overrides)
    assert (config.train.steps, config.train.phases) == (770_000, ())
    assert (config.data.length, config.data.batch_size, config.model.layers) == (512, 330, 24)
    assert config.optimizer.learning_rate == 3e-5 and config.optimizer.schedule.warmup_steps == 40_000
