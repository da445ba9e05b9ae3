"""A small recipe, and the answer to a mistake in it."""

from pathlib import Path

import pytest

from jaxpt.config import load
from jaxpt.errors import UserError

ROOT = Path(__file__).parents[2]
RECIPE = """
model: {kind: bert, vocab_size: 100, layers: 2, embed_dim: 16, heads: 2, mlp_dim: 32}
objective: {kind: masked_lm}
data: {tokenizer: {kind: wordpiece}}
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def mistake(path, *overrides):
    """The one line that answers a mistake."""
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message
