"""What the steps share: recipes, timed cases, where files are, and how a result is written."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
KIT = Path(os.environ.get("DEVICE_KIT", ROOT / ".device")).resolve()
"""What `--pack` wrote."""
BATCHES, LOSSES, PREDICTIONS = KIT / "batches", KIT / "losses.json", KIT / "predictions.json"
NEW_PREDICTIONS = Path(os.environ.get("TMPDIR", "/tmp"), "predictions.json")
"""What the step `plan` wrote in this call."""
IS_DRY = bool(os.environ.get("DEVICE_DRY"))
"""On a CPU, with tiny sizes."""
IS_QUICK = bool(os.environ.get("DEVICE_QUICK"))

RECIPES = {name: f"configs/smoke/{name}.yaml" for name in ("gpt2_tiny", "bert_tiny", "t5_tiny")}
STEPS = 600
"""Prepared batches of each recipe."""
FIXED = ("train.phases=[]", "data.length=64", "data.batch_size=32", f"train.steps={STEPS}", "train.eval_examples=512")
"""Overrides of the recipes whose batches are prepared."""
FLOAT32 = ("model.dtype=float32", "model.dropout=0.0", "model.attention=xla")
"""Of what is compared with a CPU."""
BFLOAT16 = ("model.dtype=bfloat16", "model.dropout=0.0")
TINY = (
    "model.layers=1", "model.embed_dim=32", "train.eval_examples=64",
    "optimizer={kind: adamw, learning_rate: 5e-3, schedule: {kind: constant, warmup_steps: 0}}",
)  # fmt: skip
"""Of a dry run, which is on a CPU: its model compiles within seconds."""


@dataclasses.dataclass(frozen=True)
class TimedCase:
    """A case of tools/bench, and the sides that take part."""

    case: str
    sides: tuple[str, ...]
    dry_case: str
    """What is run on a CPU in its place …"""
    dry_model: str
    """… with this model, of one layer."""
    rounds: int = 5
    steps: int = 3


MASKED = "head on masked positions"
TIMED = {
    "gpt2": TimedCase("gpt2_124m", ("jaxpt", "torch", "torch.compile"), "gpt2_124m_4x256", "gpt2_124m"),
    "bert": TimedCase(
        "bert_base_512", ("jaxpt", f"torch, {MASKED}", f"torch.compile, {MASKED}"), "bert_base_16x128", "bert_tiny"
    ),
    "t5": TimedCase("t5_1_1_base", ("jaxpt", "torch", "torch.compile"), "t5_small_16x128", "t5_1_1_small"),
    "llama": TimedCase("llama_1b", ("jaxpt", "torch.compile"), "gpt2_124m_4x256", "gpt2_124m", rounds=4, steps=2),
}


def bench(*names: str) -> list[Any]:
    """Modules of tools/bench."""
    folder = str(ROOT / "tools" / "bench")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return [importlib.import_module(name) for name in names]


def timed_case(name: str) -> Any:
    """A timed case, as tools/bench has it; in a dry run of one layer and two rows."""
    (cases,) = bench("cases")
    timed = TIMED[name]
    if not IS_DRY:
        return cases.CASES[timed.case]
    return dataclasses.replace(cases.CASES[timed.dry_case], model=timed.dry_model, layers=1, rows=2, length=32)


def timed_config(name: str) -> Any:
    """The configuration of a timed case on jaxpt."""
    (ours,) = bench("ours")
    return ours.configuration(timed_case(name), timed_dtype())


def timed_dtype() -> str:
    return "float32" if IS_DRY else "bfloat16"


def batch_overrides(name: str) -> list[str]:
    """Overrides with which a recipe trains from its prepared batches."""
    return [*FIXED, "data.source=batches", f"data.path={BATCHES / name}"]


def recipe(name: str, overrides: Sequence[str]) -> Any:
    """The configuration of one of `RECIPES`."""
    from jaxpt import config as configs

    return configs.load(ROOT / RECIPES[name], overrides)


def has_torch() -> bool:
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def describe(error: Exception) -> str:
    """An exception in one short line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:400]


class Report:
    """A step's result, written anew whenever it changes."""

    def __init__(self) -> None:
        self.result: dict[str, Any] = {"headline": "", "lines": []}
        self.failures = 0
        path = os.environ.get("DEVICE_RESULT")
        self._path = Path(path) if path else None
        self.save()

    def save(self) -> None:
        if self._path is not None:
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(self.result, default=float) + "\n", "utf-8")
            partial.replace(self._path)

    def add(self, key: str, value: Any, line: str = "", is_good: bool = True) -> None:
        """Adds a part of the result, with its line for people.

        Args:
          key: its name in the JSON.
          value: anything that JSON has.
          line: what is printed: one line or several.
          is_good: False makes the step a failed one.
        """
        self.result[key] = value
        self.failures += not is_good
        if line:
            self.result["lines"] += line.splitlines()
            print(line, flush=True)
        self.save()

    def headline(self, text: str) -> None:
        """Sets the line of the table."""
        self.result["headline"] = text
        self.save()

    def exit_code(self) -> int:
        return 1 if self.failures else 0
