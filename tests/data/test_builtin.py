import doctest
import hashlib
import json
import platform
import subprocess
import sys

import pytest

from jaxpt.data import builtin
from jaxpt.data.sources import base


@pytest.mark.slow
def test_about_two_megabytes_of_distinct_documents():
    texts = builtin.documents()
    assert 1_000_000 < sum(map(len, texts)) < 4_000_000
    assert 300 < len(texts) == len(set(texts))
    assert all(text == text.strip() != "" for text in texts)


@pytest.mark.slow
def test_pairs_of_signatures_and_sentences():
    pairs = builtin.pairs()
    assert 3000 < len(pairs) == len(set(pairs))
    assert all(code.startswith("def ") and "\n" not in code + text and text for code, text in pairs)
    names = [code[4:].partition("(")[0].strip("_").lower() for code, _ in pairs]
    named = sum(name in text.lower() for name, (_, text) in zip(names, pairs))
    assert named > len(pairs) / 10, "a signature helps to guess its sentence"


@pytest.mark.slow
def test_examples_in_docstrings():
    failed, tried = doctest.testmod(builtin)
    assert tried and not failed


GOLDEN = {
    "a8cfbfda87d1a7d5c35183792db2abcf": {"3.11.7": "2d342c9d388f56a0", "3.12.1": "3ec6ca35049d08e6"},
}
"""{VERSION: {Python: digest of `made()`}}, printed by `python -m tests.data.test_builtin`."""


def made():
    texts = json.dumps([builtin.documents(), builtin.pairs()]).encode()
    return hashlib.blake2b(texts, digest_size=8).hexdigest()


@pytest.mark.slow
def test_other_texts_have_another_version():
    """Runs on other texts must not resume; code that only looks different must not keep them from it."""
    known = GOLDEN[builtin.VERSION]
    if platform.python_version() not in known:
        pytest.skip(f"no digest of Python {platform.python_version()}")
    assert made() == known[platform.python_version()]
    assert base.fingerprints(["builtin"])["builtin"]["blake2b"] == builtin.VERSION


@pytest.mark.slow
def test_the_same_text_whatever_is_installed():
    """Without site-packages: setuptools for one puts its own distutils before the library's."""
    code = "import runpy, sys; print(ascii(runpy.run_path(sys.argv[1])['documents']()))"
    alone = subprocess.run([sys.executable, "-I", "-S", "-c", code, builtin.__file__], capture_output=True, text=True)
    assert alone.stdout.strip() == ascii(builtin.documents()), alone.stderr


def test_docstrings_are_parsed_not_imported(monkeypatch):
    monkeypatch.setattr(sys, "stdlib_module_names", frozenset({"antigravity", "asyncio", "wave"}))  # all take seconds
    documents = builtin.documents.__wrapped__()
    names = [name for name, _ in builtin.sources()]
    assert set(names) == {"antigravity", "asyncio", "wave"} and names == sorted(names)
    assert "antigravity" not in sys.modules  # importing it would open a web browser
    assert any("asynchronous" in text for text in documents) and "WAVE" in documents[-1]
    assert len(documents) > 60, "topics of help() come first"


if __name__ == "__main__":
    print(platform.python_version(), made())
