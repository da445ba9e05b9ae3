"""`jaxpt.load`: run directories and Hugging Face directories of each family, and what is done with them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxpt
from jaxpt import config as configs
from jaxpt import convert, hf
from jaxpt.data import tokenizers
from jaxpt.errors import UserError
from jaxpt.generate.engine import Prompt
from tests import families
from tests.hf.test_directory import fresh

ROOT = Path(__file__).parents[2]
TEXTS = ["the cat sat on the mat", "a dog ran after the cat", "no one saw the dog run away"] * 5


def made(path, family, **model):
    """A Hugging Face directory of a small random model with a tokenizer."""
    settings = {**families.MODELS[family], "vocab_size": 300 if family == "gpt2" else 60, "dtype": "auto", **model}
    network, params = fresh(families.config(family, model=settings).model)
    hf.save(path, network, params)
    extra_ids = 5 if family == "t5" else 0 if family == "llama" else None
    kind = configs.TokenizerConfig(kind=families.TOKENIZERS[family], extra_ids=extra_ids)
    tokenizers.train(TEXTS, kind, 270 if family == "gpt2" else 50, path)
    return path


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: made(folder / name, name) for name in families.FAMILIES}


@pytest.fixture(scope="module")
def models(directories):
    return {name: jaxpt.load(path) for name, path in directories.items()}


def test_a_decoder_generates(models):
    model = models["gpt2"]
    assert model.family == "decoder" and model.objective.kind == "causal_lm"
    assert model.prompt_ids("the cat") == Prompt(model.tokenizer.encode("the cat"))
    found = model.generate(["the cat", "a dog ran", ""], max_new_tokens=8, scores=True)
    assert [len(samples) for samples in found] == [1, 1, 1]
    for (one,) in found:
        assert one.finish in ("eos", "length") and len(one.tokens) == len(one.logprobs) <= 8
    alone = model.generate(["a dog ran"], max_new_tokens=8)[0][0]
    assert alone.tokens == found[1][0].tokens and alone.text == found[1][0].text


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


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_run_directory_is_the_same_model(directories, models, family, tmp_path):
    convert.import_weights(directories[family], tmp_path / "run", report=lambda line: None)
    text = {"gpt2": "the cat", "t5": "the cat", "bert": "a [MASK] ran"}[family]
    for path in (tmp_path / "run", tmp_path / "run" / "checkpoints" / "0"):
        run = jaxpt.load(path)
        assert run.path == path and run.network.config == models[family].network.config
        for model in (run, models[family]):
            found = model.fill([text]) if family == "bert" else model.generate([text], max_new_tokens=6)
            if model is run:
                ours = found
        assert ours == found


def test_bos_comes_first_where_the_tokenizer_puts_it(tmp_path):
    path = made(tmp_path / "llama", "llama")
    model = jaxpt.load(path)
    assert model.vocabulary.bos is None or model.prompt_ids("the cat").tokens[0] != model.vocabulary.bos
    settings = json.loads((path / "tokenizer_config.json").read_text())
    (path / "checksums.json").unlink(missing_ok=True)
    (path / "tokenizer_config.json").write_text(json.dumps(settings | {"add_bos_token": True}))
    model = jaxpt.load(path)
    if model.vocabulary.bos is not None:
        ids = model.prompt_ids("the cat").tokens
        assert ids == [model.vocabulary.bos, *model.tokenizer.encode("the cat")]


def test_generation_settings_of_a_directory(directories, tmp_path):
    import shutil

    path = tmp_path / "gpt2"
    shutil.copytree(directories["gpt2"], path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9], "forced_eos_token_id": 9}))
    model = jaxpt.load(path)
    options = model.options(max_new_tokens=3)
    assert options.eos == (model.vocabulary.eos, 7, 9) and options.forced_last == 9
    assert model.options(eos=5).eos == (5,)
    with pytest.raises(UserError, match="beam: is no option of generation"):
        model.options(beam=3)


def test_wrong_directories(directories, tmp_path):
    with pytest.raises(UserError, match="is no model; expected RUN_DIR"):
        jaxpt.load(tmp_path)
    (tmp_path / "config.json").write_text((directories["gpt2"] / "config.json").read_text())
    with pytest.raises(UserError):
        jaxpt.load(tmp_path)


def test_neither_tensorflow_nor_torch_is_loaded(directories):
    code = (
        "import sys, jaxpt\n"
        "assert not {'jax', 'numpy', 'tensorflow'} & sys.modules.keys()\n"
        f"model = jaxpt.load({str(directories['gpt2'])!r})\n"
        "print(model.generate(['the cat'], max_new_tokens=2)[0][0].finish)\n"
        "assert not {'tensorflow', 'seqio', 'torch', 'transformers'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
