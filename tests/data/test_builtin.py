import doctest
import subprocess
import sys

import pytest

from jaxpt.data import builtin


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
