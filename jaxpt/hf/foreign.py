"""Which program wrote a file or directory that `jaxpt import` does not read, and how it becomes one that it reads."""

from __future__ import annotations

from pathlib import Path

_SAVE = "load it with the program that wrote it, and save it as a directory of Hugging Face Transformers"
_TF = "with transformers 4 and TensorFlow: from_pretrained(DIR, from_tf=True).save_pretrained(OUT)"
_MEMBER = "name the directory that contains it, with config.json"
_SUFFIXES = {
    ".msgpack": ("Flax", _SAVE),
    ".h5": ("TensorFlow", _TF),
    ".keras": ("TensorFlow", _SAVE),
    ".pb": ("TensorFlow", _SAVE),
    ".gguf": ("GGUF", "from_pretrained(DIR, gguf_file=NAME).save_pretrained(OUT) of transformers converts them"),
    ".onnx": ("ONNX", "import the model that it was made of"),
    ".pt": ("PyTorch in .pt files", _SAVE),
    ".pth": ("PyTorch in .pth files", _SAVE),
    ".ckpt": ("PyTorch Lightning", _SAVE),
    ".npz": ("NumPy", _SAVE),
    ".index": ("TensorFlow", _TF),
}
_CONTENTS = (
    # (file of the directory, what wrote it, what to do)
    ("checkpoints", "is a run directory of jaxpt", "use it as it is: jaxpt eval, generate, export"),
    *(
        (name, "is a checkpoint of Orbax, neither T5X's nor of MaxText's Llama, or it is damaged", _SAVE)
        for name in ("_METADATA", "items/_METADATA", "state/_METADATA", "_CHECKPOINT_METADATA")
    ),
    ("latest_checkpointed_iteration.txt", "is a checkpoint of Megatron", _SAVE),
    ("zero_to_fp32.py", "is a checkpoint of DeepSpeed", "run its zero_to_fp32.py, and add the model's config.json"),
    ("params.json", "is a model in Meta's own format", "convert_llama_weights_to_hf.py of transformers converts it"),
    ("saved_model.pb", "is a SavedModel of TensorFlow", _SAVE),
)
_WEIGHTS = ("pytorch_model", "flax_model")


def of_suffix(path: Path) -> str | None:
    """What weights a file has that are not read, by its name: "weights of Flax are not supported; …"; else None."""
    suffix = ".index" if ".data-" in path.name else path.suffix
    if suffix not in _SUFFIXES:
        return None
    writer, advice = _SUFFIXES[suffix]
    return f"weights of {writer} are not supported; {advice}"


def describe(path: Path) -> str | None:
    """What a file or a directory without config.json is, if it is known.

    Args:
      path: what was given to `jaxpt import`.

    Returns:
      The words after its name in a message, with what to do; None if nothing tells.

    Example:
      >>> describe(Path("downloads/t5x/checkpoint_1000000/checkpoint"))
      'is a part of a checkpoint of T5X; name the directory that contains it'
    """
    if path.is_file():
        if path.name == "checkpoint" and _is_t5x(path.parent):
            return "is a part of a checkpoint of T5X; name the directory that contains it"
        is_part = path.suffix == ".safetensors" or path.name == "config.json" or path.name.startswith(_WEIGHTS)
        return f"is a part of a Hugging Face directory; {_MEMBER}" if is_part else of_suffix(path)
    if not path.is_dir():
        return None
    for name, description, advice in _CONTENTS:
        if (path / name).exists():
            return f"{description}; {advice}"
    for step in sorted(path.iterdir()):  # as training programs lay them out
        if (step.name.startswith("checkpoint_") and _is_t5x(step)) or (step / "items" / "_METADATA").is_file():
            return f"has checkpoints of several steps; name one of them, such as {step.name}"
    files = sorted(file for file in path.iterdir() if file.is_file())
    if any(file.name.startswith("flax_model") for file in files):
        return "has weights of Flax and no config.json; add that of the model"
    return next((f"{file.name}: {words}" for file in files if (words := of_suffix(file))), None)


def _is_t5x(directory: Path) -> bool:
    """True for T5X's checkpoints: a file of Flax's names beside a directory for each array."""
    return (directory / "checkpoint").is_file() and any(directory.glob("target.*"))
