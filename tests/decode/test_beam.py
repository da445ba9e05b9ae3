"""Beam search: exhaustive search and golden values here, `transformers` itself in test_beam_parity.py."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.decode.beam import OUT, beam_search
from jaxpt.decode.logits import History
from jaxpt.errors import UserError
from tests import grids
from tests.decode import chains
from tests.decode.helpers import log_softmax

V, EOS, LENGTH = 5, 4, 4
PROMPTS = [[0, 1], [2, 3, 1], [1, 0], [3, 3, 2, 0]]


@pytest.fixture(scope="module")
def tables():
    return chains.tables(len(PROMPTS), V)


def every_hypothesis(table, prompt, penalty):
    """All continuations that end, [(score, tokens)], the best first."""
    log_probs = [log_softmax(table * chains.scale(i)) for i in range(len(prompt) + LENGTH)]
    found = []
    for length in range(1, LENGTH + 1):
        for tokens in itertools.product(range(V), repeat=length):
            if EOS not in tokens[:-1] and (tokens[-1] == EOS or length == LENGTH):
                text = [*prompt, *tokens]
                total = sum(log_probs[i][tuple(text[i - 2 : i + 1])] for i in range(len(prompt), len(text)))
                found.append((total / length**penalty, text))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("penalty", grids.cases([0.0, 0.6, 1.0, 2.0, -1.0], 0.6, -1.0))
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
# tokens and score. `python -m tests.decode.chains` prints this table.
GOLDEN = [
    (2, 1.5, False, (4,), [
        ("132222222222", -0.16679), ("132222222224", -0.20761),
        ("111111111111", -0.22440), ("111111111124", -0.22886),
        ("4", -0.49034), ("14", -0.79570),
        ("30203024", -0.32632), ("30133024", -0.32972),
    ]),
    (2, 1.5, True, (4,), [
        ("1324", -0.48206), ("24", -0.67644),
        ("4", -0.48809), ("124", -0.64377),
        ("4", -0.49034), ("14", -0.79570),
        ("3024", -0.41033), ("34", -0.62243),
    ]),
    (2, 1.5, "never", (4,), [
        ("132222222222", -0.16679), ("132222222224", -0.20761),
        ("111111111111", -0.22440), ("111111111124", -0.22886),
        ("021332323014", -0.31529), ("021332323234", -0.32619),
        ("302030203024", -0.27458), ("301330203024", -0.27643),
    ]),
    (3, 0.0, False, (4,), [
        ("24", -1.91326), ("14", -2.20545),
        ("4", -0.48809), ("334", -3.17012),
        ("4", -0.49034), ("14", -2.25058),
        ("34", -1.76049), ("3024", -3.28264),
    ]),
    (3, -1.0, "never", (4,), [
        ("24", -3.82652), ("14", -4.41090),
        ("4", -0.48809), ("334", -9.51035),
        ("4", -0.49034), ("14", -4.50116),
        ("34", -3.52098), ("3024", -13.13055),
    ]),
    (4, 1.0, True, (4,), [
        ("24", -0.95663), ("1324", -0.96412),
        ("4", -0.48809), ("1124", -1.01453),
        ("4", -0.49034), ("14", -1.12529),
        ("3024", -0.82066), ("34", -0.88024),
    ]),
    (4, 1.0, "never", (4,), [
        ("132222222222", -0.57779), ("132222222224", -0.71919),
        ("4", -0.48809), ("111111111111", -0.77733),
        ("4", -0.49034), ("021332303014", -1.06517),
        ("3024", -0.82066), ("302222222222", -0.84325),
    ]),
    (3, 0.6, False, (2, 4), [
        ("2", -1.18664), ("14", -1.45505),
        ("4", -0.48809), ("334", -1.63984),
        ("4", -0.49034), ("14", -1.48483),
        ("34", -1.16149), ("302", -1.29839),
    ]),
]  # fmt: skip


# Each way of stopping with and without a penalty, several EOS ids, 2 to 4 beams.
@pytest.mark.parametrize("beams, penalty, early_stopping, ends, wanted", grids.cases(GOLDEN, GOLDEN[0], *GOLDEN[4:]))
def test_golden(tables, beams, penalty, early_stopping, ends, wanted):
    options = {"beams": beams, "length_penalty": penalty, "early_stopping": early_stopping, "eos_ids": ends}
    results = chains.search(tables, PROMPTS, **chains.COMMON, **options)
    found = [(chains.text(tokens, p), score) for p, row in zip(PROMPTS, results) for tokens, score, _ in row]
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in wanted], atol=1e-5)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_a_row_depends_on_itself_alone(tables, early_stopping):
    """Prompts and limits of other lengths, rows that end sooner or later, and none: bit for bit as alone, or as among
    copies of itself, which the same program searches."""
    limits = np.array([9, 3, 12, 1])
    options = {"beams": 3, "samples": 2, "eos_ids": (EOS,), "early_stopping": early_stopping, "columns": 16}
    together = chains.search(tables, PROMPTS, max_new_tokens=limits, **options)
    for i, row in enumerate(together):
        own = [i] * (1 if early_stopping is False else 4)
        alone = chains.search(tables[own], [PROMPTS[i] for i in own], max_new_tokens=limits[own], **options)
        assert alone == [row] * len(own)
    assert len({len(row[0][0]) for row in together}) > 2


def written(after):
    """A table of the log-probabilities of the token after two others; equal ones where nothing is said."""
    table = np.zeros((1, V, V, V), np.float32)
    for i, (pair, probabilities) in enumerate(after.items()):
        table[(0, *pair)] = np.log(probabilities) / chains.scale(2 + i)
    return table


def test_an_open_beam_is_kept_beside_as_many_ends_as_there_are():
    """Three EOS ids before all else: the one beam goes on with the fourth token, which the penalty then prefers."""
    table = written({(0, 0): [0.03, 0.27, 0.1, 0.3, 0.3]})
    table[0, 0, 2] = table[0, 2, 2] = [0, 0, 30, 0, 0]
    options = {"beams": 1, "max_new_tokens": 6, "eos_ids": (1, 3, 4), "length_penalty": 3.0, "early_stopping": "never"}
    assert chains.search(table, [[0, 0]], **options)[0][0][0] == [0, 0, 2, 2, 2, 2, 2, 2]


def test_never_stopping_early_looks_at_the_next_length_where_short_texts_are_favoured():
    """Second best: first 1 4, then 1 2 4, which a beam reaches that at the greatest length would be worse."""
    table = written(
        {(0, 0): [0.067, 0.2, 0.067, 0.066, 0.6], (0, 1): [0.01, 0.01, 0.55, 0.01, 0.42], (1, 2): [0.0025] * 4 + [0.99]}
    )
    options = {"beams": 2, "samples": 2, "max_new_tokens": 12, "eos_ids": (4,), "early_stopping": "never"}
    (row,) = chains.search(table, [[0, 0]], length_penalty=-0.1, **options)
    assert [chains.text(tokens, [0, 0]) for tokens, _, _ in row] == ["4", "124"]


def test_scores_are_those_of_the_tokens_and_several_tokens_end(tables):
    ends = (3, 4)
    options = {"beams": 3, "samples": 3, "max_new_tokens": 6, "length_penalty": 0.6}
    for prompt, row in zip(PROMPTS, chains.search(tables, PROMPTS, eos_ids=ends, **options)):
        for tokens, score, log_probs in row:
            generated = tokens[len(prompt) :]
            assert not set(generated[:-1]) & set(ends) and (generated[-1] in ends or len(generated) == 6)
            np.testing.assert_allclose(sum(log_probs) / len(log_probs) ** 0.6, score, rtol=1e-5)


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
    score_RxK = np.asarray(found.score_RxK)
    assert (score_RxK[:, 0] == 0).all() and (score_RxK[:, 1:] <= OUT).all()


def test_no_room_no_tokens(tables):
    """A row has as many tokens as its history has columns; rows with none do not keep the loop going."""
    found = chains.run(tables, PROMPTS, beams=2, max_new_tokens=np.array([0, 9, 9, 9]), columns=4)
    assert np.asarray(found.length_RxK)[:, 0].tolist() == [2, 4, 4, 4]
    assert np.asarray(found.is_complete_RxK)[:, 0].tolist() == [False, True, True, False]


def test_one_loop_without_callbacks(tables):
    def search(state, history):
        logits = chains.logits(state)
        return beam_search(chains.step, chains.gather, state, logits, history, beams=3, max_new_tokens=6)

    history = History(np.zeros((4, 8), np.int32), np.full(4, 2), np.full(4, 2))
    program = jax.make_jaxpr(search)(chains.state(tables, PROMPTS), history)
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
