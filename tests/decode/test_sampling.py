"""Draws: their distribution, what they depend on, greedy choices and log-probabilities."""

import doctest
import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy import stats

from jaxpt.decode import sampling
from jaxpt.decode.logits import History
from jaxpt.decode.options import Options
from jaxpt.decode.sampling import argmax, choose, gumbel, row_keys
from tests import grids
from tests.decode import oracle

DRAWS = 50_000
P_VALUE = 1e-3
"""Smallest p-value of χ² that passes; the seeds are fixed, so a test passes always or never."""
TEXT, PROMPT = [0, 1, 2, 0, 1, 3, 3, 0, 1], 5

pick = functools.partial(jax.jit, static_argnames="options")(choose)


def history(rows, text=TEXT, prompt=PROMPT, width=None):
    tokens = np.zeros((rows, width or len(text)), np.int32)
    tokens[:, : len(text)] = text
    return History(tokens, np.full(rows, len(text), np.int32), np.full(rows, prompt, np.int32))


@functools.partial(jax.jit, static_argnums=0)
def keys(rows, seed=0, first=0, sample=0):
    return row_keys(seed, first + jnp.arange(rows), jnp.full(rows, sample))


def chi_square(counts, probabilities):
    """p-value of counts; tokens of fewer than 5 expected draws are one cell."""
    expected = probabilities * counts.sum()
    rare = expected < 5
    cells = np.append(counts[~rare], counts[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    observed, expected = (cell[cells[1] > 0] for cell in cells)
    return stats.chisquare(observed, expected).pvalue if len(expected) > 1 else 1.0


FILTERS = {
    "plain": {},
    "temperature_low": {"temperature": 0.5},
    "temperature_high": {"temperature": 3.0},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.7},
    "top_k_top_p": {"top_k": 10, "top_p": 0.8},
    "temperature_top_k_top_p_min_p": {"temperature": 1.7, "top_k": 16, "top_p": 0.95, "min_p": 0.02},
    "top_p_typical": {"top_p": 0.95, "typical_p": 0.8},
    "penalties_top_p": {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3, "top_p": 0.95},
    "bans_top_k": {"no_repeat_ngram": 3, "bad_words": ((5,), (1, 6)), "min_length": 20, "eos": (7,), "top_k": 12},
}


def distribution(options):
    return oracle.softmax(oracle.processed(oracle.logits()[0] / 2, TEXT, PROMPT, options))


# What each filter excludes, and what penalties and bans change, is shown by test_logits.py.
@pytest.mark.gpu
@pytest.mark.parametrize("name", grids.cases(FILTERS, "plain", "temperature_top_k_top_p_min_p", "bans_top_k"))
def test_draws_follow_the_filtered_distribution(name):
    """χ² over 50,000 draws against the distribution in float64; what is excluded is never drawn."""
    options = Options(**{"temperature": 1.0} | FILTERS[name])
    x = np.broadcast_to(oracle.logits()[0] / 2, (DRAWS, oracle.V))
    tokens = pick(x, history(DRAWS), options, keys(DRAWS, seed=11)).token_B
    counts = np.bincount(tokens, minlength=oracle.V)
    wanted = distribution(options)
    assert counts[wanted == 0].sum() == 0
    assert len(counts) == oracle.V and counts.sum() == DRAWS
    assert chi_square(counts, wanted) > P_VALUE
    # The test has power: a distribution in which one token is a tenth too likely fails.
    other = wanted * np.where(np.arange(oracle.V) == wanted.argmax(), 1.1, 1)
    assert chi_square(counts, other / other.sum()) < P_VALUE


@pytest.mark.parity
@pytest.mark.parametrize("name", FILTERS)
def test_the_distribution_is_that_of_transformers(name):
    pytest.importorskip("transformers")
    absent = ("presence_penalty", "frequency_penalty")  # from Transformers
    options = Options(
        **{"temperature": 1.0} | {key: value for key, value in FILTERS[name].items() if key not in absent}
    )
    theirs = oracle.softmax(oracle.transformers(oracle.logits()[0] / 2, TEXT, PROMPT, options).astype(np.float64))
    np.testing.assert_allclose(distribution(options), theirs, rtol=1e-5)


THREE = (0.0, 1.0, 0.5)


@jax.jit
def drawn(seed, row, sample, position):
    """A draw from three tokens for each of some keys."""
    keys_B = jax.vmap(lambda seed, row, sample: row_keys(seed, row[None], sample[None])[0])(seed, row, sample)
    rows = len(seed)
    past = History(jnp.zeros((rows, 4), jnp.int32), position, jnp.ones(rows, int))
    return choose(jnp.broadcast_to(jnp.array(THREE), (rows, 3)), past, Options(temperature=1.0), keys_B).token_B


@pytest.mark.gpu
@pytest.mark.parametrize("axis", ["seed", "row", "sample", "position"])
def test_draws_of_other_seeds_rows_samples_and_positions_are_independent(axis):
    """χ² of 50,000 pairs of draws whose keys differ in one of the four, against the product of their distributions."""
    numbers = np.arange(DRAWS)

    def draw(value):
        parts = dict.fromkeys(("seed", "row", "sample"), numbers * 0) | {"position": numbers * 0 + 1}
        parts["row" if axis != "row" else "seed"] = numbers
        parts[axis] = parts[axis] + value
        return np.asarray(drawn(**parts))

    pairs = np.bincount(draw(0) * 3 + draw(1), minlength=9)
    single = oracle.softmax(np.array(THREE))
    assert chi_square(pairs, np.outer(single, single).ravel()) > P_VALUE


@pytest.mark.gpu
def test_a_draw_depends_on_seed_row_sample_and_position_alone():
    """The same in batches of 1 and 16, in any order of rows, in wider histories and among padding of the vocabulary."""
    options = Options(temperature=1.0, top_p=0.95, scores=True)
    x = np.tile(oracle.logits() / 2, (4, 1))
    together = jax.device_get(pick(x, history(16), options, keys(16, seed=3)))
    for row in range(16):
        alone = pick(x[row : row + 1], history(1), options, keys(1, seed=3, first=row))
        jax.tree.map(lambda a, b, row=row: np.testing.assert_array_equal(a[0], b[row]), jax.device_get(alone), together)
    back = pick(x[::-1], history(16), options, keys(16, seed=3)[::-1])
    np.testing.assert_array_equal(np.asarray(back.token_B)[::-1], together.token_B)
    wide = pick(x, history(16, width=64), options, keys(16, seed=3))
    np.testing.assert_array_equal(wide.token_B, together.token_B)
    padded = np.pad(x, ((0, 0), (0, 40)), constant_values=-1e9)
    np.testing.assert_array_equal(pick(padded, history(16), options, keys(16, seed=3)).token_B, together.token_B)
    assert len(set(together.token_B.tolist())) > 3


@pytest.mark.gpu
def test_the_draws_of_a_seed_stay():
    """Golden: the draws of jax 0.10 on a CPU. A change would give users other samples for the same seed."""
    x = np.zeros((4, 1000), np.float32)
    assert pick(x, history(4), Options(temperature=1.0), keys(4, seed=5)).token_B.tolist() == [114, 259, 305, 623]


@pytest.mark.parametrize("rows, columns", grids.cases([(2, 4), (8, 1), (1, 8)], (2, 4)))
def test_draws_are_the_same_on_a_mesh(rows, columns):
    """Rows and vocabulary sharded over devices; each device draws its shard of the noise."""
    options = Options(temperature=0.9, top_k=100, top_p=0.95, min_p=1e-3, scores=True)
    x = np.random.default_rng(0).normal(0, 2, (16, 512)).astype(np.float32)
    want = pick(x, history(16), options, keys(16))
    mesh = jax.make_mesh((rows, columns), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), nn.logical_axis_rules([("batch", "data"), ("act_vocab", "tensor")]):
        placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data", "tensor")))
        past, row_keys_B = jax.device_put((history(16), keys(16)), NamedSharding(mesh, PartitionSpec("data")))
        program = pick.lower(placed, past, options, row_keys_B).compile()
        got = program(placed, past, row_keys_B)
    np.testing.assert_array_equal(got.token_B, want.token_B)
    np.testing.assert_allclose(got.logprob_B, want.logprob_B, rtol=1e-5, atol=1e-6)
    if columns > 1:
        assert not re.search(r"\[(\d+,)?512\]", program.as_text())


@pytest.mark.gpu
def test_greedy_takes_the_first_of_the_most_likely():
    x = np.array([[1.0, 3.0, 3.0], [5.0, -np.inf, 4.0], [-9.0, -8.0, -7.0]], np.float32)
    choice = pick(x, history(3, [0], 1), Options())
    assert choice.token_B.tolist() == [1, 0, 2] and choice.token_B.dtype == jnp.int32
    assert choice.logprob_B is None
    banned = pick(x, history(3, [0], 1), Options(bad_words=((1,),)))
    assert banned.token_B.tolist() == [2, 0, 2]
    assert jax.jit(argmax)(np.array([[np.nan, 1.0], [-np.inf, -np.inf]], np.float32)).tolist() == [1, 0]
    big = np.random.default_rng(0).normal(size=(5, 999)).astype(np.float32).round(1)
    np.testing.assert_array_equal(jax.jit(argmax)(big), big.argmax(-1))


@pytest.mark.gpu
def test_a_single_token_that_is_left_is_always_drawn():
    options = Options(temperature=1.0)
    x = np.full((DRAWS, oracle.V), -np.inf, np.float32)
    x[:, 5] = 3
    assert (pick(x, history(DRAWS), options, keys(DRAWS)).token_B == np.full(DRAWS, 5)).all()
    x = np.broadcast_to(oracle.logits()[0], (4000, oracle.V))
    tokens = np.asarray(pick(x, history(4000), Options(temperature=1.0, top_k=1), keys(4000)).token_B)
    assert (tokens == oracle.logits()[0].argmax()).all()


@pytest.mark.gpu
def test_the_noise_has_the_distribution_of_gumbel_and_no_ties(monkeypatch):
    noise = np.asarray(jax.jit(gumbel, static_argnums=2)(keys(64), np.arange(64), 4096)).ravel()
    assert np.isfinite(noise).all()
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > P_VALUE
    # Of bits at both ends: neither infinite, nor cut where 23 bits would (at 16).
    ends = np.array([0, 2**32 - 1, 2**31], np.uint32)
    monkeypatch.setattr(jax.random, "bits", lambda *_: jnp.asarray(ends))
    np.testing.assert_allclose(
        jax.jit(lambda keys_B: gumbel(keys_B, np.arange(1), 3))(keys(1))[0],
        [33 * np.log(2), -np.log(24 * np.log(2)), -np.log(np.log(2))],
        rtol=1e-6,
    )


@pytest.mark.gpu
def test_log_probabilities_are_of_the_model_whatever_the_options():
    options = Options(temperature=0.7, top_p=0.9, repetition_penalty=1.5, scores=True)
    x = oracle.logits()[0] / 2
    choice = pick(np.tile(x, (50, 1)), history(50), options, keys(50))
    tokens = np.asarray(choice.token_B)
    logprobs = np.log(oracle.softmax(x.astype(float)))
    np.testing.assert_allclose(choice.logprob_B, logprobs[tokens], rtol=1e-5)
    greedy = pick(x[None], history(1), Options(scores=True, bad_words=((int(x.argmax()),),)))
    np.testing.assert_allclose(greedy.logprob_B, np.sort(logprobs)[-2:-1], rtol=1e-5)
    half = pick(x[None].astype(jnp.bfloat16), history(1), Options(scores=True))
    assert half.logprob_B.dtype == jnp.float32


@pytest.mark.gpu
def test_a_compiled_loop_generates_row_by_row():
    """In `lax.while_loop`, with rows of unequal prompts: what each row gives in a plain loop of its own."""
    options = Options(
        max_new_tokens=6, temperature=0.8, top_k=9, no_repeat_ngram=2, repetition_penalty=1.2, eos=(3,),
        min_new_tokens=4, forced_last=3, bad_words=((4, 5),),
    )  # fmt: skip
    table = np.random.default_rng(1).normal(0, 2, (oracle.V, oracle.V)).astype(np.float32)

    def step(past, keys_B):
        rows = jnp.arange(past.length_B.shape[0])
        token_B = choose(jnp.asarray(table)[past.tokens_BxT[rows, past.length_B - 1]], past, options, keys_B).token_B
        tokens = past.tokens_BxT.at[rows, past.length_B].set(token_B)
        return past.replace(tokens_BxT=tokens, length_B=past.length_B + 1)

    prompts = [[1, 2, 3], [7], [0, 4, 0, 4, 9]]
    tokens = np.zeros((3, 12), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts])

    @jax.jit
    def run(past, keys_B):
        return jax.lax.while_loop(lambda p: (p.length_B - p.prompt_B < 6).all(), lambda p: step(p, keys_B), past)

    out = run(History(tokens, lengths, lengths), keys(3, seed=2))
    one_token = jax.jit(step)
    for row, prompt in enumerate(prompts):
        past = history(1, prompt, len(prompt), width=20)
        for _ in range(6):
            past = one_token(past, keys(1, seed=2, first=row))
        text = past.tokens_BxT[0, : len(prompt) + 6].tolist()
        assert out.tokens_BxT[row, : len(prompt) + 6].tolist() == text
        assert text[-1] == 3 and 3 not in text[len(prompt) : len(prompt) + 4]
    assert out.length_B.tolist() == [9, 7, 11]


def test_examples():
    assert doctest.testmod(sampling).failed == 0
