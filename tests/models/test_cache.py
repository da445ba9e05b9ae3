"""Decoding with a cache gives what one call over all tokens gives, for each decoder."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.models import base, cache
from jaxpt.models.cache import NewCache
from tests.models.helpers import ALL, OTHERS, V, drawn, t5

MODELS = ALL | OTHERS | {"umt5": functools.partial(t5, bias_per_layer=True)}
DECODERS = ("gpt", "gpt2", "opt", "llama", "mistral", "t5_lm")
PAIRS = ("t5", "t5_old", "t5_shared", "umt5", "bart", "mbart")
B, T = 3, 20
LENGTHS = np.array([9, 4, 6])  # of the prompts
TOLERANCE = 1e-5  # float32, two orders of summation; 1.3e-6 at most was seen, of values up to 3


@functools.cache
def bound(name):
    model = MODELS[name]().build()
    return base.bind(model, drawn(model))


@functools.cache
def tokens(seed=0):
    return np.random.default_rng(seed).integers(3, V, (B, T)).astype(np.int32)


def encoded(name, rows=slice(None)):
    """(arguments, options) of `decode` besides the tokens: the hidden states of three texts of different length."""
    if name in DECODERS:
        return (), {}
    segments = (np.arange(7) < np.array([7, 5, 3])[:, None]).astype(np.int32)
    states = bound(name).encode(tokens(1)[:, :7], segment_ids=segments).hidden
    return (states[rows],), {"encoder_segment_ids": segments[rows]}


@functools.cache
def uncached(name):
    given, options = encoded(name)
    return np.asarray(bound(name).decode(tokens(), *given, **options).hidden)


def prompts(rows=range(B), width=9):
    """Right-aligned prompts and their segment ids."""
    ids, segments = np.zeros((2, len(rows), width), np.int32)
    for i, row in enumerate(rows):
        ids[i, width - LENGTHS[row] :] = tokens()[row, : LENGTHS[row]]
        segments[i, width - LENGTHS[row] :] = 1
    return ids, segments


def prefill(name, slots, rows=range(B), width=9):
    ids, segments = prompts(rows, width)
    given, options = encoded(name, np.array(rows))
    return bound(name).decode(ids, *given, segment_ids=segments, cache=NewCache(slots), **options)


@functools.cache
def step(name):
    none = () if name in DECODERS else (None,)
    return jax.jit(lambda ids, cache: bound(name).decode(ids, *none, cache=cache))


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
@pytest.mark.parametrize("name", DECODERS + PAIRS)
def test_steps_with_a_cache_equal_one_call(name):
    """Prompts of 9, 4 and 6 tokens, then ten tokens each; Mistral's ring of 4 slots for a window of 3 turns often."""
    output = prefill(name, slots=4 if name == "mistral" else T)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(output.hidden[row, 9 - length :], uncached(name)[row, :length], atol=TOLERANCE)
    made = follow(name, output.cache, LENGTHS, 10)
    assert made.length_B.tolist() == (LENGTHS + 10).tolist()


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "umt5"])
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


@pytest.mark.parametrize("name", ["gpt2", "mistral", "t5_lm", "bart"])
def test_several_tokens_at_once(name):
    """Chunks of five tokens: causal among themselves, over the end of the ring."""
    slots = 4 + 5 if name == "mistral" else 19
    follow(name, prefill(name, slots).cache, LENGTHS, 10, width=5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5_lm"])
def test_packed_rows(name):
    """Two segments in a row, in two calls: the second call goes on in the second segment of each row."""
    ids, segments = tokens(), np.repeat([[1] * 6 + [2] * 14], B, 0)
    positions = np.repeat([[*range(6), *range(14)]], B, 0)
    want = bound(name).decode(ids, segment_ids=segments, positions=positions).hidden
    first = bound(name).decode(
        ids[:, :11], segment_ids=segments[:, :11], positions=positions[:, :11], cache=NewCache(24)
    )
    second = bound(name).decode(
        ids[:, 11:], segment_ids=segments[:, 11:], positions=positions[:, 11:], cache=first.cache
    )
    np.testing.assert_allclose(np.concatenate([first.hidden, second.hidden], 1), want, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["gpt2", "t5", "mistral"])
def test_rows_are_replaced_and_repeated(name):
    """After three steps row 1 gets a new prompt, of row 0; then rows are reordered."""
    slots = 4 if name == "mistral" else T
    made = follow(name, prefill(name, slots).cache, LENGTHS, 3)
    new = prefill(name, 4 if name == "mistral" else 9, rows=[0, 2]).cache
    made = made.put_rows(jnp.array([1, B]), new)  # the second row is dropped
    source, at = np.array([0, 0, 2]), LENGTHS + 3
    at[1] = LENGTHS[0]
    # First more rows: the encoder's are repeated too; then as many: rows of one prompt are exchanged.
    for order in (np.array([1, 2, 1, 0]), np.array([2, 1, 0, 3])):
        made = made.take_rows(jnp.array(order))
        source, at = source[order], at[order]
        columns = at[:, None]
        output = step(name)(tokens()[source[:, None], columns], made)
        np.testing.assert_allclose(output.hidden, uncached(name)[source[:, None], columns], atol=TOLERANCE)
        made, at = output.cache, at + 1


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart"])
def test_keys_and_values_in_one_array(name, monkeypatch):
    """A TPU's layout for narrow heads, on this machine."""
    monkeypatch.setattr(cache.compiler, "platform", lambda: "tpu")
    given, options = encoded(name)
    ids, segments = prompts()
    output = bound(name).decode(ids, *given, segment_ids=segments, cache=NewCache(16), **options)
    kv = output.cache.layers[0][0]["attention"]
    assert kv.values is None
    none = () if name in DECODERS else (None,)
    output = bound(name).decode(
        np.take_along_axis(tokens(), LENGTHS[:, None], 1), *none, cache=output.cache
    )  # not compiled: the platform is part of the trace
    want = np.take_along_axis(uncached(name), LENGTHS[:, None, None], 1)
    np.testing.assert_allclose(output.hidden, want, atol=TOLERANCE)


def test_the_cache_has_a_slot_for_each_head_and_layer():
    """[layers, batch, key heads, slots, head width]."""
    kv = prefill("llama", 16).cache.layers[0][0]["attention"]
    assert kv.keys.shape == kv.values.shape == (2, B, 2, 16, 4)


def test_a_step_updates_the_cache_in_place():
    """The donated cache is the result's memory, and no instruction of the program copies it."""
    made = prefill("gpt2", 16).cache
    run = jax.jit(lambda ids, cache: bound("gpt2").decode(ids, cache=cache), donate_argnums=1)
    compiled = run.lower(jnp.zeros((B, 1), jnp.int32), made).compile()
    size = sum(x.nbytes for x in jax.tree.leaves(made.layers))
    assert compiled.memory_analysis().alias_size_in_bytes >= size
    shape = "f32[" + ",".join(map(str, made.layers[0][0]["attention"].keys.shape)) + "]"
    copies = [line for line in compiled.as_text().splitlines() if f"= {shape}" in line and " copy(" in line]
    assert not copies, copies
