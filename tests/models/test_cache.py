"""Decoding with a cache gives what one call over all tokens gives, for each decoder."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models import cache
from jaxpt.models.cache import Cache, NewCache
from jaxpt.models.network import Network
from tests import grids
from tests.models.helpers import ALL, OTHERS, V, drawn, t5

MODELS = ALL | OTHERS | {
    "umt5": functools.partial(t5, bias_per_layer=True),
    "windows": functools.partial(OTHERS["decoder_only"], layers=5),  # (of 3, whole) twice, then one more of 3
}  # fmt: skip
DECODERS = ("gpt", "gpt2", "opt", "llama", "mistral", "windows", "t5_lm")
PAIRS = ("t5", "t5_old", "t5_shared", "umt5", "bart", "mbart")
B, T = 3, 20
LENGTHS = np.array([9, 4, 6])  # of the prompts
TOLERANCE = 2e-5  # float32, two orders of summation; 1.1e-5 at most was seen, of values up to 5


@functools.cache
def bound(name):
    model = MODELS[name]().build()
    return Network(model).bind({"model": drawn(model)})


@functools.cache
def tokens(seed=0):
    return np.random.default_rng(seed).integers(3, V, (B, T)).astype(np.int32)


@functools.cache
def texts(name):
    """(arguments, options) of `decode` besides the tokens: the hidden states of three texts of different length."""
    if name in DECODERS:
        return (), {}
    segments = (np.arange(7) < np.array([7, 5, 3])[:, None]).astype(np.int32)
    encode = bound(name).encode
    states = jax.jit(lambda ids: encode(ids, segment_ids=segments).hidden)(tokens(1)[:, :7])
    return (np.asarray(states),), {"encoder_segment_ids": segments}


def encoded(name, rows):
    return jax.tree.map(lambda x: x[rows], texts(name))


@functools.cache
def uncached(name):
    (given, options), decode = texts(name), bound(name).decode
    return np.asarray(jax.jit(lambda ids: decode(ids, *given, **options).hidden)(tokens()))


def prompts(rows=range(B), width=9):
    """Right-aligned prompts and their segment ids."""
    ids, segments = np.zeros((2, len(rows), width), np.int32)
    for i, row in enumerate(rows):
        ids[i, width - LENGTHS[row] :] = tokens()[row, : LENGTHS[row]]
        segments[i, width - LENGTHS[row] :] = 1
    return ids, segments


@functools.cache
def filling(name, slots, chunk=1):
    decode = bound(name).decode

    @jax.jit
    def run(ids, segments, given, options):
        return decode(ids, *given, segment_ids=segments, cache=NewCache(slots, chunk), **options)

    return run


def prefill(name, slots, rows=range(B), chunk=1):
    return filling(name, slots, chunk)(*prompts(rows), *encoded(name, np.array(rows)))


@functools.cache
def step(name):
    decode, none = bound(name).decode, () if name in DECODERS else (None,)
    return jax.jit(lambda ids, cache: decode(ids, *none, cache=cache))


def follow(name, cache, at, count, width=1):
    """Feeds `count` further columns of the rows, the first at `at` [B]; compares with the uncached states."""
    for start in range(0, count, width):
        columns = at[:, None] + start + np.arange(width)
        output = step(name)(np.take_along_axis(tokens(), columns, 1), cache)
        want = np.take_along_axis(uncached(name), columns[..., None], 1)
        np.testing.assert_allclose(output.hidden, want, atol=TOLERANCE)
        cache = output.cache
    return cache


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(DECODERS + PAIRS, "gpt", "opt", "windows", "t5_shared", "mbart"))
def test_steps_with_a_cache_equal_one_call(name):
    """Prompts of 9, 4 and 6 tokens, then ten tokens each; the rings of layers with a window of 3 turn often."""
    output = prefill(name, slots=4 if name == "mistral" else T)  # all of Mistral's layers have the window
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(output.hidden[row, 9 - length :], uncached(name)[row, :length], atol=TOLERANCE)
    made = follow(name, output.cache, LENGTHS, 10)
    assert made.length_B.tolist() == (LENGTHS + 10).tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("name", grids.cases(["gpt2", "llama", "t5", "umt5"], "llama", "t5", "umt5"))
def test_the_ring_turns(name):
    """16 slots for 9 columns of prompts and ten steps: rows of up to 16 tokens, the first slots are used again."""
    follow(name, prefill(name, slots=16).cache, LENGTHS, 6)
    short = np.array([1, 2])  # rows 1 and 2 have room for more, row 0 is full
    made = prefill(name, slots=16).cache
    for start in range(10):
        columns = (LENGTHS + start)[:, None]
        output = step(name)(np.take_along_axis(tokens(), columns, 1), made)
        want = np.take_along_axis(uncached(name), columns[..., None], 1)
        np.testing.assert_allclose(output.hidden[short], want[short], atol=TOLERANCE)
        made = output.cache
    assert np.abs(output.hidden[0] - want[0]).max() > 1e-3  # 19 tokens do not fit into 16 slots


@pytest.mark.gpu
@pytest.mark.parametrize("name", grids.cases(["gpt2", "mistral", "windows", "t5_lm", "bart"], "windows", "t5_lm"))
def test_several_tokens_at_once(name):
    """Chunks of five tokens: causal among themselves, over the end of the ring."""
    follow(name, prefill(name, 19, chunk=5).cache, LENGTHS, 10, width=5)


def test_more_tokens_than_a_window_has_room_for_are_refused():
    made = jax.eval_shape(filling("mistral", T, 4), *prompts(), *texts("mistral")).cache
    with pytest.raises(ValueError, match=r"5 tokens at once, .* ask for NewCache\(chunk=5\)"):
        jax.eval_shape(step("mistral"), jax.ShapeDtypeStruct((B, 5), jnp.int32), made)


@pytest.mark.gpu
@pytest.mark.parametrize("name", grids.cases(["gpt2", "llama", "t5_lm"], "llama", "t5_lm"))
def test_packed_rows(name):
    """Two segments in a row, in two calls: the second call goes on in the second segment of each row."""
    ids, segments = tokens(), np.repeat([[1] * 6 + [2] * 14], B, 0)
    positions = np.repeat([[*range(6), *range(14)]], B, 0)
    decode = bound(name).decode

    @jax.jit
    def run(ids, segments, positions):
        part = {"segment_ids": segments[:, :11], "positions": positions[:, :11]}
        rest = {"segment_ids": segments[:, 11:], "positions": positions[:, 11:]}
        first = decode(ids[:, :11], **part, cache=NewCache(24))
        second = decode(ids[:, 11:], **rest, cache=first.cache)
        whole = decode(ids, segment_ids=segments, positions=positions).hidden
        return jnp.concatenate([first.hidden, second.hidden], 1), whole

    np.testing.assert_allclose(*run(ids, segments, positions), atol=TOLERANCE)


put_rows = jax.jit(Cache.put_rows)


@functools.cache
def step_of_rows(name):
    """A step of other rows of the cache."""
    return jax.jit(lambda ids, cache, order: step(name)(ids, cache.take_rows(order)))


@pytest.mark.parametrize("name", grids.cases(["gpt2", "t5", "mistral", "windows"], "t5", "windows"))
def test_rows_are_replaced_and_repeated(name):
    """After three steps row 1 gets a new prompt, of row 0; then rows are reordered."""
    made = follow(name, prefill(name, 16).cache, LENGTHS, 3)
    new = prefill(name, 9, rows=[0, 2]).cache
    made = put_rows(made, np.array([1, B]), new)  # the second row is dropped
    source, at = np.array([0, 0, 2]), LENGTHS + 3
    at[1] = LENGTHS[0]
    # First more rows: the encoder's are repeated too; then as many: rows of one prompt are exchanged.
    for order in (np.array([1, 2, 1, 0]), np.array([2, 1, 0, 3])):
        source, at = source[order], at[order]
        columns = at[:, None]
        output = step_of_rows(name)(tokens()[source[:, None], columns], made, order)
        np.testing.assert_allclose(output.hidden, uncached(name)[source[:, None], columns], atol=TOLERANCE)
        made, at = output.cache, at + 1


@pytest.mark.parametrize("name", grids.cases(["gpt2", "llama", "t5", "bart"], "llama", "t5"))
def test_keys_and_values_in_one_array(name, monkeypatch):
    """A TPU's layout for narrow heads, on this machine."""
    monkeypatch.setattr(cache.compiler, "platform", lambda: "tpu")
    (given, options), decode, none = texts(name), bound(name).decode, () if name in DECODERS else (None,)

    @jax.jit  # traced here and now: the platform is part of the trace
    def run(ids, segments, following):
        output = decode(ids, *given, segment_ids=segments, cache=NewCache(16), **options)
        return output.cache.layers[0][0]["attention"], decode(following, *none, cache=output.cache).hidden

    kv, hidden = run(*prompts(), np.take_along_axis(tokens(), LENGTHS[:, None], 1))
    assert kv.values is None
    want = np.take_along_axis(uncached(name), LENGTHS[:, None, None], 1)
    np.testing.assert_allclose(hidden, want, atol=TOLERANCE)


def filled(name):
    """Shapes of a cache of 16 slots."""
    return jax.eval_shape(filling(name, 16), *prompts(), *texts(name)).cache


def test_the_cache_has_a_slot_for_each_head_and_layer():
    """[layers, batch, key heads, slots, head width]."""
    kv = filled("llama").layers[0][0]["attention"]
    assert kv.keys.shape == kv.values.shape == (2, B, 2, 16, 4)


def test_a_layer_with_a_window_has_no_more_slots_than_that():
    (pair, (last,)) = filled("windows").layers
    assert [block["attention"].keys.shape for block in pair] == [(2, B, 2, 3, 4), (2, B, 2, 16, 4)]
    assert last["attention"].keys.shape == (1, B, 2, 3, 4)


@pytest.mark.gpu
def test_a_step_updates_the_cache_in_place():
    """The donated cache is the result's memory, and no instruction of the program copies it."""
    made, decode = filled("gpt2"), bound("gpt2").decode
    run = jax.jit(lambda ids, cache: decode(ids, cache=cache), donate_argnums=1)
    compiled = run.lower(jnp.zeros((B, 1), jnp.int32), made).compile()
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(made.layers))
    assert compiled.memory_analysis().alias_size_in_bytes >= size
    shape = "f32[" + ",".join(map(str, made.layers[0][0]["attention"].keys.shape)) + "]"
    copies = [line for line in compiled.as_text().splitlines() if f"= {shape}" in line and " copy(" in line]
    assert not copies, copies
