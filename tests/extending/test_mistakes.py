"""What someone's own objective lacks is said in a line."""

import re
from types import SimpleNamespace
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.config import AdapterConfig, OptimizerConfig, ScheduleConfig
from jaxpt.data import datasets, fingerprint, spec
from jaxpt.data.calls import Call, Transforms
from jaxpt.data.spec import DataSpec
from jaxpt.errors import UserError
from jaxpt.evals import heldout
from jaxpt.objectives.base import Baseline, Objective
from jaxpt.objectives.checks import check_parts, check_sums
from jaxpt.objectives.masked_lm import MaskedLM
from jaxpt.report.facts import facts
from jaxpt.train import step
from tests import families


class Bare(Objective):
    """Defines nothing."""

    kind: Literal["bare"] = "bare"


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: Bare().baseline, "class Bare of .*test_mistakes must define `baseline`; .* of Objective.baseline"),
        (
            lambda: Bare().check_family(families.config("bert").model),
            "must define `family`; the docstring of Objective",
        ),
        (lambda: Bare().coefficients(), "must define `coefficients`; the docstring of Objective.coefficients"),
        (lambda: Bare().data_spec(8), "must define `data_spec`"),
    ],
)
def test_what_is_not_defined_is_named(use, said):
    with pytest.raises(UserError, match=said):
        use()


@pytest.mark.parametrize("base", [AdapterConfig, OptimizerConfig, ScheduleConfig])
def test_a_build_that_is_not_defined_is_named(base):
    part = type("Mine", (base,), {}).model_construct()
    said = f"class Mine of .* must define `build`; the docstring of {base.__name__}.build in jaxpt/config/parts.py"
    with pytest.raises(UserError, match=said):
        part.build(None, None)


def test_a_description_that_is_none_is_named():
    """Before data is read; later the line would name a place of jaxpt alone."""
    cls = type("Other", (MaskedLM,), {"baseline": property(lambda self: None)})
    with pytest.raises(UserError, match=r"baseline must return Baseline of .*\.base, it returns NoneType"):
        cls().check_family(families.config("bert").model)
    with pytest.raises(
        UserError, match=r"kind: mine: data_spec must return a DataSpec of .*\.spec, it returns NoneType"
    ):
        spec.checked("mine", None)


def test_transforms_are_looked_at():
    def made(found):
        objective = SimpleNamespace(kind="mine", data_spec=lambda length: DataSpec({}, lambda *arguments: found))
        config = SimpleNamespace(objective=objective, data=SimpleNamespace(length=8), seed=0)
        return fingerprint.transforms_of(config, None)

    sound = Transforms(offline=(Call("documents.tokenize"),), online=())
    assert made(sound) is sound
    with pytest.raises(UserError, match=r"transforms must return Transforms\(offline=…, online=…\) of .* returns list"):
        made([Call("documents.tokenize")])
    with pytest.raises(UserError, match=r"whose online is a tuple of Call\(name, arguments\); it is \('mine.one',\)"):
        made(Transforms(offline=(), online=("mine.one",)))


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (np.ones(5), "must return {feature: lengths}, it returns ndarray"),
        ({"tokens": np.ones(5)}, "has 'tokens', which is no feature of a batch; known: x"),
        ({"x": 7}, "'x' must have a length for each of 5 records, it has the shape []"),
    ],
)
def test_packed_lengths_are_looked_at(sizes, said):
    features = {"x": ((8,), "int32")}
    datasets.check_sizes("here", {"x": np.ones(5)}, features, 5)
    with pytest.raises(UserError, match=re.escape(said)):
        datasets.check_sizes("here", sizes, features, 5)


@pytest.mark.parametrize(("mask", "given"), [(None, "None"), (np.ones(3), r"an array \[3\]")])
def test_a_mask_of_other_rows_is_named(mask, given):
    baseline = Baseline("unigram", "tokens", lambda batch, vocabulary: mask)
    config = SimpleNamespace(
        objective=SimpleNamespace(kind="mine", baseline=baseline),
        data=SimpleNamespace(batch_size=2),
        train=SimpleNamespace(eval_examples=None),
    )
    stream = SimpleNamespace(epoch=lambda *arguments, **options: [{"x": np.ones((2, 4))}])
    data = SimpleNamespace(vocabulary=None, validation=SimpleNamespace(each=lambda: {"data": stream}))
    with pytest.raises(UserError, match=rf"eval_mask of the baseline returns {given} for 2 rows"):
        next(heldout.feeds(config, data)["data"])


class Misnamed(MaskedLM):
    """Divides a part by the weight of another one."""

    family: ClassVar[str] = "encoder"
    kind: Literal["misnamed"] = "misnamed"

    def weights(self, batch):
        return {"masked": batch["masked_weights"].sum()}


def test_a_part_without_its_weight_is_refused():
    """It would be divided by the number of tokens, and train."""
    objective, config = Misnamed(next_sentence=False), families.config("bert", objective={"next_sentence": False})
    network = objective.network(config.model)
    batch = families.batch(config)
    params = jax.eval_shape(network.init, jax.random.key(0))
    with pytest.raises(UserError, match=r"the part 'masked_lm', but weights returns 'masked'"):
        jax.eval_shape(lambda p: step.gradients(objective, network, p, batch, None), params)


def test_a_part_that_the_loss_does_not_return_is_refused():
    check_parts("mine", {"order": 1.0}, {"order": jnp.ones(()), "aux": 0.0}, {"order": 1.0})
    with pytest.raises(UserError, match="the part 'order', but loss returns 'ordr'"):
        check_parts("mine", {"order": 1.0}, {"ordr": 1.0}, {"order": 1.0})
    with pytest.raises(UserError, match="weights has the part 'order', but coefficients does not"):
        check_parts("mine", {}, {"order": 1.0}, {"order": 1.0})


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
        check_sums("mine", "loss", found)


def test_coefficients_and_weights_are_looked_at():
    with pytest.raises(UserError, match=r"coefficients must return {part: number}, it returns float"):
        check_parts("mine", 1.0, {"a": 1.0}, {"a": 1.0})
    with pytest.raises(UserError, match=r"weights: 'a' must be one number"):
        check_parts("mine", {"a": 1.0}, {"a": 1.0}, {"a": jnp.ones(8)})


def test_a_head_that_is_not_there_is_named():
    config = families.config("bert", objective={"next_sentence": False})
    network = config.objective.network(config.model)
    bound = network.bind(network.shapes())
    with pytest.raises(
        UserError, match=r"the network has no head 'bag', only 'masked_lm'; Objective\.heads declares them"
    ):
        bound.heads["bag"]


def test_features_of_ones_own_are_shown():
    example = {"swapped": np.array([0.0, 1.0, 1.0]), "kind_of_row": np.int32(3)}
    said = facts(example, features=("swapped", "kind_of_row", "masked_weights"))
    assert said == {"swapped": "2 of 3 not 0", "kind_of_row": "3"}
