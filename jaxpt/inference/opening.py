"""Opens what a model is loaded from: a run directory, one of its checkpoints, or a Hugging Face directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxpt import config as configs
from jaxpt.config import Config, ObjectiveConfig, files
from jaxpt.data import chat_template, parts, tokenizers
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.decode import prompts
from jaxpt.decode.programs import Place
from jaxpt.errors import UserError, shown
from jaxpt.hf import directory as hf
from jaxpt.hf import generation, imported, origin, reader
from jaxpt.inference import languages
from jaxpt.models.network import Network
from jaxpt.objectives.base import Objective
from jaxpt.objectives.formats import Languages
from jaxpt.runtime import hub
from jaxpt.train import checkpoint, vocabularies, weights


@dataclasses.dataclass(frozen=True)
class Opened:
    """A model as its directory has it."""

    path: Path
    network: Network
    params: dict[str, Any]
    """NumPy arrays; a table of word vectors has those that the run gives away."""
    objective: Objective
    tokenizer: Tokenizer
    bos: int | None
    """The id that the tokenizer puts before a text; None if it puts none."""
    eos: tuple[int, ...]
    """Ids that end a text."""
    forced: dict[str, Any]
    """Fields of `Options` that the model's files give: what is forced and suppressed."""
    languages: Languages | None = None
    """Those that are read and written (mBART), where it is known which."""
    start: int | None = None
    """What generation begins with, where the files say it; see `PromptEncoder.start`."""
    search: tuple[str, ...] = ()
    """Settings of search in the files, which are not applied."""
    system: str | None = None
    """The system message of the dialogues that a run learned from, where the recipe gives them one."""


def open_model(
    path: str | Path,
    tokenizer: str | Path | Tokenizer | None = None,
    objective: str | Mapping[str, Any] | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> Opened:
    """Reads network, parameters and tokenizer.

    Args:
      path: RUN_DIR (its newest checkpoint; of a finished run with a task the best), RUN_DIR/checkpoints/STEP, a
        Hugging Face directory, or OWNER/NAME[@REVISION] on the hub (extra [hub]).
      tokenizer: another tokenizer, or its file or directory.
      objective: kind or settings of another objective.
      source_language: token of the language that is read (mBART).
      target_language: token of the language that is written (mBART).

    Returns:
      The model.

    Raises:
      UserError: the directory is neither, is damaged, or has no tokenizer; or a language that is not known.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"path: expected a run or a Hugging Face directory, got {shown(path)}")
    path, names = hub.local(path), (source_language, target_language)
    if _is_hf(path):
        return _of_hf(path, tokenizer, objective, names)
    if not any((folder / "checkpoints").is_dir() for folder in (path, *path.parents[:2])):
        raise UserError(
            f"{path}: is no model; expected RUN_DIR, RUN_DIR/checkpoints/STEP or a Hugging Face directory (config.json)"
        )
    run_dir, step = checkpoint.find(path)
    config = configs.load(run_dir)
    network = config.objective.network(configs.model_at(config, step))
    run_tokenizer = _tokenizer(tokenizer, run_dir, config)
    phase_config = configs.at_phase(config, configs.phase_of(config, step))
    model_objective, denoises = _objective(objective) or phase_config.objective, bool(parts.languages(config))
    params = vocabularies.with_word_vectors(phase_config, run_tokenizer, weights.read(run_dir, step))
    opened = _complete(path, network, params, model_objective, run_tokenizer, names, denoises)
    return dataclasses.replace(opened, system=getattr(phase_config.task, "system", None))


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


def _of_hf(
    path: Path, tokenizer: str | Path | Tokenizer | None, objective: Any, names: tuple[str | None, str | None]
) -> Opened:
    network, params = hf.load(path)
    model_objective = _objective(objective) or _objective(imported.objective_of(network.config, network.heads))
    # Of Hugging Face's own, only T5 adds sentinels to its SentencePiece model.
    may_extend = network.config.kind == "t5" or tokenizer is not None
    limits = {"extra_ids": None if may_extend else 0, "max_size": network.config.vocab_size}
    return _complete(path, network, params, model_objective, _opened_tokenizer(tokenizer, path, limits), names)


def _complete(
    path: Path,
    network: Network,
    params: Any,
    objective: Objective,
    tokenizer: Tokenizer,
    names: tuple[str | None, str | None],
    denoises: bool = False,
) -> Opened:
    """With what the tokenizer's files and the model's say of generation; `names` are of languages."""
    settings = generation.read(origin.folder_of(path), network.config.vocab_size)
    bos, eos = prompts.bos_of(tokenizer, tokenizer.folder), prompts.eos_of(tokenizer, tokenizer.folder, settings.eos)
    if objective.kind == "dialogue":  # trained to end as the template says
        eos = tuple(dict.fromkeys((*eos, *chat_template.end_ids(tokenizer))))
    start = settings.decoder_start if network.config.family == "encoder_decoder" else settings.bos
    options, chosen = dict(settings.options), None
    if objective.kind == "mbart":
        chosen = languages.choose(tokenizer, settings, *names, denoises)
        if chosen is not None and (names[1] is not None or chosen.source_first or start is None):
            start = None  # the prompt has the language
            options.pop("forced_first", None)
    elif any(name is not None for name in names):
        raise UserError(
            f"source_language, target_language: are for mBART; objective.kind: {objective.kind} has no languages"
        )
    return Opened(path, network, params, objective, tokenizer, bos, eos, options, chosen, start, settings.search)


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
        limits |= {"kind": settings.kind, "lowercase": settings.lowercase, "languages": parts.languages(config)}
    if tokenizer is None and not tokenizer_dir.is_dir() and settings.path is not None:
        tokenizer = settings.path
        limits |= {"add_tokens": settings.add_tokens, "pre_tokenizer": settings.pre_tokenizer}
    return _opened_tokenizer(tokenizer, tokenizer_dir, limits)
