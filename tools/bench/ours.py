"""jaxpt's side: makes weights and batch of a case, and runs training steps. A process that `__main__` talks to."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import worker
from cases import CLIP_NORM, CONFIGS, LEARNING_RATE, WEIGHT_DECAY, Case, random_batch

from jaxpt.runtime import process

clock = time.perf_counter


class Ours(worker.Side):
    """A case on jaxpt, on one device as on the other side."""

    def __init__(self, keeps_memory: bool) -> None:
        """`keeps_memory`: malloc keeps what is freed; said in the answer."""
        self._keeps_memory = keeps_memory

    def prepare(self, case: Case, folder: Path, dtype: str) -> dict[str, Any]:
        """Compiles the step; `write` gave the other sides the same weights and batch."""
        import jax

        from jaxpt.train import flops, step

        setup, batch = _made(case, dtype)
        config, objective = setup.config, setup.config.objective
        begun = clock()
        self._update = step.traced(setup, objective).lower().compile()
        compiled = clock() - begun
        self._state, self._batch = setup.init(), step.put(batch, setup)
        with setup.use():
            found, _ = step.make_eval_step(setup, objective)(self._state.params, self._batch, self._state.carry)
        (total, weight), *_ = (found[part] for part in found if part in objective.weights(batch))
        return {
            "loss": float(total / weight),
            "compile_seconds": compiled,
            "flops": flops.step_flops(setup, self._batch),
            "flops_all_logits": flops.step_flops(setup, _all_masked(self._batch)),
            "parameters": setup.network.count_params(),
            "tokens": config.data.batch_size * step.tokens_per_example(setup, objective),
            "peak_flops": flops.peak(jax.devices()[0]),
            "device": jax.devices()[0].device_kind,
            "platform": self.platform(),
            "keeps_freed_memory": self._keeps_memory,
            "version": f"jax {jax.__version__}",
        }

    def write(self, case: Case, folder: Path, dtype: str) -> None:
        """The weights that `prepare` begins with are written once into a folder, and only they are computed."""
        import jax

        from jaxpt import hf
        from jaxpt.train import state

        setup, batch = _made(case, dtype)
        if not (folder / "config.json").exists():
            with setup.use():
                params = jax.jit(setup.network.init)(state.purpose_key(jax.random.key(setup.config.seed), "init"))
            hf.save(folder, setup.network, jax.device_get(params))
        np.savez(folder / "batch.npz", **batch)

    def platform(self) -> str:
        import jax

        return jax.devices()[0].platform

    def step(self) -> None:
        import jax

        self._state, metrics = self._update(self._state, self._batch)
        jax.block_until_ready((self._state, metrics))

    def peak_bytes(self) -> int:
        import jax

        found = jax.devices()[0].memory_stats()
        return worker.resident_peak() if found is None else found["peak_bytes_in_use"]


def _made(case: Case, dtype: str) -> tuple[Any, dict[str, np.ndarray]]:
    """(the setup of a case on the first device, its random batch)"""
    import jax

    from jaxpt.train import state, step

    setup = state.setup(config := configuration(case, dtype), jax.devices()[:1])
    return setup, random_batch(step.batch_shapes(setup, config.objective), config.model.vocab_size)


def _all_masked(batch: dict[str, Any]) -> dict[str, Any]:
    """The shapes of a batch whose positions are all predicted; of one without masked positions its own."""
    import jax

    def shape(name: str, x: Any) -> tuple[int, ...]:
        return batch["encoder_input_tokens"].shape if name.startswith("masked_") else x.shape

    return {name: jax.ShapeDtypeStruct(shape(name, x), x.dtype) for name, x in batch.items()}


def configuration(case: Case, dtype: str, data: dict[str, Any] | None = None, **objective: Any) -> Any:
    """The recipe of a case.

    Args:
      case: gives model, objective and shapes.
      dtype: in which it computes.
      data: more of `data`.
      **objective: more of `objective`.

    Returns:
      The configuration.
    """
    import yaml

    from jaxpt import config as configs

    if case.objective == "masked_lm":
        objective["next_sentence"] = False
    tree = {
        "base": str(CONFIGS / f"{case.model}.yaml"),
        "model": {"dtype": dtype, "dropout": case.dropout} | ({"layers": case.layers} if case.layers else {}),
        "objective": {"kind": case.objective, **objective},
        "data": {"tokenizer": {"kind": "wordpiece"}, "length": case.length, "batch_size": case.rows} | (data or {}),
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
    worker.serve(Ours(process.keep_freed_memory()))  # as the command line does
