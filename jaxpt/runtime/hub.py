"""Models of the Hugging Face hub by name: `google-t5/t5-small`, or of one revision `google-t5/t5-small@df1b051`.

`huggingface_hub` (extra [hub]) downloads them into its cache, from which later runs read, also without a network.
HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they mean there.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxpt import errors
from jaxpt.errors import UserError, printable
from jaxpt.runtime import packages

SECONDS = 10.0
"""Until the hub counts as not reachable."""
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
_VOCABULARY = ("*.json", "*.jsonl", "*.txt", "*.model", "*.vocab", "*.bpe")
"""Configuration and vocabulary. Chat templates and weights come on top."""
_TEMPLATE, _NAMED_TEMPLATES = "chat_template.jinja", "additional_chat_templates/*.jinja"
_NESTED = tuple(f"*/{pattern}" for pattern in (*_VOCABULARY, "*.safetensors", "*.bin"))
"""Folders of other formats (onnx, coreml, original) stay where they are."""


def parse(path: str | Path) -> tuple[str, str | None] | None:
    """Reads the name of a model.

    Args:
      path: what a user has given as a model.

    Returns:
      (name, revision: a commit, branch or tag; None for the newest). None for a path: one that exists, is in a
      directory that exists, or has not the form OWNER/NAME.

    Example:
      >>> parse("google-t5/t5-small@df1b051"), parse("runs/mine/checkpoints"), parse("./t5-small")
      (('google-t5/t5-small', 'df1b051'), None, None)
    """
    match = _NAME.fullmatch(str(path))
    if match is None or Path(path).exists() or Path(path).parts[0] == "runs" or Path(match[1]).parent.exists():
        return None
    return match[1], match[2]


def hint(name: str = "NAME") -> str:
    """What to do about a model that is not here and cannot be downloaded now."""
    return f"a model of the hub: hf download {name} --local-dir DIR"


def local(path: str | Path, weights: bool = True, key: str = "") -> Path:
    """The directory of a model: its own path, or where the hub's cache has it.

    Args:
      path: a path, or a name of the hub, which is downloaded where the cache does not have it.
      weights: False for configuration and vocabulary alone.
      key: the setting that holds it, for messages.

    Returns:
      The directory of a name; any other path unchanged.

    Raises:
      UserError: it has the form of a name, but there is neither such a directory nor a way to that model.
    """
    name = parse(path)
    if name is None:
        return Path(path)
    try:
        return _snapshot(*name, weights)
    except UserError as error:
        raise UserError(f"{key}: {error}" if key else str(error)) from None


@functools.cache
def _snapshot(name: str, revision: str | None, weights: bool) -> Path:
    """Where the cache has a model; asked for once in a process, so that all of a run reads one revision."""
    title = f"{name}@{revision}" if revision else name
    if importlib.util.find_spec("huggingface_hub") is None:
        raise _unavailable(name, title, f"huggingface_hub is not installed: {packages.install_command('hub')}")
    import huggingface_hub
    from huggingface_hub import errors as hub_errors

    wanted: dict[str, Any] = {"revision": revision, "ignore_patterns": list(_NESTED)}
    try:
        info = huggingface_hub.HfApi().model_info(name, revision=revision, timeout=SECONDS)
        files = [file.rfilename for file in info.siblings or () if "/" not in file.rfilename]
        patterns = [*_VOCABULARY, _TEMPLATE, _NAMED_TEMPLATES, *(_weights(files) if weights else ())]
        directory = Path(huggingface_hub.snapshot_download(name, **wanted, allow_patterns=patterns))
        if revision != directory.name:
            errors.note(f"{title}: revision {directory.name}; to stay with it: {name}@{directory.name}")
        return directory
    except hub_errors.HFValidationError:
        raise _unavailable(name, title, "it is no name of the hub") from None
    except hub_errors.GatedRepoError:
        raise _unavailable(name, title, "access is granted on its page, then: hf auth login") from None
    except hub_errors.RevisionNotFoundError:
        raise _unavailable(name, title, f"the hub has no revision {revision!r} of it") from None
    except hub_errors.RepositoryNotFoundError:
        raise _unavailable(name, title, "the hub has no such model, or it is private: hf auth login") from None
    except (OSError, *hub_errors.HfHubHTTPError.__bases__) as error:  # those of the HTTP library: no network
        return _cached(huggingface_hub, name, title, wanted, error, weights)


def _cached(library: Any, name: str, title: str, wanted: dict[str, Any], error: Exception, weights: bool) -> Path:
    """What an earlier download has left, where the hub does not answer; named templates, if it has them."""
    for tensors in ("*.safetensors", "*.bin") if weights else ("",):
        patterns = [*_VOCABULARY, _TEMPLATE, *filter(None, [tensors])]
        try:
            directory = library.snapshot_download(name, local_files_only=True, allow_patterns=patterns, **wanted)
        except OSError:  # the cache has none, or not all of it
            continue
        if not weights or any(Path(directory).glob(tensors)):
            errors.note(f"{title}: the hub cannot be reached; read from its cache: revision {Path(directory).name}")
            return Path(directory)
    reason = printable(str(error).strip().partition("\n")[0] or type(error).__name__, 120)
    raise _unavailable(name, title, f"the hub cannot be reached ({reason})") from None


def _weights(files: Sequence[str]) -> tuple[str, ...]:
    """Patterns of the files with weights: safetensors, or PyTorch's where there are none."""
    return ("*.safetensors",) if any(file.endswith(".safetensors") for file in files) else ("*.bin",)


def _unavailable(name: str, title: str, reason: str) -> UserError:
    return UserError(f"{title}: no such directory, and {reason}; {hint(name)}")
