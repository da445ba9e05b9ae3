"""Opens what a model is loaded from: a run directory, one of its checkpoints, or a Hugging Face directory."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxpt import config as configs
from jaxpt.config import Config, ObjectiveConfig, files
from jaxpt.data import tokenizers
from jaxpt.data.parts import languages
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.decode import prompts
from jaxpt.decode.programs import Place
from jaxpt.errors import UserError, shown
from jaxpt.hf import directory as hf
from jaxpt.hf import generation, imported, origin, reader
from jaxpt.models.network import Network
from jaxpt.objectives.base import Objective
from jaxpt.runtime import hub
from jaxpt.train import checkpoint, weights

_LANGUAGE = re.compile("[a-z]{2,3}_[A-Z]{2}")


@dataclasses.dataclass(frozen=True)
class Opened:
    """A model as its directory has it."""

    path: Path
    network: Network
    params: dict[str, Any]
    """NumPy arrays."""
    objective: Objective
    tokenizer: Tokenizer
    bos: int | None
    """The id that the tokenizer puts before a text; None if it puts none."""
    eos: tuple[int, ...]
    """Ids that end a text."""
    forced: dict[str, Any]
    """Fields of `Options` that the model's files give: what is forced and suppressed."""
    language: int | None
    """The language's token (mBART) where there is only one, or where the files say it."""
    start: int | None = None
    """What generation begins with, where the files say it; see `Reader.start`."""
    search: tuple[str, ...] = ()
    """Settings of search in the files, which are not applied."""


def open_model(
    path: str | Path, tokenizer: str | Path | Tokenizer | None = None, objective: str | Mapping[str, Any] | None = None
) -> Opened:
    """Reads network, parameters and tokenizer.

    Args:
      path: RUN_DIR (its newest checkpoint; of a finished run with a task the best), RUN_DIR/checkpoints/STEP, or a
        Hugging Face directory.
      tokenizer: another tokenizer, or its file or directory.
      objective: kind or settings of another objective.

    Returns:
      The model.

    Raises:
      UserError: the directory is neither, is damaged, or has no tokenizer.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"path: expected a run or a Hugging Face directory, got {shown(path)}")
    path = hub.local(path)
    if _is_hf(path):
        return _of_hf(path, tokenizer, objective)
    if not any((folder / "checkpoints").is_dir() for folder in (path, *path.parents[:2])):
        raise UserError(
            f"{path}: is no model; expected RUN_DIR, RUN_DIR/checkpoints/STEP or a Hugging Face directory (config.json)"
        )
    run_dir, step = checkpoint.find(path)
    config = configs.load(run_dir)
    network = config.objective.network(configs.model_at(config, step))
    opened = _tokenizer(tokenizer, run_dir, config)
    model_objective = _objective(objective) or configs.at_phase(config, configs.phase_of(config, step)).objective
    return _complete(path, network, weights.read(run_dir, step), model_objective, opened, _folder(run_dir, tokenizer))


def resolve_checkpoint(path: str | Path) -> tuple[Path, int | None]:
    """What a path means now, whatever a training saves beside it.

    Args:
      path: RUN_DIR, RUN_DIR/checkpoints/STEP, or a Hugging Face directory.

    Returns:
      (path of the checkpoint, its step); of a Hugging Face directory, or of no model, (path, None).
    """
    path = hub.local(path)
    if _is_hf(path) or not any((folder / "checkpoints").is_dir() for folder in (path, *path.parents[:2])):
        return path, None
    run_dir, step = checkpoint.find(path)
    return run_dir / "checkpoints" / str(step), step


def _is_hf(path: Path) -> bool:
    return reader.reads(path)


def _of_hf(path: Path, tokenizer: str | Path | Tokenizer | None, objective: Any) -> Opened:
    network, params = hf.load(path)
    model_objective = _objective(objective) or _objective(imported.objective_of(network.config, network.heads))
    # Of Hugging Face's own, only T5 adds sentinels to its SentencePiece model.
    may_extend = network.config.kind == "t5" or tokenizer is not None
    limits = {"extra_ids": None if may_extend else 0, "max_size": network.config.vocab_size}
    opened = _opened_tokenizer(tokenizer, path, limits)
    return _complete(path, network, params, model_objective, opened, _folder(path, tokenizer))


def _complete(
    path: Path,
    network: Network,
    params: Any,
    objective: Objective,
    tokenizer: Tokenizer,
    folder: Path,
) -> Opened:
    """With what the tokenizer's files, in `folder`, and the model's say of generation."""
    settings = generation.read(origin.folder_of(path), network.config.vocab_size)
    language = None
    if objective.kind == "mbart":
        tokenizer, language = _with_languages(tokenizer, settings.decoder_start)
    bos, eos = prompts.bos_of(tokenizer, folder), prompts.eos_of(tokenizer, folder, settings.eos)
    start = settings.decoder_start if network.config.family == "encoder_decoder" else settings.bos
    options = dict(settings.options)
    return Opened(path, network, params, objective, tokenizer, bos, eos, options, language, start, settings.search)


def _objective(objective: str | Mapping[str, Any] | Objective | None) -> Objective | None:
    if objective is None or isinstance(objective, Objective):
        return objective
    settings = {"kind": objective} if isinstance(objective, str) else objective
    if not isinstance(settings, Mapping) or not isinstance(settings.get("kind"), str):
        raise UserError(f"objective: wants a kind, or settings such as {{'kind': 'causal_lm'}}, got {shown(objective)}")
    objective_class = configs.resolve(settings["kind"], "jaxpt.objectives", ObjectiveConfig)
    return files.parsed(objective_class, dict(settings), {}, "objective")


def place_params(network: Network, params: Any, place: Place) -> Any:
    """An encoder's parameters on the devices, in the dtypes of training."""
    with place.use():
        shapes, axes = network.shapes(), network.logical_axes()
        shardings = jax.tree.map(lambda x, a: place.sharding(a, x.shape), shapes, axes)
    return jax.tree.map(lambda x, s: jax.device_put(jnp.asarray(x, jnp.float32), s), params, shardings)


# ---- tokenizer ------------------------------------------------------------------------------------------------------


def _folder(path: Path, tokenizer: str | Path | Tokenizer | None) -> Path:
    """Where tokenizer_config.json is looked for."""
    if tokenizer is None or isinstance(tokenizer, Tokenizer):
        return path / "tokenizer" if (path / "tokenizer").is_dir() else path
    tokenizer_path = hub.local(tokenizer, weights=False)
    return tokenizer_path if tokenizer_path.is_dir() else tokenizer_path.parent


def _opened_tokenizer(
    tokenizer: str | Path | Tokenizer | None, tokenizer_dir: Path, limits: Mapping[str, Any]
) -> Tokenizer:
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if tokenizer is not None:
        return tokenizers.load(tokenizer, **limits)
    if not tokenizer_dir.is_dir():
        raise UserError(f"{tokenizer_dir}: no such directory; give a tokenizer: tokenizer=FILE or DIR")
    return tokenizers.load(tokenizer_dir, **limits)


def _tokenizer(tokenizer: str | Path | Tokenizer | None, run_dir: Path, config: Config) -> Tokenizer:
    """A run's tokenizer, with the tokens of its languages."""
    settings, tokenizer_dir = config.data.tokenizer, run_dir / "tokenizer"
    limits: dict[str, Any] = {"extra_ids": settings.extra_ids, "max_size": config.model.vocab_size}
    if tokenizer is None:
        limits |= {"kind": settings.kind, "lowercase": settings.lowercase, "languages": languages(config)}
    if tokenizer is None and not tokenizer_dir.is_dir() and settings.path is not None:
        tokenizer, limits["add_tokens"] = settings.path, settings.add_tokens
    return _opened_tokenizer(tokenizer, tokenizer_dir, limits)


def _with_languages(tokenizer: Tokenizer, start: int | None) -> tuple[Tokenizer, int | None]:
    """The tokenizer with the languages that its tokens name, and the one that is generated by default."""
    v = tokenizer.vocabulary
    if not v.languages:
        pieces = enumerate(tokenizer.tokens(range(v.size)))
        tokenizer.vocabulary = dataclasses.replace(
            v, languages=tuple(i for i, piece in pieces if _LANGUAGE.fullmatch(piece))
        )
    languages = tokenizer.vocabulary.languages
    if start in languages:
        return tokenizer, start
    return tokenizer, languages[0] if len(languages) == 1 else None
