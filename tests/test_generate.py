import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt import generate
from jaxpt.models.base import bind
from tests import families
from tests.models.helpers import drawn, made, tokens


@pytest.fixture(scope="module")
def models():
    networks = {family: families.network(families.config(family)) for family in families.FAMILIES}
    return {family: network.bind(drawn(network)) for family, network in networks.items()}


def test_greedy_fills_from_left_to_right():
    # The next id is always one more than the id before it.
    tokens = generate.greedy(lambda t, i: jax.nn.one_hot(t[:, i - 1] + 1, 10), jnp.array([[3, 0, 0, 0]]), 1)
    assert tokens.tolist() == [[3, 4, 5, 6]]


def test_continuation_keeps_the_prompt_and_is_the_most_likely(models):
    bound = models["gpt2"]
    prompt = jnp.array([[5, 6, 7], [9, 8, 7]])
    tokens = generate.continue_text(bound, prompt, 8)
    np.testing.assert_array_equal(tokens[:, :3], prompt)
    best = bound.logits(bound.decode(tokens).hidden).argmax(-1)
    np.testing.assert_array_equal(tokens[:, 3:], best[:, 2:-1])


def test_a_span_is_never_empty(models):
    sentinel, eos = 180, 1
    inputs = jax.random.randint(jax.random.key(0), (16, 12), 0, 200)
    answers = np.asarray(generate.fill_spans(models["t5"], inputs, jnp.ones_like(inputs), 0, 20, sentinel, eos))
    after = answers[:, 1:][answers[:, :-1] >= sentinel]
    assert len(after) > 0, "this random model has to write a sentinel somewhere"
    assert (after < sentinel).all() and (after != eos).all()


def test_masks_get_the_most_likely_token(models):
    bound = models["bert"]
    batch = families.batch(families.config("bert"))
    filled = generate.fill_masks(bound, batch)
    output = bound.encode(
        batch["encoder_input_tokens"], token_types=batch["encoder_token_types"],
        segment_ids=batch["encoder_segment_ids"],
    )  # fmt: skip
    best = np.asarray(bound.logits(output.hidden).argmax(-1))
    np.testing.assert_array_equal(filled, np.take_along_axis(best, batch["masked_positions"], axis=1))


def test_rows_start_from_tokens_of_their_own_and_fill_a_table_of_positions():
    """As many tokens as the decoder has positions; a row is answered as if it were alone with its start."""
    model, variables = made("bart", max_positions=6)
    inputs, segments = tokens(2, 6), np.ones((2, 6), np.int32)
    run = jax.jit(lambda x, start: generate.fill_spans(bind(model, variables["params"]), x, segments, start, 6, 200, 1))
    together = run(inputs, np.array([7, 9]))
    assert together.shape == (2, 6)
    for row, start in enumerate((7, 9)):
        np.testing.assert_array_equal(run(inputs, np.array([start, start]))[row], together[row])
