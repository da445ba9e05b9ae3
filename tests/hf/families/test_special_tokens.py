"""Which ids training, generation, dialogues and the harness use of a published directory: as transformers does."""

import functools
import json
import types

import pytest

from jaxpt.data import chat_template, tokenizers
from jaxpt.decode import prompts
from jaxpt.decode.options import Options
from jaxpt.hf import generation, vocabularies
from jaxpt.inference import dialogue
from jaxpt.inference.chat import Chat
from jaxpt.models.bert import BertConfig
from jaxpt.models.gpt2 import GPT2Config
from jaxpt.objectives.causal_lm import CausalLM
from jaxpt.objectives.formats import encoder_format
from tests.hf import published

pytestmark = [pytest.mark.parity, pytest.mark.slow]

TEXTS = (
    "The cat sat on 1234 mats.",
    " two  spaces\n\n\tand a tab",
    "cafe\u0301 für 3,14 中文 🎉",
    "it's x = [1, 22, 333]\n",
    "<|im_end|> and </s> <eos> [SEP]",
)
DIALOGUE = [
    {"role": "user", "content": "What is 12 + 34?"}, {"role": "assistant", "content": "It is 46."},
    {"role": "user", "content": " And 5? "},
]  # fmt: skip
DECODERS = [name for name in published.FAMILIES if name not in published.ENCODERS]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """(name of a family) → what jaxpt and transformers read of its directory, once for all tests."""
    pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("published")
    return functools.cache(lambda name: open_directory(published.write(path, name), name))


def open_directory(folder, name):
    """What jaxpt and transformers read of a family's directory."""
    import transformers

    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer = tokenizers.load(folder, extra_ids=0, max_size=size)
    settings = generation.read(folder, size)
    config = (BertConfig if name in published.ENCODERS else GPT2Config)(
        vocab_size=size, layers=1, embed_dim=4, heads=1, mlp_dim=4
    )
    bos, eos = prompts.bos_of(tokenizer, folder), prompts.eos_of(tokenizer, folder, settings.eos)
    encoder = prompts.PromptEncoder(config, CausalLM(), tokenizer, bos, start=settings.bos)
    return types.SimpleNamespace(
        name=name, folder=folder, tokenizer=tokenizer, encoder=encoder, eos=eos, vocabulary=tokenizer.vocabulary,
        config=config, theirs=transformers.AutoTokenizer.from_pretrained(folder),
    )  # fmt: skip


def theirs_stop(read):
    """Ids that end a text in `generate` of transformers: of generation_config.json, which config.json gives first."""
    import transformers

    try:
        settings = transformers.GenerationConfig.from_pretrained(read.folder)
    except OSError:
        config = transformers.AutoConfig.from_pretrained(read.folder)
        settings = transformers.GenerationConfig.from_model_config(config)
    eos = settings.eos_token_id
    return set(eos if isinstance(eos, list) else [eos])


@pytest.mark.parametrize("name", published.FAMILIES)
def test_texts_and_their_special_tokens(name, opened, tmp_path):
    read = opened(name)
    v, theirs = read.vocabulary, read.theirs
    for text in TEXTS:
        want = theirs(text, add_special_tokens=False)["input_ids"]
        assert read.tokenizer.encode(text, special=True) == want, text
    ids = {part: getattr(theirs, f"{part}_token_id") for part in ("bos", "eos", "mask")}
    if name.startswith("ettin"):  # config.json alone names them
        ids |= {"bos": theirs.cls_token_id, "eos": theirs.sep_token_id}
    assert {part: getattr(v, part) for part in ids} == ids
    assert v.pad == (theirs.pad_token_id or 0)
    vocabularies.take(read.folder, tmp_path / "run/tokenizer", {"extra_ids": 0}, print)
    in_run = tokenizers.load(tmp_path / "run/tokenizer", extra_ids=0)
    assert in_run.vocabulary == v
    (tmp_path / "out").mkdir()
    vocabularies.give(tmp_path / "run", tmp_path / "out")
    (tmp_path / "out/config.json").write_bytes((read.folder / "config.json").read_bytes())
    after = type(theirs).from_pretrained(tmp_path / "out")
    for text in TEXTS:
        assert in_run.encode(text, special=True) == read.tokenizer.encode(text, special=True)
        assert after(text)["input_ids"] == theirs(text)["input_ids"]


@pytest.mark.parametrize("name", published.ENCODERS)
def test_what_is_around_a_text_of_an_encoder(name, opened):
    read = opened(name)
    layout = encoder_format(read.config, read.vocabulary)
    for text in TEXTS:
        assert layout.wrap(read.tokenizer.encode(text, special=True)) == read.theirs(text)["input_ids"]


@pytest.mark.parametrize("name", DECODERS)
def test_prompts_ends_and_continuations(name, opened):
    read = opened(name)
    around = published.FAMILIES[name].around or ""
    for text in TEXTS:
        want = read.theirs(text)["input_ids"]
        want = want[:-1] if around.endswith("[SEP]") else want  # nothing follows the end of a text
        assert list(read.encoder.prompt(text).tokens) == want, text
        before, after = read.encoder.pair(text.rstrip(), " more of it")
        whole = read.theirs(text.rstrip() + " more of it")["input_ids"]
        assert [*before, *after] == (whole[:-1] if around.endswith("[SEP]") else whole)
    assert set(read.eos) == theirs_stop(read)


@pytest.mark.parametrize("name", [name for name in DECODERS if published.FAMILIES[name].template])
def test_dialogues(name, opened):
    read = opened(name)
    model = types.SimpleNamespace(
        family="decoder", tokenizer=read.tokenizer, vocabulary=read.vocabulary, prompt_ids=read.encoder.prompt,
        options=lambda **keys: Options(**{"eos": read.eos} | keys),
    )  # fmt: skip
    template = chat_template.load(read.tokenizer)
    chat = Chat(model, template, {}, None)
    want = read.theirs.apply_chat_template(DIALOGUE, add_generation_prompt=True)["input_ids"]
    assert list(dialogue.prompt(model, template, DIALOGUE).tokens) == want
    text = template.render(DIALOGUE, add_generation_prompt=False)
    want = read.theirs.apply_chat_template(DIALOGUE, add_generation_prompt=False)["input_ids"]
    assert read.tokenizer.encode_rendered(text).ids == want
    ends = {"llama 3": "<|eot_id|>", "gemma 2": "<end_of_turn>", "phi 3": "<|end|>"}
    chatml = "<|im_end|>" if published.FAMILIES[name].template == published.CHATML else read.theirs.eos_token
    end = read.theirs.convert_tokens_to_ids(ends.get(name, chatml))
    assert set(chat._options.eos) == theirs_stop(read) | {end} and not chat._options.stop
