"""Each objective has a loss with each model of its family, or refuses it in a line: none ends in a traceback."""

import jax
import jax.numpy as jnp
import pytest

from jaxpt.config import ModelConfig, kinds
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.models.awd_lstm import AWDLSTMConfig
from jaxpt.models.elmo import ELMoConfig
from jaxpt.models.word_vectors import WordVectorsConfig
from jaxpt.objectives.base import Objective, carried_loss
from tests import grids
from tests.any_objective import any_objective
from tests.models.helpers import EVERY, SHORTER, V

LENGTH = 32
VOCABULARY = Vocabulary(size=V, pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6, sentinels=60)
SIZES = {"vocab_size": V, "embed_dim": 24, "dtype": "float32"}
MODELS = {EVERY[name]().kind: EVERY[name](**SHORTER.get(name, {})) for name in reversed(EVERY)} | {
    "awd_lstm": AWDLSTMConfig(**SIZES, layers=1),
    "elmo": ELMoConfig(**SIZES, layers=1, cells=12, filters=((1, 4),)),
    "word_vectors": WordVectorsConfig(**SIZES),
}
MORE = {
    "replaced_token": {"generator": (("mlp_dim", 16),)},
    "permutation_lm": {"memory": False},
    "bidirectional_lm": {"carry": False},
    "recurrent_lm": {"carry": False},
    "text_to_text": {"targets_length": 8},
    "question_answering": {"max_query": 8},
    "unilm": {"types_of_masks": False},
    "translation_lm": {"language_types": False},
}
"""Keys without which a model that has no fault is refused."""


def made(kind, model):
    objective = any_objective(kind)
    layout = {"text_layout": model.text_layout} if hasattr(objective, "text_layout") else {}
    return objective.model_copy(update=layout | MORE.get(kind, {}))


def trace(objective, model):
    """Traces the loss as a run does, after its checks."""
    objective.check_family(model)
    objective.check_settings(model, LENGTH)
    objective.check(model, LENGTH, VOCABULARY)
    network, features = objective.network(model), objective.data_spec(LENGTH).features
    batch = {name: jax.ShapeDtypeStruct((2, *shape), dtype) for name, (shape, dtype) in features.items()}
    teacher = {name: network.shapes() for name in objective.teachers()}

    def loss(params, batch, carry, teacher):
        teachers = {"teachers": {name: (network, params) for name, params in teacher.items()}} if teacher else {}
        bound = network.bind(params, {"dropout": jax.random.key(0), "sample": jax.random.key(1)})
        sums, _, _ = carried_loss(objective, bound, batch, carry, **teachers)
        return sum(sums.values())

    shape = jax.eval_shape(loss, network.shapes(), batch, objective.carry_shapes(network, 2), teacher)
    assert (shape.shape, shape.dtype) == ((), jnp.float32)


def test_there_is_a_model_of_each_kind():
    assert {*kinds("jaxpt.models", ModelConfig)} == {*MODELS}


@pytest.mark.slow
@pytest.mark.parametrize("kind", grids.cases(sorted(MODELS), "awd_lstm", "elmo", "word_vectors", "xlnet"))
def test_a_pair_has_a_loss_or_is_refused(kind):
    for objective in kinds("jaxpt.objectives", Objective):
        try:
            trace(made(objective, MODELS[kind]), MODELS[kind])
        except UserError as error:
            assert "\n" not in str(error), objective
