"""The README's table of parity: for each class of transformers, how far our outputs and gradients are from theirs.

    python tools/parity_table.py

Random weights, tiny odd sizes, three rows with 0, 4 and 8 tokens of padding, float32; the worst of two seeds and of all
options tried, each difference divided by the largest value of what is compared. Hidden states are those of every layer,
encoder's and decoder's; of the gradients the worst parameter counts. tests/hf/test_parity.py and tests/hf/families
assert the same.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
COLUMNS = {"logits": "logits", "sentence_pair": "second head", "gradient": "gradients"}


def main() -> None:
    """Prints the table as Markdown."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    from tests import conftest  # noqa: F401 (compiles quickly, and keeps what it compiled)
    from tests.hf import parity

    rows: dict[str, tuple[list[str], dict[str, float]]] = {}
    for architecture, option, make in models():
        tried, worst = rows.setdefault(architecture, ([], {}))
        tried += [option] if option else []
        with tempfile.TemporaryDirectory() as directory:
            largest = parity.check(make, Path(directory))
        for output, relative in largest.items():
            column = COLUMNS.get(output, "hidden states")
            worst[column] = max(worst.get(column, 0.0), relative)
        print(f"{architecture}, {option}: {worst}", file=sys.stderr, flush=True)
    columns = ("hidden states", *COLUMNS.values())
    print(f"| class of transformers | options tried besides the plain ones | {' | '.join(columns)} |")
    print(f"|---|---|{'---|' * len(columns)}")
    for architecture, (tried, worst) in rows.items():
        shown = (f"{worst[column]:.0e}" if column in worst else "–" for column in columns)
        print(f"| `{architecture}` | {'; '.join(tried) or '–'} | {' | '.join(shown)} |")


def models() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(class of theirs, what is particular, makes one)."""
    from tests.hf import test_parity
    from tests.hf.families import test_decoder_only, test_encoders

    for tests in (test_parity, test_encoders):
        for name, (architecture, *_) in tests.CASES.items():
            yield architecture, name.partition(", ")[2], functools.partial(tests.make, name)
    for name, (prefix, options) in test_decoder_only.MODELS.items():
        make = functools.partial(test_decoder_only.their_model, prefix, options)
        yield f"{prefix}ForCausalLM", name.partition(", ")[2], make


if __name__ == "__main__":
    main()
