"""jaxpt's side: makes weights and batch of a case, and runs training steps. A process that `__main__` talks to."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import worker
from cases import CLIP_NORM, CONFIGS, LEARNING_RATE, WEIGHT_DECAY, Case, random_batch

from jaxpt import allocator

clock = time.perf_counter


class Ours(worker.Side):
    """A case on jaxpt."""

    def prepare(self, case: Case, folder: Path, dtype: str) -> dict[str, Any]:
        """Compiles the step, and writes weights and batch for the other side."""
        import jax

        from jaxpt import hf
        from jaxpt.train import flops, state, step

        setup = state.setup(config := _config(case, dtype))
        self._setup, objective = setup, config.objective
        begun = clock()
        self._update = step.traced(setup, objective).lower().compile()
        compiled = clock() - begun
        batch = random_batch(step.batch_shapes(setup, objective), config.model.vocab_size)
        self._state, self._batch = setup.init(), step.put(batch, setup)
        hf.save(folder, setup.network, jax.device_get(self._state.params))
        np.savez(folder / "batch.npz", **batch)
        with setup.use():
            found, _ = step.make_eval_step(setup, objective)(self._state.params, self._batch, self._state.carry)
        (total, weight), *_ = (found[part] for part in found if part in objective.loss.weights(batch))
        return {
            "loss": float(total / weight),
            "compile_seconds": compiled,
            "flops": flops.step_flops(setup, self._batch),
            "parameters": setup.network.count_params(),
            "tokens": config.data.batch_size * step.tokens_per_example(setup, objective),
            "peak_flops": flops.peak(jax.devices()[0]),
            "device": jax.devices()[0].device_kind,
            "version": f"jax {jax.__version__}",
        }

    def step(self) -> None:
        import jax

        self._state, metrics = self._update(self._state, self._batch)
        jax.block_until_ready((self._state, metrics))

    def peak_bytes(self) -> int:
        import jax

        found = jax.devices()[0].memory_stats()
        return worker.resident_peak() if found is None else found["peak_bytes_in_use"]


def _config(case: Case, dtype: str) -> Any:
    import yaml

    from jaxpt import config as configs

    objective: dict[str, Any] = {"kind": case.objective}
    if case.objective == "masked_lm":
        objective["next_sentence"] = False
    tree = {
        "base": str(CONFIGS / f"{case.model}.yaml"),
        "model": {"dtype": dtype, "dropout": case.dropout},
        "objective": objective,
        "data": {"tokenizer": {"kind": "wordpiece"}, "length": case.length, "batch_size": case.rows},
        "optimizer": {
            "kind": "adamw", "learning_rate": LEARNING_RATE, "weight_decay": WEIGHT_DECAY, "clip_norm": CLIP_NORM,
            "schedule": {"kind": "constant", "warmup_steps": 0},
        },
        "train": {"steps": 1_000_000},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.yaml")
        path.write_text(yaml.safe_dump(tree))
        return configs.load(path)


if __name__ == "__main__":
    allocator.keep_freed_memory()  # as the command line does
    worker.serve(Ours())
