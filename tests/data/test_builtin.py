import pytest

from jaxpt.data import builtin


def test_about_two_megabytes_of_distinct_documents():
    texts = builtin.documents()
    assert 1_000_000 < sum(map(len, texts)) < 4_000_000
    assert 300 < len(texts) == len(set(texts))
    assert all(text == text.strip() != "" for text in texts)


@pytest.mark.slow
def test_the_same_text_in_the_same_order_every_time():
    first = builtin.documents()
    builtin.documents.cache_clear()
    assert builtin.documents() == first


def test_docstrings_are_parsed_not_imported():
    import sys

    assert "antigravity" not in sys.modules  # importing it would open a web browser
    assert any("asynchronous" in text for text in builtin.documents())
