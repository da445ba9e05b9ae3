"""transformers' side on torch: the same weights and batch, SDPA, fused AdamW. Words after the program's name:

compile       torch.compile
masked        of a masked LM the head is computed on the masked positions alone, as ours is, not on all
plain-malloc  glibc's malloc as it comes; else it keeps what is freed, as ours does (`jaxpt.runtime.process`)
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import worker
from cases import CLIP_NORM, LEARNING_RATE, WEIGHT_DECAY, Case, of_transformers

from jaxpt.runtime import process

clock = time.perf_counter
CLASSES = {
    "masked_lm": "AutoModelForMaskedLM",
    "causal_lm": "AutoModelForCausalLM",
    "span_corruption": "AutoModelForSeq2SeqLM",
}


class Theirs(worker.Side):
    """A case on torch."""

    def __init__(self, compiles: bool, masked: bool, keeps_memory: bool) -> None:
        self._compiles, self._masked, self._keeps_memory = compiles, masked, keeps_memory

    def prepare(self, case: Case, folder: Path, dtype: str) -> dict[str, Any]:
        """Loads weights and batch; with torch.compile the first step compiles."""
        import torch
        import transformers

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.set_float32_matmul_precision("high")
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = None if dtype == "float32" else getattr(torch, dtype)
        of_class = getattr(transformers, CLASSES[case.objective])
        model = of_class.from_pretrained(folder, attn_implementation="sdpa" if case.model[:2] != "t5" else None)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = case.dropout
        model = _with_masked_head(model) if self._masked else model
        self._model = model.to(self._device)
        batch = of_transformers(dict(np.load(folder / "batch.npz")))
        self._batch = {name: torch.tensor(value, dtype=torch.long).to(self._device) for name, value in batch.items()}
        if self._masked:  # found once, as a collator would, not in each step
            self._batch["places"] = (self._batch["labels"].flatten() != -100).nonzero()[:, 0]
            self._batch["labels"] = self._batch["labels"].flatten()[self._batch["places"]]
        with torch.no_grad():
            loss = float(self._forward(model.eval()))
        model.train()
        self._parameters = list(model.parameters())
        self._optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
        if self._compiles:
            self._model = torch.compile(model)
        begun = clock()
        self.step()
        return {
            "loss": loss,
            "compile_seconds": clock() - begun if self._compiles else 0.0,
            "platform": self.platform(),
            "keeps_freed_memory": self._keeps_memory,
            "version": f"torch {torch.__version__}, transformers {transformers.__version__}",
        }

    def _forward(self, model: Any) -> Any:
        import torch

        with torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None):
            found = model(**self._batch)
            return found if self._masked else found.loss

    def platform(self) -> str:
        import torch

        return "gpu" if torch.cuda.is_available() else "cpu"

    def step(self) -> None:
        import torch

        self._forward(self._model).backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, CLIP_NORM, foreach=True)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def peak_bytes(self) -> int:
        import torch

        return torch.cuda.max_memory_allocated() if self._device.type == "cuda" else worker.resident_peak()


def _with_masked_head(model: Any) -> Any:
    """A masked LM as a module from ids, places among all tokens of the batch, and labels there to the loss."""
    import torch

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = model.base_model, getattr(model, "cls", None) or model.lm_head

        def forward(self, input_ids: Any, places: Any, labels: Any) -> Any:
            hidden = self.encoder(input_ids).last_hidden_state.flatten(0, 1)
            return torch.nn.functional.cross_entropy(self.head(hidden[places]), labels)

    return Masked()


if __name__ == "__main__":
    words = sys.argv[1:]
    keeps = "plain-malloc" not in words and process.keep_freed_memory()
    worker.serve(Theirs("compile" in words, "masked" in words, keeps))
