"""What is imported, and its configuration: the objective of its family, or the task of a fine-tuned class."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config, LoraConfig, ModelConfig, ObjectiveConfig
from jaxpt.config.files import origin_of, override
from jaxpt.errors import UserError, printable, shown
from jaxpt.hf import directory as hf
from jaxpt.hf import llama2c, model_types, peft
from jaxpt.hf.tasks import Problem
from jaxpt.models.heads import classes
from jaxpt.models.network import Network
from jaxpt.runtime import hub

OBJECTIVES = {"encoder": "masked_lm", "decoder": "causal_lm", "encoder_decoder": "span_corruption"}
"""Objective of an imported model, if its family in `jaxpt.hf.families` names none."""
PROBLEMS: dict[str, Problem] = {
    "classification": "single_label_classification", "regression": "regression",
    "multi_label": "multi_label_classification",
}  # fmt: skip
"""Their `problem_type` of each kind of task over whole texts."""
MOST_CHOICES = 4
"""`task.most_choices` of an imported class, whose weights do not say it: SWAG's."""


def base_of(adapter: Path, base: str | Path | None) -> Path:
    """Directory of the model that an adapter is for: `base`, or the one that it names, in that revision."""
    settings = {} if base else peft.settings_of(adapter)
    named, revision = base or settings.get("base_model_name_or_path"), settings.get("revision")
    if named is None:
        raise UserError(f"{adapter}: does not say its base model; name it with --base DIR")
    if revision not in (None, "", "main") and (of_hub := hub.parse(named)) is not None and of_hub[1] is None:
        named = f"{named}@{revision}"
    try:
        directory = hub.local(named)
    except UserError as error:
        raise UserError(f"{adapter}: its base model {error}; or name one with --base DIR") from None
    if not directory.is_dir():
        raise UserError(f"{adapter}: its base model {named} is no directory here; name it with --base DIR")
    return directory


def open_source(source: Path, partial: bool, ignore: Sequence[str], adapter: Path | None = None) -> Any:
    """Opens the source, with the heads of the imported run's objective or task.

    Args:
      source: the model, of an adapter its base.
      partial: as in `directory.open_directory`.
      ignore: likewise.
      adapter: directory of a low-rank adapter; a head for fine-tuning that the base lacks is the one that it saves.
    """
    if source.exists() and not source.is_dir():
        return llama2c.open_file(source)
    opened = hf.open_directory(source, partial=partial, ignore=ignore)
    model, heads = opened.network.config, opened.network.heads
    if classes.name_of(heads) is not None:
        return opened
    if adapter is not None and (saved := peft.saved_head(adapter, opened.family)) is not None:
        return hf.with_head(opened, *saved, partial)
    settings = objective_of(model, heads)
    objective = configs.resolve(settings["kind"], "jaxpt.objectives", ObjectiveConfig)(**settings)
    objective_heads = objective.heads(model)
    if set(objective_heads) == set(heads):
        return opened
    return hf.open_directory(source, partial=partial, ignore=ignore, heads=objective_heads)


def objective_of(model: ModelConfig, heads: Collection[str]) -> dict[str, Any]:
    """Default objective of an imported model, by its heads or family."""
    if "replaced_token" in heads:
        return {"kind": "replaced_token"}
    return {"kind": hf.family_of(model).objective or OBJECTIVES[model.family]} | (
        {"next_sentence": "sentence_pair" in heads} if model.family == "encoder" else {}
    )


def task_of(source: hf.Source) -> dict[str, Any] | None:
    """The task of a fine-tuned class, with the names of columns that the kind has by default.

    Args:
      source: the open directory. Its labels are LABEL_0, LABEL_1, … where config.json has none, as in transformers.

    Returns:
      Plain values; None for a class that is not fine-tuned.

    Raises:
      UserError: a regression of several numbers, which no task here has.

    Example:
      >>> task_of(open_directory("downloads/finbert"))
      {'kind': 'classification', 'labels': ['positive', 'negative', 'neutral']}
    """
    heads = source.network.heads
    name, outputs = classes.name_of(heads), classes.outputs_of(heads)
    labels = list(source.labels or (f"LABEL_{i}" for i in range(outputs)))
    match name:
        case None:
            return None
        case "span":
            return {"kind": "question_answering"}
        case "choice":
            return {"kind": "multiple_choice", "most_choices": MOST_CHOICES}
        case "tags":
            return {"kind": "tagging", "labels": labels}
    kind = next(kind for kind, problem in PROBLEMS.items() if problem == source.problem)
    if kind == "regression" and outputs != 1:
        raise UserError(
            f"{source.directory}: config.json: num_labels: {outputs} with problem_type regression is not supported, "
            "only 1: a task has one number per row"
        )
    return {"kind": kind} if kind == "regression" else {"kind": kind, "labels": labels}


def recipe(
    network: Network,
    tokens: Mapping[str, Any],
    run_dir: str,
    adapter: LoraConfig | None = None,
    task: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """A configuration to evaluate an imported model: on the built-in corpus, or on files of its task.

    Args:
      network: the backbone with its heads.
      tokens: settings of the tokenizer.
      run_dir: where the run is.
      adapter: settings of a low-rank adapter.
      task: result of `task_of`.
      overrides: `key=value`.

    Raises:
      UserError: an override names no key, has a wrong value, or changes the parameters; no run has these parameters.
    """
    model = network.config
    tree: dict[str, Any] = {
        "run_dir": run_dir,
        "model": model.model_dump(mode="json"),
        "data": {"tokenizer": dict(tokens), "length": min(model.position_limit or 512, 512), "batch_size": 8},
        "train": {"lora": None if adapter is None else adapter.model_dump(mode="json")},
    }
    tree |= {"objective": objective_of(model, network.heads)} if task is None else {"task": dict(task)}
    origin: dict[str, str] = {}
    for item in overrides:
        override(tree, origin, item)
    config = configs.build(tree, lambda key: origin_of(key, origin, run_dir))
    if config.objective.network(config.model).shapes() != network.shapes():
        of_run = f"command line: {' '.join(overrides)}: the" if overrides else f"weights: a {config.objective.kind}"
        raise UserError(f"{of_run} model has other parameters than the imported one")
    return config


def report_lines(source: Path, opened: Any, lacking: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """What an import skipped or drew at random, and rates of dropout that are others than the one of ours.

    Args:
      source: what was imported.
      opened: result of `open_source`.
      lacking: {parameter that was initialised at random: its layers that were; none: all of it}.
    """
    drawn = [f"{path}[{', '.join(map(str, layers))}]" if layers else path for path, layers in lacking.items()]
    for outcome, names in (
        ("initialised at random", drawn),
        ("skipped, of another shape", opened.found.mismatched),
        ("skipped, unknown", opened.found.unexpected),
    ):
        if names:
            yield printable(f"{outcome}: {', '.join(names)}", 10_000)
    if source.is_dir():
        if images := sum(re.fullmatch(model_types.IMAGES, name) is not None for name in opened.tensors):
            yield f"skipped, not of the text model: {images} tensors that read images"
        (keys, family), ours = hf.read_config(source), opened.network.config.dropout
        for key in family.dropouts:
            if (rate := keys.get(key, ours)) != ours:
                yield f"{key}: {shown(rate)} is kept for the export; training here has one rate, model.dropout: {ours}"
