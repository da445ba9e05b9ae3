"""SentencePiece models with what stands beside them: added tokens, options, a tokenizer.json; and mT5's sentinels."""

import json
import re

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from jaxpt.data import tokenizers
from jaxpt.data.tokenizers.rust_tokenizers import RustTokenizer
from jaxpt.data.tokenizers.sentencepiece import SentencePieceTokenizer
from jaxpt.errors import UserError
from tests.data.tokenizers.test_tokenizers import by_spm

LLAMA = {
    "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False, "vocab_size": 360,
}  # fmt: skip
TEXT = ["the end of a value and the name of a class\n" * 9, "a value is returned, and the class has a name\n" * 9]
WITH_LETTERS = ["".join(TEXT) + "".join(map(chr, range(33, 127)))]
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


@pytest.fixture(scope="module")
def models():
    """A model as Llama's, and one as mT5's with 20 sentinels inside."""
    sentinels = [f"▁<extra_id_{i}>" for i in reversed(range(20))]
    trained = by_spm(WITH_LETTERS, **T5, vocab_size=160, user_defined_symbols=sentinels)
    proto = sentencepiece_model_pb2.ModelProto.FromString(trained)
    pieces = sorted(proto.pieces, key=lambda piece: piece.piece in sentinels)  # which are its last, in mT5's
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    return by_spm(WITH_LETTERS, **LLAMA), proto.SerializeToString()


def directory(path, model, **settings):
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.model").write_bytes(model)
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"} | settings))
    return path


def decoder(tokens):
    return {str(i): {"content": token, "special": True} for token, i in tokens.items()}


def test_added_tokens_of_a_dialogue(models, tmp_path):
    size = tokenizers.load(directory(tmp_path / "plain", models[0])).vocabulary.size
    tokens = {"<|im_start|>": size, "<|im_end|>": size + 1}
    prompt = "<|im_start|>the end<|im_end|> a<|im_start|>"
    assert len(tokenizers.load(tmp_path / "plain").encode(prompt, special=True)) > 30
    for legacy in (True, False):
        folder = directory(tmp_path / f"{legacy}", models[0], legacy=legacy, added_tokens_decoder=decoder(tokens))
        ours = tokenizers.load(folder)
        spaced, bare = ours.encode("the end"), ours.encode(" the end")
        ids = ours.encode(prompt, special=True)
        assert [ids[0], ids[-1]] == [size, size] and ids.count(size + 1) == 1 and ours.vocabulary.size == size + 2
        # `legacy: false` puts a space before a text only where it is the first, as LlamaTokenizer 5.24
        assert (ours.tokens(ids)[1][0] == "▁") == legacy and (spaced == bare) == (not legacy)
        rendered = ours.encode_rendered(prompt)
        assert rendered.ids == ids and rendered.offsets[0].tolist() == [0, 12]
        assert ours.encode(prompt) != ids  # plain text
        ours.save(folder / "saved")
        again = tokenizers.load(folder / "saved")
        assert isinstance(again, SentencePieceTokenizer) and again.digest() == ours.digest()
        assert again.encode(prompt, special=True) == ids and again.vocabulary == ours.vocabulary
        rust = tokenizers.load(folder / "saved" / "tokenizer.json")
        assert rust.encode(prompt, special=True) == ids
    folder = directory(tmp_path / "none", models[0], add_prefix_space=False)
    assert tokenizers.load(folder).tokens(tokenizers.load(folder).encode("the"))[0][0] != "▁"


def test_a_token_of_the_normalized_text_is_found_inside_of_words(models, tmp_path):
    """A token of added_tokens.json is one, unless a file names it as special; in the saved tokenizer.json as well."""
    for legacy in (True, False):
        folder = directory(tmp_path / f"{legacy}", models[0], legacy=legacy)
        size = tokenizers.load(folder).vocabulary.size
        (folder / "added_tokens.json").write_text(json.dumps({"<ent>": size, "Name": size + 1}))
        ours = tokenizers.load(folder)
        ours.save(folder / "saved")
        rust = tokenizers.load(folder / "saved" / "tokenizer.json")
        for text in ("a<ent>the Name<ent>Names", " <ent>a", "<ent>", "  the", "▁a", "", " "):
            assert rust.encode(text) == ours.encode(text), text
        assert ours.encode("a<ent>Name")[1:] == [size, size + 1]


def test_a_tokenizer_json_of_others_counts_before_the_model(models, tmp_path):
    folder = directory(tmp_path / "hf", models[0])
    tokenizers.load(folder).save(tmp_path / "saved")
    tree = json.loads((tmp_path / "saved" / "tokenizer.json").read_text("utf-8"))
    size = tokenizers.load(folder).vocabulary.size
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tree["added_tokens"].append({"id": size, "content": "<|im_start|>", **flags})
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    ours = tokenizers.load(folder)
    assert isinstance(ours, RustTokenizer) and ours.encode("<|im_start|>a", special=True)[0] == size
    # a recipe that wants the kind of the model gets the model: such a tokenizer.json is a BPE
    assert isinstance(tokenizers.load(folder, "sentencepiece"), SentencePieceTokenizer)
    assert isinstance(tokenizers.load(tmp_path / "saved"), SentencePieceTokenizer)  # what we have saved


def test_sentinels_inside_a_model(models, tmp_path):
    """mT5's: `▁<extra_id_19>` … `▁<extra_id_0>` are its last pieces."""
    path = tmp_path / "spiece.model"
    path.write_bytes(models[1])
    bare = tokenizers.load(path)
    v = bare.vocabulary
    assert v.sentinels == 20 and bare.tokens(v.sentinel_ids)[-1] == "<extra_id_0>" and bare.assumed is None
    assert bare.token_id("<extra_id_0>") == v.first_sentinel and bare.token_id("<extra_id_20>") is None
    assert bare.encode("a <extra_id_0> the")[1] == v.first_sentinel
    for extra_ids in (0, 20):  # none are put behind it, or as many as it has
        assert tokenizers.load(path, extra_ids=extra_ids).vocabulary == v
    with pytest.raises(UserError, match=r"spiece\.model: has 20 sentinels, data\.tokenizer\.extra_ids is 100"):
        tokenizers.load(path, extra_ids=100)
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert tokenizers.load(tmp_path).vocabulary == v
    bare.save(tmp_path / "saved")
    again = tokenizers.load(tmp_path / "saved")
    assert again.vocabulary == v and again.digest() == bare.digest()
    rust = tokenizers.load(tmp_path / "saved" / "tokenizer.json")  # and so in a tokenizer.json
    assert rust.vocabulary.sentinel_ids == v.sentinel_ids == range(v.size - 20, v.size)
    assert rust.encode("a <extra_id_3>") == bare.encode("a <extra_id_3>")


GLUED = {  # text: as it is read
    "a<extra_id_0> b": "a <extra_id_0> b",
    "(<extra_id_1><extra_id_0>": "( <extra_id_1> <extra_id_0>",
    "<extra_id_0>, é½<extra_id_2>.": "<extra_id_0>, é½ <extra_id_2>.",
    "\n<extra_id_0>\t<extra_id_1>": "<extra_id_0> <extra_id_1>",
}


@pytest.mark.parametrize("inside", [False, True])
def test_sentinels_need_no_space_before_them(models, inside, tmp_path):
    """As T5's tokenizer finds them; the text behind one is read as behind any other piece."""
    path = tmp_path / "spiece.model"
    path.write_bytes(models[1] if inside else by_spm(WITH_LETTERS, **T5, vocab_size=120))
    ours = tokenizers.load(path, extra_ids=20)
    for glued, spaced in GLUED.items():
        ids = ours.encode(glued)
        assert ids == ours.encode(spaced)
        assert sum(i in ours.vocabulary.sentinel_ids for i in ids) == glued.count("<extra")
        read = ours.encode_with_offsets([glued])[0]
        spans = {glued[start:end] for i, (start, end) in zip(*read) if i in ours.vocabulary.sentinel_ids}
        assert read.ids == ids and spans == set(re.findall("<extra_id_.>", glued))
    assert ours.encode("a<extra_id_20>")[-1] not in ours.vocabulary.sentinel_ids  # which it does not have
    assert ours.text_version == 2


@pytest.mark.parity
def test_sentinels_are_found_where_t5s_tokenizer_finds_them(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "spiece.model").write_bytes(by_spm(WITH_LETTERS, **T5, vocab_size=120))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    ours, theirs = tokenizers.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("a<extra_id_0> the", "a<extra_id_0><extra_id_1>", "(<extra_id_0>\n<extra_id_99>", "a <extra_id_3> b"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


SYMBOLS = ("->", "(", "the", "½", "\n", "Name", "__")
OPTIONS = {
    "unigram": {}, "unigram, folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "bpe, folded": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf"}, "bpe": LLAMA | {"vocab_size": 400},
    "no prefix": {"add_dummy_prefix": False},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_symbols_of_a_model_are_in_its_tokenizer_json(name, tmp_path):
    """SentencePiece keeps them whole, and as they are: it neither folds nor normalizes them."""
    options = {"vocab_size": 130, "user_defined_symbols": SYMBOLS} | OPTIONS[name]
    (tmp_path / "spiece.model").write_bytes(by_spm(WITH_LETTERS, **options))
    ours = tokenizers.load(tmp_path, extra_ids=0)
    ours.save(tmp_path / "saved")
    rust = tokenizers.load(tmp_path / "saved" / "tokenizer.json")
    library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    forms = ("{0}", "a{0}b", "a {0} b", "a {0}b", "a{0} b", "{0} end", "end{0}", "{0}{0}", " {0}  {0}", "cl{0}{0}y")
    texts = [form.format(symbol) for form in forms for symbol in SYMBOLS] + ["a½->Name(\n\n)", *TEXT]
    assert ours.encode_batch(texts) == library.encode(texts)
    assert [rust.tokens(ids) for ids in rust.encode_batch(texts)] == [rust.tokens(ids) for ids in library.encode(texts)]


def test_a_special_token_between_symbols_is_text(tmp_path):
    """A part of a text is a piece whatever the merges say, but not a special one; read as special tokens they are."""
    options = LLAMA | {"vocab_size": 400, "user_defined_symbols": ["|"]}
    (tmp_path / "spiece.model").write_bytes(by_spm(WITH_LETTERS, **options))
    ours = tokenizers.load(tmp_path, extra_ids=0)
    ours.save(tmp_path / "saved")
    rust = tokenizers.load(tmp_path / "saved" / "tokenizer.json")
    for text in ("|<s>|", "a|</s>| b", "|<unk>|\U0001f600", "<s>|<s>"):
        assert rust.encode(text) == ours.encode(text)
        assert rust.encode(text, special=True) == ours.encode(text, special=True) != rust.encode(text)
        assert rust.decode(rust.encode(text)) == text
    assert rust.text_version == 2


def test_added_tokens_behind_sentinels(models, tmp_path):
    """A T5 with a token of its own: the sentinels stay where they are, and `add_tokens` come behind it."""
    folder = tmp_path / "t5"
    folder.mkdir()
    (folder / "spiece.model").write_bytes(models[1])
    size = tokenizers.load(folder).vocabulary.size
    (folder / "added_tokens.json").write_text(json.dumps({"<ent>": size}))
    ours = tokenizers.load(folder, add_tokens=["<own>"])
    v = ours.vocabulary
    assert v.sentinel_ids == range(size - 20, size) and v.added == (("<own>", size + 1),) and v.behind == 1
    ids = ours.encode("a <ent> <own> <extra_id_0>")
    assert [i for i in ids if i >= size - 20] == [size, size + 1, size - 1]
    ours.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").vocabulary == v
    assert tokenizers.load(tmp_path / "saved" / "tokenizer.json").vocabulary.sentinel_ids == v.sentinel_ids


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tokenizer_class": "T5Tokenizer", "add_prefix_space": False}, "add_prefix_space: false is not supported"),
        ({"tokenizer_class": "DebertaV2Tokenizer", "split_by_punct": True}, "split_by_punct: true is not supported"),
        ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs: {'enable_sampling': True} is not supported"),
        ({"split_special_tokens": True}, "split_special_tokens: true is not supported, only false"),
        ({"legacy": 1}, "legacy is 1; wants true or false"),
    ],
)
def test_options_that_are_refused(settings, words, models, tmp_path):
    with pytest.raises(UserError) as error:
        tokenizers.load(directory(tmp_path, models[0], **settings))
    assert str(error.value).startswith(f"{tmp_path / 'tokenizer_config.json'}: ") and words in str(error.value)
