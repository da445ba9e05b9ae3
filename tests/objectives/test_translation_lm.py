"""Translation LM: from a file of pairs to rows, what a target sees, what is refused."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.data import datasets
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.models.layers import Embed
from jaxpt.objectives.translation_lm import TranslationLM
from tests import families
from tests.models.helpers import drawn

VOCABULARY = Vocabulary(size=120, cls=2, sep=3, mask=4)


def config(folder, objective=None, model=None, **data):
    words = {"en": "the cat sat on the mat", "de": "die Katze saß auf der Matte"}
    lines = [json.dumps({field: f"{text} {i}" for field, text in words.items()}) for i in range(60)]
    (folder / "pairs.jsonl").write_text("\n".join(lines), "utf-8")
    settings = {"path": str(folder / "pairs.jsonl"), "fields": ["en", "de"], "cache_dir": str(folder / "cache")}
    return families.config(
        "bert", model={"vocab_size": 120, "max_positions": 64, "layers": 1} | (model or {}),
        objective={"kind": "translation_lm"} | (objective or {}),
        data=settings | {"length": 64, "batch_size": 2, "validation_fraction": 0.1, "packing": True} | data,
    )  # fmt: skip


@pytest.mark.slow
def test_a_target_sees_its_pair_and_nothing_else(tmp_path):
    """Rows of several pairs, each of two texts whose positions start anew; all options of masked LM hold."""
    settings = config(tmp_path, {"mask_probability": 1.0, "random_probability": 0.0, "unit": "word"})
    data = datasets.prepare(settings)
    batch, network = next(data.train.batches()), families.network(settings)
    params, ids, types = drawn(network), batch["encoder_segment_ids"], batch["encoder_token_types"]
    tokens, positions = batch["encoder_input_tokens"], batch["encoder_positions"]
    assert ids.max() > 1
    for row in range(2):
        for segment in range(1, ids[row].max() + 1):
            of_pair = ids[row] == segment
            seps = np.flatnonzero(of_pair & (tokens[row] == data.vocabulary.sep))
            assert len(seps) == 4 and seps[2] == seps[1] + 1
            for number, (first, last) in enumerate((seps[:2], seps[2:])):
                np.testing.assert_array_equal(positions[row, first : last + 1], np.arange(last + 1 - first))
                assert set(types[row, first : last + 1]) == {number}

    def loss(delta, weights):
        def add(call, args, kwargs, context):
            x = call(*args, **kwargs)
            looked_up = isinstance(context.module, Embed) and context.method_name == "__call__"
            return x + delta if looked_up else x

        with nn.intercept_methods(add):
            return settings.objective.loss(network.bind(params), dict(batch, masked_weights=weights))[0]["masked_lm"]

    one = jnp.eye(batch["masked_weights"].shape[1])[:, None] * batch["masked_weights"]
    zeros = jnp.zeros((*tokens.shape, settings.model.embed_dim))
    slope = jax.jit(lambda one: jax.lax.map(lambda w: jax.grad(loss)(zeros, w), one))(one)
    seen = np.abs(slope).sum(-1) > 0
    for n, row in np.argwhere(batch["masked_weights"].T > 0):
        at = batch["masked_positions"][row, n]
        assert tokens[row, at] == data.vocabulary.mask  # the truth is not in the inputs
        np.testing.assert_array_equal(seen[n, row], ids[row] == ids[row, at])


def test_sources_that_do_not_fit(tmp_path):
    for message, settings in (
        (r"data.fields is missing: .*=\[en, de\]", config(tmp_path, fields=None)),
        ("'de' is not in objective.languages, en, fr", config(tmp_path, {"languages": ["en", "fr"]})),
        ("masked_lm reads one text field, not two", config(tmp_path, {"kind": "masked_lm", "next_sentence": False})),
    ):
        with pytest.raises(UserError, match=message):
            datasets.prepare(settings)
    mixture = [{"name": "a", "path": "a.jsonl", "fields": ["en", "de"]}, {"name": "b", "path": "b.jsonl"}]
    with pytest.raises(UserError, match=r"data.mixture, task b: data.fields is missing"):
        datasets.prepare(config(tmp_path, path=None, fields=None, mixture=mixture))


def test_check(tmp_path):
    model = config(tmp_path).model
    TranslationLM().check(model, 64, VOCABULARY)
    three = TranslationLM(languages=("en", "de", "fr"))
    with pytest.raises(UserError, match=r"model.token_types: 2 is less than the number of languages, 3"):
        three.check(model, 64, VOCABULARY)
    TranslationLM(languages=three.languages, language_types=False).check(model, 64, VOCABULARY)
    with pytest.raises(ValueError, match="next_sentence"):
        TranslationLM(next_sentence=True)
