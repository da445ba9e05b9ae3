"""Greedy decoding beside transformers, by tools/bench_generate.py: GPT-2 124M or Llama 3.2 1B, in bfloat16.

python tools/on_device/decode.py gpt2|llama
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import shared


def options() -> dict[str, Any]:
    """Of `bench_generate.measured`; in a dry run for a CPU."""
    if shared.IS_DRY:
        return {"dtype": "float32", "rounds": 1, "prompt": 8, "new": 3, "layers": 1}
    return {"dtype": "bfloat16", "rounds": 3, "prompt": 128, "new": 128}


def sides() -> list[str]:
    """Those that this machine and the time allow."""
    if not shared.has_torch():
        return ["jaxpt"]
    return ["jaxpt", "transformers", "transformers-static"] + ([] if shared.IS_DRY else ["transformers-compile"])


def main() -> int:
    name = sys.argv[1]
    report = shared.Report()
    sys.path.insert(0, str(shared.ROOT / "tools"))
    import bench_generate

    batches = (2,) if shared.IS_DRY else (16, 1)
    deadline = time.monotonic() + float(os.environ.get("DEVICE_LIMIT", 600)) - 5
    texts = []
    for number, batch in enumerate(batches):
        budget = (deadline - time.monotonic()) / (len(batches) - number) * 0.8  # a side may take longer than is left
        label = f"batch {batch}"
        try:
            case = "t5" if shared.IS_DRY and name == "llama" else name  # Llama's table is too large for a dry run
            result = bench_generate.measured(case, batch, sides(), budget=budget, **options())
        except Exception as error:
            report.add(label, {"error": shared.describe(error)}, f"{label}: {shared.describe(error)}", is_good=False)
            continue
        for line in bench_generate.table(result).splitlines():
            report.result["lines"].append(line)
            print(line, flush=True)
        is_good = "error" not in result["sides"]["jaxpt"]
        report.add(label, result, is_good=is_good)
        if is_good:
            ratio = f", {result['ratio']:.2f} × the best peer" if result["ratio"] else ""
            texts.append(f"{label}: {result['sides']['jaxpt']['tokens_per_second']:,.0f} tokens/s{ratio}")
        report.headline("; ".join(texts))
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
