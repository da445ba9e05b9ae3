"""Tensor files: safetensors and PyTorch's .bin, sharded or not. Tensors are read and written one at a time."""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxpt import errors
from jaxpt.errors import UserError, shown
from jaxpt.models.stored import finite
from jaxpt.runtime import safetensors
from jaxpt.runtime.disk import check_file, read_json, write_text
from jaxpt.runtime.progress import counted

SHARD_BYTES = 5 * 10**9
CHECKSUMS = "jaxpt_checksums.json"
"""{file: crc32} of the files of a directory that `jaxpt export` wrote."""
STEMS = ("model.safetensors", "pytorch_model.bin")
"""Possible names of a model's file, or of the index of its shards."""
_READ_AT_ONCE = 1 << 22  # bytes
TYPES = {name: safetensors.TYPES[name] for name in ("F64", "F32", "F16", "BF16")}
"""Supported types of weights."""
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
"""Keys under which training programs put the state_dict."""
_WRAPPER_MODULES = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
"""Names of modules that torch.compile, FSDP, activation checkpointing and Lightning put around a model or its parts."""


def write_checksums(directory: Path) -> None:
    """Writes the checksums of all files of a directory, the last one of them."""
    names = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    write_text(directory / CHECKSUMS, json.dumps({name: _crc32(directory / name) for name in names}, indent=1) + "\n")


def note_changes(directory: Path, weights: bool) -> None:
    """Names files that are not as `jaxpt export` wrote them: someone edited them, or the disk did.

    Args:
      directory: of a model; one without checksums passes.
      weights: look at the files of tensors; else at all others.
    """
    if not (directory / CHECKSUMS).is_file():
        return
    try:
        for file in _changed(directory, lambda name: name.endswith(".safetensors") == weights):
            if file.is_file():
                errors.note(f"{file}: was changed since it was exported; it is read as it is")
    except UserError:
        errors.note(f"{directory / CHECKSUMS}: is damaged; the files beside it are read as they are")


def damage(directory: Path) -> str | None:
    """What is wrong with the files of `write_checksums`; None if nothing is.

    Args:
      directory: has the files.
    """
    try:
        file = next(_changed(directory, lambda name: True), None)
    except UserError as error:
        return str(error)
    return None if file is None else f"{file}: is missing or was changed"


def _changed(directory: Path, is_wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Files with wanted names that are missing, or other ones than `write_checksums` saw.

    Raises:
      UserError: the checksums are missing or damaged.
    """
    try:
        written = dict(read_json(directory / CHECKSUMS))
    except (OSError, UserError, TypeError, ValueError):
        raise UserError(f"{directory / CHECKSUMS}: is missing or damaged") from None
    for name, checksum in written.items():
        file = directory / name
        if is_wanted(name) and not (file.is_file() and _crc32(file) == checksum):
            yield file


def _crc32(path: Path) -> str:
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(_READ_AT_ONCE):
            checksum = zlib.crc32(piece, checksum)
    return f"{checksum:08x}"


def read_object(path: Path) -> dict[str, Any]:
    """The keys of a JSON file.

    Raises:
      UserError: it is no JSON object.
    """
    keys = read_json(path)
    if not isinstance(keys, dict):
        raise UserError(f"{path}: expected a JSON object, got {shown(keys)}")
    return keys


class Tensors(Mapping[str, np.ndarray]):
    """The tensors of a directory by name, read lazily.

    Attributes:
      shapes: {name: shape}.
      dtypes: {name: NumPy dtype} of tensors with a supported type.
      others: {name: type} of the other tensors, such as indices, masks and quantized weights.
    """

    def __init__(self, directory: Path, stems: tuple[str, ...] = STEMS) -> None:
        """Opens the directory's weights.

        Args:
          directory: has the files.
          stems: possible names of the file, or of the index of its shards.

        Raises:
          UserError: there are no weights, a shard is missing or damaged, two shards contain the same name, or torch is
            needed and not installed.
        """
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, np.dtype] = {}
        self.others: dict[str, str] = {}
        self._open: dict[str, Any] = {}
        self._is_wrapped = False
        for path in _weight_files(directory, stems):
            check_file(path)
            (self._add_bin if path.suffix == ".bin" else self._add_safetensors)(path)

    def _add_safetensors(self, path: Path) -> None:
        try:
            _, entries = safetensors.read(path)
        except ValueError as error:
            raise UserError(f"{path}: not a valid safetensors file: {error}") from None
        for name, entry in sorted(entries.items()):
            self._add(path, name, entry.shape, TYPES.get(entry.kind), entry.kind, (path, entry))

    def _add(self, path: Path, name: str, shape: Iterable[int], dtype: Any, kind: str, source: Any) -> None:
        stored, name = name, unwrapped(name)
        if stored != name and name in self.shapes:
            raise UserError(f"{path}: contains {stored} beside {name}; two models, or two versions of one, are in it")
        if stored != name and not self._is_wrapped:
            self._is_wrapped = True
            errors.note(f"{path}: {shown(stored)} is read as {shown(name)}: a wrapper of the model named it")
        if name in self.shapes:
            raise UserError(f"{path}: contains {name}, which another file of {path.parent} contains too")
        self.shapes[name], self._open[name] = tuple(shape), source
        if dtype is None:
            self.others[name] = kind
        else:
            self.dtypes[name] = np.dtype(dtype)

    def _add_bin(self, path: Path) -> None:
        try:
            import torch
        except ModuleNotFoundError:
            raise UserError(
                f"{path}: reading it requires torch: pip install torch, or use .safetensors files"
            ) from None
        # Files from before torch 1.6 are not archives and cannot be memory-mapped.
        archive = zipfile.is_zipfile(path)
        try:
            tensors = torch.load(path, map_location="cpu", mmap=archive, weights_only=True)
        except OSError:
            raise
        except Exception as error:  # of any class: the file is a program for the unpickler
            if match := re.search(r"GLOBAL (\S+)", str(error)):
                raise UserError(
                    f"{path}: refused: besides tensors it contains {match[1]}, and reading that could run code; save "
                    "the state_dict alone, as .safetensors"
                ) from None
            raise UserError(f"{path}: not a valid file of torch weights") from None
        if isinstance(tensors, Mapping):
            tensors = next((x for key in _WRAPPERS if isinstance(x := tensors.get(key), Mapping)), tensors)
        if not isinstance(tensors, Mapping) or not all(
            isinstance(name, str) and isinstance(x, torch.Tensor) for name, x in tensors.items()
        ):
            raise UserError(f"{path}: does not contain tensors by name; expected a state_dict")
        known = {str(np.dtype(dtype)): dtype for dtype in TYPES.values()}
        for name, tensor in tensors.items():
            kind = str(tensor.dtype).removeprefix("torch.")
            if tensor.is_meta or tensor.layout is not torch.strided:
                kind = f"{'meta' if tensor.is_meta else str(tensor.layout).removeprefix('torch.')} {kind}"
            self._add(path, name, tensor.shape, known.get(kind), kind, tensor.detach())

    def __getitem__(self, name: str) -> np.ndarray:
        source = self._open[name]
        if isinstance(source, tuple):
            return safetensors.tensor(*source)  # not memory-mapped: pages would count as memory of the process
        if self.dtypes.get(name) == np.dtype(ml_dtypes.bfloat16):  # not a built-in NumPy dtype
            import torch

            return source.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        return source.numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def unwrapped(name: str) -> str:
    """A tensor's name without those of wrappers: DataParallel's `module.` at the start, the others anywhere.

    Example:
      >>> unwrapped("_orig_mod.module.bert.encoder._checkpoint_wrapped_module.layer.0.output.dense.bias")
      'bert.encoder.layer.0.output.dense.bias'
    """
    parts = [part for part in name.split(".") if part not in _WRAPPER_MODULES]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts) or name


def _weight_files(directory: Path, stems: tuple[str, ...]) -> list[Path]:
    """All weight files of a directory."""
    for stem in stems:
        if os.path.lexists(directory / stem):
            return [directory / stem]
        index = directory / f"{stem}.index.json"
        if os.path.lexists(index):
            return [directory / name for name in shards(index, Path(stem).suffix)]
    for file in sorted(directory.iterdir()):
        if words := _unsupported(file):
            raise UserError(f"{file}: {words}")
    raise UserError(f"{directory}: contains no weights; expected {', '.join(stems)} or an index")


def shards(index: Path, suffix: str) -> list[str]:
    """Names of the files that an index lists; all are in its directory."""
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f"{index}: not a weight index; expected {{weight_map: {{tensor: file}}}}")
    names = sorted(set(places.values()))
    for name in names:
        if Path(name).name != name or Path(name).suffix != suffix or not name.isprintable() or len(name) > 255:
            raise UserError(f"{index}: {shown(name)} is no name of a {suffix} file in this directory")
        if not os.path.lexists(index.parent / name):
            raise UserError(f"{index.parent}: {name} is missing, but {index.name} lists it")
    return names


def write(
    directory: Path,
    announced: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    tensors: Iterable[tuple[str, np.ndarray]],
    shard_bytes: int = SHARD_BYTES,
    stem: str = "model",
) -> list[Path]:
    """Writes model.safetensors, or shards and their index, one tensor at a time. Removes such files of before.

    Args:
      directory: an existing directory.
      announced: {name: (shape, dtype)} in the order of `tensors`.
      tensors: the tensors; each is converted to its announced dtype.
      shard_bytes: maximum size of a file, unless a single tensor is larger.
      stem: name of the file.

    Returns:
      The paths of the files.

    Raises:
      UserError: a tensor contains NaN or infinity, also after conversion (the maximum of float16 is 65,504).
    """
    shards: list[list[str]] = [[]]
    end = total = 0
    for name, (shape, dtype) in announced.items():
        size = safetensors.size(dtype, shape)
        if shards[-1] and end + size > shard_bytes:
            shards.append([])
            end = 0
        shards[-1].append(name)
        end, total = end + size, total + size
    count = len(shards)
    files = (
        [f"{stem}-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)] if count > 1 else [f"{stem}.safetensors"]
    )
    remaining = counted(tensors, "writing", len(announced), "tensors")
    for file, shard in zip(files, shards, strict=True):
        held = {name: announced[name][::-1] for name in shard}
        with open(directory / file, "wb") as stream:
            stream.write(safetensors.header(held, {"format": "pt"}))
            for name in shard:
                got, tensor = next(remaining)
                assert got == name, (got, name)
                dtype = np.dtype(announced[name][1])
                with np.errstate(over="ignore"):
                    stored = np.ascontiguousarray(tensor, dtype)
                stream.write(finite(f"{name} as {dtype}", stored).tobytes())
    remaining.close()
    if count > 1:
        places = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (directory / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    _remove_others(directory, stem, files)
    return [directory / file for file in files]


def _remove_others(directory: Path, stem: str, files: list[str]) -> None:
    """Removes the weights that were under a name before `files` were written: a single file, an index, shards."""
    single, index = f"{stem}.safetensors", f"{stem}.safetensors.index.json"
    shard = re.compile(rf"{re.escape(stem)}-\d+-of-\d+\.safetensors")
    new = {*files} | ({index} if len(files) > 1 else set())
    for path in sorted(directory.iterdir()):
        is_of_stem = path.name in (single, index) or shard.fullmatch(path.name) is not None
        if is_of_stem and path.name not in new:
            path.unlink()


# ---- files and directories of other programs, which are not read ----------------------------------------------------

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


def _unsupported(path: Path) -> str | None:
    """What weights a file has that are not read, by its name: "weights of Flax are not supported; …"; else None."""
    suffix = ".index" if ".data-" in path.name else path.suffix
    if suffix not in _SUFFIXES:
        return None
    writer, advice = _SUFFIXES[suffix]
    return f"weights of {writer} are not supported; {advice}"


def describe_foreign(path: Path) -> str | None:
    """What a file or a directory without config.json is, if it is known: which program wrote it.

    Args:
      path: what was given to `jaxpt import`.

    Returns:
      The words after its name in a message, with what to do; None if nothing tells.

    Example:
      >>> describe_foreign(Path("downloads/t5x/checkpoint_1000000/checkpoint"))
      'is a part of a checkpoint of T5X; name the directory that contains it'
    """
    if path.is_file():
        if path.name == "checkpoint" and _is_t5x(path.parent):
            return "is a part of a checkpoint of T5X; name the directory that contains it"
        is_part = path.suffix == ".safetensors" or path.name == "config.json" or path.name.startswith(_WEIGHTS)
        return f"is a part of a Hugging Face directory; {_MEMBER}" if is_part else _unsupported(path)
    if not path.is_dir():
        return None
    for name, description, advice in _CONTENTS:
        if (path / name).exists():
            return f"{description}; {advice}"
    for step in sorted(path.iterdir()):  # as training programs lay them out
        if (step.name.startswith("checkpoint_") and _is_t5x(step)) or (step / "items" / "_METADATA").is_file():
            return f"has checkpoints of several steps; name one of them, such as {step.name}"
    members = sorted(file for file in path.iterdir() if file.is_file())
    if any(file.name.startswith("flax_model") for file in members):
        return "has weights of Flax and no config.json; add that of the model"
    return next((f"{file.name}: {words}" for file in members if (words := _unsupported(file))), None)


def _is_t5x(directory: Path) -> bool:
    """True for T5X's checkpoints: a file of Flax's names beside a directory for each array."""
    return (directory / "checkpoint").is_file() and any(directory.glob("target.*"))
