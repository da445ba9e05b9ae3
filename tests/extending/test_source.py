"""A source from outside: one file, named by its dotted path."""

import json
import re
import sqlite3
import sys

import pytest

from jaxpt.config import DataConfig
from jaxpt.data.sources.opening import open_source
from jaxpt.errors import UserError

SQLITE = '''
"""Texts of a SQLite database."""

import sqlite3

from jaxpt.data.sources.base import Source


def open_source(data):
    def read(path, mark):
        with sqlite3.connect(path) as database:
            yield from database.execute("SELECT id, body FROM posts ORDER BY id")

    return Source({"train": [data.path], "validation": [data.path]}, read, data.validation_fraction)
'''


@pytest.fixture
def posts(lab):
    path = lab.folder / "posts.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE posts (id INTEGER PRIMARY KEY, body TEXT)")
        lines = (lab.folder / "corpus.txt").read_text().splitlines()
        database.executemany("INSERT INTO posts VALUES (?, ?)", enumerate(lines))
    return str(path)


@pytest.mark.slow
def test_it_trains(lab, posts, capsys):
    kind = lab.module("sqlite", SQLITE)
    overrides = ("train.steps=2", f"data.source={kind}", f"data.path={posts}")
    assert lab.train("run", *overrides) == 0
    losses = [json.loads(line) for line in (lab.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert losses
    capsys.readouterr()
    lab.module("sqlite", SQLITE.replace("ORDER BY id", "ORDER BY -id"))  # other code gives other data
    for words in (f"{kind} was edited since it was imported: restart Python", "other data"):
        assert lab.train("run", "train.steps=3", *overrides[1:]) == 2
        assert words in capsys.readouterr().err
        sys.modules.pop(kind, None)  # as a restart does


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", "must define open_source(data), which returns a jaxpt.data.sources.base.Source"),
        ("def open_source(data):\n    return [data.path]", "must define open_source(data), which returns"),
        ("1 / 0", "broken.py:1: ZeroDivisionError: division by zero"),
    ],
)
def test_mistakes_in_it(lab, text, answer):
    kind = lab.module("broken", text)
    with pytest.raises(UserError, match=rf"^data\.source: (importing )?{kind} .*{re.escape(answer)}"):
        open_source(DataConfig(source=kind, path="corpus.txt", tokenizer={"kind": "bpe"}))


SOURCE = """
from jaxpt.data.sources.base import Source


def open_source(data):
    def read(path, start):
        with open(path) as file:
            yield from {read}

    return Source({files}, read, data.validation_fraction)
"""
FILES = '{"train": [data.path], "validation": [data.path]}'


@pytest.mark.parametrize(
    ("files", "path", "answer"),
    [
        (FILES, None, "data.path: KIND reads it, and it is not set; name a file with data.path=…"),
        (
            '{"train": [data.path]}',
            "corpus.txt",
            "data.source: KIND: the files of its Source must be {'train': [path], ",
        ),
        ('{"train": data.path, "validation": []}', "corpus.txt", "data.source: KIND: the files of its Source must be "),
    ],
)
def test_files_that_are_none(lab, files, path, answer):
    kind = lab.module("files", SOURCE.replace("{files}", files).replace("{read}", "enumerate(file)"))
    with pytest.raises(UserError, match="^" + re.escape(answer.replace("KIND", kind))):
        open_source(DataConfig(source=kind, path=path, tokenizer={"kind": "bpe"}))


@pytest.mark.parametrize(
    ("read", "shown"), [("file", "'document number 0 "), ("([n, x] for n, x in enumerate(file))", "[0, ")]
)
def test_what_its_reader_yields_is_checked(lab, read, shown):
    kind = lab.module("yields", SOURCE.replace("{files}", FILES).replace("{read}", read))
    path = str(lab.folder / "corpus.txt")
    source = open_source(DataConfig(source=kind, path=path, tokenizer={"kind": "bpe"}))
    with pytest.raises(UserError, match=re.escape(f"{path}: its reader must yield (number, text), it yields {shown}")):
        next(source.documents("train"))


def test_a_module_that_is_not_there_ends_a_run(lab, capsys):
    assert lab.train("run", "data.source=no_such_lab.mine") == 2
    assert "data.source: importing no_such_lab.mine failed: ModuleNotFoundError" in capsys.readouterr().err
