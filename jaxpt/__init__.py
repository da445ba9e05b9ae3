"""jaxpt: pretrain, fine-tune, evaluate and ship Transformers of all three families with JAX.

run = jaxpt.fit("configs/smoke/bert_tiny.yaml", **{"train.steps": 100})
model = run.model()  # or jaxpt.load("runs/bert_tiny")
model.fill(["The [MASK] sat on the mat."])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxpt.runtime.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from jaxpt.config import Config
    from jaxpt.inference.loaded import Loaded
    from jaxpt.inference.run import Run

__all__ = ["Config", "Run", "fit", "load"]


def fit(recipe: str | Path | Config, /, **overrides: Any) -> Run:
    """Trains as a recipe says, from where its run_dir stands: the same call continues an interrupted run.

    Args:
      recipe: a YAML file, the directory of a run, or a `jaxpt.Config`.
      **overrides: values of keys of the recipe, dotted or nested: `**{"train.steps": 100}` or `train={"steps": 100}`.

    Returns:
      The run: `metrics`, `plot()`, `checkpoints`, `model()`.

    Raises:
      UserError: for all that a user can mend; it names the key or file.
      KeyboardInterrupt: the training was interrupted; it has saved a checkpoint if it had begun.
    """
    from jaxpt.inference import run

    return run.fit(recipe, overrides)


def load(path: str | Path, **options: Any) -> Loaded:
    """Loads a trained model to generate, score, fill masks, embed, predict and look inside.

    Args:
      path: RUN_DIR, RUN_DIR/checkpoints/STEP, a Hugging Face directory, or OWNER/NAME[@REVISION] on the hub (extra
        [hub]).
      **options: `tokenizer`, `mesh`, `batch_size`, `dtype`, `objective`, `source_language`, `target_language`; see
        `jaxpt.inference.loaded.load`.

    Returns:
      The model.

    Raises:
      UserError: the directory is none of these, is damaged, or has no tokenizer.
    """
    from jaxpt.inference import loaded

    return loaded.load(path, **options)


def __getattr__(name: str) -> Any:
    """`Config` and `Run`, imported when they are used: `import jaxpt` starts at once."""
    if name == "Config":
        from jaxpt.config import Config

        return Config
    if name == "Run":
        from jaxpt.inference.run import Run

        return Run
    import difflib

    close = difflib.get_close_matches(name, __all__, n=1)
    raise AttributeError(f"module 'jaxpt' has no attribute {name!r}" + (f"; did you mean {close[0]}?" if close else ""))
