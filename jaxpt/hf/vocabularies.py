"""Files of vocabularies: from a directory of Hugging Face to a run, and from a run to an export."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxpt.data import tokenizers
from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.errors import UserError, printable
from jaxpt.runtime import disk

FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "spiece.model", "sentencepiece.model", "tokenizer.model",
    "sentencepiece.bpe.model", "spm.model",
)  # fmt: skip


def of_adapter(adapter: Path, base: Path, report: Callable[[str], None]) -> Path:
    """Where the vocabulary of a low-rank adapter is: beside it, as peft's trainings leave it, or beside its base."""
    names = set(_files(adapter))
    is_beside = vocabulary_files.SETTINGS in names and any(names.issuperset(x) for _, x in vocabulary_files.KNOWN)
    report(f"vocabulary: the adapter's, in {adapter}; that of its base: --tokenizer {base}" if is_beside
           else f"vocabulary: that of the adapter's base, in {base}")  # fmt: skip
    return adapter if is_beside else base


def take(source: Path, out: Path, limits: dict[str, Any], report: Callable[[str], None]) -> dict[str, Any]:
    """Copies the vocabulary of a directory to a run.

    Args:
      source: the directory, or a vocabulary's file.
      out: the run's directory of the vocabulary, which is made.
      limits: what `tokenizers.load` has to know of the model besides.
      report: is given lines for the user.

    Returns:
      The recipe's tokenizer settings.

    Raises:
      UserError: a link leads out of the directory.
    """
    if source.is_file():
        name = "tokenizer.model" if source.suffix == ".model" else source.name
        files = {name: source} if source.suffix in (".model", ".json", ".txt") else {}
    else:
        files = {name: source / name for name in _files(source)}
        for file in files.values():
            _check_copied(source, file)
    if not files:
        report(f"{source}: contains no vocabulary; set --tokenizer, or data.tokenizer.path later")
        return {"kind": "sentencepiece"}
    out.mkdir(parents=True)
    for name, file in files.items():
        (out / name).parent.mkdir(exist_ok=True)
        shutil.copy(file, out / name)
    try:
        vocabulary = tokenizers.load(source, **limits)
        _name_class(vocabulary, out)
    except UserError as error:
        report(printable(f"vocabulary: copied, but not usable for training in jaxpt: {error}"))
        return {"kind": "sentencepiece"}
    finally:
        vocabulary_files.write_checksums(out, [str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()])
    if vocabulary.assumed:
        report(f"vocabulary: {vocabulary.assumed}")
    return {"kind": vocabulary.kind, "lowercase": vocabulary.lowercase, "extra_ids": limits["extra_ids"]}


def _check_copied(directory: Path, file: Path) -> None:
    """Refuses a link out of the directory that is imported: what it leads to would go into runs and exports."""
    disk.check_file(file)
    real, directory = file.resolve(), directory.resolve()
    blobs = directory.parent.parent / "blobs"  # where the hub's cache keeps the files of a snapshot
    inside = real.is_relative_to(directory) or (directory.parent.name == "snapshots" and real.parent == blobs)
    if not inside:
        raise UserError(f"{file}: a link to {real}, outside of the directory, is not followed; copy the file there")


def give(run_dir: Path, out: Path, longest: int | None = None) -> None:
    """Copies a run's vocabulary files to a directory.

    Args:
      run_dir: the run.
      out: the directory.
      longest: tokens that the model can read, for `model_max_length` where the files say none: pipelines of
        `transformers` cut longer texts to it. None: the files stay as they are.
    """
    for name in _files(run_dir / "tokenizer"):
        (out / name).parent.mkdir(exist_ok=True)
        shutil.copy(run_dir / "tokenizer" / name, out / name)
    path = out / "tokenizer_config.json"
    if longest is not None and path.is_file():
        settings = {"model_max_length": longest} | vocabulary_files.read_settings(out)
        path.write_text(json.dumps(settings, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _files(directory: Path) -> list[str]:
    """Names of the files of a vocabulary and of the templates of dialogues in a directory."""
    names = [name for name in FILES if os.path.lexists(directory / name)]
    return names + vocabulary_files.chat_template_files(directory)


def _name_class(tokenizer: Any, directory: Path) -> None:
    """Adds what would otherwise be read from the missing config.json: the class, and options that depend on it."""
    path = directory / "tokenizer_config.json"
    settings = vocabulary_files.read_settings(directory)
    if "tokenizer_class" in settings:
        if missing := {key: value for key, value in tokenizer.resolved().items() if settings.get(key) is None}:
            path.write_text(json.dumps(settings | missing, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer.save(temporary)
        for file in Path(temporary).iterdir():
            if file.name in FILES and not (directory / file.name).is_file():
                shutil.copy(file, directory / file.name)
        written = json.loads((Path(temporary) / path.name).read_text("utf-8"))
    path.write_text(json.dumps(written | settings, indent=1) + "\n", encoding="utf-8")
