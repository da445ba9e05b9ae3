"""What someone's own objective lacks is said in a line."""

import re
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.objectives.base import Batches, Judge, Loss, Objective
from jaxpt.objectives.checks import check_parts, check_sums
from jaxpt.objectives.masked_lm import MaskedLM, MaskedLMLoss
from jaxpt.report.facts import facts
from jaxpt.train import step
from tests import families


class Bare(Objective):
    """Defines nothing."""

    kind: Literal["bare"] = "bare"


class BareLoss(Loss):
    """Defines nothing."""


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: Bare().judge, "class Bare of .*test_mistakes must define `judge`; the docstring of Objective.judge"),
        (
            lambda: Bare().check_family(families.config("bert").model),
            "must define `family`; the docstring of Objective",
        ),
        (lambda: BareLoss(Bare()).coefficients(), "class BareLoss of .* must define `coefficients`; .* of Loss.coeffi"),
        (lambda: Batches(Bare()).features(8), "class Batches of .* must define `features`"),
        (lambda: Judge(Bare()).eval_mask({}, None), "must define `eval_mask`"),
    ],
)
def test_what_is_not_defined_is_named(use, said):
    with pytest.raises(UserError, match=said):
        use()


class Misnamed(MaskedLM):
    """Divides a part by the weight of another one."""

    family: ClassVar[str] = "encoder"
    kind: Literal["misnamed"] = "misnamed"

    @property
    def loss(self):
        return MisnamedLoss(self)


class MisnamedLoss(MaskedLMLoss):
    """As masked LM, with a slip in `weights`."""

    def weights(self, batch):
        return {"masked": batch["masked_weights"].sum()}


def test_a_part_without_its_weight_is_refused():
    """It would be divided by the number of tokens, and train."""
    objective, config = Misnamed(next_sentence=False), families.config("bert", objective={"next_sentence": False})
    network = objective.loss.network(config.model)
    batch = families.batch(config)
    params = jax.eval_shape(network.init, jax.random.key(0))
    with pytest.raises(UserError, match=r"the part 'masked_lm', but Loss\.weights returns 'masked'"):
        jax.eval_shape(lambda p: step.gradients(objective, network, p, batch, None), params)


def test_a_part_that_the_loss_does_not_return_is_refused():
    check_parts("mine", {"order": 1.0}, {"order": jnp.ones(()), "aux": 0.0}, {"order": 1.0})
    with pytest.raises(UserError, match="the part 'order', but the loss returns 'ordr'"):
        check_parts("mine", {"order": 1.0}, {"ordr": 1.0}, {"order": 1.0})


PAIR = "({part: Σ loss}, {metric: (Σ value, Σ weight)})"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (np.float32(2), f"must return {PAIR}, it returns an array []"),
        ((1.0, {}), f"must return {PAIR}, it returns (float, dict)"),
        (({}, {}, {}), f"must return {PAIR}, it returns (dict, dict, dict)"),
        (({"a": np.ones(8)}, {}), "'a' must be one number, summed over the batch; it is an array [8]"),
        (({"a": (1.0, 2.0)}, {}), "'a' must be one number, summed over the batch; it is tuple"),
        (
            ({"a": 1.0}, {"accuracy": 0.5}),
            "the metric 'accuracy' must be (Σ value, Σ weight), two numbers; it is float",
        ),
    ],
)
def test_what_a_loss_returns_is_looked_at(found, said):
    with pytest.raises(UserError, match=re.escape(said)):
        check_sums("mine", "__call__", found)


def test_coefficients_and_weights_are_looked_at():
    with pytest.raises(UserError, match=r"Loss\.coefficients must return {part: number}, it returns float"):
        check_parts("mine", 1.0, {"a": 1.0}, {"a": 1.0})
    with pytest.raises(UserError, match=r"Loss\.weights: 'a' must be one number"):
        check_parts("mine", {"a": 1.0}, {"a": 1.0}, {"a": jnp.ones(8)})


def test_a_head_that_is_not_there_is_named():
    config = families.config("bert", objective={"next_sentence": False})
    network = config.objective.loss.network(config.model)
    bound = network.bind(network.shapes())
    with pytest.raises(UserError, match=r"the network has no head 'bag', only 'masked_lm'; Loss\.heads declares them"):
        bound.heads["bag"]


def test_features_of_ones_own_are_shown():
    example = {"swapped": np.array([0.0, 1.0, 1.0]), "kind_of_row": np.int32(3)}
    said = facts(example, features=("swapped", "kind_of_row", "masked_weights"))
    assert said == {"swapped": "2 of 3 not 0", "kind_of_row": "3"}
