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
from jaxpt.decode import programs
from jaxpt.decode.engine import Engine, Prompt
from jaxpt.decode.options import Options
from jaxpt.decode.programs import Place
from jaxpt.errors import UserError
from jaxpt.parallel import mesh as meshes
from tests import grids
from tests.decode.helpers import jitted, log_softmax, texts
from tests.decode.helpers import network as small
from tests.models.helpers import V

LENGTHS = (9, 14, 9, 7, 13, 11, 10)  # of prompts, which are one bucket, with their new tokens too
NEW, START = 11, 0
# Log-probabilities are asked for everywhere: tests of the same engine then share its programs.
GREEDY = Options(max_new_tokens=NEW, scores=True)
SAMPLED = Options(max_new_tokens=NEW, scores=True, temperature=1.2, top_k=40, repetition_penalty=1.2, samples=2, seed=7)


@functools.cache
def model(name, **options):
    """(network, parameters) with larger weights, so that texts do not repeat one token."""
    network, params, *_ = small(name, **options)

    def larger(path, x):
        return np.asarray(x) if path[-1].key == "scale" else 3 * np.asarray(x)

    return network, jax.tree_util.tree_map_with_path(larger, params)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_matrices_alone_are_kept_in_the_compute_dtype(name):
    """Scales, biases and T5's table of distances stay as they were trained."""
    network = small(name, dtype="bfloat16")[0]
    shapes, _ = programs.stored(network)
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/"): (leaf.ndim, leaf.dtype.name)
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
    }
    wide = {path for path, (_, dtype) in found.items() if dtype == "float32"}
    assert wide == {path for path in found if path.endswith(("scale", "bias", "bias/table"))} != set()


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_parameters_as_they_are_kept_give_the_same_logits(name, monkeypatch):
    """Mixtures of experts too, whose routers compute in float32."""
    monkeypatch.setattr(programs, "layer_parts", lambda network: {})
    network, params = small(name, dtype="bfloat16", experts=4)[:2]
    kept = jax.tree.map(lambda x, shape: x.astype(shape.dtype), params, programs.stored(network)[0])
    kinds = {x.dtype.name for x in jax.tree.leaves(kept)}
    assert kinds == {"bfloat16", "float32"}
    given = np.array(texts(12))
    logits = _pair(network) if name == "t5" else lambda params, tokens, _: jitted(network, "decode")(params, tokens)
    np.testing.assert_array_equal(logits(kept, given, given), logits(params, given, given))


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


@functools.cache
def greedy(name="gpt2", batch_size=2):
    """What is generated for a model's prompts; an encoder-decoder's and a window's are few."""
    return generated(engine(name, batch_size), prompts(name)[: 7 if name == "gpt2" else 3], GREEDY)


def distributions(name, prompt, tokens):
    """Log-probabilities of the model after a prompt and after each of some tokens, without a cache: [tokens + 1, V]."""
    network, params = model(name)
    ids = [*prompt.tokens, *tokens]
    padded = np.zeros((1, 48), np.int32)[:, : network.config.position_limit]
    padded[0, : len(ids)] = ids[: padded.shape[1]]
    if prompt.encoder is None:
        logits = jitted(network, "decode")(params, padded)
    else:
        logits = _pair(network)(params, np.array([prompt.encoder]), padded)
    return log_softmax(logits[0, len(prompt.tokens) - 1 : len(ids), :V])


@functools.cache
def _pair(network):
    def run(params, inputs, tokens):
        bound = network.bind(params)
        return bound.logits(bound.decode(tokens, bound.encode(inputs).hidden).hidden)

    return jax.jit(run)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["gpt2", "decoder_only", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mistral", "t5"))]
)
def test_greedy_takes_the_most_likely_token_without_a_cache_too(name):
    """Two rows for prompts of unequal length, with the log-probabilities of the model's distribution."""
    for (number, _), one in greedy(name).items():
        rows = distributions(name, prompts(name)[number], one.tokens)[:NEW]
        assert one.tokens == rows.argmax(-1).tolist() and one.finish == "length"
        np.testing.assert_allclose(one.logprobs, rows.max(-1), atol=1e-4)
    texts = {tuple(one.tokens) for one in greedy(name).values()}
    assert len(texts) > (5 if name == "gpt2" else 2) and max(map(len, map(set, texts))) > 3


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "top_k": 3}, {"beams": 2}], ids=str)
def test_a_text_ends_where_options_ban_every_token(settings):
    """No id of the padding is chosen, of which this table has some. Beams that have not ended are none."""
    options = Options(max_new_tokens=3, suppress=tuple(i for i in range(V) if i != 5), no_repeat_ngram=1, **settings)
    asked = [Prompt([1, 2, 3]), Prompt([1, 5])]
    rows = sorted(engine().generate(asked, options), key=lambda row: row.index)
    ends = [] if options.beams > 1 else [([5], "banned"), ([], "banned")]
    assert [(row.tokens, row.finish) for row in rows] == ends
    rows = engine().generate(asked, replace(options, eos=5))
    ends = {(0, (5,), "eos")} | (set() if options.beams > 1 else {(1, (), "banned")})
    assert {(row.index, tuple(row.tokens), row.finish) for row in rows} == ends


def test_prompts_do_not_compete_for_the_places_of_experts():
    """Texts of an encoder share no capacity, whatever `group_rows` says; with a cache nothing is dropped."""
    options, asked = replace(GREEDY, max_new_tokens=3), prompts("t5")[:3]
    limited = engine("t5", experts=4, capacity_factor=0.5, min_capacity=1, group_rows=2)
    together = generated(limited, asked, options)
    for number, prompt in enumerate(asked):
        alone = generated(limited, [prompt], options)[0, 0]
        assert together[number, 0].tokens == alone.tokens
        np.testing.assert_allclose(together[number, 0].logprobs, alone.logprobs, atol=2e-5)
    free = generated(engine("t5", experts=4), asked, options)
    changes = [abs(together[owner].logprobs[0] - free[owner].logprobs[0]) for owner in free]
    assert max(changes) > 1e-3  # the capacity is still that of the model


@pytest.mark.gpu
def test_refilled_rows_get_what_all_prompts_at_once_get():
    assert tokens(greedy(batch_size=8)) == tokens(greedy())


@pytest.mark.gpu
@pytest.mark.slow
def test_log_probabilities_are_the_models_before_penalties_and_temperature():
    for one in generated(engine(), prompts(), SAMPLED).values():
        rows = distributions("gpt2", prompts()[one.index], one.tokens)
        np.testing.assert_allclose(one.logprobs, rows[np.arange(NEW), one.tokens], atol=1e-4)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("options", [SAMPLED, replace(GREEDY, beams=3, samples=2)], ids=["drawn", "beams"])
def test_texts_beyond_a_window_have_the_log_probabilities_of_the_model(options):
    """A layer with a window of 3, whose ring turns, and one that sees all."""
    members = prompts("decoder_only")[:3]
    for one in generated(engine("decoder_only", 2), members, options).values():
        rows = distributions("decoder_only", members[one.index], one.tokens)
        np.testing.assert_allclose(one.logprobs, rows[np.arange(NEW), one.tokens], atol=1e-4)


@pytest.mark.gpu
@pytest.mark.slow
def test_a_sample_depends_on_seed_prompt_and_sample_alone():
    """Not on rows per batch, refilled ones, other prompts and their order, or on buckets."""
    found = tokens(generated(engine(), prompts(), SAMPLED))
    assert len({tuple(ids) for ids in found.values()}) == len(found)
    first, second, third, *others = prompts()
    mixed = [others[2], second, *others[:2], third, first, others[3]]
    again = tokens(generated(engine(batch_size=16), mixed, SAMPLED))
    assert [again[1, sample] for sample in (0, 1)] == [found[1, sample] for sample in (0, 1)]
    assert all(again[number, 0] != found[number, 0] for number in (0, 2, 4, 5))
    assert tokens(generated(engine(batch_size=16), prompts(), replace(SAMPLED, seed=8))) != found
    longer = replace(SAMPLED, samples=1, max_new_tokens=19)
    alone = tokens(generated(engine(batch_size=1), [third._replace(row=2)], longer))
    assert alone[0, 0][:NEW] == found[2, 0] and len(alone[0, 0]) > NEW


@pytest.mark.gpu
@pytest.mark.slow
def test_any_of_several_eos_ends_a_text():
    plain = tokens(greedy())
    having = {token: sum(token in ids for ids in plain.values()) for ids in plain.values() for token in ids}
    eos = tuple(sorted(having, key=having.get)[:2])  # few texts have them
    found = generated(engine(), prompts(), replace(GREEDY, eos=eos))
    for owner, one in found.items():
        ends = [i for i, token in enumerate(plain[owner]) if token in eos]
        assert one.tokens == plain[owner][: ends[0] + 1 if ends else NEW]
        assert one.finish == ("eos" if ends else "length")
    assert {one.finish for one in found.values()} == {"eos", "length"}


@pytest.mark.gpu
@pytest.mark.parametrize("batch_size", [2, 8])
def test_a_watch_ends_rows(batch_size):
    """Odd prompts are ended at the first call from three tokens on; the others, and those that come next, go on."""
    seen = []

    def watch(index, sample, ids):
        seen.append((index, len(ids)))
        return index % 2 == 1 and len(ids) >= 3

    plain = tokens(greedy())
    found = generated(engine(batch_size=batch_size), prompts(), GREEDY, watch=watch, every=2)
    for (index, _), one in found.items():
        assert one.tokens == plain[index, 0][: len(one.tokens)]
        assert one.finish == ("stop" if index % 2 else "length")
        assert len(one.tokens) in ((3, 4) if index % 2 else (NEW,))
    assert {index for index, _ in seen} == set(range(len(LENGTHS)))


@pytest.mark.gpu
def test_texts_end_with_the_table_of_positions():
    """The last generated token needs no position of its own; others, of another bucket, are as long as was asked."""
    limit = model("gpt2")[0].config.position_limit
    full = prompts(lengths=(limit, limit - 2, 9, 12))
    found = generated(engine(batch_size=2), full, GREEDY)
    assert [len(found[number, 0].tokens) for number in range(4)] == [1, 3, NEW, NEW]
    for number in (0, 1):
        rows = distributions("gpt2", full[number], found[number, 0].tokens)
        assert found[number, 0].tokens == rows[: 1 + 2 * number].argmax(-1).tolist()


@pytest.mark.parametrize(
    ("name", "prompt", "options", "words"),
    [
        ("gpt2", Prompt([]), {}, "prompt 1: it has no token"),
        ("t5", Prompt([0], []), {}, "prompt 1: it has no token"),
        ("gpt2", Prompt([5] * 33), {}, "prompt 1: it has 33 tokens, but the model has 32 positions"),
        ("gpt2", Prompt([5, V]), {}, f"prompt 1: id {V} is not in the vocabulary of {V} ids"),
        ("gpt2", Prompt([5, -1]), {}, f"prompt 1: id -1 is not in the vocabulary of {V} ids"),
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
    (programs,) = engine().compile(prompts(), GREEDY)
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
    """With its programs, that of refilled rows too: a process that trained run after run took 8,000 mappings more."""
    made, options = Engine(*model("gpt2", layers=1), batch_size=1), Options(max_new_tokens=2)
    assert len(generated(made, prompts()[:2], options)) == 2
    engine_of, programs_of = weakref.ref(made), weakref.ref(*made.compile(prompts()[:2], options))
    assert programs_of() is not None
    del made
    gc.collect()
    assert engine_of() is None and programs_of() is None


@pytest.mark.parametrize("name", grids.cases(["gpt2", "t5"], "t5"))
def test_the_layers_of_a_decoder_are_parts_on_a_cpu(name, monkeypatch):
    """Stacked or one by one: the same tokens, also in refilled rows."""
    members = prompts(name)[:3]
    found = greedy(name)
    for module in ("engine", "programs"):
        monkeypatch.setattr(f"jaxpt.decode.{module}.layer_parts", lambda network: {})
    stacked = Engine(*model(name), batch_size=2)
    wanted = generated(stacked, members, GREEDY)
    for owner, one in wanted.items():
        assert found[owner].tokens == one.tokens
        np.testing.assert_allclose(found[owner].logprobs, one.logprobs, atol=1e-5)
    assert set(stacked.params["model"]["decoder"]["segment_0"]) == {"block_0"}


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_an_encoder_is_no_parts(name):
    params = engine(name, 2).params["model"]
    assert set(params["decoder"]["segment_0"]) == {"layers_0-0", "layers_1-1"}
    if name == "t5":
        assert set(params["encoder"]["segment_0"]) == {"block_0"}


@pytest.mark.slow
def test_a_mesh_changes_nothing():
    """Eight devices: data 2, fsdp 2, tensor 2; drawn until EOS in refilled rows, and by beams."""
    name, sizes = "t5", {"heads": 4, "embed_dim": 32, "layers": 1}
    mesh = meshes.make(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices()[:8])
    on_mesh = Engine(*model(name, **sizes), Place(mesh), batch_size=4)
    kernels = [x for x in jax.tree.leaves(on_mesh.params) if x.size >= 32 * 32]
    assert all(x.addressable_shards[0].data.size <= x.size / 2 for x in kernels)
    searched = Options(max_new_tokens=NEW, beams=3, samples=2, eos=(40, 41))
    members = prompts(name)[:5]
    for options in (replace(SAMPLED, samples=1, eos=tuple(range(40, 60))), searched):
        wanted = generated(engine(name, **sizes), members, options)
        found = generated(on_mesh, members, options)
        assert tokens(found) == tokens(wanted)
        assert options.beams > 1 or {one.finish for one in found.values()} == {"eos", "length"}
        for owner, one in found.items():
            if one.score is not None:
                assert one.score == pytest.approx(wanted[owner].score, abs=1e-4)


def test_matrices_are_kept_in_the_compute_dtype():
    network, params = model("gpt2")
    kept = Engine(network.with_model(dtype="bfloat16"), params).params
    flat = jax.tree_util.tree_leaves_with_path(kept)
    assert {x.dtype for path, x in flat if path[-1].key == "kernel"} == {jnp.dtype("bfloat16")}
    assert {x.dtype for path, x in flat if path[-1].key == "scale"} == {jnp.dtype("float32")}
