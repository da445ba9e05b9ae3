"""The three parts of an objective: each has the hyperparameters alone, and does not reach for the others."""

import ast
import dataclasses
from pathlib import Path

import pytest

from jaxpt.config import ObjectiveConfig
from jaxpt.config.kinds import kinds
from jaxpt.objectives import base
from jaxpt.objectives.causal_lm import CausalLM
from jaxpt.objectives.distillation import Distillation
from jaxpt.objectives.permutation_lm import PermutationLM
from jaxpt.objectives.seq2seq import Seq2Seq
from tests.any_objective import any_objective

PARTS = {"batches": base.Batches, "loss": base.Loss, "judge": base.Judge}
KINDS = kinds("jaxpt.objectives", ObjectiveConfig)


@pytest.mark.parametrize("kind", KINDS)
def test_every_objective_has_three_parts_of_its_hyperparameters(kind):
    made = any_objective(kind)
    for name, cls in PARTS.items():
        part = getattr(made, name)
        assert isinstance(part, cls) and [field.name for field in dataclasses.fields(part)] == ["h"]
        assert part == getattr(any_objective(kind), name) and hash(part) == hash(getattr(any_objective(kind), name))
        assert part.h == (made.of if kind == "distillation" and name != "loss" else made)
        with pytest.raises(dataclasses.FrozenInstanceError):
            part.h = made
    assert made.family in ("encoder", "decoder", "encoder_decoder")
    assert made.judge.baseline in ("unigram", "bigram", "constant", "uniform") and made.judge.target_name


def test_a_wrapper_wraps_the_loss_alone():
    of = CausalLM(separator=False)
    wrapped = Distillation(teacher="somewhere", of=of)
    assert (wrapped.batches, wrapped.judge) == (of.batches, of.judge) and wrapped.loss != of.loss
    assert wrapped.loss.without_teachers() is of and of.loss.without_teachers() is of
    assert wrapped.loss.teachers() == {"teacher": "somewhere"} and of.loss.teachers() == {}


def test_parts_do_not_reach_for_each_other():
    """The part of another objective (`self.h.of.loss`) is no part of this one."""
    found, names = [], set()
    for file in Path(base.__file__).parent.glob("*.py"):
        for cls in (node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.ClassDef)):
            if cls.name.endswith(("Batches", "Loss", "Judge")):
                names.add(cls.name)
                used = (node for node in ast.walk(cls) if isinstance(node, ast.Attribute) and node.attr in PARTS)
                own = [node for node in used if ast.unparse(node.value) in ("self", "self.h", "h")]
                found += [f"{cls.name}: {ast.unparse(node)}" for node in own]
    assert not found and {"Batches", "MaskedLMBatches", "DistillationLoss", "SalientSpansJudge"} <= names


def test_what_a_part_does_by_default():
    assert CausalLM().batches.static_mask_copies() is CausalLM().batches.examples(8) is None
    assert CausalLM().batches.degenerate({}) == {} and CausalLM().judge.report_lines({}) == []
    assert not CausalLM().loss.carries and CausalLM().loss.carry(None, 2) is None
    assert PermutationLM().loss.carries and not PermutationLM(memory=False).loss.carries
    assert Seq2Seq().vocabulary_path() is None
