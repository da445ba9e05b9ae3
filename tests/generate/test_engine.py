"""The engine against a loop without a cache, and what must not change a row: the batch, the buckets, the mesh."""

import functools
import gc
import weakref
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.config import MeshConfig
from jaxpt.errors import UserError
from jaxpt.generate.engine import Engine, Prompt
from jaxpt.generate.options import Options
from jaxpt.generate.programs import Place
from jaxpt.parallel import mesh as meshes
from tests.generate.helpers import jitted, log_softmax, texts
from tests.generate.helpers import network as small
from tests.models.helpers import V

LENGTHS = (8, 9, 20, 7, 17, 6, 12)  # of prompts, which are one bucket with their new tokens
NEW, START = 11, 0
SAMPLED = Options(max_new_tokens=NEW, temperature=1.2, top_k=40, samples=2, seed=7)


@functools.cache
def model(name, **options):
    """(network, parameters) with larger weights, so that texts do not repeat one token."""
    network, params, *_ = small(name, **options)

    def larger(path, x):
        return x if path[-1].key == "scale" else 3 * x

    return network, jax.tree_util.tree_map_with_path(larger, params)


@functools.cache
def engine(name="gpt2", batch_size=8, **options):
    return Engine(*model(name, **options), batch_size=batch_size)


@functools.cache
def prompts(name="gpt2", lengths=LENGTHS):
    if model(name)[0].config.family == "decoder":
        return tuple(Prompt(ids) for ids in texts(*lengths))
    return tuple(Prompt([START], ids) for ids in texts(*(min(n, 16) for n in lengths)))


def generated(engine, prompts, options, **more):
    """{(prompt, sample): result}"""
    found = list(engine.generate(prompts, options, **more))
    by_owner = {(one.index, one.sample): one for one in found}
    assert len(by_owner) == len(found) == len(prompts) * options.samples
    return by_owner


def tokens(found):
    return {owner: one.tokens for owner, one in found.items()}


def uncached(name, prompt, count=NEW, eos=()):
    """(tokens, log-probabilities) of the most likely continuation: every token from a call over all before it."""
    network, params = model(name)
    ids, chosen, logprobs = list(prompt.tokens), [], []
    while len(chosen) < count and not (chosen and chosen[-1] in eos):
        padded = np.zeros((1, 32), np.int32)
        padded[0, : len(ids)] = ids
        if prompt.encoder is None:
            logits = jitted(network, "decode")(params, padded)
        else:
            logits = _pair(network)(params, np.array([prompt.encoder]), padded)
        row = log_softmax(logits[0, len(ids) - 1, :V])
        chosen.append(int(row.argmax()))
        logprobs.append(row.max())
        ids.append(chosen[-1])
    return chosen, logprobs


@functools.cache
def _pair(network):
    def run(params, inputs, tokens):
        bound = network.bind(params)
        return bound.logits(bound.decode(tokens, bound.encode(inputs).hidden).hidden)

    return jax.jit(run)


@pytest.mark.parametrize("name", ["gpt2", "mistral", "t5"])
def test_greedy_equals_a_loop_without_a_cache(name):
    """Two rows for seven prompts of unequal length, with the log-probabilities of the model's distribution."""
    found = generated(engine(name, 2), prompts(name), Options(max_new_tokens=NEW, scores=True))
    for number, prompt in enumerate(prompts(name)[: 7 if name != "t5" else 3]):
        wanted, logprobs = uncached(name, prompt)
        assert found[number, 0].tokens == wanted
        assert found[number, 0].finish == "length"
        np.testing.assert_allclose(found[number, 0].logprobs, logprobs, atol=1e-4)
    assert len({tuple(one.tokens) for one in found.values()}) > 5
    assert max(len(set(one.tokens)) for one in found.values()) > 3


@pytest.mark.slow
def test_log_probabilities_are_the_models_before_penalties_and_temperature():
    options = Options(max_new_tokens=NEW, scores=True, temperature=0.8, repetition_penalty=1.5, seed=3)
    network, params = model("gpt2")
    for one in engine().generate(prompts(), options):
        ids = [*prompts()[one.index].tokens, *one.tokens]
        rows = log_softmax(jitted(network, "decode")(params, np.array([ids + [0] * (32 - len(ids))]))[0, :, :V])
        first = len(ids) - len(one.tokens)
        wanted = rows[np.arange(first - 1, len(ids) - 1), one.tokens]
        np.testing.assert_allclose(one.logprobs, wanted, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 2])
def test_refilled_rows_and_a_prompt_alone_get_the_same(batch_size):
    options = Options(max_new_tokens=NEW)
    assert tokens(generated(engine(batch_size=batch_size), prompts(), options)) == tokens(
        generated(engine(), prompts(), options)
    )


@pytest.mark.slow
def test_a_sample_depends_on_seed_prompt_and_sample_alone():
    """Not on rows per batch, on which other prompts there are, or in which order."""
    found = tokens(generated(engine(), prompts(), SAMPLED))
    assert len({tuple(ids) for ids in found.values()}) == len(found)
    first, second, third, *others = prompts()
    mixed = [others[2], second, *others[:2], third, first, others[3]]
    again = tokens(generated(engine(batch_size=16), mixed, SAMPLED))
    assert [again[1, sample] for sample in (0, 1)] == [found[1, sample] for sample in (0, 1)]
    assert all(again[number, 0] != found[number, 0] for number in (0, 2, 4, 5))
    assert tokens(generated(engine(), prompts(), replace(SAMPLED, seed=8))) != found


@pytest.mark.slow
def test_a_sample_is_the_same_one_by_one_and_in_other_buckets():
    found = tokens(generated(engine(), prompts(), SAMPLED))
    for batch_size in (1, 16):
        assert tokens(generated(engine(batch_size=batch_size), prompts(), SAMPLED)) == found
    longer = tokens(generated(engine(), prompts(), replace(SAMPLED, max_new_tokens=40)))
    assert {owner: ids[:NEW] for owner, ids in longer.items()} == found


@pytest.mark.slow
def test_any_of_several_eos_ends_a_text():
    plain = tokens(generated(engine(), prompts(), Options(max_new_tokens=NEW)))
    having = {token: sum(token in ids for ids in plain.values()) for ids in plain.values() for token in ids}
    eos = tuple(sorted(having, key=having.get)[:2])  # few texts have them
    found = generated(engine(batch_size=2), prompts(), Options(max_new_tokens=NEW, eos=eos))
    for owner, one in found.items():
        ends = [i for i, token in enumerate(plain[owner]) if token in eos]
        assert one.tokens == plain[owner][: ends[0] + 1 if ends else NEW]
        assert one.finish == ("eos" if ends else "length")
    assert {one.finish for one in found.values()} == {"eos", "length"}


@pytest.mark.parametrize("batch_size", [2, 8])
def test_a_watch_ends_rows(batch_size):
    """Odd prompts are ended at the first call from three tokens on; the others, and those that come next, go on."""
    options, seen = Options(max_new_tokens=NEW), []

    def watch(index, sample, ids):
        seen.append((index, len(ids)))
        return index % 2 == 1 and len(ids) >= 3

    plain = tokens(generated(engine(), prompts(), options))
    found = generated(engine(batch_size=batch_size), prompts(), options, watch=watch, every=2)
    for (index, _), one in found.items():
        assert one.tokens == plain[index, 0][: len(one.tokens)]
        assert one.finish == ("stop" if index % 2 else "length")
        assert len(one.tokens) in ((3, 4) if index % 2 else (NEW,))
    assert {index for index, _ in seen} == set(range(len(LENGTHS)))


def test_texts_end_with_the_table_of_positions():
    """The last generated token needs no position of its own."""
    limit = model("gpt2")[0].config.position_limit
    found = generated(engine(), prompts(lengths=(limit, limit - 2, 28, 5)), Options(max_new_tokens=NEW))
    assert [len(found[number, 0].tokens) for number in range(4)] == [1, 3, limit - 28 + 1, NEW]
    assert [found[0, 0].tokens] == [uncached("gpt2", prompts(lengths=(limit, limit - 2, 28, 5))[0], 1)[0]]


@pytest.mark.parametrize(
    ("name", "prompt", "options", "words"),
    [
        ("gpt2", Prompt([]), {}, "prompt 1: it has no token"),
        ("t5", Prompt([0], []), {}, "prompt 1: it has no token"),
        ("gpt2", Prompt([5] * 33), {}, "prompt 1: it has 33 tokens, but the model has 32 positions"),
        ("gpt2", Prompt([5, V]), {}, f"prompt 1: id {V} is not in the model's vocabulary of {V}"),
        ("gpt2", Prompt([5, -1]), {}, f"prompt 1: id -1 is not in the model's vocabulary of {V}"),
        ("gpt2", Prompt([5], [5]), {}, "prompt 1: it has a text for an encoder, which gpt2 has not"),
        ("t5", Prompt([0]), {}, "prompt 1: it has no text for the encoder of t5"),
        ("gpt2", Prompt([5]), {"eos": V}, f"eos is {V}"),
    ],
)
def test_what_is_wrong_is_named(name, prompt, options, words):
    with pytest.raises(UserError, match=words):
        next(engine(name).generate([prompts(name)[0], prompt], Options(**options)))


def test_an_encoder_does_not_generate():
    with pytest.raises(UserError, match="bert is an encoder"):
        Engine(*model("bert"))


def test_no_prompts():
    assert list(engine().generate([], Options())) == []


def test_the_loop_stays_on_the_device_and_updates_its_cache_in_place():
    """No callback or transfer to the host; the donated cache is the result's memory, and nothing copies it."""
    options = Options(max_new_tokens=NEW)
    generated(engine(), prompts(), options)
    programs = engine()._programs(options, 32, 8, 32, 0)
    text = programs.run.as_text()
    for word in ("callback", "infeed", "outfeed", " send(", " recv("):
        assert word not in text, word
    layers = jax.tree.leaves(programs.state.cache.layers)
    size = sum(x.size * x.dtype.itemsize for x in layers)
    assert programs.run.memory_analysis().alias_size_in_bytes >= size
    shape = "f32[" + ",".join(map(str, layers[0].shape)) + "]"
    assert shape in text
    copies = [line for line in text.splitlines() if f"= {shape}" in line and " copy(" in line]
    assert not copies, copies


def test_an_engine_that_nobody_has_any_more_is_gone():
    """With its programs and parameters: a process that trained run after run took 8,000 mappings more for each."""
    made = Engine(*model("gpt2"), batch_size=2)
    generated(made, prompts(), Options(max_new_tokens=NEW))
    engine_of, programs_of = weakref.ref(made), weakref.ref(next(iter(made._kept.values())))
    assert programs_of()._replacements, "a row was refilled"
    del made
    gc.collect()
    assert engine_of() is None and programs_of() is None


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_the_layers_of_a_decoder_are_parts_on_a_cpu(name, monkeypatch):
    """Stacked or one by one: the same tokens, also in refilled rows."""
    options, members = Options(max_new_tokens=NEW, scores=True), prompts(name)[:3]
    alone = engine(name, 2)
    found = generated(alone, members, options)
    for module in ("engine", "programs"):
        monkeypatch.setattr(f"jaxpt.generate.{module}.layer_parts", lambda network: {})
    stacked = Engine(*model(name), batch_size=2)
    wanted = generated(stacked, members, options)
    assert tokens(found) == tokens(wanted)
    for owner, one in found.items():
        np.testing.assert_allclose(one.logprobs, wanted[owner].logprobs, atol=1e-5)
    in_parts, whole = (one.params["model"]["decoder"]["segment_0"] for one in (alone, stacked))
    assert set(in_parts) == {"layers_0-0", "layers_1-1"} and set(whole) == {"block_0"}
    if name == "t5":
        assert set(alone.params["model"]["encoder"]["segment_0"]) == {"block_0"}


@pytest.mark.slow
def test_a_mesh_changes_nothing():
    """Eight devices: data 2, fsdp 2, tensor 2; greedy in refilled rows, drawn, and by beams."""
    name, sizes = "t5", {"heads": 4, "embed_dim": 32}
    mesh = meshes.make(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices()[:8])
    on_mesh = Engine(*model(name, **sizes), Place(mesh), batch_size=4)
    kernels = [x for x in jax.tree.leaves(on_mesh._params) if x.size >= 32 * 32]
    assert all(x.addressable_shards[0].data.size <= x.size / 2 for x in kernels)
    searched = Options(max_new_tokens=NEW, beams=3, samples=2, eos=(40, 41))
    for options in (Options(max_new_tokens=NEW, eos=(40, 41)), SAMPLED, searched):
        wanted = generated(engine(name, **sizes), prompts(name), options)
        found = generated(on_mesh, prompts(name), options)
        assert tokens(found) == tokens(wanted)
        for owner, one in found.items():
            if one.score is not None:
                assert one.score == pytest.approx(wanted[owner].score, abs=1e-4)


def test_matrices_are_kept_in_the_compute_dtype():
    network, params = model("gpt2")
    kept = Engine(network.with_model(dtype="bfloat16"), params)._params
    flat = jax.tree_util.tree_leaves_with_path(kept)
    assert {x.dtype for path, x in flat if path[-1].key == "kernel"} == {jnp.dtype("bfloat16")}
    assert {x.dtype for path, x in flat if path[-1].key == "scale"} == {jnp.dtype("float32")}
