"""Log-likelihoods equal those computed one token at a time, without padding, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.decode import batching
from jaxpt.decode.likelihood import loglikelihood
from jaxpt.errors import UserError
from tests.decode.helpers import DECODERS, ENCODERS, V, jitted, log_softmax, network, texts

EOS, BOS, CLS, SEP, MASK, SENTINEL = 1, 2, 2, 3, 4, V - 1
# Whole texts of one length: what stands beside a masked token is then compiled once.
CONTEXTS, CONTINUATIONS = texts(3, 4, 0, 2, seed=1), texts(2, 1, 5, 3, seed=2)
ROWS = 8
"""Texts that an oracle reads at once, some of them none."""


def decoder_oracle(made, params, context, continuation, prefix_lm=False):
    """Log-probabilities before each token, each from a row of its own; what stands behind it there is not read."""
    count, first = len(continuation), len(context)
    tokens = np.zeros((ROWS * -(-count // ROWS), 40 if made.config.position_limit is None else 32), np.int32)
    for t in range(count):
        tokens[t, : first + t] = [*context, *continuation[:t]]
    run, prefix = jitted(made, "decode"), np.arange(tokens.shape[1]) < np.full((ROWS, 1), first)
    options = {"prefix": prefix} if prefix_lm else {}
    logits = [run(params, tokens[row : row + ROWS], **options) for row in range(0, len(tokens), ROWS)]
    return log_softmax(np.concatenate(logits)[np.arange(count), first - 1 + np.arange(count)])


@functools.cache
def _pair(made):
    def run(params, encoder, inputs):
        bound = made.bind(params)
        encoded = jnp.repeat(bound.encode(encoder).hidden, len(inputs), axis=0)
        return bound.logits(bound.decode(inputs, encoded).hidden)

    return jax.jit(run)


def encoder_decoder_oracle(made, params, encoder, start, continuation):
    count, first = len(continuation), len(start)
    inputs = np.zeros((ROWS, 16), np.int32)
    for t in range(count):
        inputs[t, : first + t] = [*start, *continuation[:t]]
    logits = _pair(made)(params, np.array([encoder]), inputs)
    return log_softmax(np.asarray(logits)[np.arange(count), first - 1 + np.arange(count)])


def masked_oracle(made, params, context, continuation, words=None):
    """Each token masked in turn, and with `words` (a number for each token) the later ones of its word."""
    first, count, text = 1 + len(context), len(continuation), [CLS, *context, *continuation, SEP]
    shown = np.full((ROWS, len(text)), text)
    for t in range(count):
        hidden = [t] if words is None else [u for u in range(t, count) if words[u] == words[t]]
        shown[t, [first + u for u in hidden]] = MASK
    logits = np.asarray(jitted(made, "encode")(params, shown))
    return log_softmax(logits[np.arange(count), first + np.arange(count)])


@functools.cache
def _query(made):
    def run(params, tokens, ranks):
        bound, last = made.bind(params), jnp.array([[tokens.shape[1] - 1]])
        found = bound.streams(tokens, token_types=jnp.zeros_like(tokens), ranks=ranks, targets=last)
        return bound.logits(found.hidden.query_BxPxD)[0, 0]

    return jax.jit(run)


def permutation_oracle(made, params, context, continuation):
    """The query stream at one position, with the text up to it alone: nothing else could be seen."""
    rows = []
    for t in range(len(continuation)):
        text = [*context, *continuation[: t + 1]]
        rows.append(_query(made)(params, np.array([text]), np.array([[-1] * len(context) + [*range(t + 1)]])))
    return log_softmax(rows)


def agrees(found, wanted, continuation, tolerance=2e-5):
    gold = wanted[np.arange(len(continuation)), continuation]
    np.testing.assert_allclose(found.log_probs, gold, atol=tolerance, rtol=0)
    assert found.total == pytest.approx(gold.sum(), abs=tolerance * len(gold)) and found.tokens == len(continuation)
    assert found.is_greedy == (wanted.argmax(-1) == continuation).all()


def chosen(names, quick, slow):
    """The suite has an architecture for each way in which items are read, and the grid the others."""
    assert {*quick, *slow} <= {*names}
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow if name in slow else pytest.mark.grid)
        for name in names
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("name", chosen(DECODERS, ("gpt2", "t5_lm"), ("mistral",)))
def test_a_decoder_scores_as_token_by_token(name):
    """Contexts of unequal length, one of them empty; the prefix LM sees its context in both directions."""
    made, params, _, _ = given = network(name)
    found = loglikelihood(*given, CONTEXTS, CONTINUATIONS)
    assert found.truncated == 0
    for one, context, continuation in zip(found.items, CONTEXTS, CONTINUATIONS, strict=True):
        agrees(one, decoder_oracle(made, params, context or [BOS], continuation, name == "t5_lm"), continuation)


def test_the_greedy_continuation_is_known():
    made, params, _, _ = given = network("gpt2")
    text = texts(3)[0]
    for _ in range(2):
        text.append(int(decoder_oracle(made, params, text, [0])[0].argmax()))
    first, second = loglikelihood(*given, [text[:3]] * 2, [text[3:], [text[3], text[4] ^ 1]]).items
    assert first.is_greedy and not second.is_greedy


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_an_encoder_decoder_scores_its_target(name):
    made, params, _, _ = given = network(name)
    before, start = (
        ([], [0]) if name == "t5" else ([3], [EOS, 3])
    )  # BART: BOS around the text, the decoder starts from EOS
    found = loglikelihood(*given, CONTEXTS, CONTINUATIONS, form="plain").items
    for one, context, continuation in zip(found, CONTEXTS, CONTINUATIONS, strict=True):
        agrees(one, encoder_decoder_oracle(made, params, [*before, *context, EOS], start, continuation), continuation)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "umt5", "bart"])
def test_an_encoder_decoder_scores_a_span(name):
    """T5: the sentinel's span; UL2: with the mode token of the S-denoiser; BART: the rest of the restored text."""
    made, params, _, _ = given = network(name)
    found = loglikelihood(*given, CONTEXTS, CONTINUATIONS, form="span").items
    for one, context, continuation in zip(found, CONTEXTS, CONTINUATIONS, strict=True):
        if name == "bart":
            encoder, start = [3, *context, MASK, EOS], [EOS, 3, *context]
        else:
            encoder, start = [*[V - 20] * (name == "umt5"), *context, SENTINEL, EOS], [0, SENTINEL]
        agrees(one, encoder_decoder_oracle(made, params, encoder, start, continuation), continuation)
    if name == "t5":  # the default of an objective with sentinels
        by_default = loglikelihood(*given, CONTEXTS, CONTINUATIONS).items
        assert [one.total for one in by_default] == [one.total for one in found]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", chosen([name for name in ENCODERS if name != "xlnet"], ("bert", "electra"), ("albert", "deberta"))
)
def test_an_encoder_scores_each_token_from_all_others(name):
    """ELECTRA: its generator."""
    made, params, _, _ = given = network(name)
    found = loglikelihood(*given, CONTEXTS, CONTINUATIONS)
    for one, context, continuation in zip(found.items, CONTEXTS, CONTINUATIONS, strict=True):
        agrees(one, masked_oracle(made, params, context, continuation), continuation)


def test_by_words_later_tokens_of_the_word_are_masked_too():
    made, params, _, _ = given = network("bert")
    starts = np.zeros(V, bool)
    starts[100:110] = True
    continuation, words = [20, 100, 21, 22, 101], [0, 1, 1, 1, 2]
    (found,) = loglikelihood(*given, CONTEXTS[:1], [continuation], unit="word", word_starts=starts).items
    wanted = masked_oracle(made, params, CONTEXTS[0], continuation, words)
    agrees(found, wanted, continuation)
    (by_piece,) = loglikelihood(*given, CONTEXTS[:1], [continuation]).items
    same = np.abs(by_piece.log_probs - found.log_probs) < 1e-6
    assert same.tolist() == [True, False, False, True, True]


@pytest.mark.slow
def test_xlnet_scores_from_left_to_right_in_one_pass():
    made, params, _, _ = given = network("xlnet")
    found = loglikelihood(*given, CONTEXTS, CONTINUATIONS).items
    for one, context, continuation in zip(found, CONTEXTS, CONTINUATIONS, strict=True):
        agrees(one, permutation_oracle(made, params, context or [SEP], continuation), continuation)


def choices(*lengths, seed=7):
    """Three prompts with 3, 2 and 1 continuations of unequal length, in a mixed order: (contexts, continuations)."""
    first, second, third = texts(18, 23, 17, seed=seed)
    return [first, second, first, third, first, second], texts(*lengths, seed=seed + 1)


@pytest.mark.parametrize(
    "name", chosen([*DECODERS, "t5", "umt5", "bart"], ("gpt2", "t5_lm", "t5"), ("llama", "mistral", "bart"))
)
def test_continuations_of_one_context_share_it(name, monkeypatch):
    """The context, or the encoder's input, is read once; the scores are those of each row alone."""
    given, pairs, seen, run = network(name), choices(3, 1, 5, 2, 1, 4), [], batching.run
    monkeypatch.setattr(batching, "run", lambda *a: seen.append(dict(zip(a[1][-1], a[3:]))) or run(*a))
    found = loglikelihood(*given, *pairs).items
    (batch,), text = seen, pairs[0][0]
    read = batch.get("encoder_tokens", batch["tokens"]).ravel().tolist()
    times = sum(read[i : i + len(text)] == text for i in range(len(read)))
    in_row = ("t5_lm", "mistral", "decoder_only")  # their distances or windows are counted in the row
    assert times == (3 if name in in_row else 1)
    for one, context, continuation in zip(found, *pairs, strict=True):
        if given[0].config.family == "decoder":
            agrees(one, decoder_oracle(*given[:2], context, continuation, name == "t5_lm"), continuation)
            continue
        (alone,) = loglikelihood(*given, [context], [continuation]).items
        np.testing.assert_allclose(one.log_probs, alone.log_probs, atol=1e-5)
        assert one.is_greedy == alone.is_greedy


def test_a_long_choice_does_not_change_a_short_one():
    """longrope: the factors of a text are those of its own length, whatever shares its context or its row."""
    factors = {"rope_short_factors": (1.0, 1.0), "rope_long_factors": (2.0, 4.0), "rope_amplitude": 1.0}
    given = network("llama", rope_scaling="longrope", rope_original_positions=20, **factors)
    (context,), continuations = texts(18), texts(1, 2, 3, 4, 6)
    short, long = (given[0].with_model(rope_original_positions=n) for n in (64, 1))
    found = loglikelihood(*given, [context] * 5, continuations).items
    for one, continuation in zip(found, continuations, strict=True):
        made = long if len(context) + len(continuation) - 1 > 20 else short
        agrees(one, decoder_oracle(made, given[1], context, continuation), continuation)


@pytest.mark.parametrize(
    "name, options",
    [
        ("t5", {"experts": 4, "capacity": 1}),
        ("llama", {"experts": 4, "capacity_factor": 0.5, "min_capacity": 1, "group_rows": 4}),
    ],
)
def test_texts_do_not_compete_for_the_places_of_experts(name, options):
    """Rows share no capacity, whatever `group_rows` says, and a long row does not give a shorter one more places."""
    given = network(name, **options)
    contexts, continuations = choices(3, 1, 5, 2, 1, 4)
    contexts, continuations = [*contexts, texts(26)[0]], [*continuations, [12, 13]]
    unlimited = loglikelihood(*network(name, experts=4), contexts, continuations).items
    together = loglikelihood(*given, contexts, continuations).items
    for one, context, continuation in zip(together, contexts, continuations, strict=True):
        (alone,) = loglikelihood(*given, [context], [continuation]).items
        np.testing.assert_allclose(one.log_probs, alone.log_probs, atol=2e-5)
    changes = [abs(one.total - free.total) for one, free in zip(together, unlimited, strict=True)]
    assert max(changes) > 1e-3  # the capacity is still that of the model


def test_one_token_of_each_continuation_needs_one_pass():
    given, pairs = network("gpt2"), choices(1, 1, 1, 1, 1, 1)
    for one, context, continuation in zip(loglikelihood(*given, *pairs).items, *pairs, strict=True):
        agrees(one, decoder_oracle(*given[:2], context, continuation), continuation)


def test_many_continuations_of_one_context():
    """More than are scored together, one of them twice."""
    given, (context,), continuations = network("gpt2"), texts(20), texts(*[1 + n % 4 for n in range(19)], seed=2)
    continuations.append(continuations[3])
    found = loglikelihood(*given, [context] * 20, continuations).items
    for one, continuation in zip(found, continuations, strict=True):
        agrees(one, decoder_oracle(*given[:2], context, continuation), continuation)


def test_equal_masked_texts_are_read_once(monkeypatch):
    """The texts of a minimal pair differ in one token: with it masked they are one."""
    given, (text,) = network("bert"), texts(6)
    pair, rows = [text, [*text[:2], text[2] ^ 1, *text[3:]], text], []
    run = batching.run
    monkeypatch.setattr(batching, "run", lambda *a: rows.append((a[5].max(), np.count_nonzero(a[7]))) or run(*a))
    found = loglikelihood(*given, [[]] * 3, pair).items
    assert [sum(x) for x in zip(*rows)] == [11, 12]  # texts, targets
    for one, continuation in zip(found, pair, strict=True):
        agrees(one, masked_oracle(*given[:2], [], continuation), continuation)


def test_batches_and_their_order_change_nothing(monkeypatch):
    """Items of two buckets, in batches of two rows, are what they are token by token."""
    given = network("gpt2")
    contexts, continuations = texts(3, 20, 5, 18, 2, seed=3), texts(2, 3, 9, 1, 2, seed=4)
    monkeypatch.setitem(batching.MAX_TOKENS, "cpu", 64)
    together = loglikelihood(*given, contexts, continuations).items
    for one, context, continuation in zip(together, contexts, continuations, strict=True):
        agrees(one, decoder_oracle(*given[:2], context, continuation), continuation)
    assert [one.tokens for one in together] == [2, 3, 9, 1, 2]


def test_logits_of_a_batch_are_bounded(monkeypatch):
    """Rows are few where the vocabulary is large, and positions are projected one by one."""
    given = network("gpt2", mlp_dim=24)  # a network that no other test compiles
    monkeypatch.setattr(batching, "CHUNK_BYTES", 2 * 4 * V)
    monkeypatch.setattr("jaxpt.models.logits.LARGEST_CHUNK", 2 * 4 * V)
    shapes = []
    projection = type(given[0].bind(given[1]).output_projection())
    call = projection.__call__
    monkeypatch.setattr(projection, "__call__", lambda self, x, **a: shapes.append(x.shape) or call(self, x, **a))
    found = loglikelihood(*given, CONTEXTS, CONTINUATIONS).items
    assert shapes and all(np.prod(shape[:-1]) <= 2 for shape in shapes)
    monkeypatch.undo()
    for one, context, continuation in zip(found, CONTEXTS, CONTINUATIONS, strict=True):
        agrees(one, decoder_oracle(*given[:2], context or [BOS], continuation), continuation)


@pytest.mark.parametrize("name, room", [("gpt2", 33), ("bert", 30)])
def test_a_long_context_loses_its_beginning(name, room):
    """A decoder of 32 positions scores the 33rd token too; an encoder needs two for [CLS] and [SEP]."""
    given = network(name)
    context, continuation = texts(40, 3, seed=5)
    found = loglikelihood(*given, [context, context[:2]], [continuation] * 2)
    wanted = loglikelihood(*given, [context[-(room - 3) :]], [continuation])
    assert (found.truncated, wanted.truncated) == (1, 0)
    np.testing.assert_allclose(found.items[0].log_probs, wanted.items[0].log_probs, atol=1e-6)


def test_a_long_continuation_fits_or_is_refused():
    given = network("gpt2")
    context, continuation = texts(4, 32, seed=6)
    assert loglikelihood(*given, [context], [continuation]).truncated == 1
    with pytest.raises(UserError, match=r"continuation 1: 33 tokens .* 32 positions; at most 32 fit"):
        loglikelihood(*given, [context] * 2, [continuation, [*continuation, 9]])
    with pytest.raises(UserError, match="at most 30 fit"):
        loglikelihood(*network("bert"), [context], [continuation])
    with pytest.raises(UserError, match="at most 31 fit"):
        loglikelihood(*network("bart"), [context], [continuation])


def test_bad_input_is_one_line():
    given = network("gpt2")
    for contexts, continuations, message in [
        ([[5]], [[]], "continuation 0: has no tokens"),
        ([[5], [6]], [[7]], "2 contexts and 1 continuations"),
        ([[5]], [[V]], f"continuation 0: id {V} is not in the vocabulary of {V} ids"),
    ]:
        with pytest.raises(UserError, match=message):
            loglikelihood(*given, contexts, continuations)
    with pytest.raises(UserError, match="context 0: is empty, which needs a vocabulary with BOS or EOS"):
        loglikelihood(*given[:3], Vocabulary(V), [[]], [[7]])
    with pytest.raises(UserError, match="unit: word needs"):
        loglikelihood(*network("bert"), [[5]], [[7]], unit="word")
    for name, settings, words in (
        ("gpt2", {"form": "span"}, "form: is for encoder-decoders, and gpt2 is a decoder"),
        ("t5", {"unit": "word"}, "unit: is for encoders, and t5 is an encoder-decoder"),
        ("xlnet", {"unit": "word"}, "unit: word has no effect on xlnet, which is scored left to right"),
    ):
        with pytest.raises(UserError, match=words):
            loglikelihood(*network(name), [[5]], [[7]], **settings)
    with pytest.raises(UserError, match="form: span needs an objective that fills spans"):
        from jaxpt.objectives.seq2seq import Seq2Seq

        made, params, _, vocabulary = network("t5")
        loglikelihood(made, params, Seq2Seq(), vocabulary, [[5]], [[7]], form="span")


def test_a_discriminator_is_refused():
    made, params, objective, vocabulary = network("electra")
    alone = type(made)(made.model, {"replaced_token": made.heads["replaced_token"]})
    with pytest.raises(UserError, match=r"model.kind: electra is a discriminator"):
        loglikelihood(alone, params, objective, vocabulary, [[5]], [[7]])
    made, params, objective, vocabulary = network("bert")
    with pytest.raises(UserError, match=r"model.kind: bert has no masked-LM head here"):
        loglikelihood(type(made)(made.model), params, objective, vocabulary, [[5]], [[7]])


def test_one_context_of_several_continuations_alone_in_its_batch():
    """Its rows are copies of one row: a product with them was wrong on a CPU."""
    made, params, *rest = network("t5", layers=1)
    (context,), continuations = texts(12, seed=1), texts(2, 3, 1, seed=2)
    together = loglikelihood(made, params, *rest, [context] * 3, continuations).items
    for one, continuation in zip(together, continuations):
        (alone,) = loglikelihood(made, params, *rest, [context], [continuation]).items
        np.testing.assert_allclose(one.log_probs, alone.log_probs, atol=1e-5)


def test_progress_is_the_share_of_the_rows(monkeypatch):
    shares = []
    monkeypatch.setitem(batching.MAX_TOKENS, "cpu", 8)
    loglikelihood(*network("gpt2", layers=1), texts(*range(9, 29)), texts(*[2] * 20), progress=shares.append)
    assert len(shares) > 1 and shares == sorted(shares) and shares[-1] == 1


def test_no_items_give_none():
    assert loglikelihood(*network("gpt2"), [], []) == ([], 0)
