"""What every objective gives, and what it gives by default."""

import pytest

from jaxpt.config import ObjectiveConfig
from jaxpt.config.kinds import kinds
from jaxpt.data.spec import DataSpec
from jaxpt.errors import UserError
from jaxpt.objectives.base import Baseline
from jaxpt.objectives.causal_lm import CausalLM
from jaxpt.objectives.distillation import Distillation
from jaxpt.objectives.permutation_lm import PermutationLM
from jaxpt.objectives.seq2seq import Seq2Seq
from tests.any_objective import any_objective

KINDS = kinds("jaxpt.objectives", ObjectiveConfig)


@pytest.mark.parametrize("kind", KINDS)
def test_every_objective_has_data_and_a_baseline(kind):
    made = any_objective(kind)
    assert isinstance(made.data_spec(64), DataSpec) and isinstance(made.baseline, Baseline)
    assert made == any_objective(kind) and hash(made) == hash(any_objective(kind))
    assert made.family in ("encoder", "decoder", "encoder_decoder")
    assert made.baseline.name in ("unigram", "bigram", "trigram", "constant", "uniform") and made.baseline.target_name
    assert made.baseline.loss is not None or made.baseline.name in ("unigram", "bigram", "trigram")  # counted elsewhere


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", range(1, 9))
def test_data_of_a_length_that_is_refused_later_can_be_asked_for(kind, length):
    """`check` refuses it, with a vocabulary, after the files were looked at."""
    assert any_objective(kind).data_spec(length).features


def test_a_wrapper_wraps_the_loss_alone():
    of = CausalLM(separator=False)
    wrapped = Distillation(teacher="somewhere", of=of)
    assert (
        wrapped.data_spec(8).features == of.data_spec(8).features
        and wrapped.baseline.name == of.baseline.name == "bigram"
    )
    assert wrapped.without_teachers() is of and of.without_teachers() is of
    assert wrapped.teachers() == {"teacher": "somewhere"} and of.teachers() == {}


def test_what_an_objective_does_by_default():
    spec = CausalLM().data_spec(8)
    assert spec.static_mask_copies is spec.max_target_tokens is None
    assert spec.untrainable_examples({}) == {} and CausalLM().baseline.report_lines({}) == []
    assert not CausalLM().carries and CausalLM().carry_shapes(None, 2) is None
    assert PermutationLM().carries and not PermutationLM(memory=False).carries
    assert Seq2Seq().vocabulary_path() is None


def test_a_baseline_that_nothing_computes_is_refused():
    with pytest.raises(UserError, match=r"'zipf'.* needs `loss`"):
        Baseline("zipf", "all tokens", lambda batch, vocabulary: batch["x"])
