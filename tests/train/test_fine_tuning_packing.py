"""Fine-tuning: the same examples in one packed row, or in microbatches, have the loss and gradients of a row each."""

import functools

import jax
import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.train import step
from tests import families, grids
from tests.labelled import LENGTH, VOCABULARY, features_of, objective_of, records_of, rows_of
from tests.models.helpers import drawn

MODELS = {name: families.MODELS[name] for name in ("bert", "gpt2", "llama", "t5")} | {
    "bart": {"kind": "bart", "layers": 2, "embed_dim": 32, "heads": 4, "mlp_dim": 64, "max_positions": 32},
}  # fmt: skip
CASES = [(model, "classification") for model in MODELS] + [
    ("gpt2", "text_to_text"), ("llama", "text_to_text"), ("bart", "text_to_text"), ("t5", "text_to_text"),
    ("bert", "tagging"), ("bert", "question_answering"), ("t5", "question_answering"), ("t5", "tagging"),
    ("llama", "regression"),
]  # fmt: skip
SUITE = [
    ("bert", "classification"), ("llama", "regression"), ("gpt2", "text_to_text"), ("bart", "text_to_text"),
    ("bert", "tagging"), ("t5", "question_answering"),
]  # fmt: skip
"""Each kind of loss and each family of models."""
ZERO_GRADIENTS = ("key/bias", "span/dense/bias")
"""Both add the same to all arguments of a softmax: rounding is left, compared with the largest gradient of all."""


def model_of(name):
    """Its configuration, in float32 without dropout."""
    return configs.build(
        families.tree("bert") | {"model": MODELS[name] | {"vocab_size": 128, "dtype": "float32"}}
    ).model


@pytest.mark.slow
@pytest.mark.parametrize("model, kind", grids.cases(CASES, *SUITE))
def test_packed_rows_and_microbatches_change_nothing(model, kind):
    model = model_of(model)
    lengths = {"targets_length": 32} if model.family == "encoder_decoder" else {}  # a feature of its own
    options = {"text_to_text": lengths, "tagging": {}}.get(kind, {"examples": 4})
    objective = objective_of(kind, model, **options)
    network = objective.network(model)
    params = drawn(network)
    records = records_of(objective, rows_of(kind, objective.layout(VOCABULARY), is_full=False))

    @functools.partial(jax.jit, static_argnames="accumulation")
    def gradients(params, batch, accumulation=1):
        found, metrics, _ = step.gradients(objective, network, params, batch, None, accumulation)
        return metrics["loss"], found

    rows = features_of(objective, records)
    want_loss, want = jax.device_get(gradients(params, rows))
    assert want_loss > 0.1
    largest = max(np.abs(x).max() for x in jax.tree.leaves(want))
    packed = features_of(objective, records, len(records) * LENGTH, packs=np.array([0, len(records)]))
    assert packed["decoder_segment_ids" if "decoder_segment_ids" in packed else "encoder_segment_ids"].max() == len(
        records
    )
    for batch, accumulation in ((packed, 1), (rows, 2)):
        loss, found = jax.device_get(gradients(params, batch, accumulation))
        np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
        for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(want), jax.tree.leaves(found), strict=True):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            scale = largest if name.endswith(ZERO_GRADIENTS) else np.abs(x).max()
            np.testing.assert_allclose(y, x, rtol=0, atol=1e-5 * scale, err_msg=name)
