"""A vocabulary's directory: its files are written whole, with checksums that are compared before they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxpt.errors import UserError
from jaxpt.runtime import hub
from jaxpt.runtime.disk import read_json, write_bytes, write_text

SETTINGS = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
CHAT_TEMPLATES = ("chat_templates", "additional_chat_templates")
"""Directories of templates with a name; the last is that of `transformers`, and counts."""
ADDED = "tokens_added"
"""Key of tokenizer_config.json: the tokens of `data.tokenizer.add_tokens`."""
STYLE = "sentencepiece_style"
"""Key of tokenizer_config.json: what is done around a SentencePiece model that we saved."""
CHECKSUMS = "checksums.json"
"""{file: BLAKE2b} of the files that were written with it."""

# A directory is searched in this order: a tokenizer.json says most, and `transformers` takes it first. A SentencePiece
# model that we have saved counts before the tokenizer.json that was made of it.
_MODEL_NAMES = ("spiece.model", "sentencepiece.model", "tokenizer.model", "sentencepiece.bpe.model", "spm.model")
_MODELS = tuple(("sentencepiece", (name,)) for name in _MODEL_NAMES)
KNOWN = (
    (None, ("tokenizer.json",)),
    *_MODELS,
    ("wordpiece", ("vocab.txt",)),
    ("bpe", ("vocab.json", "merges.txt")),
    ("bpe", ("encoder.json", "vocab.bpe")),
)
_PUBLISHED = {kind for kind, _ in KNOWN}
_NAMES = {name for _, names in KNOWN for name in names} | {SETTINGS}


def find(path: Path, kind: str | None) -> tuple[str | None, list[Path]]:
    """The kind (None: the file says) and the files of a vocabulary.

    Raises:
      UserError: nothing there, nothing of this kind, or a file that is not as it was written.
    """
    path = hub.local(path, weights=False)
    if not path.exists():
        raise UserError(f"{path}: no such vocabulary file or directory")
    verify(path if path.is_dir() else path.parent)
    named = read_settings(path).get("kind") if path.is_dir() else None
    if kind is None and named is not None and "." in str(named):
        raise UserError(
            f"{path}: {SETTINGS} names the kind {named}, a module; its code runs where a recipe names it: "
            "data.tokenizer.kind"
        )
    if kind not in _PUBLISHED or (kind is None and named is not None):  # its class finds the files
        if path.is_dir() and named != (kind or named):
            raise UserError(f"{path}: no {kind} vocabulary in this directory; {SETTINGS} names {named or 'no kind'}")
        return kind or named, [path]
    if path.is_dir():
        for known_kind, names in (*_MODELS, *KNOWN) if _model_counts(path, kind) else KNOWN:
            files = [path / name for name in names]
            if all(f.is_file() for f in files) and (kind is None or known_kind in (None, kind)):
                return known_kind, files
        expected = "spiece.model, tokenizer.json, vocab.txt, or vocab.json with merges.txt"
        raise UserError(f"{path}: no {kind or 'known'} vocabulary in this directory; wants {expected}")
    for known_kind, names in KNOWN:
        if path.name in names:
            files = [path.parent / name for name in names]
            missing = [f.name for f in files if not f.is_file()]
            if missing:
                raise UserError(f"{path}: wants {missing[0]} beside it")
            return known_kind, files
    suffixes = {".model": "sentencepiece", ".txt": "wordpiece", ".json": None}
    if path.suffix not in suffixes:
        raise UserError(f"{path}: wants a .model, vocab.txt, tokenizer.json, or vocab.json with merges.txt beside it")
    return suffixes[path.suffix], [path]


def _is_ours(settings: Mapping[str, Any]) -> bool:
    """Whether we saved a SentencePiece model with this tokenizer_config.json."""
    if STYLE in settings:
        return True
    # Before every one named its style: both of these, and no key of those that `transformers` writes.
    keys = {key for key in settings if not key.endswith("_token")}
    old = {"tokenizer_class", "extra_ids", "do_lower_case", "keep_accents", "chat_template", ADDED}
    return {"extra_ids", "do_lower_case"} <= keys <= old


def _model_counts(directory: Path, kind: str | None) -> bool:
    """Whether a SentencePiece model counts before a tokenizer.json beside it: where we saved both, or where the kind is
    wanted that the tokenizer.json is not of (Llama's is a BPE)."""
    if _is_ours(read_settings(directory)):
        return True
    if kind != "sentencepiece" or not (directory / "tokenizer.json").is_file():
        return False
    model = read_settings(directory, "tokenizer.json").get("model")
    return not isinstance(model, dict) or model.get("type") != "Unigram"


def settings_file(name: str, values: dict[str, Any], chat_templates: Mapping[str, str]) -> str:
    """tokenizer_config.json: the class of `transformers`, its settings, and templates of dialogues."""
    if set(chat_templates) == {"default"}:
        values = values | {"chat_template": chat_templates["default"]}
    elif chat_templates:
        named = [{"name": key, "template": template} for key, template in chat_templates.items()]
        values = values | {"chat_template": named}
    return json.dumps({"tokenizer_class": name, **values}, indent=1)


def read_settings(directory: Path, name: str = SETTINGS) -> dict[str, Any]:
    """A JSON file of settings; {} where there is none."""
    path = directory / name
    if not path.is_file():
        return {}
    settings = read_json(path)
    return settings if isinstance(settings, dict) else {}


def chat_template_files(directory: Path) -> list[str]:
    """Names of the files with templates of dialogues in a directory, as `transformers` writes them."""
    folders = (sorted((directory / folder).glob("*.jinja")) for folder in CHAT_TEMPLATES)
    named = (str(path.relative_to(directory)) for paths in folders for path in paths)
    return [*[CHAT_TEMPLATE] * (directory / CHAT_TEMPLATE).is_file(), *named]


def read_chat_templates(directory: Path) -> dict[str, str]:
    """Templates of dialogues beside a vocabulary.

    Files of their own count before those in tokenizer_config.json, as in `transformers`.

    Args:
      directory: the directory.

    Returns:
      {name: Jinja template}; the name of one without a name is "default".

    Raises:
      UserError: names what is no template.
    """
    if files := chat_template_files(directory):
        names = ["default" if name == CHAT_TEMPLATE else Path(name).stem for name in files]
        try:
            return {name: (directory / file).read_text("utf-8") for name, file in zip(names, files)}
        except UnicodeDecodeError as error:
            raise UserError(f"{directory}: a chat template is not UTF-8 ({error})") from None
    chat_template = read_settings(directory).get("chat_template")
    if isinstance(chat_template, str):
        return {"default": chat_template}
    try:
        templates = {entry["name"]: entry["template"] for entry in chat_template or ()}
        if all(isinstance(text, str) for text in (*templates, *templates.values())):
            return templates
    except (TypeError, KeyError):
        pass
    wants = "wants a template, or a list of {name, template}"
    raise UserError(f"{directory / SETTINGS}: chat_template is {type(chat_template).__name__}; {wants}")


def write(directory: str | Path, files: dict[str, str | bytes]) -> None:
    """Writes a vocabulary's files, each whole or not at all, then their checksums."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CHECKSUMS).unlink(missing_ok=True)  # those of files that are replaced
    for name, content in files.items():
        write_bytes(directory / name, content.encode() if isinstance(content, str) else content)
    write_checksums(directory, list(files))


def write_checksums(directory: Path, names: list[str]) -> None:
    """Hashes these files of a directory into its `checksums.json`."""
    hashed = {name: _digest(directory / name) for name in sorted(names)}
    write_text(directory / CHECKSUMS, json.dumps(hashed, indent=1) + "\n")


def verify(directory: Path) -> None:
    """Raises UserError where `damage` finds something; directories of others, without checksums, pass."""
    if (directory / CHECKSUMS).exists() and (problem := damage(directory)):
        raise UserError(f"{problem}; restore it, or delete {CHECKSUMS} beside it if you made the change")


def damage(directory: Path) -> str | None:
    """What is wrong with a directory that `write` has made.

    Returns:
      The first file that is missing, altered, or was not written with the others; None where all is as it was.
    """
    path = directory / CHECKSUMS
    if not path.is_file():  # a pipe or a device would never end
        return f"{path}: {'is no regular file' if path.exists() else 'is missing'}"
    try:
        checksums = json.loads(path.read_text("utf-8"))
    except ValueError:
        checksums = None
    if not isinstance(checksums, dict):
        return f"{path}: is altered: holds no checksums"
    for name, hashed in checksums.items():
        if not (directory / name).is_file():
            return f"{directory / name}: is missing"
        if _digest(directory / name) != hashed:
            return f"{directory / name}: is altered: its checksum is not the one that was written"
    more = (directory / name for name in sorted(_NAMES - checksums.keys()))
    return next((f"{file}: was not written with the files beside it" for file in more if file.is_file()), None)


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _digest(path: Path) -> str:
    return digest_of(path.read_bytes())
