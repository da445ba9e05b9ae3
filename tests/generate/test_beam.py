"""Beam search: exhaustive search and golden values here, `transformers` itself in test_beam_parity.py."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.generate.beam import OUT, beam_search
from jaxpt.generate.logits import History
from tests.generate import chains

V, EOS, LENGTH = 5, 4, 4
PROMPTS = [[0, 1], [2, 3, 1], [1, 0], [3, 3, 2, 0]]


@pytest.fixture(scope="module")
def tables():
    return chains.tables(len(PROMPTS), V)


def every_hypothesis(table, prompt, penalty):
    """All continuations that end, [(score, tokens)], the best first."""
    log_probs = np.asarray(jax.nn.log_softmax(table))
    found = []
    for length in range(1, LENGTH + 1):
        for tokens in itertools.product(range(V), repeat=length):
            if EOS not in tokens[:-1] and (tokens[-1] == EOS or length == LENGTH):
                text = [*prompt, *tokens]
                total = sum(log_probs[tuple(text[i - 2 : i + 1])] for i in range(len(prompt), len(text)))
                found.append((total / length**penalty, text))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -1.0])
def test_as_many_beams_as_there_are_continuations_search_exhaustively(tables, penalty):
    everything = V * (V - 1) ** (LENGTH - 1)
    results = chains.search(
        tables, PROMPTS, beams=everything, samples=9, max_new_tokens=LENGTH, eos_ids=(EOS,), length_penalty=penalty
    )
    for table, prompt, found in zip(tables, PROMPTS, results):
        wanted = every_hypothesis(table, prompt, penalty)[:9]
        assert [tokens for tokens, _, _ in found] == [tokens for _, tokens in wanted]
        np.testing.assert_allclose([score for _, score, _ in found], [score for score, _ in wanted], rtol=1e-6)


# Of `transformers` 5.23 on torch 2.13: beams, length penalty, early stopping, EOS ids, and of each prompt the best two:
# tokens and score. `python -m tests.generate.chains` prints this table.
GOLDEN = [
    (2, 1.5, False, (4,), [
        ("132222222222", -0.18478), ("132222222224", -0.21871),
        ("111111111111", -0.24139), ("111111111124", -0.24458),
        ("4", -0.51090), ("14", -0.79727),
        ("30203024", -0.34428), ("30133024", -0.34885),
    ]),
    (2, 1.5, True, (4,), [
        ("1324", -0.49274), ("24", -0.68747),
        ("4", -0.51872), ("124", -0.64951),
        ("4", -0.51090), ("14", -0.79727),
        ("3024", -0.43347), ("34", -0.64269),
    ]),
    (2, 1.5, "never", (4,), [
        ("132222222222", -0.18478), ("132222222224", -0.21871),
        ("111111111111", -0.24139), ("111111111124", -0.24458),
        ("021332323014", -0.32433), ("021332323234", -0.33407),
        ("302030203024", -0.29139), ("301330203024", -0.29387),
    ]),
    (3, 0.0, False, (4,), [
        ("24", -1.94445), ("14", -2.22492),
        ("4", -0.51872), ("334", -3.18097),
        ("4", -0.51090), ("14", -2.25502),
        ("34", -1.81779), ("3024", -3.46778),
    ]),
    (3, -1.0, "never", (4,), [
        ("24", -3.88891), ("14", -4.44983),
        ("4", -0.51872), ("334", -9.54290),
        ("4", -0.51090), ("14", -4.51004),
        ("34", -3.63559), ("3024", -13.87112),
    ]),
    (4, 1.0, True, (4,), [
        ("24", -0.97223), ("1324", -0.98548),
        ("4", -0.51872), ("1124", -1.03241),
        ("4", -0.51090), ("14", -1.12751),
        ("3024", -0.86694), ("34", -0.90890),
    ]),
    (4, 1.0, "never", (4,), [
        ("132222222222", -0.64009), ("132222222224", -0.75763),
        ("4", -0.51872), ("111111111111", -0.83622),
        ("4", -0.51090), ("021332303014", -1.10353),
        ("3024", -0.86694), ("302222222222", -0.89889),
    ]),
    (3, 0.6, False, (2, 4), [
        ("2", -1.19000), ("14", -1.46790),
        ("4", -0.51872), ("334", -1.64546),
        ("4", -0.51090), ("14", -1.48776),
        ("34", -1.19930), ("302", -1.36016),
    ]),
]  # fmt: skip


@pytest.mark.parametrize("beams, penalty, early_stopping, ends, wanted", GOLDEN)
def test_golden(tables, beams, penalty, early_stopping, ends, wanted):
    options = {"beams": beams, "length_penalty": penalty, "early_stopping": early_stopping, "eos_ids": ends}
    results = chains.search(tables, PROMPTS, **chains.COMMON, **options)
    found = [(chains.text(tokens, p), score) for p, row in zip(PROMPTS, results) for tokens, score, _ in row]
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in wanted], atol=1e-5)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_a_row_depends_on_itself_alone(tables, early_stopping):
    """Prompts and limits of other lengths, rows that end sooner or later, and none: bit for bit as alone."""
    limits = np.array([9, 3, 12, 1])
    options = {"beams": 3, "samples": 2, "eos_ids": (EOS,), "early_stopping": early_stopping, "columns": 16}
    together = chains.search(tables, PROMPTS, max_new_tokens=limits, **options)
    for i, row in enumerate(together):
        alone = chains.search(tables[i : i + 1], PROMPTS[i : i + 1], max_new_tokens=limits[i : i + 1], **options)
        assert [row] == alone
    assert len({len(row[0][0]) for row in together}) > 2


def test_scores_are_those_of_the_tokens(tables):
    for row in chains.search(tables, PROMPTS, beams=3, samples=3, max_new_tokens=6, eos_ids=(EOS,), length_penalty=0.6):
        for _, score, log_probs in row:
            np.testing.assert_allclose(sum(log_probs) / len(log_probs) ** 0.6, score, rtol=1e-5)


def test_several_tokens_end(tables):
    ends = (3, 4)
    for prompt, row in zip(PROMPTS, chains.search(tables, PROMPTS, beams=3, samples=3, max_new_tokens=6, eos_ids=ends)):
        for tokens, _, _ in row:
            generated = tokens[len(prompt) :]
            assert not set(generated[:-1]) & set(ends) and (generated[-1] in ends or len(generated) == 6)


def test_processors_get_log_probabilities_and_the_history_of_each_beam(tables):
    """What a beam may write next is decided by what it has written: here the least token that it does not have."""

    def process(log_probs_NxV, history):
        total_N = jnp.exp(log_probs_NxV).sum(-1, keepdims=True)  # 1 of log-probabilities, else the scores are off
        is_token_NxT = jnp.arange(history.tokens_BxT.shape[1]) < history.length_B[:, None]
        has_NxV = (jax.nn.one_hot(history.tokens_BxT, V) * is_token_NxT[..., None]).any(1)
        wanted_N = jnp.where(history.length_B - history.prompt_B < 2, (~has_NxV).argmax(-1), EOS)
        return jnp.where(jnp.arange(V) == wanted_N[:, None], -total_N, -jnp.inf)

    results = chains.search(tables, PROMPTS, beams=2, max_new_tokens=4, eos_ids=(EOS,), process=process)
    assert [chains.text(row[0][0], p) for p, row in zip(PROMPTS, results)] == ["234", "04", "234", "14"]
    for row in results:
        np.testing.assert_allclose(row[0][1], -1.0, rtol=1e-6)


def test_no_more_hypotheses_than_there_are(tables):
    """A single continuation is left: the other samples are marked as none."""

    def forced(log_probs_NxV, history):
        return jnp.where(jnp.arange(V) == EOS, 0.0, -jnp.inf) + 0 * log_probs_NxV

    found = chains.run(tables, PROMPTS, beams=3, samples=3, max_new_tokens=1, eos_ids=(EOS,), process=forced)
    assert found.is_complete_RxK.tolist() == [[True, False, False]] * 4
    assert (found.score_RxK[:, 0] == 0).all() and (found.score_RxK[:, 1:] <= OUT).all()


def test_no_room_no_tokens(tables):
    """A row has as many tokens as its history has columns; rows with none do not keep the loop going."""
    found = chains.run(tables, PROMPTS, beams=2, max_new_tokens=np.array([0, 9, 9, 9]), columns=4)
    assert found.length_RxK[:, 0].tolist() == [2, 4, 4, 4]
    assert found.is_complete_RxK[:, 0].tolist() == [False, True, True, False]


def test_one_loop_without_callbacks(tables):
    history = History(jnp.zeros((4, 8), jnp.int32), jnp.full(4, 2), jnp.full(4, 2))
    state = chains.state(tables, PROMPTS)
    program = jax.make_jaxpr(
        lambda state: beam_search(
            chains.step, chains.gather, state, chains.logits(state), history, beams=3, max_new_tokens=6
        )
    )(state)
    text = str(program)
    assert text.count("while[") == 1 and "callback" not in text


@pytest.mark.parametrize(
    "options, message",
    [
        ({"beams": 0}, "beams: 0 with samples: 1"), ({"beams": 2, "samples": 3}, "beams: 2 with samples: 3"),
        ({"beams": 2, "early_stopping": "always"}, "early_stopping: 'always'"),
    ],
)  # fmt: skip
def test_wrong_options(tables, options, message):
    with pytest.raises(UserError, match=message):
        chains.run(tables, PROMPTS, max_new_tokens=3, **options)
