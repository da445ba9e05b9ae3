import json
import random
import shutil
from pydoc_data.topics import topics

import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.errors import UserError


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece", "bpe"])
def test_no_flipped_bit_loads(kind, tmp_path):
    tokenizers.train(list(topics.values())[:10], TokenizerConfig(kind=kind), 400, tmp_path / "whole")
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert vocabulary_files.damage(tmp_path / "whole") is None
    rng = random.Random(0)
    for _ in range(60):
        name = rng.choice(sorted(files))
        content = bytearray(files[name])
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        shutil.copytree(tmp_path / "whole", tmp_path / "flipped", dirs_exist_ok=True)
        (tmp_path / "flipped" / name).write_bytes(content)
        with pytest.raises(UserError, match=r"altered|missing|not written with") as error:
            tokenizers.load(tmp_path / "flipped")
        # A flip in the list of checksums may name another file.
        assert name == "checksums.json" or f"{tmp_path / 'flipped' / name}: is altered" in str(error.value)


def test_a_file_of_another_vocabulary_is_named(tmp_path):
    texts = list(topics.values())[:10]
    tokenizers.train(texts, TokenizerConfig(kind="sentencepiece"), 400, tmp_path)
    tokenizers.train(texts, TokenizerConfig(kind="wordpiece"), 400, tmp_path)
    with pytest.raises(UserError, match=r"spiece\.model: was not written with the files beside it; restore it, or"):
        tokenizers.load(tmp_path)
    (tmp_path / "spiece.model").unlink()
    assert tokenizers.load(tmp_path).kind == "wordpiece"


def test_the_files_of_others_have_no_checksums(tmp_path):
    tokenizers.train(list(topics.values())[:10], TokenizerConfig(kind="bpe"), 400, tmp_path)
    (tmp_path / "checksums.json").unlink()
    assert tokenizers.load(tmp_path).kind == "bpe"
    assert "checksums.json: is missing" in vocabulary_files.damage(tmp_path)
    (tmp_path / "checksums.json").write_text(json.dumps({"vocab.json": "0"}))
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(UserError, match=r"vocab\.json: is missing"):
        tokenizers.load(tmp_path)
