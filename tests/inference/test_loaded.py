"""`jaxpt.load`: run directories and Hugging Face directories of each family, and what is done with them."""

import json
import shutil
import subprocess
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxpt
from jaxpt import config as configs
from jaxpt import hf
from jaxpt.decode import likelihood
from jaxpt.decode.engine import Prompt
from jaxpt.errors import UserError
from jaxpt.hf import convert
from jaxpt.inference import static_vectors
from jaxpt.objectives.formats import Languages
from jaxpt.train import checkpoint, weights
from tests import families, grids
from tests.inference.helpers import TEXTS, directory, loaded, made, run_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def directories():
    return {name: directory(name) for name in families.FAMILIES}


@pytest.fixture(scope="module")
def models():
    return {name: loaded(name) for name in families.FAMILIES}


def test_a_decoder_generates(models):
    model = models["gpt2"]
    assert model.family == "decoder" and model.objective.kind == "causal_lm"
    assert model.prompt_ids("the cat") == Prompt(model.tokenizer.encode("the cat"))
    found = model.generate(["the cat", "a dog ran", ""], max_new_tokens=4, scores=True)
    assert [len(samples) for samples in found] == [1, 1, 1]
    for (one,) in found:
        assert one.finish in ("eos", "length") and len(one.tokens) == len(one.logprobs) <= 4
    alone = model.generate(["the cat"], max_new_tokens=4)[0][0]
    assert alone.tokens == found[0][0].tokens and alone.text == found[0][0].text and alone.logprobs is None


def test_what_is_streamed_is_the_text(models):
    model, said = models["gpt2"], {}
    options = model.options(max_new_tokens=12, temperature=1.0, samples=2, seed=3)
    done = dict(
        model.generate_iter(
            ["the", "a"], options, lambda i, s, new: said.__setitem__((i, s), said.get((i, s), "") + new), every=2
        )
    )
    for index, samples in done.items():
        assert len(samples) == 2
        for sample, one in enumerate(samples):
            assert said.get((index, sample), "") == one.text
    assert done == dict(model.generate_iter(["the", "a"], options))


def test_stop_strings_end_a_text(models):
    model = models["gpt2"]
    whole = model.generate(["the cat"], max_new_tokens=12, eos=())[0][0]
    stop = whole.text[3:5]
    assert stop
    (one,) = model.generate(["the cat"], max_new_tokens=12, eos=(), stop=stop)[0]
    assert one.finish == "stop" and one.text == whole.text[: whole.text.find(stop)]
    assert whole.tokens[: len(one.tokens)] == one.tokens and len(one.tokens) < 12


def test_beams_give_scores(models):
    found = models["gpt2"].generate(["the cat"], max_new_tokens=5, beams=3, samples=2)[0]
    assert len(found) == 2 and found[0].score >= found[1].score


def test_a_prompt_without_a_finished_beam_has_no_samples(models, monkeypatch):
    never = types.SimpleNamespace(generate=lambda *_, **__: iter(()))
    for family in ("gpt2", "t5"):
        monkeypatch.setattr(models[family], "_engine", never)
    assert list(models["gpt2"].generate_iter(["the cat", "a dog"])) == [(0, []), (1, [])]
    assert models["gpt2"].generate(["the cat", "a dog"], beams=2) == [[], []]
    assert models["t5"].fill(["the <extra_id_0> sat <extra_id_1> mat"], beams=2) == [[[], []]]


@pytest.mark.parametrize(
    "family, method", [("gpt2", "generate"), *(("bert", x) for x in ("embed", "embed_words", "fill"))]
)
def test_one_text_is_no_list_of_texts(models, family, method):
    call = getattr(models[family], method)
    with pytest.raises(UserError, match=rf"^{method}: wants a list of texts; write \['the cat'\]$"):
        call("the cat")
    with pytest.raises(UserError, match=rf"^{method}: wants a list of texts, got 3$"):
        call(3)
    with pytest.raises(UserError, match=rf"^{method}: element 1 is null; wants a text$"):
        call(["the cat", None])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], "b"), r"loglikelihood: continuations: wants a list of texts; write \['b'\]"),
        ((["a"], ["b"], "letter"), "unit: 'letter' is none of piece, word"),
        ((["a"], ["b"], "piece", "plane"), "form: 'plane' is none of plain, span"),
    ],
)
def test_wrong_arguments_of_likelihoods_are_named(models, arguments, message):
    with pytest.raises(UserError, match=message):
        models["bert"].loglikelihood(*arguments)


@pytest.mark.slow
def test_an_encoder_decoder_generates_and_fills_spans(models):
    model = models["t5"]
    v = model.vocabulary
    prompt = model.prompt_ids("the cat")
    assert prompt.tokens == [0] and prompt.encoder == [*model.tokenizer.encode("the cat"), v.eos]
    assert len(model.generate(["the cat"], max_new_tokens=4)[0][0].tokens) <= 4
    text = "the <extra_id_0> sat <extra_id_1> mat"
    assert model.fills(text) and not model.fills("the cat")
    (spans,) = model.fill([text], max_new_tokens=12)
    assert len(spans) == 2 and all(len(one) == 1 and 0 <= one[0][1] <= 1 for one in spans)
    (spans,) = model.fill([text], k=2, beams=3, max_new_tokens=6)
    assert [len(one) for one in spans] == [2, 2]
    with pytest.raises(UserError, match="text 1: has no mask; write <extra_id_0>"):
        model.fill([text, "the cat"])


def test_an_encoder_fills_masks_and_embeds(models):
    model = models["bert"]
    assert model.family == "encoder"
    first, second = model.fill(["the [MASK] sat on the [MASK]", "a [MASK]"], k=4)
    assert [len(one) for one in first] == [4, 4] and len(second) == 1
    probabilities = [p for _, p in first[0]]
    assert probabilities == sorted(probabilities, reverse=True) and sum(probabilities) <= 1
    assert not model.fills("the cat") and model.fills("a [MASK]")
    vectors = model.embed(TEXTS[:3], pooling="cls", normalize=True)
    assert vectors.shape == (3, 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    with pytest.raises(UserError, match="bert is an encoder: it fills masks and embeds, but does not generate"):
        model.generate(["the cat"])
    with pytest.raises(UserError, match=r"text 0: has no mask; write \[MASK\]"):
        model.fill(["the cat"])


@pytest.mark.parametrize("family", families.FAMILIES)
def test_likelihoods(models, family):
    model = models[family]
    one, other = model.loglikelihood(["the cat", "a dog"], [" sat on", " ran after the cat"])
    assert one.total < 0 and other.tokens > one.tokens
    if family == "bert":
        assert model.loglikelihood(["the cat"], [" sat on"], unit="word")[0].total != 0
    assert model.loglikelihood([], []) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_run_directory_is_the_same_model(directories, models, family, tmp_path):
    convert.import_weights(directories[family], tmp_path / "run", report=lambda line: None)
    text = {"gpt2": "the cat", "t5": "the cat", "bert": "a [MASK] ran"}[family]
    for path in (tmp_path / "run" / "checkpoints" / "0", tmp_path / "run"):
        run, imported = jaxpt.load(path), models[family]
        assert run.path == path and run.network.config == imported.network.config
        jax.tree.map(np.testing.assert_array_equal, run.params, imported.params)
        if family != "bert":
            assert run.options() == imported.options() and run.prompt_ids(text) == imported.prompt_ids(text)
    found = [m.fill([text]) if family == "bert" else m.generate([text], max_new_tokens=8) for m in (run, imported)]
    assert found[0] == found[1]


@pytest.mark.slow
def test_bart_fills_masks_from_the_whole_text(tmp_path):
    model = run_of(tmp_path / "run", {"kind": "bart", "max_positions": 32}, "sentencepiece", "bart", extra_ids=5)
    assert model.prompt_ids("the cat").tokens == [model.vocabulary.eos]
    (spans,) = model.fill(["the <extra_id_0> sat on <extra_id_0>"], max_new_tokens=12)
    assert len(spans) == 2 and not model.fills("the cat") and not model.fills("<extra_id_1>")
    assert len(model.generate(["the cat"], max_new_tokens=4)[0][0].tokens) <= 4


@pytest.mark.slow
def test_mbart_reads_and_writes_its_language(tmp_path):
    model = run_of(
        tmp_path / "run", {"kind": "bart", "max_positions": 32, "pre_norm": True}, "sentencepiece", "mbart",
        extra_ids=5, language="en_XX",
    )  # fmt: skip
    (language,) = model.vocabulary.languages
    prompt = model.prompt_ids("the cat")
    assert model.languages == Languages(language, language) and prompt.tokens == [language]
    assert prompt.encoder == [*model.tokenizer.encode("the cat"), model.vocabulary.eos, language]
    assert model.generate(["the cat"], max_new_tokens=2)


@pytest.mark.slow
def test_a_decoder_fills_the_middle(tmp_path):
    model = run_of(
        tmp_path / "run", {"kind": "gpt2", "max_positions": 64}, "sentencepiece", "fill_in_the_middle", extra_ids=5
    )
    assert model.fills("the cat <FILL> mat") and not model.fills("the cat")
    (spans,) = model.fill(["the cat <FILL> mat"], max_new_tokens=5)
    ((text, probability),) = spans[0]
    assert isinstance(text, str) and 0 < probability < 1
    with pytest.raises(UserError, match="text 0: has <FILL> 2 times"):
        model.fill(["<FILL> the <FILL>"])


@pytest.mark.slow
def test_ul2_continues_in_its_own_mode(tmp_path):
    model = run_of(tmp_path / "run", {}, "sentencepiece", "ul2", extra_ids=8)
    v = model.vocabulary
    ids = model.tokenizer.encode("the cat")
    nlu, s2s, blank = v.size - 6, v.size - 8, v.size - 1
    prompt = model.prompt_ids("the cat")
    assert prompt.encoder == [s2s, *ids, blank, v.eos] and prompt.tokens[1:] == [blank]
    assert model.prompt_ids("the cat <extra_id_0>").encoder == [nlu, *ids, blank, v.eos]
    assert model.prompt_ids("<extra_id_7> the cat").encoder == [s2s, *ids, v.eos]
    (spans,) = model.fill(["the <extra_id_0> sat"], max_new_tokens=5)
    assert len(spans) == 1 and not model.fills("<extra_id_5> the cat")


@pytest.mark.slow
def test_an_electra_fills_by_its_generator(tmp_path):
    size = {"embed_dim": 8, "heads": 2, "mlp_dim": 16}
    model = run_of(
        tmp_path / "run", {"kind": "electra", "max_positions": 32, "embedding_dim": 8}, "wordpiece", "replaced_token",
        more={"generator": size},
    )  # fmt: skip
    (found,) = model.fill(["the [MASK] sat"], k=3)
    assert len(found[0]) == 3
    network, params = model.network, jax.device_get(model.params)
    hf.save(tmp_path / "hf", network, params)
    model.tokenizer.save(tmp_path / "hf")
    alone = jaxpt.load(tmp_path / "hf")
    assert not alone.fills("the [MASK] sat") and alone.embed(["the cat"]).shape == (1, 32)
    for use in (lambda: alone.fill(["a [MASK]"]), lambda: alone.loglikelihood(["a"], [" cat"])):
        with pytest.raises(UserError, match="electra is a discriminator, which does not predict tokens"):
            use()


@pytest.mark.slow
@pytest.mark.parametrize("family", grids.cases(families.FAMILIES, "bert", "t5"))
def test_a_mesh_gives_the_same(directories, models, family):
    mesh = configs.MeshConfig(data=2, fsdp=2, tensor=2)
    model = jaxpt.load(directories[family], mesh=mesh)
    assert len(jax.tree.leaves(model.params)[0].sharding.device_set) == 8
    one, other = ((m.loglikelihood(["the cat"], [" sat on"])[0].total) for m in (model, models[family]))
    assert one == pytest.approx(other, rel=1e-4)
    if family == "bert":
        np.testing.assert_allclose(model.embed(TEXTS[:2]), models[family].embed(TEXTS[:2]), atol=1e-4)
    else:
        texts = ["the cat", "a dog"]
        one, other = (m.generate(texts, max_new_tokens=4) for m in (model, models[family]))
        assert [row[0].tokens for row in one] == [row[0].tokens for row in other]


@pytest.mark.parametrize(
    ("said", "template", "bos"),
    [
        ({"add_bos_token": True, "bos_token": "</s>"}, None, "</s>"),
        ({"add_bos_token": False}, {"SpecialToken": {"id": "<s>"}}, "<s>"),  # tokenizer.json counts, as in transformers
        ({}, {"SpecialToken": {"id": "<s>"}}, "<s>"),
        ({}, {"Sequence": {"id": "A"}}, None),
        ({}, None, None),
    ],
)
def test_bos_comes_first_where_the_tokenizer_puts_it(said, template, bos, tmp_path):
    import tokenizers as rust

    path, words = made(tmp_path / "llama", "llama"), ["<unk>", "<s>", "</s>", "cat", "dog"]
    tokenizer = rust.Tokenizer(rust.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = rust.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(words[:3])
    tree = json.loads(tokenizer.to_str())
    if template is not None:
        single = [template, *([{"Sequence": {"id": "A", "type_id": 0}}] if "SpecialToken" in template else [])]
        for one in single:
            next(iter(one.values()))["type_id"] = 0
        special = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
        tree["post_processor"] = {
            "type": "TemplateProcessing", "single": single, "special_tokens": special,
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        }  # fmt: skip
    for file in path.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    (path / "tokenizer.json").write_text(json.dumps(tree))
    (path / "tokenizer_config.json").write_text(json.dumps(said))
    model = jaxpt.load(path)
    first = [] if bos is None else [words.index(bos)]
    assert model.prompt_ids("cat dog").tokens == [*first, 3, 4]
    if bos is not None:
        assert model.prompt_ids(f"{bos} cat").tokens == [*first, 3]
    assert model.prompt_ids("").tokens == (first or [1])


def test_generation_settings_of_a_directory(directories, tmp_path):
    path = tmp_path / "gpt2"
    shutil.copytree(directories["gpt2"], path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9], "forced_eos_token_id": 9}))
    model = jaxpt.load(path)
    options = model.options(max_new_tokens=3)
    assert options.eos == (7, 9) and options.forced_last == 9
    assert model.options(eos=5).eos == (5,)
    with pytest.raises(UserError, match="beam: is no option of generation"):
        model.options(beam=3)


def test_wrong_directories(directories, tmp_path):
    with pytest.raises(UserError, match="is no model; expected RUN_DIR"):
        jaxpt.load(tmp_path)
    (tmp_path / "config.json").write_text((directories["gpt2"] / "config.json").read_text())
    with pytest.raises(UserError, match="safetensors"):
        jaxpt.load(tmp_path)
    shutil.copy(directories["gpt2"] / "model.safetensors", tmp_path)
    with pytest.raises(UserError, match="no known vocabulary in this directory"):
        jaxpt.load(tmp_path)
    model = jaxpt.load(tmp_path, tokenizer=directories["gpt2"], dtype="float32")
    assert model.prompt_ids("the cat") == loaded("gpt2").prompt_ids("the cat")
    with pytest.raises(UserError, match="dtype: 'int8' is none of auto, float32, bfloat16"):
        jaxpt.load(directories["gpt2"], dtype="int8")
    with pytest.raises(UserError, match="batch_size: 0 is no number of rows; wants an integer from 1 on"):
        jaxpt.load(directories["gpt2"], batch_size=0)
    for objective in ({"a": 1}, 5):
        with pytest.raises(UserError, match="objective: wants a kind, or settings such as"):
            jaxpt.load(directories["gpt2"], objective=objective)
    with pytest.raises(UserError, match="objective: unknown key a"):
        jaxpt.load(directories["gpt2"], objective={"kind": "causal_lm", "a": 1})


def test_neither_tensorflow_nor_torch_is_loaded(directories):
    code = (
        "import sys, jaxpt\n"
        "assert not {'jax', 'numpy', 'tensorflow'} & sys.modules.keys()\n"
        f"model = jaxpt.load({str(directories['gpt2'])!r})\n"
        "print(model.generate(['the cat'], max_new_tokens=4)[0][0].finish)\n"
        "assert not {'tensorflow', 'seqio', 'torch', 'transformers'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_language_model_without_a_cache_embeds_and_scores(tmp_path):
    """ULMFiT's: it was refused whole, since it cannot generate."""
    model = run_of(tmp_path / "run", {"kind": "awd_lstm", "embed_dim": 8, "hidden_dim": 12}, "words", "recurrent_lm")
    output = model("the cat sat")
    np.testing.assert_allclose(model.embed(["the cat sat", "a dog"])[0], output.hidden.mean(0), rtol=1e-5)
    log_p = jax.nn.log_softmax(output.logits)[:-1]
    (pair,) = model.loglikelihood(["the"], [" cat sat"])
    np.testing.assert_allclose(pair.total, sum(log_p[i, id] for i, id in enumerate(output.ids[1:])), rtol=1e-5)
    for message, call in {
        "run: awd_lstm: its `decode` takes no cache, so it does not generate": lambda: model.generate(["the"]),
        "layer: of an awd_lstm only the last one, -1, is given": lambda: model.embed(["the"], layer=0),
    }.items():
        with pytest.raises(UserError, match=message):
            call()


def test_a_backward_language_model_embeds_texts_from_their_ends_and_scores_none(tmp_path):
    lm = {"kind": "awd_lstm", "embed_dim": 8, "hidden_dim": 12}, "words", "recurrent_lm"
    forward = run_of(tmp_path / "forward", *lm)
    backward = run_of(tmp_path / "backward", *lm, more={"direction": "backward"})  # the same random weights
    found, expected = (m.embed([x], pooling="last") for m, x in ((backward, "the cat sat"), (forward, "sat cat the")))
    np.testing.assert_array_equal(found, expected)
    ((found,), (expected,)) = backward.embed_words(["the cat sat"]), forward.embed_words(["sat cat the"])
    assert found.texts == ["the", "cat", "sat"]
    np.testing.assert_array_equal(found.vectors, expected.vectors[::-1])
    for call in (lambda: backward.loglikelihood(["the"], [" cat"]), lambda: backward.generate(["the"])):
        with pytest.raises(UserError, match=r"backward: reads text from its end \(objective\.direction: backward\)"):
            call()


def test_a_decoder_of_whole_words_begins_with_eos(tmp_path):
    """<S> is in the vocabulary, but no decoder's data have it."""
    model = run_of(tmp_path / "run", families.MODELS["gpt2"], "words", "causal_lm")
    assert model.tokenizer.vocabulary.bos == 1 and model.prompt_ids("") == Prompt([0])
    after_eos, alone = (
        likelihood.lay(model.network, model.objective, model.vocabulary, [context], [[5]]).rows for context in ([0], [])
    )
    assert alone == after_eos


@pytest.mark.parametrize(("objective", "more"), [("glove", None), ("skip_gram", {"subwords": {"buckets": 9}})])
def test_word_vectors_embed_texts(tmp_path, objective, more):
    """Their texts have no [CLS] and [SEP]. The vectors are those that are exported: of GloVe w + u, as its objective
    says, of fastText with the n-grams; rows of the table alone are neither's."""
    model = run_of(tmp_path / "run", {"kind": "word_vectors", "embed_dim": 8}, "words", objective, more=more)
    exported = static_vectors.of_run(tmp_path / "run")
    vectors = np.stack([exported.vector(word) for word in ("the", "cat")])
    np.testing.assert_allclose(model.embed(["the cat"])[0], vectors.mean(0), rtol=1e-6)
    np.testing.assert_allclose(model("the cat").hidden, vectors, rtol=1e-6)
    table = weights.read(*checkpoint.find(tmp_path / "run"))["model"]["token_embed"]["table"]
    assert np.abs(table[model.tokenizer.encode("the cat")] - vectors).min() > 0
    with pytest.raises(UserError, match=rf"{objective} makes word vectors and writes no text; use jaxpt neighbours"):
        model.loglikelihood(["the"], [" cat"])


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("family", families.FAMILIES)
def test_transformers_reads_and_says_the_same(directories, models, family):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path, model = directories[family], models[family]
    classes = {"gpt2": "CausalLM", "t5": "Seq2SeqLM", "bert": "MaskedLM"}
    their = getattr(transformers, f"AutoModelFor{classes[family]}").from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    if family == "bert":
        text = "the [MASK] sat on the [MASK]"
        with torch.no_grad():
            logits = their(**tokenizer(text, return_tensors="pt")).logits[0]
        (found,) = model.fill([text])
        at = [n for n, i in enumerate(tokenizer(text)["input_ids"]) if i == tokenizer.mask_token_id]
        for place, candidates in zip(at, found, strict=True):
            best = logits[place].softmax(-1).topk(5)
            np.testing.assert_allclose([p for _, p in candidates], best.values, rtol=1e-3)
        return
    for text in ("the cat", "a dog ran after"):
        given = tokenizer(text, return_tensors="pt")
        prompt = model.prompt_ids(text)
        ids = prompt.tokens if family == "gpt2" else prompt.encoder
        assert given["input_ids"][0].tolist() == ids
        eos = model.vocabulary.eos
        said = their.generate(**given, max_new_tokens=8, do_sample=False, eos_token_id=eos, pad_token_id=0)[0]
        start = len(prompt.tokens)
        assert model.generate([text], max_new_tokens=8)[0][0].tokens == said[start:].tolist()
