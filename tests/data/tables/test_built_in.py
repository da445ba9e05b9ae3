import collections
import hashlib
import json
import platform

import pytest

from jaxpt.data.tables import built_in, overlap, read
from jaxpt.errors import UserError


def table(name):
    return {split: list(built_in.rows(name, split)) for split in built_in.SPLITS}


def shares(splits):
    count = sum(map(len, splits.values()))
    return [round(len(rows) / count, 1) for rows in splits.values()]


def test_modules():
    splits = table("modules")
    assert shares(splits) == [0.8, 0.1, 0.1]
    counts = collections.Counter(row.values["module"] for row in splits["train"])
    assert sorted(counts) == list(built_in.MODULES)
    assert max(counts.values()) < 2 * min(counts.values()) and min(counts.values()) > 80
    texts = {split: [row.values["text"] for row in rows] for split, rows in splits.items()}
    assert overlap(texts["train"], texts["validation"] + texts["test"]) == 0
    assert [row.number for row in splits["test"]] == list(range(1, len(splits["test"]) + 1))
    assert list(read("modules", "builtin", split="test")) == splits["test"]


def test_kind_of_a_word():
    names = {"x": "argument", "shuffle": "function"}
    kinds = [built_in.kind_of_word(word, names, following) for word, following in (
        ("x", []), ("email", ["package"]), ("email", ["."]), ("close", ["("]), ("ThreadPool", []), ("Return", ["("]),
        ("set_name", []),
    )]  # fmt: skip
    assert kinds == ["argument", "module", "other", "function", "class", "other", "function"]


@pytest.mark.slow
def test_kinds():
    splits = table("kinds")
    assert shares(splits) == [0.8, 0.1, 0.1]
    rows = [row.values for of in splits.values() for row in of]
    assert all(len(row["tokens"]) == len(row["tags"]) for row in rows)
    counts = collections.Counter(tag for row in rows for tag in row["tags"])
    assert set(counts) == set(built_in.KINDS) and min(counts.values()) > 400
    shuffle = next(row for row in rows if row["tokens"][:2] == ["def", "shuffle"])
    assert "".join(tag[0] for tag in shuffle["tags"]) == "ofoaoa" + "oooa" + "o" * 7
    assert " ".join(shuffle["tokens"]).endswith(") Shuffle list x in place , and return None .")


@pytest.mark.slow
def test_summaries():
    splits = table("summaries")
    assert shares(splits) == [0.8, 0.1, 0.1]
    signatures = [row.values["signature"] for rows in splits.values() for row in rows]
    assert len(set(signatures)) == len(signatures) > 3000
    assert all(row.values["summary"] for row in splits["train"])


@pytest.mark.slow
def test_matches():
    splits = table("matches")
    assert shares(splits) == [0.8, 0.1, 0.1]
    own = {row.values["signature"]: row.values["summary"] for rows in table("summaries").values() for row in rows}
    rows = [row.values for of in splits.values() for row in of]
    assert all((own[row["signature"]] == row["summary"]) == (row["match"] == "yes") for row in rows)
    counts = collections.Counter(row["match"] for row in rows)
    assert set(counts) == {"yes", "no"} and min(counts.values()) > 0.45 * len(rows)


def test_unknown_names():
    with pytest.raises(
        UserError,
        match=r"no built-in table 'module'; there are modules, kinds, .*; did you mean modules\?; for files of",
    ):
        next(built_in.rows("module"))
    with pytest.raises(UserError, match=r"data\.path: no built-in table 'a\.tsv'; .*; for files .* data\.source=auto"):
        next(built_in.rows("a.tsv"))
    with pytest.raises(UserError, match=r"no split 'dev'; kinds has train, validation, test"):
        next(built_in.rows("kinds", "dev"))


GOLDEN = {"47411c8d3791443bda59": {"3.11.7": "f936b288bcbed675", "3.12.1": "7cf019a1cb1a9def"}}
"""{VERSION: {Python: digest of `made()`}}, printed by `python -m tests.data.tables.test_built_in`."""


def made():
    names = [(name, split) for name in ("kinds", "matches", "modules", "summaries") for split in built_in.SPLITS]
    rows = [[row.values for row in built_in.rows(*name)] for name in names]
    return hashlib.blake2b(json.dumps(rows, sort_keys=True).encode(), digest_size=8).hexdigest()


@pytest.mark.slow
def test_other_rows_have_another_version():
    """Runs on other rows must not resume; code that only looks different must not keep them from it."""
    known = GOLDEN[built_in.VERSION]
    if platform.python_version() not in known:
        pytest.skip(f"no digest of Python {platform.python_version()}")
    assert made() == known[platform.python_version()]


if __name__ == "__main__":
    print(platform.python_version(), made())
