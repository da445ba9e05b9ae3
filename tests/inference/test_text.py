"""A stream's pieces are the text of the whole, for ids of all kinds of tokenizers; stop strings that cross tokens."""

import doctest
import gzip
import json
import random
from pathlib import Path

import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers import rust_tokenizers
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.inference import text as module
from jaxpt.inference.text import StopStrings, TextStream, unfinished
from tests.data.tokenizers.test_tokenizers import SAMPLES, by_spm, ours_as_rust, topics

DATA = Path(__file__).parents[3] / "shared" / "data"
TRAINED = (
    "sentencepiece",
    "wordpiece",
    "bpe",
    "byte_fallback",
    "byte_fallback_rust",
    "sentencepiece_rust",
    "plain_bpe",
)
PUBLISHED = {
    "gpt2": {"vocab/gpt2/encoder.json.gz": "vocab.json", "vocab/gpt2/vocab.bpe.gz": "merges.txt"},
    "bert": {"vocab/bert-base-uncased/vocab.txt.gz": "vocab.txt"},
    "albert": {"vocab/albert/spiece.model": "spiece.model"},
    "t5": {"vocab/t5-seqio-test/sentencepiece.model": "spiece.model"},
    "sentencepiece_1000": {"vocab/sentencepiece/test_model.model": "spiece.model"},
    "llama": {"weights/stories260K/tok512.model": "tokenizer.model"},
}
WORDS = [*SAMPLES, "日本語のカタカナ、ァアィイ", "😀😀👩‍👩‍👧 a 中文", "play playing , ' s n't .", "  two  spaces\n\n"]


class Utf8(Tokenizer):
    """Someone's own tokenizer, which does not say that its ids are bytes."""

    kind = "utf8"

    def __init__(self):
        self.vocabulary = tokenizers.planned(TokenizerConfig(kind="bpe"), 258)

    def encode_batch(self, texts):
        return [list(text.encode()) for text in texts]

    def decode(self, ids):
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

    def tokens(self, ids):
        return [chr(i) for i in ids]


def gpt1(texts):
    """BPE whose pieces end a word with "</w>"."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import decoders, models, pre_tokenizers, trainers

    rust = Rust(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder(suffix="</w>")
    options = {"special_tokens": ["<unk>"], "end_of_word_suffix": "</w>", "show_progress": False}
    rust.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, **options))
    return rust_tokenizers.RustTokenizer(rust, "bpe")


def made(name, folder):
    texts = list(topics.values())[:20]
    if name in ("byte_fallback", "byte_fallback_rust"):
        options = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 400}
        (folder / "tokenizer.model").write_bytes(by_spm(texts, **options))
        ours = tokenizers.load(folder, extra_ids=0)
        if name == "byte_fallback":
            return ours
        ours.save(folder / "saved")
        return rust_tokenizers.RustTokenizer(ours_as_rust(folder / "saved"), "bpe")
    if name == "sentencepiece_rust":
        tokenizers.train(texts, TokenizerConfig(kind="sentencepiece", extra_ids=5), 400, folder)
        return tokenizers.load(folder / "tokenizer.json")
    if name == "plain_bpe":
        return gpt1(texts)
    return tokenizers.train(texts, TokenizerConfig(kind=name), 600)


def published(name, folder):
    for source, file in PUBLISHED[name].items():
        path = DATA / source
        if not path.exists():
            pytest.skip("published vocabularies are not here")
        (folder / file).write_bytes(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    if name == "albert":
        (folder / "config.json").write_text(json.dumps({"model_type": name}))
    return tokenizers.load(folder)


@pytest.fixture(scope="module", params=[*TRAINED, *PUBLISHED, "utf8"])
def tokenizer(request, tmp_path_factory):
    if request.param == "utf8":
        return Utf8()
    folder = tmp_path_factory.mktemp(request.param)
    return (made if request.param in TRAINED else published)(request.param, folder)


def added(tokenizer, prompt, ids):
    """What the ids add to the text of the prompt."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *ids])
    size = 0
    while size < min(len(before), len(whole)) and before[size] == whole[size]:
        size += 1
    return whole[size:]


def streamed(stream, ids, draw=None):
    """(all parts, their concatenation); ids are pushed one by one, or as many at once as drawn."""
    parts, at = [], 0
    while at < len(ids):
        size = 1 if draw is None else draw.randint(1, 6)
        parts.append(stream.push(ids[at : at + size]))
        at += size
    parts.append(stream.finish())
    return parts, "".join(parts)


def rows(tokenizer, draw, count):
    """Prompts with generated ids: of real text, of any ids, and of runs of bytes and other unusual ids."""
    size = tokenizer.vocabulary.size
    odd = [i for i in range(size) if tokenizer.spelled(i) is not None] or [0]
    blank = [i for i in range(size) if not tokenizer.decode([i]).strip()]
    for n in range(count):
        length = draw.randint(0, 24)
        if n % 4 == 0:
            ids = [i for text in draw.sample(WORDS, 3) for i in tokenizer.encode(text)]
            ids = ids[draw.randint(0, len(ids) // 2) :]
        elif n % 4 == 1:
            ids = [draw.randrange(size + 2) for _ in range(length)]
        elif n % 4 == 2:
            ids = [draw.choice(odd) for _ in range(length)]
        else:
            kinds = [odd, blank or odd, range(size), tokenizer.encode("中é😀\ufffd word")]
            ids = [draw.choice(draw.choice(kinds)) for _ in range(length)]
        cut = draw.choice([0, draw.randint(0, len(ids))])
        yield ids[:cut], ids[cut:]


def test_examples_in_docstrings():
    assert doctest.testmod(module).failed == 0


MANY = pytest.param(1500, marks=pytest.mark.grid)


@pytest.mark.parametrize("count", [60, MANY])
def test_parts_of_a_stream_are_the_whole_text(tokenizer, count):
    draw = random.Random(0)
    for prompt, ids in rows(tokenizer, draw, count):
        want = added(tokenizer, prompt, ids)
        for pushes in (None, draw):
            parts, got = streamed(TextStream(tokenizer, prompt), ids, pushes)
            assert got == want, (prompt, ids, parts)


@pytest.mark.parametrize("count", [40, MANY])
def test_what_was_shown_stays(tokenizer, count):
    """After each id the text so far is a beginning of the text with any other id behind it: no half character."""
    draw = random.Random(1)
    size = tokenizer.vocabulary.size
    for prompt, ids in rows(tokenizer, draw, count):
        stream, text = TextStream(tokenizer, prompt), ""
        for n, i in enumerate(ids):
            text += stream.push([i])
            for more in draw.choices(range(size), k=3):
                assert added(tokenizer, prompt, [*ids[: n + 1], more]).startswith(text)


def test_a_text_in_many_scripts_comes_without_half_characters(tokenizer):
    for text in WORDS:
        ids = tokenizer.encode(text)
        parts, whole = streamed(TextStream(tokenizer), ids)
        assert ("\ufffd" in "".join(parts)) == ("\ufffd" in tokenizer.decode(ids))
        assert whole == tokenizer.decode(ids)


def test_the_time_for_an_id_does_not_grow(tokenizer):
    """Counted, not timed: ids that are decoded for each that is pushed."""
    draw = random.Random(2)
    decoded = 0
    decode = tokenizer.decode

    def counted(ids):
        nonlocal decoded
        decoded += len(ids)
        return decode(ids)

    ids = [i for text in WORDS for i in tokenizer.encode(text)]
    ids = [draw.choice(ids) for _ in range(1000)]
    stream = TextStream(tokenizer)
    stream.push(ids[:1])
    try:
        tokenizer.decode = counted
        "".join(stream.push([i]) for i in ids)
    finally:
        del tokenizer.decode
    assert decoded <= 24 * len(ids)


def test_pieces_of_a_word_join(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nplay\n##ing\n,\n")
    stream = TextStream(tokenizers.load(path), [2, 5])
    assert [stream.push([i]) for i in (6, 5, 7, 5, 6, 3)] == ["ing", " play", ",", " play", "ing", ""]


def testunfinished_characters():
    for text in ("é", "中", "😀"):
        whole = text.encode()
        assert [unfinished(whole[:n]) for n in range(len(whole))] == list(range(len(whole)))
        assert unfinished(whole) == 0 and unfinished(b"\xe4" + whole) == 0 and unfinished(whole + b"\xe4") == 1
    assert [unfinished(run) for run in (b"\x80", b"\xff", b"\xc0", b"\xe0\x80", b"\xf4\x90")] == [0] * 5


def test_bytes_that_are_no_characters(tokenizer):
    of_byte = {spelled: i for i in range(tokenizer.vocabulary.size) if len(spelled := tokenizer.spelled(i) or b"") == 1}
    if len(of_byte) < 256:
        pytest.skip("not every byte has an id")
    for run in (
        b"\xed\xa0\x80",
        b"\xed\xa0a",
        b"\xf4\x90\x80\x80",
        b"\xe0\x80\x80",
        b"\xc0\xaf",
        b"\xf0\x9f\xf0\x9f\x98",
    ):
        ids = [of_byte[bytes([byte])] for byte in b"a" + run + "中".encode()]
        for cut in range(len(ids)):
            prompt, generated = ids[:cut], ids[cut:]
            assert streamed(TextStream(tokenizer, prompt), generated)[1] == added(tokenizer, prompt, generated)


# ---- stop strings ---------------------------------------------------------------------------------------------------


def stopped(tokenizer, prompt, ids, stops):
    """(text before the first stop string, number of ids kept) of a finished row."""
    stream = TextStream(tokenizer, prompt, stops)
    return stream.push(ids) + stream.finish(), stream.kept()


@pytest.mark.parametrize(
    ("strings", "text", "want"),
    [
        (["\n\n"], "one\ntwo\n\nthree", "one\ntwo"),
        (["b", "abcd"], "xabcd", "xa"),  # complete first
        (["b", "ab"], "xab", "x"),  # the longest of those that end here
        (["aab"], "aaab!", "a"),
        (["stop"], "sto", "sto"),
        ([], "anything", "anything"),
        (["x"], "x", ""),
        (["中。"], "これは中。後", "これは"),
    ],
)
def test_the_first_complete_stop_string_counts(strings, text, want):
    ours = Utf8()
    ids, stops = ours.encode(text), StopStrings(strings)
    assert stopped(ours, [], ids, stops)[0] == want
    for seed in range(20):
        stream = TextStream(ours, stops=stops)
        parts, got = streamed(stream, ids, random.Random(seed))
        assert (got, stream.is_stopped) == (want, want != text), parts


def test_the_beginning_of_a_stop_string_is_held_back():
    ours = Utf8()
    stream = TextStream(ours, stops=StopStrings(["User:", "\n\n"]))
    pushed = [stream.push(ours.encode(part)) for part in ("Hello U", "s", "a", "ge", "\n", "Use", "r", ": no", "more")]
    assert pushed == ["Hello ", "", "Usa", "ge", "", "\n", "", "", ""]
    assert stream.is_stopped and stream.finish() == "" and stream.kept() == len("Hello Usage\n")
    ending = TextStream(ours, stops=StopStrings(["User:"]))
    assert ending.push(ours.encode("a Use")) == "a " and ending.finish() == "Use" and not ending.is_stopped


def test_stop_strings_cross_tokens(tokenizer):
    """By pushes of any size, and at once: the same text and ids, which decode to a beginning of the text."""
    draw = random.Random(3)
    stops_found = 0
    for prompt, ids in rows(tokenizer, draw, 100):
        whole = added(tokenizer, prompt, ids)
        at = draw.randint(0, len(whole))
        stops = StopStrings(s for s in (whole[at : at + draw.randint(1, 6)], "zzz") if s)
        start = stops.first(whole)
        text, kept = stopped(tokenizer, prompt, ids, stops)
        assert text == whole[:start]
        stream = TextStream(tokenizer, prompt, stops)
        assert streamed(stream, ids, draw)[1] == text and stream.is_stopped == (start is not None)
        assert stream.kept() == kept
        if start is not None:
            stops_found += 1
            assert text.startswith(added(tokenizer, prompt, ids[:kept]))
    assert stops_found > 15


def test_kept_ids_end_before_the_token_in_which_the_stop_string_starts():
    ours = Utf8()
    assert stopped(ours, [], ours.encode("ab中c"), StopStrings(["中"])) == ("ab", 2)
    assert stopped(ours, [], ours.encode("ab中c"), StopStrings(["c"])) == ("ab中", 5)
    assert stopped(ours, [], ours.encode("ab"), StopStrings(["c"])) == ("ab", 2)
