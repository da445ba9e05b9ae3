"""Names say what a value is: home-made and empty words stay rare among the names that the code assigns."""

import ast
import collections
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME_MADE = frozenset((
    "found", "one", "own", "of", "said", "here", "there", "made", "given", "wanted", "shown", "most", "least", "its",
    "seen", "what", "kept", "told", "meant", "asked", "says", "thing",
))  # fmt: skip
EMPTY = frozenset(("item", "value", "result", "data", "tmp", "obj", "info"))
MOST_HOME_MADE, MOST_EMPTY = 0.005, 0.013
"""Shares of all assigned names. t5x has none of the first, gemma 0.05 %."""


def assigned(tree: ast.AST) -> list[str]:
    """Names of variables, parameters, functions, classes and attributes that a file assigns."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
    return [name.lstrip("_") for name in names]


def test_home_made_and_empty_words_are_rare():
    counts = collections.Counter(
        name for file in (ROOT / "jaxpt").rglob("*.py") for name in assigned(ast.parse(file.read_text("utf-8")))
    )
    for words, most in ((HOME_MADE, MOST_HOME_MADE), (EMPTY, MOST_EMPTY)):
        share = sum(counts[word] for word in words) / counts.total()
        assert share <= most, f"{share:.2%}: " + ", ".join(f"{word} {counts[word]}" for word in sorted(words))


def test_names_are_counted_wherever_they_are_assigned():
    code = "class A:\n  def f(self, of, *, one=1):\n    self.found = [made for made in of]\n    lambda _own: _own\n"
    assert sorted(assigned(ast.parse(code))) == ["A", "f", "found", "made", "of", "one", "own", "self"]
