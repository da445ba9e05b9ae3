"""What `jaxpt inspect` says of an example is what its features hold."""

import doctest
import io
import re
import types
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from jaxpt.data.calls import Vocabulary
from jaxpt.report import batches, inspect
from jaxpt.report.batches import LEGEND, Shown, Span, segments
from jaxpt.report.facts import facts, of_vocabulary, statistics
from jaxpt.report.inspect import page


def tokenizer(kind, pieces, **vocabulary):
    return types.SimpleNamespace(
        kind=kind,
        vocabulary=Vocabulary(size=len(pieces), **vocabulary),
        tokens=lambda ids: [pieces[int(i)] for i in ids],
    )


WORDPIECE = tokenizer(
    "wordpiece",
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "dog"],
    unk=1, cls=2, sep=3, mask=4,
)  # fmt: skip
SENTENCEPIECE = tokenizer(
    "sentencepiece",
    ["<pad>", "</s>", "<unk>", "▁a", "▁b", "c", "<extra_id_1>", "<extra_id_0>"],
    unk=2, eos=1, sentinels=2,
)  # fmt: skip
BPE = tokenizer("bpe", ["a", " b", "\n", "\x1b[31m", "<|endoftext|>"], bos=4, eos=4)


def example(**features):
    return {name: np.array(value) for name, value in features.items()}


def pair():
    """[CLS] the [MASK]=cat ##s=kept [SEP] dog=was sat [SEP], padding"""
    return example(
        encoder_input_tokens=[2, 5, 4, 7, 3, 9, 3, 0, 0],
        encoder_token_types=[0, 0, 0, 0, 0, 1, 1, 0, 0],
        encoder_segment_ids=[1, 1, 1, 1, 1, 1, 1, 0, 0],
        masked_positions=[2, 3, 5, 0],
        masked_targets=[6, 7, 8, 0],
        masked_weights=[1.0, 1.0, 1.0, 0.0],
        next_sentence_labels=1,
        next_sentence_weights=1.0,
        origin=[1, 20, 300],
    )


def corrupted():
    return example(
        encoder_input_tokens=[3, 7, 4, 6, 1, 0],
        encoder_segment_ids=[1, 1, 1, 1, 1, 0],
        decoder_input_tokens=[0, 7, 4, 5, 6, 3],
        decoder_target_tokens=[7, 4, 5, 6, 3, 1],
        decoder_segment_ids=[1, 1, 1, 1, 1, 1],
        decoder_loss_weights=[1.0] * 6,
    )


def running():
    return example(
        decoder_input_tokens=[0, 1, 4, 0, 1, 0],
        decoder_target_tokens=[1, 4, 0, 1, 1, 0],
        decoder_segment_ids=[1, 1, 1, 1, 1, 0],
        decoder_loss_weights=[1.0, 1.0, 0.0, 0.0, 1.0, 0.0],
    )


def drawn(spans, plain=True):
    return inspect.as_text(spans, plain).plain


def test_chosen_positions_show_input_and_target():
    spans = segments(pair(), WORDPIECE)["inputs"]
    assert drawn(spans) == ("A: [CLS] the [MASK]⟨cat⟩ ##s⟨kept⟩ [SEP]\nB: dog⟨random, was sat⟩ [SEP] ⟨2 × padding⟩")
    assert [s.style for s in spans if s.note] == ["mask", "kept", "random"]


def test_positions_without_weight_are_not_chosen():
    """Unused entries of the masked features point at position 0."""
    spans = segments({**pair(), "masked_weights": np.zeros(4)}, WORDPIECE)["inputs"]
    assert not [s for s in spans if s.note]
    assert "mask" not in [s.style for s in spans]


def test_an_encoder_may_have_no_masked_positions():
    features = {k: v for k, v in pair().items() if k.startswith("encoder")}
    (spans,) = segments(features, WORDPIECE).values()
    assert drawn(spans) == "[CLS] the [MASK] ##s [SEP] dog [SEP] ⟨2 × padding⟩"


def test_a_decoder_that_answers_by_a_head_shows_its_inputs():
    """Fine-tuned on labels, it has no target tokens."""
    features = {name: value for name, value in running().items() if name in _OF_A_DECODERS_HEAD}
    features |= example(labels=[1], label_weights=[1.0])
    assert {title: drawn(spans) for title, spans in segments(features, BPE).items()} == {
        "inputs": "a b<|endoftext|>a b ⟨1 × padding⟩"
    }
    features["decoder_segment_ids"] = np.array([1, 1, 1, 2, 2, 0])
    assert drawn(segments(features, BPE)["inputs"]) == "a b<|endoftext|>\nsegment 2: a b ⟨1 × padding⟩"


def test_a_legend_has_something_to_say():
    def printed(spans):
        console = Console(file=io.StringIO(), width=80)
        inspect.show("title", "line", [Shown(0, {}, {"inputs": spans})], console)
        return console.file.getvalue()

    assert "legend" not in printed([Span("a"), Span(" ⟨1 × padding⟩", "padding")])
    assert "legend ─" in printed([Span("a"), Span("b", "context")])


_OF_A_DECODERS_HEAD = ("decoder_input_tokens", "decoder_segment_ids")


def test_windows_without_pairs_have_no_a_and_b():
    features = {k: v for k, v in pair().items() if not k.startswith("next_sentence")}
    assert drawn(segments(features, WORDPIECE)["inputs"]).startswith("[CLS] the")


def test_texts_of_unilm_are_told_apart_whatever_their_types():
    features = {**pair(), "masked_kinds": np.array([2, 2, 2, 0]), "encoder_token_types": np.array([2] * 7 + [0, 0])}
    shown = drawn(segments(features, WORDPIECE)["inputs"])
    assert shown.startswith("A: [CLS] the") and "[SEP]\nB: dog" in shown


def test_what_tokens_see_is_said():
    ranks = {
        "all tokens (bidirectional)": [0, 0, 0, 0, 0, 0, 0],
        "in A all of A, in B itself and those before (sequence to sequence)": [0, 0, 0, 0, 0, 5, 6],
        "itself and those before (left to right)": [0, 1, 2, 3, 4, 5, 6],
        "itself and those after (right to left)": [0, -1, -2, -3, -4, -5, -6],
    }
    for words, of_tokens in ranks.items():
        features = {**pair(), "encoder_ranks": np.array([*of_tokens, 0, 0]), "next_sentence_weights": np.array(0.0)}
        assert facts(features)["each token sees"] == words
        assert "next sentence" not in facts(features)  # a label without weight
    one_type = {**pair(), "encoder_token_types": np.array([2] * 7 + [0, 0])}
    assert drawn(segments(one_type, WORDPIECE)["inputs"]).startswith("[CLS] the")


def test_a_translation_begins_where_positions_do():
    features = {k: v for k, v in pair().items() if not k.startswith("next_sentence")}
    features["encoder_positions"] = np.array([0, 1, 2, 3, 4, 0, 1, 0, 0])
    assert "[SEP]\ntranslation: dog" in drawn(segments(features, WORDPIECE)["inputs"])


def test_packed_rows_show_where_segments_begin():
    features = {k: v for k, v in pair().items() if not k.startswith("next_sentence")}
    features["encoder_segment_ids"] = np.array([1, 1, 1, 1, 1, 2, 2, 0, 0])
    assert "[SEP]\nsegment 2: dog" in drawn(segments(features, WORDPIECE)["inputs"])


def test_sentinels_show_the_span_they_stand_for():
    shown = segments(corrupted(), SENTENCEPIECE)
    assert drawn(shown["inputs"]) == "a <extra_id_0>⟨bc⟩ b <extra_id_1>⟨a⟩</s> ⟨1 × padding⟩"
    assert drawn(shown["targets"]) == "<extra_id_0> bc <extra_id_1> a</s>"


def test_a_sentinel_without_a_span_is_said():
    features = corrupted()
    features["decoder_target_tokens"][3] = 3
    assert "<extra_id_1>⟨nothing in the targets⟩" in drawn(segments(features, SENTENCEPIECE)["inputs"])


def test_sentinels_of_packed_examples_are_told_apart():
    features = example(
        encoder_input_tokens=[7, 7],
        encoder_segment_ids=[1, 2],
        decoder_target_tokens=[7, 3, 7, 4],
        decoder_segment_ids=[1, 1, 2, 2],
        decoder_loss_weights=[1.0] * 4,
    )
    assert [s.note for s in segments(features, SENTENCEPIECE)["inputs"] if s.note] == ["a", "b"]


def restored(inputs, targets, **features):
    """An example whose targets hold no sentinels."""
    return example(
        encoder_input_tokens=inputs, encoder_segment_ids=[1] * len(inputs),
        decoder_input_tokens=[1, *targets[:-1]], decoder_target_tokens=targets,
        decoder_segment_ids=[1] * len(targets), decoder_loss_weights=[1.0] * len(targets), **features,
    )  # fmt: skip


def test_moved_and_missing_text_is_shown():
    """BART: the mask is the vocabulary's first sentinel; what it stands for is known where nothing moved around it."""
    letters = tokenizer("sentencepiece", ["", "</s>", *(f"▁{x}" for x in "abcdefg"), "<M>"], eos=1, sentinels=1)
    a, b, c, d, e, f, g, mask = range(2, 10)
    shown = segments(restored([d, e, f, mask, g, a, c, b, d, 1], [a, c, b, d, d, e, f, e, c, g, 1]), letters)
    assert drawn(shown["inputs"]) == "d e f <M>⟨e c⟩ g ↩ a c b d</s>"
    assert drawn(shown["targets"]) == "a c b d d e f «e c» g</s>"
    shown = segments(restored([a, mask, b, c, 1], [a, b, c, 1]), letters)
    assert drawn(shown["inputs"]) == "a <M>⟨inserted⟩ b c</s>"
    fragment = restored([a, b, mask, mask, e, mask, c, d], [c, d, e, f, g], decoder_positions=[2, 3, 4, 5, 6])  # MASS
    assert drawn(segments(fragment, letters)["inputs"]) == "a b <M>⟨c⟩ <M>⟨d⟩ e⟨kept⟩ <M>⟨f⟩ c⟨random, was g⟩ d"
    shown = segments(restored([a, b, c], [d, e, f, g]), letters)  # prefix LM: the targets go on
    assert drawn(shown["inputs"]) == "a b c" and drawn(shown["targets"]) == "d e f g"


def test_running_text_breaks_after_documents_and_marks_tokens_without_loss():
    spans = segments(running(), BPE)["text"]
    assert drawn(spans) == "~a~ b<|endoftext|>\n~a b~ b ⟨1 × padding⟩"
    assert [s.style for s in spans if s.text == "<|endoftext|>"] == ["special"]


def test_a_decoder_shows_every_token_once():
    """The first input, then all targets."""
    spans = segments(running(), BPE)["text"]
    words = [s.text for s in spans if s.style != "padding" and s.text != "\n"]
    assert words == BPE.tokens([0, 1, 4, 0, 1, 1])


@pytest.mark.parametrize(("make", "model"), [(pair, WORDPIECE), (corrupted, SENTENCEPIECE), (running, BPE)])
def test_a_row_of_padding_alone(make, model):
    empty = {name: np.zeros_like(value) for name, value in make().items()}
    for spans in segments(empty, model).values():
        assert [s.style for s in spans] == ["padding"]


def test_facts():
    said = facts(pair(), ["a.txt", "b.txt"])
    assert said == {
        "origin": "b.txt, document 20, token 300",
        "encoder tokens": "7 (+ 2 padding)",
        "targets": "3 (43% of the tokens)",
        "next sentence": "B is random (label 1)",
    }
    assert facts(pair())["origin"] == "file 1, document 20, token 300"
    assert facts(running())["targets"] == "3"
    assert facts(corrupted())["decoder tokens"] == "6 (+ 0 padding)"


NASTY = [Span(" [bold]"), Span(" [/red]", "mask", "[MASK] & <b>"), Span(" :smile:"), Span(" <script>", "special")]


def test_tokens_are_never_markup():
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    inspect.show("title [x]", "of [y]", [Shown(0, {"origin": "[a] <b>"}, {"inputs": NASTY})], console)
    plain = Console(file=io.StringIO(), width=200)
    inspect.show("title [x]", "of [y]", [Shown(0, {"origin": "[a] <b>"}, {"inputs": NASTY})], plain)
    out = plain.file.getvalue()
    for word in ("[bold]", "[/red]⟨[MASK] & <b>⟩", ":smile:", "<script>", "[a] <b>", "title [x]"):
        assert word in out
    assert "\x1b[" in console.file.getvalue() and "\x1b[" not in out


def test_control_characters_do_not_reach_the_terminal():
    features = {**running(), "decoder_target_tokens": np.array([3, 2, 3, 3, 3, 3])}
    words = drawn(segments(features, BPE)["text"])
    assert "\x1b" not in words
    assert r"\x1b[31m" in words and "⏎\n" in words


class Tags(HTMLParser):
    """Checks that tags close in order, and collects the text."""

    def __init__(self):
        super().__init__()
        self.open, self.words = [], ""

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "img"), "self-contained"
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def test_page_is_well_formed_escaped_and_self_contained():
    styles = [Span(f" {style}", style, "note") for style in LEGEND]
    source = page("a < b", "of c < d", [Shown(7, {"origin": "x & y"}, {"inputs": NASTY, "targets": styles})])
    tags = Tags()
    tags.feed(source)
    tags.close()
    assert not tags.open
    for word in ("a < b", "of c < d", "x & y", "[/red]⟨[MASK] & <b>⟩", "<script>", *LEGEND):
        assert word in tags.words
    assert "http" not in source and "prefers" not in source
    assert "color-scheme: light dark" in source


def test_labels_of_a_row():
    row = example(labels=[1, 0, 1], label_weights=[1.0, 1.0, 0.0], label_positions=[0, 4, 0])
    assert facts(row, features=row, labels=("bad", "good")) == {"labels": "good, bad"}
    assert facts(row, features=row) == {"labels": "1, 0"}
    several = example(labels=[[1.0, 0.0]], label_weights=[1.0])
    assert facts(several, labels=("a", "b")) == {"labels": "[1.0, 0.0]"}


def test_page_has_ids_recipe_and_navigation():
    shown = [Shown(n, {}, segments(pair(), WORDPIECE)) for n in (3, 4, 5)]
    source = page("t", "l", shown, {"vocab & more": {"size": "<10>"}}, "path: <b>\n")
    tags = Tags()
    tags.feed(source)
    assert not tags.open and "vocab & more" in tags.words and "<10>" in tags.words and "path: <b>" in tags.words
    for hover in ("5 the", "4 [MASK]; target 6 cat", "7 ##s; target 7 ##s", "9 dog; target 8 sat"):
        assert f'data-id="{hover}"' in source
    assert re.findall(r'<section id="(\d)"><h2>example \d(.*?)</h2>', source) == [
        ("3", '<a href="#4">next</a>'),
        ("4", '<a href="#3">previous</a><a href="#5">next</a>'),
        ("5", '<a href="#4">previous</a>'),
    ]
    assert "'" not in inspect.spans_html([Span("x", hover="'\"><b>")]) and "<b>" not in inspect.spans_html(
        [Span("x", "mask", "<b>", "<b>")]
    )


def test_statistics_of_rows():
    batch = {name: np.stack([value, value]) for name, value in pair().items()}
    batch["encoder_segment_ids"][1, 6] = 0
    found = statistics(batch, WORDPIECE.vocabulary)
    assert found == {
        "encoder tokens": "6.5 in a row, from 6 to 7, median 6; 27.8% padding",
        "targets": "3.0 in a row, 46.2% of the encoder tokens",
        "of the targets": "33.3% masked, 33.3% left as they were, 33.3% random",
    }
    rows = {name: value[None] for name, value in running().items()}
    assert list(statistics(rows, BPE.vocabulary)) == ["decoder tokens", "targets"]
    BPE.lowercase = False
    assert of_vocabulary(BPE) == {
        "kind": "bpe", "size": "5 ids", "special tokens": "pad a 0, bos <|endoftext|> 4, eos <|endoftext|> 4"
    }  # fmt: skip


def test_examples_in_docstrings():
    for module in (batches, inspect):
        failed, tried = doctest.testmod(module)
        assert tried and not failed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_recipes_are_shown(name, tmp_path, capsys, monkeypatch):
    """From a recipe to text and to a page; the cache of the vocabulary is shared by both."""
    from jaxpt.cli import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(f"The {a} saw the {b}. It ran. Then the {b} sat." for a, b in WORDS))
    recipe = f"{__file__.rpartition('/tests/')[0]}/configs/smoke/{name}_tiny.yaml"
    common = [
        recipe,
        "-n",
        "2",
        "data.path=text.txt",
        "data.length=32",
        "data.tokenizer.vocab_size=400",
        "data.batch_size=2",
        "train.phases=[]",
    ]
    assert main(["inspect", *common]) == 0
    out = capsys.readouterr().out
    assert "text.txt, document" in out and "targets" in out and "examples 0–1 of train\n" in out
    assert re.search(r"^train: \d+ documents, [\d.]+k tokens of text.txt; [\d.]+ epochs in [\d,]+ steps$", out, re.M)
    assert re.search(r"\n\nexample 1 ─+\n", out), "examples are set apart"
    assert main(["inspect", *common, "--split", "validation", "--html", "page.html"]) == 0
    source = (tmp_path / "page.html").read_text()
    assert (
        "of validation</h1>" in source
        and "text.txt; " in source
        and "vocab_size: " in source
        and "statistics of " in source
    )
    assert not (tmp_path / "runs").exists(), "looking leaves no run behind"
    capsys.readouterr()
    assert main(["inspect", *common, "--split", "validation", "--at", "99999"]) == 2
    last = int(re.search(r"the validation split ends with example (\d+)", capsys.readouterr().err)[1])
    assert main(["inspect", *common, "--split", "validation", "--at", str(last)]) == 0
    capsys.readouterr()
    assert main(["inspect", *common, "--split", "validation", "--at", str(last + 1)]) == 2
    assert f"--at {last + 1}: the validation split ends with example {last}" in capsys.readouterr().err
    phases = "train.phases=[{steps: 1}, {set: {data.length: 64}}]"
    for phase, length in (("1", 32), ("2", 64)):
        assert main(["inspect", *common, phases, "--phase", phase]) == 0
        out = capsys.readouterr().out
        assert f"phase {phase} of 2" in out
        sizes = re.findall(r"coder tokens: (\d+) \(\+ (\d+) padding", " ".join(out.split()))
        assert sum(map(int, sizes[0])) == length
    assert main(["inspect", *common, phases, "--phase", "3"]) == 2
    assert "--phase 3: the recipe has 2 phases" in capsys.readouterr().err


WORDS = [(f"{x}at", f"{y}og") for x in "bcdfghjklmnprst" for y in "bcdfghjklmnprst"]


def test_tokens_to_predict_have_their_place_in_the_order():
    shown = example(
        encoder_input_tokens=[5, 6, 7, 3, 8, 3, 2, 0],
        encoder_token_types=[0, 0, 0, 0, 1, 1, 2, 0],
        encoder_segment_ids=[1, 1, 1, 1, 1, 1, 1, 0],
        encoder_order=[-1, 1, 0, 7, 6, 5, 9, 0],
        masked_positions=[1, 2, 4, 0],
        masked_targets=[6, 7, 8, 0],
        masked_weights=[1.0, 1.0, 1.0, 0.0],
        is_random=1,
    )
    said = drawn(segments(shown, WORDPIECE)["inputs"])
    assert " ".join(said.split()) == "text and A: the cat⟨2⟩ ##s⟨1⟩ [SEP] B: sat⟨3⟩ [SEP] [CLS] ⟨1 × padding⟩"
    assert facts(shown)["B"] == "drawn from the corpus" and facts(shown)["targets"].startswith("3 (")
