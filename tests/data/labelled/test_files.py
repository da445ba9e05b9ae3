"""What a recipe says of its files reaches their readers."""

import pytest

from jaxpt.data.labelled.files import RowFile
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
