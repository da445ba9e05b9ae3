"""Processors of logits against Transformers and against loops in float64, and what they cost."""

import dataclasses
import functools
import json
import re

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpt.decode import logits as processors
from jaxpt.decode.logits import History, process
from jaxpt.decode.options import Options
from tests import grids
from tests.decode import oracle

EVERYTHING = Options(**oracle.CASES["all"], presence_penalty=0.4, frequency_penalty=-0.3)
apply = functools.partial(jax.jit, static_argnames="options")(process)


def history(tokens_BxT=None, length_B=oracle.LENGTH, prompt_B=oracle.PROMPT):
    tokens_BxT = oracle.tokens() if tokens_BxT is None else tokens_BxT
    return History(*(np.asarray(x, np.int32) for x in (tokens_BxT, length_B, prompt_B)))


def compare(got, want):
    """The same tokens are excluded, and the others' logits are equal to the rounding of float32."""
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", oracle.CASES)
def test_equal_to_what_transformers_gave(name):
    """golden.json says how it was made; `python -m tests.decode.oracle` makes it again."""
    golden = np.array(json.loads(oracle.GOLDEN.read_text())[name], np.float64)
    golden[np.isnan(golden)] = -np.inf
    compare(apply(oracle.logits(), history(), options=Options(**oracle.CASES[name])), golden)


def drawn(seed):
    """Random logits, histories of unequal lengths with many repetitions, and options, each on with probability ½."""
    rng = np.random.default_rng(seed)
    rows, vocabulary, width = 6, int(rng.integers(20, 200)), int(rng.integers(1, 30))
    length = rng.integers(1, width + 1, rows)
    length[0] = 1
    prompt = np.minimum(rng.integers(1, width + 1, rows), length)
    maximum = int(rng.integers(1, 6))
    words = tuple(tuple(map(int, rng.integers(0, 3, size))) for size in (1, 2, 2, 2, 3, 3, 3, 4, 4))
    candidates = {
        "repetition_penalty": rng.uniform(0.5, 2), "no_repeat_ngram": int(rng.integers(1, 5)),
        "min_length": int(rng.integers(1, width + 2)), "min_new_tokens": int(rng.integers(1, maximum + 1)),
        "eos": ((5,), (0, 7, 9))[rng.integers(2)], "bad_words": words, "forced_first": int(rng.integers(vocabulary)),
        "forced_last": int(rng.integers(vocabulary)), "max_new_tokens": maximum,
        "suppress": tuple(map(int, rng.integers(vocabulary, size=3))),
        "suppress_first": tuple(map(int, rng.integers(vocabulary, size=2))),
    }  # fmt: skip
    filters = {
        "top_k": int(rng.integers(1, 40)), "top_p": rng.uniform(0.05, 1), "min_p": rng.uniform(0, 0.3),
        "typical_p": rng.uniform(0.05, 0.99),
    }  # fmt: skip
    given = {name: value for name, value in candidates.items() if rng.random() < 0.5 or name == "max_new_tokens"}
    if given.get("min_new_tokens", 0) > given["max_new_tokens"]:
        del given["min_new_tokens"]
    forced = {given.get("forced_first"), given.get("forced_last")}
    given |= {name: tuple(i for i in ids if i not in forced) for name, ids in given.items() if "suppress" in name}
    if rng.random() < 0.7:
        given["temperature"] = rng.uniform(0.3, 2)
        given |= {name: value for name, value in filters.items() if rng.random() < 0.5}
    logits = rng.normal(0, rng.uniform(0.5, 5), (rows, vocabulary)).astype(np.float32)
    tokens = rng.integers(0, 3, (rows, width))
    return logits, history(tokens, length, prompt), Options(**given)


def by_row(function, logits_BxV, history, options):
    """A function of single rows, each without the columns behind its text."""
    texts = [text[:length] for text, length in zip(np.asarray(history.tokens_BxT).tolist(), history.length_B)]
    rows = zip(np.asarray(logits_BxV), texts, np.asarray(history.prompt_B).tolist())
    return np.stack([function(x, text, prompt, options) for x, text, prompt in rows])


@pytest.mark.gpu
@pytest.mark.parametrize("seed", grids.seeds(4, 24))
def test_any_combination_is_that_of_loops_in_float64(seed):
    logits, past, options = drawn(seed)
    compare(apply(logits, past, options=options), by_row(oracle.processed, logits, past, options))


@pytest.mark.gpu
@pytest.mark.parametrize("presence, frequency", [(0.7, 0.0), (0.0, 0.4), (-0.5, 0.3)])
def test_presence_and_frequency_penalties_count_generated_tokens_alone(presence, frequency):
    options = Options(presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=1.3)
    x = oracle.logits()
    got = apply(x, history(), options=options)
    compare(got, by_row(oracle.processed, x, history(), options))
    # By hand, without the repetition penalty: row 0 has generated 1, 2, 2 of ids 0 1 2 after its prompt 0 0 1 0 2.
    past = history([[0, 0, 1, 0, 2, 1, 2, 2]], [8], [5])
    got = jax.jit(processors.occurrence_penalties)(np.zeros((1, 4), np.float32), past, presence, frequency)
    np.testing.assert_allclose(got, [[0, -presence - frequency, -presence - 2 * frequency, 0]], rtol=1e-6)


@pytest.mark.parity
def test_equal_to_transformers_live():
    """Every case, and random combinations in which everything is on: the same tokens, the same values."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    for given in oracle.CASES.values():
        options = Options(**given)
        compare(
            apply(oracle.logits(), history(), options=options),
            by_row(oracle.transformers, oracle.logits(), history(), options),
        )
    on = set()
    for seed in range(12):
        options = equal_to_transformers(seed)
        on |= {name for name, value in dataclasses.asdict(options).items() if value != getattr(Options, name)}
    assert on >= {name for given in oracle.CASES.values() for name in given}


def equal_to_transformers(seed):
    logits, past, options = drawn(seed)
    compare(apply(logits, past, options=options), by_row(oracle.transformers, logits, past, options))
    return options


@pytest.mark.parity
@pytest.mark.parametrize("seed", grids.seeds(0, 150))
def test_any_combination_is_that_of_transformers(seed):
    pytest.importorskip("transformers")
    equal_to_transformers(seed)


def at_a_large_vocabulary(seed):
    rng = np.random.default_rng(seed)
    given = [{"top_k": int(rng.integers(1, 50_257))}, {"top_p": 0.97}, {"min_p": 1e-3}, {"typical_p": 0.9}][seed % 4]
    logits = rng.normal(0, 3, (3, 50_257)).astype(np.float32)
    return logits, history(np.zeros((3, 2)), [1, 2, 2], [1, 1, 2]), Options(temperature=0.9, **given)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", grids.seeds(4, 8))
def test_filters_of_a_large_vocabulary_are_those_of_sorts_in_float64(seed):
    logits, past, options = at_a_large_vocabulary(seed)
    compare(apply(logits, past, options=options), by_row(oracle.processed, logits, past, options))


@pytest.mark.parity
@pytest.mark.parametrize("seed", grids.seeds(4, 16))
def test_filters_of_a_large_vocabulary_are_those_of_transformers(seed):
    """All tokens but one of a row, where Transformers' running sum in float32 misses p by a token on some CPUs."""
    pytest.importorskip("transformers")
    logits, past, options = at_a_large_vocabulary(seed)
    got = apply(logits, past, options=options)
    differing = np.isneginf(got) != np.isneginf(by_row(oracle.transformers, logits, past, options))
    assert differing.sum(axis=1).max() <= (1 if options.top_p or options.typical_p else 0)
    compare(got, by_row(oracle.processed, logits, past, options))


@pytest.mark.gpu
@pytest.mark.parametrize("garbage", [0, 22, 23, 10**6, -1, -(2**31)])
def test_columns_behind_a_text_never_matter(garbage):
    """Whatever the id is there, also one that the text has not, and however many columns there are."""
    x, length = oracle.logits(), oracle.LENGTH[:, None]
    wide = np.full((4, oracle.T + 7), garbage)
    wide[:, : oracle.T] = np.where(np.arange(oracle.T) < length, oracle.tokens(), garbage)
    for given in (
        {"repetition_penalty": 2.0}, {"presence_penalty": 1.0}, {"frequency_penalty": 1.0}, {"no_repeat_ngram": 1},
        {"no_repeat_ngram": 2}, {"bad_words": ((0, 5), (22, 6), (23, 6), (1, 0, 7))},
    ):  # fmt: skip
        options = Options(**given)
        compare(apply(x, history(wide), options=options), by_row(oracle.processed, x, history(), options))


@pytest.mark.gpu
def test_other_rows_never_matter():
    x, past = oracle.logits(), history()
    want = apply(x, past, options=EVERYTHING)
    for row in range(4):
        alone = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], past)
        np.testing.assert_array_equal(apply(x[row : row + 1], alone, options=EVERYTHING), want[row : row + 1])


def test_a_text_that_is_shorter_than_an_n_gram_or_a_bad_word_completes_none():
    past, words = history([[1, 1, 1, 1]], [1], [1]), ((1, 1, 4), (1, 1, 1, 3), (1, 2))

    @jax.jit
    def run(x, past):
        ngrams = [processors.no_repeat_ngram(x, past, size) for size in (2, 3, 4, 5, 9)]
        return processors.bad_words(x, past, words), ngrams

    banned, ngrams = run(np.zeros((1, 5), np.float32), past)
    assert banned.tolist() == [[0, 0, -np.inf, 0, 0]]
    assert [x.tolist() for x in ngrams] == [[[0] * 5]] * 5


def kept(function, logits, value):
    """The tokens that a filter keeps."""
    got = jax.jit(function, static_argnums=1)(np.asarray([logits], np.float32), value)
    return np.flatnonzero(~np.isneginf(got[0])).tolist()


@pytest.mark.gpu
def test_ties_are_kept_together():
    x = [1.0, 3.0, 2.0, 2.0, -0.0, 0.0, -np.inf, -5.0]
    assert [kept(processors.top_k, x, k) for k in (1, 2, 3)] == [[1], [1, 2, 3], [1, 2, 3]]
    assert [kept(processors.top_k, x, k) for k in (5, 6)] == [[0, 1, 2, 3, 4, 5]] * 2
    assert [kept(processors.top_k, x, k) for k in (7, 8, 99)] == [[*range(6), 7]] * 3
    assert kept(processors.top_p, [0] * 4, 0.3) == [0, 1, 2, 3]
    assert kept(processors.top_p, np.log([0.5, 0.25, 0.25]), 0.6) == [0, 1, 2]
    assert kept(processors.typical, np.log([0.2, 0.2, 0.6]), 0.3) == [2]
    assert kept(processors.typical, np.log([0.2, 0.2, 0.6]), 0.7) == [0, 1, 2]
    assert kept(processors.min_p, x, 1.0) == [1]


@pytest.mark.gpu
@pytest.mark.parametrize("x", [1.0, -1.0, 3e38, -3e38, 1e-30, -1e-30, 7.3, -123.4])
def test_thresholds_are_exact_to_the_last_bit(x):
    """Of neighbouring float32 the larger is kept, whatever their sign and exponent."""
    larger = np.float32(x)
    smaller = np.nextafter(larger, np.float32(-np.inf))
    for function, value in ((processors.top_k, 1), (processors.top_p, 0.3)):
        assert kept(function, [smaller, larger, smaller], value) == [1]


@pytest.mark.gpu
@pytest.mark.parametrize("p", [1e-9, 0.5, 0.999999])
def test_filters_at_extreme_logits(p):
    """All but one excluded, spans of 1e30, equal logits, subnormal differences: at least one token is left."""
    rows = np.array([
        [-np.inf, 4.0, -np.inf, -np.inf], [1e30, -1e30, 3.0, 2.0], [7.0] * 4, [0.0, 1e-40, -1e-40, -0.0],
        [-1e9, -1e9, -100.0, -101.0],
    ], np.float32)  # fmt: skip
    of_p = (processors.top_p, processors.typical, processors.min_p)
    for function, value in (*((function, p) for function in of_p), (processors.top_k, 1)):
        got = np.asarray(jax.jit(function, static_argnums=1)(rows, value))
        assert (~np.isneginf(got)).any(-1).all() and not np.isnan(got).any()
        assert (np.isneginf(got) | (got == rows)).all()
        assert got[0, 1] == 4.0


def test_a_processor_that_is_off_costs_nothing_and_none_sorts():
    x, past = oracle.logits(), history()
    assert not jax.make_jaxpr(lambda x, h: process(x, h, Options()))(x, past).eqns
    off = Options(temperature=1.0, top_p=1.0, min_p=0.0, eos=(3,), min_length=0)
    assert not jax.make_jaxpr(lambda x, h: process(x, h, off))(x, past).eqns
    written = str(jax.make_jaxpr(lambda x, h: process(x, h, EVERYTHING))(x, past))
    assert "scatter" in written
    assert not re.search(r"\b(sort|top_k|cumsum|approx_top_k)\b", written)


@pytest.mark.slow
def test_sharded_rows_and_vocabulary_give_the_same():
    """On 2 × 4 devices: the same values, and no device gathers the vocabulary."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3, (4, 512)).astype(np.float32)
    want = apply(x, history(), options=EVERYTHING)
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), nn.logical_axis_rules([("batch", "data"), ("act_vocab", "tensor")]):
        placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data", "tensor")))
        past = jax.device_put(history(), NamedSharding(mesh, PartitionSpec("data")))
        program = apply.lower(placed, past, options=EVERYTHING).compile()
        got = program(placed, past)
    compare(got, want)
    shapes = re.findall(r"f32\[(\d+),(\d+)\]", program.as_text())
    assert max(int(rows) * int(columns) for rows, columns in shapes) == 4 * 512 // 8
