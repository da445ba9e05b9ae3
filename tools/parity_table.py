"""The README's table of parity: for each class of transformers, how far our outputs and gradients are from theirs.

    python tools/parity_table.py

Random weights, tiny odd sizes, three rows with 0, 4 and 8 tokens of padding, float32; the worst of two seeds and of all
options tried, each difference divided by the largest value of what is compared. Hidden states are those of every layer,
encoder's and decoder's; of the gradients the worst parameter counts. tests/hf/test_parity.py asserts the same.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
COLUMNS = {"logits": "logits", "next_sentence": "second head", "gradient": "gradients"}


def main() -> None:
    """Prints the table as Markdown."""
    from tests import conftest  # noqa: F401 (compiles quickly, and keeps what it compiled)
    from tests.hf.test_parity import CASES

    rows: dict[str, tuple[list[str], dict[str, float]]] = {}
    for name, (architecture, *_) in CASES.items():
        tried, worst = rows.setdefault(architecture, ([], {}))
        option = name.partition(", ")[2]
        tried += [option] if option else []
        for output, relative in case(name).items():
            column = COLUMNS.get(output, "hidden states")
            worst[column] = max(worst.get(column, 0.0), relative)
        print(f"{name}: {worst}", file=sys.stderr, flush=True)
    columns = ("hidden states", *COLUMNS.values())
    print(f"| class of transformers | options tried besides the plain ones | {' | '.join(columns)} |")
    print(f"|---|---|{'---|' * len(columns)}")
    for architecture, (tried, worst) in rows.items():
        shown = (f"{worst[column]:.0e}" if column in worst else "–" for column in columns)
        print(f"| `{architecture}` | {'; '.join(tried) or '–'} | {' | '.join(shown)} |")


def case(name: str) -> dict[str, float]:
    """{output: largest difference / largest value} of one model of theirs, the worst of two seeds."""
    from jaxpt.hf import load, verify
    from tests.hf import parity
    from tests.hf.test_parity import make

    worst: dict[str, float] = {}
    step = None
    for seed in (0, 1):
        model = parity.randomise(make(name), seed)
        with tempfile.TemporaryDirectory() as directory:
            model.save_pretrained(directory)
            ours, params = load(directory)
        ours = ours.config.model_copy(update={"dtype": "float32"}).build()
        step = step or parity.compiled(ours)
        inputs = verify.batch(ours.config, seed=seed)
        for output, found in parity.measured(model, ours, params, inputs, step).items():
            worst[output] = max(worst.get(output, 0.0), found.relative)
    return worst


if __name__ == "__main__":
    main()
