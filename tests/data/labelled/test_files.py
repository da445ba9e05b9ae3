"""What a recipe says of its files reaches their readers."""

from types import SimpleNamespace

import pytest

from jaxpt.config import DataConfig
from jaxpt.data.labelled.files import RowFile, files
from jaxpt.data.tables import tfds
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.data.tasks.tagging import TaggingTask
from jaxpt.errors import UserError


def test_keys_of_formats(tmp_path):
    """Those that messages name can be set."""
    quoted, comments = tmp_path / "a.tsv", tmp_path / "a.conll"
    quoted.write_text('text\tlabel\n"a\tb"\tyes\n')
    comments.write_text("# id 1\nAda B-PER\n")
    with pytest.raises(UserError, match=r"set quoted: true \(task\.quoted"):
        list(RowFile(str(quoted)).rows(ClassificationTask()))
    (row,) = RowFile(str(quoted)).rows(ClassificationTask(quoted=True))
    assert row.values == {"text": "a\tb", "label": "yes"}
    with pytest.raises(UserError, match=r"set task\.comments: true"):
        list(RowFile(str(comments)).rows(TaggingTask()))
    (row,) = RowFile(str(comments)).rows(TaggingTask(comments=True))
    assert row.values["tokens"] == ["Ada"]


def test_files_that_name_their_columns_need_no_key(tmp_path):
    """A recipe of TSV files without a header line reads others, too."""
    of_tsv = {"header": ("source", "label"), "quoted": True, "delimiter": ",", "encoding": "latin-1"}
    texts = {"a.jsonl": '{"text": "fine", "label": "1"}\n', "a.json": '[{"text": "fine", "label": "1"}]'}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        (row,) = RowFile(str(tmp_path / name)).rows(ClassificationTask(**of_tsv))
        assert row.values == {"text": "fine", "label": "1"}
    (tmp_path / "a.conllu").write_text("1\tAda\tAda\tPROPN\tNNP\t_\t0\troot\t_\t_\n\n")
    (row,) = RowFile(str(tmp_path / "a.conllu")).rows(TaggingTask(header=("tokens", "tags")))
    assert row.values["tokens"] == ["Ada"]
    (tmp_path / "a.conll").write_text("Ada B-PER\n")
    (row,) = RowFile(str(tmp_path / "a.conll")).rows(TaggingTask(header=("words", "entities"), delimiter=","))
    assert (row.values["words"], row.values["entities"]) == (["Ada"], ["B-PER"])


@pytest.mark.parametrize(
    ("splits", "settings", "held_out"),
    [
        (("train", "validation"), {}, "validation"),
        (("train", "test"), {}, None),
        (("train", "test"), {"validation_path": "test"}, "test"),
    ],
)
def test_a_tfds_data_set_may_have_no_validation_split(monkeypatch, splits, settings, held_out):
    """Then a fraction is held out, as of files."""
    name = f"films of {splits}"
    monkeypatch.setattr(tfds, "prepared_builder", lambda name: SimpleNamespace(info=SimpleNamespace(splits=splits)))
    data = DataConfig(tokenizer={"kind": "bpe"}, source="tfds", path=name, **settings)
    assert files(data, "validation") == ([] if held_out is None else [RowFile(name, "tfds", held_out)])
    assert files(data, "train") == [RowFile(name, "tfds", "train")] and files(data, "test") == []
