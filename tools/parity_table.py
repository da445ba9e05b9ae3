"""The README's table of parity: for each class of transformers, the largest difference of each output of ours.

    python tools/parity_table.py

Random weights, tiny odd sizes, three rows with 0, 4 and 8 tokens of padding, float32, the worst of two seeds; the
differences are divided by the largest value of the output. tests/hf/test_parity.py asserts the same, gradients as well.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> None:
    """Prints the table as Markdown."""
    import jax
    import torch
    import transformers

    from jaxpt.hf import load, verify
    from tests.hf.parity import randomise, untie
    from tests.hf.test_parity import CASES, UNTIED

    print("| class of transformers | options | largest difference / largest value, by output |\n|---|---|---|")
    for name, (architecture, config, options) in CASES.items():
        worst: dict[str, float] = {}
        for seed in (0, 1):
            model = getattr(transformers, architecture)(getattr(transformers, config)(**options))
            model = randomise(untie(model) if name in UNTIED else model, seed)
            with tempfile.TemporaryDirectory() as directory:
                model.save_pretrained(directory)
                ours, params = load(directory)
            ours = ours.config.model_copy(update={"dtype": "float32"}).build()
            inputs = verify.batch(ours.config, seed=seed)
            with torch.no_grad():
                other = verify.theirs(model, inputs)
            mine = jax.jit(lambda p, ours=ours, inputs=inputs: verify.ours(ours, p, inputs))(params)
            for output, (largest, scale) in verify.differences(mine, other, inputs).items():
                worst[output] = max(worst.get(output, 0.0), largest / scale)
        shown = ", ".join(f"{output} {value:.0e}" for output, value in worst.items())
        print(f"| `{architecture}` | {name.partition(', ')[2] or '–'} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
