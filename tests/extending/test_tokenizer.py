"""A tokenizer from outside: one file, named by its dotted path."""

import pytest

from jaxpt import cli
from jaxpt.data import tokenizers
from jaxpt.errors import UserError

CHARACTERS = '''
"""One token for each character of the training text."""

import json

from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers.base import Tokenizer


class Characters(Tokenizer):
    """0 [PAD]  1 [UNK]  2 </s>  …"""

    kind = "KIND"

    def __init__(self, characters):
        self.characters = ["[PAD]", "[UNK]", "</s>", *characters]
        self.ids = {c: i for i, c in enumerate(self.characters)}
        self.vocabulary = Vocabulary(len(self.characters), pad=0, unk=1, bos=2, eos=2)

    @classmethod
    def planned(cls, config, vocab_size):
        return Vocabulary(vocab_size, pad=0, unk=1, bos=2, eos=2)

    @classmethod
    def train(cls, texts, config, vocab_size, languages=()):
        return cls(sorted(set("".join(texts)))[: vocab_size - 3])

    @classmethod
    def load(cls, files, settings, lowercase, extra_ids):
        return cls(json.loads((files[0] / "characters.json").read_text()))

    def files(self):
        return {"characters.json": json.dumps(self.characters[3:])}

    def encode_batch(self, texts):
        return [[self.ids.get(c, 1) for c in text] for text in texts]

    def decode(self, ids):
        return "".join(self.tokens(self._shown(ids)))

    def tokens(self, ids):
        return [self.characters[i] if i < len(self.characters) else f"<{i}>" for i in map(int, ids)]
'''


@pytest.fixture
def kind(lab):
    return lab.module("characters", CHARACTERS.replace("KIND", f"{lab.name}.characters"))


def test_it_is_trained_loaded_and_found_again(lab, kind, capsys):
    recipe = {"data.tokenizer.kind": kind, "data.path": str(lab.folder / "corpus.txt")}
    overrides = [f"{key}={value}" for key, value in recipe.items()]
    out = lab.folder / "vocabulary"
    assert cli.main(["tokenizer", "train", "configs/smoke/gpt2_tiny.yaml", *overrides, "--out", str(out)]) == 0
    loaded = tokenizers.load(out, kind)
    assert loaded.kind == kind and loaded.digest() == tokenizers.load(out, kind).digest()
    with pytest.raises(UserError, match=rf"names the kind {kind}, a module; its code runs where a recipe names it"):
        tokenizers.load(out)  # such as a directory that was downloaded
    assert loaded.decode(loaded.encode("the cat")) == "the cat" and loaded.vocabulary.eos == 2
    assert cli.main(["tokenizer", "inspect", str(out), "the cat"]) == 0
    assert "decoded: the cat" in capsys.readouterr().out


@pytest.mark.slow
def test_it_trains_and_resumes_bit_equal(lab, kind):
    lab.assert_resumes(f"data.tokenizer.kind={kind}")
    assert (lab.folder / "stopped" / "tokenizer" / "characters.json").is_file()
    assert cli.main(["eval", str(lab.folder / "stopped")]) == 0


def test_mistakes_are_told_in_one_line(lab, kind, capsys):
    """A wrong name, a module without a tokenizer, another kind, damaged files."""

    def said(*overrides):
        assert lab.train("run", *overrides) == 2
        return capsys.readouterr().err

    assert "'wordpeice' is none of bpe, sentencepiece, spelled_words, wordpiece, words; did you mean" in said(
        "data.tokenizer.kind=wordpeice"
    )
    empty = lab.module("empty", "")
    assert f"data.tokenizer.kind: module {empty} must define one subclass of Tokenizer, it has 0" in said(
        f"data.tokenizer.kind={empty}"
    )
    assert "importing no_such_lab.mine failed: ModuleNotFoundError" in said("data.tokenizer.kind=no_such_lab.mine")
    cls = tokenizers.tokenizer_class(kind)
    path = lab.folder / "vocabulary"
    cls(["a", "b"]).save(path)
    at = f"data.tokenizer.path={path}"
    assert f"{path}: no bpe vocabulary in this directory" in said("data.tokenizer.kind=bpe", at)
    (path / "characters.json").write_text("[]")
    assert "characters.json: is altered" in said(f"data.tokenizer.kind={kind}", at)
    other = lab.folder / "other"
    other.mkdir()
    assert f"{other}: no {kind} vocabulary in this directory" in said(
        f"data.tokenizer.kind={kind}", f"data.tokenizer.path={other}"
    )
