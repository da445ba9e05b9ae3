"""The evaluator of dialogues: what it reports with a base model and without one."""

import math
import types

import jax
import numpy as np
import pytest

from jaxpt import hf
from jaxpt.data.calls import Vocabulary
from jaxpt.evals.answers import Answers
from jaxpt.train import state
from tests import families
from tests.decode.helpers import log_softmax
from tests.inference.helpers import directory

EARLIER = {"validation/target_loss": 1.0, "validation/loss": 3.0}
SAID = "answers: 1.0000 nats per answer token, perplexity 2.72"


def test_without_a_base():
    setup = types.SimpleNamespace(config=types.SimpleNamespace(init_from=None))
    evaluate = Answers().prepare(setup, None)
    assert evaluate(None, {}, lambda: False).metrics == {}
    result = evaluate(None, EARLIER, lambda: True)
    assert result.metrics == {"nats": 1.0, "perplexity": pytest.approx(math.e)} and result.lines == (SAID,)


@pytest.mark.slow
def test_the_base_is_measured_once(tmp_path):
    """The model that training started from, on the validation batches."""
    settings = {"model": {"vocab_size": 300, "layers": 1}, "init_from": {"path": str(directory("gpt2"))}}
    setup = state.setup(families.config("gpt2", **settings), jax.devices()[:1])
    batch, read = families.batch(setup.config), []

    def epoch(size, limit, rows):
        read.append(size)
        return iter([batch] * 2)

    validation = types.SimpleNamespace(each=lambda: {"": types.SimpleNamespace(epoch=epoch)})
    evaluate = Answers().prepare(setup, types.SimpleNamespace(validation=validation, vocabulary=Vocabulary(300, eos=1)))
    assert evaluate(None, {}, lambda: False).metrics == {}
    read.clear()
    assert evaluate(None, EARLIER, lambda: True) is None  # stopped
    results = [evaluate(None, EARLIER, lambda: False) for _ in range(2)]
    assert len(read) == 2 and results[0] == results[1]

    network, params = hf.load(directory("gpt2"))
    bound = network.with_model(dtype="float32").bind(params)
    given = {name.removeprefix("decoder_"): x for name, x in batch.items()}
    hidden = jax.jit(lambda: bound.decode(
        given["input_tokens"], positions=given["positions"], segment_ids=given["segment_ids"]
    ).hidden)()  # fmt: skip
    rows = log_softmax(bound.logits(hidden))
    nats = -np.take_along_axis(rows, given["target_tokens"][..., None], axis=-1)[..., 0]
    wanted = nats[given["loss_weights"] > 0].mean()
    metrics = results[0].metrics
    assert metrics["base_nats"] == pytest.approx(wanted, rel=1e-5) and metrics["nats"] == 1.0
    assert metrics["base_perplexity"] == pytest.approx(math.exp(wanted), rel=1e-4)
    assert results[0].lines == (f"{SAID} (base {wanted:.4f} nats, perplexity {metrics['base_perplexity']:.2f})",)
