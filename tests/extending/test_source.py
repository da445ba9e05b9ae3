"""A source from outside: one file, named by its dotted path."""

import json
import re
import sqlite3

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
    assert lab.train("run", "train.steps=3", *overrides[1:]) == 2
    assert "other data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", "must define open_source(data), which returns a jaxpt.data.sources.base.Source"),
        ("def open_source(data):\n    return [data.path]", "must define open_source(data), which returns"),
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
    ],
)
def test_mistakes_in_it(lab, text, answer):
    kind = lab.module("broken", text)
    with pytest.raises(UserError, match=rf"^data\.source: (importing )?{kind} {re.escape(answer)}"):
        open_source(DataConfig(source=kind, path="corpus.txt", tokenizer={"kind": "bpe"}))


def test_a_module_that_is_not_there_ends_a_run(lab, capsys):
    assert lab.train("run", "data.source=no_such_lab.mine") == 2
    assert "data.source: importing no_such_lab.mine failed: ModuleNotFoundError" in capsys.readouterr().err
