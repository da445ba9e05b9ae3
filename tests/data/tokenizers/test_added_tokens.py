"""Tokens of `data.tokenizer.add_tokens`: their ids, what is read as one, and what `transformers` reads of them."""

import json

import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers import extension
from jaxpt.errors import UserError

TEXTS = [f"the film is good {n} a bad plot, café ½" for n in range(300)] + ["Hello World\n\n tabs\t here"] * 20
KINDS = {"wordpiece": 106, "bpe": 329, "sentencepiece": 80}
"""Ids of a vocabulary of these texts."""
TOKENS = ("<|im_start|>", "<|im_end|>", "[X Y]", "<|im_end|>é")
SAMPLES = (
    "<|im_start|>user\nHello <|im_end|>\n <|im_start|>assistant\n Film, film  the[X Y]good",
    "plain text", "<|im_end|>", "a<|im_end|>éb <|im_start|> c  <|IM_END|> ＜|im_end|＞ ", " x  <|im_start|> ", "",
)  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def base(request):
    kind = request.param
    config = TokenizerConfig(kind=kind, lowercase=kind == "wordpiece", extra_ids=5 if kind == "sentencepiece" else None)
    return tokenizers.train(TEXTS, config, 400 if kind != "sentencepiece" else 80)


def test_ids_follow_those_of_the_vocabulary(base):
    size = base.vocabulary.size
    own = base.tokens(range(size)).index("a")
    grown = tokenizers.add(base, (*TOKENS, "a"))
    assert size == KINDS[base.kind] and dict(grown.vocabulary.added) == {
        **{token: size + n for n, token in enumerate(TOKENS)}, "a": own,
    }  # fmt: skip
    assert grown.vocabulary.size == size + 4 and grown.vocabulary.behind == 4
    assert grown.vocabulary.sentinel_ids == base.vocabulary.sentinel_ids
    assert grown.vocabulary.first_sentinel == size - 1
    assert grown.tokens(range(size + 4)) == [*base.tokens(range(size)), *TOKENS]
    assert grown.word_starts()[:size].tolist() == base.word_starts().tolist()


def test_the_text_between_them_is_tokenized_as_ever(base):
    grown = tokenizers.add(base, TOKENS)
    size = base.vocabulary.size
    for text in ("Hello the film", "café, a plot"):
        assert grown.encode(text) == base.encode(text)
        ids = grown.encode(f"{text}<|im_end|>{text}")
        assert ids == [*base.encode(text), size + 1, *base.encode(text)]
        assert grown.decode(ids).count("<|im_end|>") == 1
    assert grown.encode("<|im_end|>é") == [size + 3]  # the longest
    for text in SAMPLES:
        found = grown.encode_with_offsets([text])[0]
        assert found.ids == grown.encode(text) == grown.encode(text, special=True) == grown.encode_rendered(text).ids
        for i, (start, end) in zip(found.ids, found.offsets):
            assert i < size or text[start:end] == TOKENS[i - size]


def test_their_letters_stand_for_no_bytes(base):
    """As those of byte-level pieces do: ö and ß are GPT-2's letters for the bytes F6 and DF."""
    grown, size = tokenizers.add(base, ["größe", "[é"]), base.vocabulary.size
    text = "the größe [é film"
    assert {size, size + 1} < set(ids := grown.encode(text)) and grown.tokens([size]) == ["größe"]
    assert grown.decode(ids).replace(" ", "") == text.replace(" ", "")
    if base.byte_text == "all":
        assert grown.spelled(size).decode() == "größe"
    assert grown.decode(grown.encode("a café ½")) == base.decode(base.encode("a café ½"))


def test_they_are_saved_with_the_vocabulary(base, tmp_path):
    grown = tokenizers.add(tokenizers.add(base, TOKENS[:2]), TOKENS)
    grown.save(tmp_path / "one")
    again = tokenizers.load(tmp_path / "one", base.kind)
    assert again.vocabulary == grown.vocabulary and again.digest() == grown.digest() != base.digest()
    assert again.encode_batch(SAMPLES) == grown.encode_batch(SAMPLES)
    again.save(tmp_path / "two")
    more = tokenizers.load(tmp_path / "two", add_tokens=["[Z]", "<|im_end|>"])
    assert dict(more.vocabulary.added)["[Z]"] == grown.vocabulary.size
    with pytest.raises(UserError, match="token ids"):
        tokenizers.load(tmp_path / "two", max_size=base.vocabulary.size)


@pytest.mark.parity
def test_transformers_reads_the_same(base, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = tokenizers.add(base, (*TOKENS, "film"))
    ours.save(tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert len(theirs) == ours.vocabulary.size
    assert theirs.convert_tokens_to_ids(list(TOKENS)) == [dict(ours.vocabulary.added)[token] for token in TOKENS]
    for text in SAMPLES:
        ids = ours.encode(text)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        decoded = theirs.decode(ids).replace("<|im_end|>\ufffd", "<|im_end|>é")  # which takes é for a byte
        assert ours.decode(ids).replace(" ⁇ ", "<unk>") == decoded
        assert not set(TOKENS) & set(theirs.tokenize(theirs.decode(ids, skip_special_tokens=True)))
    theirs.save_pretrained(tmp_path / "theirs")
    again = tokenizers.load(tmp_path / "theirs")
    assert again.encode_batch(SAMPLES) == ours.encode_batch(SAMPLES)


def test_added_tokens_keep_and_make_special_tokens(tmp_path):
    """What files say stays (EuroBERT's BOS and EOS are around a text); a token with the name of a mask is one."""
    grown = tokenizers.train(TEXTS, TokenizerConfig(kind="bpe"), 300, tmp_path / "bare")
    named = ("<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|pad|>")
    tree = json.loads((tmp_path / "bare" / "tokenizer.json").read_text())
    tree["added_tokens"] += [
        tree["added_tokens"][0] | {"id": grown.vocabulary.size + n, "content": token} for n, token in enumerate(named)
    ]
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "tokenizer.json").write_text(json.dumps(tree))
    settings = {f"{part}_token": token for part, token in zip(("bos", "eos", "mask", "pad"), named)}
    (tmp_path / "named" / "tokenizer_config.json").write_text(json.dumps(settings))
    base = tokenizers.load(tmp_path / "named")
    more = tokenizers.load(tmp_path / "named", add_tokens=["<x>"])
    more.save(tmp_path / "more")
    extended = extension.extend(base, ["go went go went"], 1)
    for tokenizer in (base, more, tokenizers.load(tmp_path / "more"), tokenizers.add(base, ["<x>"]), extended):
        v = tokenizer.vocabulary
        assert (v.cls, v.sep) == (grown.vocabulary.size, grown.vocabulary.size + 1)
    for kind in ("sentencepiece", "bpe"):
        sentinels = 2 if kind == "sentencepiece" else None
        config = TokenizerConfig(kind=kind, extra_ids=sentinels, add_tokens=["[MASK]", "<x>"])
        first = tokenizers.train(TEXTS, config, KINDS[kind], tmp_path / kind)
        again = tokenizers.load(tmp_path / kind)
        assert first.vocabulary.mask == again.vocabulary.mask == again.vocabulary.size - 2 and not again.assumed
        assert tokenizers.planned(config, again.vocabulary.size - 2).mask == again.vocabulary.mask
