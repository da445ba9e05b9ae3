"""`jaxpt import` and `jaxpt export`: convert Hugging Face directories to run directories and back.

An imported directory is a run at step 0 with only weights: config.yaml (with an objective of its family, which may be
changed) or the task of a fine-tuned class, tokenizer/ and checkpoints/0. It can be evaluated, and a run can start from
it with `init_from.path`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data import chat_template, tokenizers
from jaxpt.data.parts import each_task
from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import StorageError, UserError
from jaxpt.hf import directory as hf
from jaxpt.hf import elmo, formats, imported, origin, peft, reader, vocabularies
from jaxpt.hf import files as hf_files
from jaxpt.hf.verify import padding_advice, report_differences, verify
from jaxpt.models import stored
from jaxpt.models.heads import classes
from jaxpt.models.network import Network
from jaxpt.runtime import disk, hub
from jaxpt.runtime.progress import track
from jaxpt.train import checkpoint, initial, lora, trainable, weights

Report = Callable[[str], None]


def import_weights(
    source: str | Path,
    out: str | Path,
    *,
    check: bool = False,
    partial: bool = False,
    ignore: Sequence[str] = (),
    tokenizer: str | Path | None = None,
    base: str | Path | None = None,
    overrides: Sequence[str] = (),
    report: Report = print,
) -> None:
    """Converts a Hugging Face directory, an adapter of peft or another program's checkpoint to a run directory.

    Args:
      source: a directory with config.json and weights, one with adapter_config.json, a step of T5X or of MaxText's
        Llama, a llama2.c `.bin`, or a directory with ELMo's options.json and HDF5.
      out: the directory to create.
      check: compare the outputs with those of Hugging Face's class.
      partial: load matching tensors, initialise missing ones at random, and skip the rest.
      ignore: unknown keys of config.json to ignore.
      tokenizer: vocabulary file or directory; by default that of `source`; of an adapter without one, its base's.
      base: directory of the base model of an adapter; by default the one that adapter_config.json names.
      overrides: `key=value` of the run's configuration, such as `task.text=review`.
      report: called with lines for the user.

    Raises:
      UserError: `out` exists, the model in `source` is not supported, a tensor is not finite, no tensor matches (with
        `partial`), or the outputs differ. `out` is then not created.
    """
    source, out = hub.local(source), _new(out)
    _check_options(source, check, partial, ignore, base)
    if elmo.reads(source):
        if check or partial or ignore or list(overrides) not in ([], [elmo.LOWERCASE]):
            raise UserError(
                f"{source}: is a model of ELMo, which takes no --verify, --partial, --ignore and overrides other than "
                f"{elmo.LOWERCASE}; leave them out"
            )
        _import_elmo(source, out, tokenizer, bool(overrides), report)
        return
    source, low_rank = (imported.base_of(source, base), source) if peft.is_adapter(source) else (source, None)
    if check and formats.is_foreign(source):
        raise UserError(f"{source}: --verify needs a directory that transformers reads; verify the export instead")
    opened: Any = imported.open_source(source, partial, ignore, low_rank)
    adapter = None if low_rank is None else peft.read(low_rank, opened.network, opened.family.model_type)
    with _created(out) as temporary:
        model = opened.network.config
        limits = {"extra_ids": hf.family_of(model).extra_ids, "max_size": model.vocab_size}
        place = hub.local(tokenizer or source, weights=False)
        if tokenizer is None and low_rank is not None:
            place, limits["model_dir"] = vocabularies.of_adapter(low_rank, source, report), source
        tokens = vocabularies.take(place, temporary / "tokenizer", limits, report)
        low_rank_config = None if adapter is None else adapter.config
        task = None if source.is_file() else imported.task_of(opened)
        config = imported.recipe(opened.network, tokens, str(out), low_rank_config, task, overrides)
        disk.write_text(temporary / "config.yaml", configs.with_checksum(configs.to_yaml(config)))
        pieces, factors = opened.pieces(), {}
        if adapter is not None:
            pieces = itertools.chain(pieces, adapter.saved)
            for path, pair in adapter.factors.items():
                factors |= {f"{lora.ADAPTER}/{path}/a": pair.a, f"{lora.ADAPTER}/{path}/b": pair.b}
        lacking = weights.write(temporary, opened.network, opened.dtypes(), pieces, adapter=factors)
        if source.is_dir():
            origin.keep(source, temporary)
        if check:
            report_differences(verify(source, opened.network, weights.read(temporary, 0)), report)
            for line in padding_advice(source, opened.network):
                report(line)
    count = opened.network.count_params()
    report(f"{out}: {opened.network.config.kind}, {count:,} parameters from {source}"
           + ("" if low_rank is None else f", low-rank adapter of {low_rank}"))  # fmt: skip
    for line in imported.report_lines(source, opened, lacking):
        report(line)
    run = shlex.quote(str(out))
    if config.task is not None:
        report(f"to try it, and to score rows that have labels: jaxpt predict {run} FILE --out predictions.jsonl")
    else:
        report(f"to evaluate it: jaxpt eval {run} data.path=FILE")
    report(f"to train from it: jaxpt train RECIPE init_from.path={run}")
    report(f"to convert it back: jaxpt export {run} DIR")


def _check_options(source: Path, check: bool, partial: bool, ignore: Sequence[str], base: str | Path | None) -> None:
    """Raises UserError for options that do nothing for this source."""
    if not source.exists():
        return  # which is said later
    if base is not None and not peft.is_adapter(source):
        raise UserError(f"{source}: --base is of a low-rank adapter, and it has no {peft.CONFIG}; leave --base out")
    options = {"--verify": check, "--partial": partial, "--ignore": ignore}
    given = ", ".join(name for name, x in options.items() if x)
    if given and not source.is_dir():
        raise UserError(f"{source}: is a file, read as llama2.c's, which has no {given}; leave it out")


def _import_elmo(source: Path, out: Path, tokenizer: str | Path | None, lowercase: bool, report: Report) -> None:
    """Converts the files that ELMo was published in (`jaxpt.hf.elmo`)."""
    with _created(out) as temporary:
        network = elmo.import_run(source, out, temporary, None if tokenizer is None else Path(tokenizer), lowercase)
    report(f"{out}: elmo, {network.count_params():,} parameters from {source}; no softmax, which is in no such file")
    report(f"for its states: jaxpt embed {shlex.quote(str(out))} FILE")
    report(f"for a task: jaxpt train RECIPE init_from.path={shlex.quote(str(out))}")


def export(
    run: str | Path, out: str | Path, *, check: bool = False, dtype: str | None = None,
    shard_bytes: int | None = None, task: str | None = None,
    report: Report = print,
) -> None:  # fmt: skip
    """Converts a run's weights (their average if there is one) and vocabulary to a Hugging Face directory.

    Args:
      run: a run directory (its newest checkpoint; of a finished run with a task the best), or
        RUN_DIR/checkpoints/STEP.
      out: the directory to create.
      check: compare the outputs with those of Hugging Face's class.
      dtype: "float32", "bfloat16" or "float16"; by default that of the checkpoint.
      shard_bytes: maximum size of a file.
      task: of a run with several tasks, the one whose head is converted.
      report: called with lines for the user.

    Raises:
      UserError: `out` exists, there is no checkpoint, it is damaged or does not match config.yaml, a parameter is not
        finite, Hugging Face has no such architecture, or the outputs differ. `out` is then not created.
    """
    out = _new(out)
    run_dir, step = checkpoint.find(run)
    config = configs.load(run_dir)
    config = config.model_copy(update={"model": configs.model_at(config, step)})
    if config.model.kind == "elmo":
        if check or dtype is not None:
            raise UserError(f"{run}: ELMo's files are float32, and no class of transformers reads them: leave "
                            "--verify and --dtype out")  # fmt: skip
        _export_elmo(config, run_dir, step, out, report)
        return
    left_to_predict = _left_to_predict(config, run_dir, step)
    config, renamed = _of_task(config, task)
    _check_features(config)
    saved = weights.Saved(run_dir, step)
    origin_config = origin.read(run_dir / origin.FOLDER, origin.CONFIG)
    model_type = (origin_config or {}).get("model_type")
    network, summands, left_out = exported(config.objective.network(config.model), model_type)
    summands = {path: tuple(renamed(p) for p in paths) for path, paths in summands.items()}
    family = hf.family_of(network.config, model_type)
    dtypes = {path: dtype or saved.dtypes[paths[0]] for path, paths in summands.items()}
    with _created(out) as temporary:
        shards = {} if shard_bytes is None else {"shard_bytes": shard_bytes}
        ids = _special_ids(config, run_dir, family.special_ids)
        hf.write(
            temporary, network, _Sums(saved, summands), dtypes, ids, **shards, **_labels(config), origin=origin_config
        )
        if (settings := run_dir / origin.FOLDER / origin.GENERATION).is_file():
            shutil.copyfile(settings, temporary / origin.GENERATION)
        _add_end_of_answer(config, run_dir, temporary)
        # What was imported keeps its files as they were.
        vocabularies.give(run_dir, temporary, network.config.position_limit if origin_config is None else None)
        hf_files.write_checksums(temporary)
        if check:
            keys = origin_config if model_type == family.model_type else None  # which an import has read, or ignored
            with track("comparing with transformers"):
                differences = verify(temporary, ignore=tuple(keys or ()))
            report_differences(differences, report)
    report(f"{out}: {family.class_of(network)}, {network.count_params():,} parameters, step {step}")
    for line in [*left_to_predict, *padding_advice(out, network)]:
        report(line)
    if left_out:
        report(f"skipped, not in Hugging Face's class: {', '.join(left_out)}")


def _export_elmo(config: Config, run_dir: Path, step: int, out: Path, report: Report) -> None:
    """Writes the files that ELMo was published in (`jaxpt.hf.elmo`)."""
    saved = weights.Saved(run_dir, step)
    tokenizer = tokenizers.load(run_dir / "tokenizer", config.data.tokenizer.kind)
    with _created(out) as temporary:
        elmo.write(temporary, config, saved, tokenizer)
    report(f"{out}: {elmo.OPTIONS}, {elmo.WEIGHTS}, {elmo.VOCABULARY} of bilm-tf, step {step}")
    if heads := config.objective.heads(config.model):
        report(f"skipped, in no such file: {', '.join(heads)}")
    if getattr(tokenizer, "lowercase", False):
        command = f"jaxpt import {shlex.quote(str(out))} RUN {elmo.LOWERCASE}"
        report(f"these files do not say that the run folds case: {command} does")
        report("other programs: give them text in lower case, without accents")


def _left_to_predict(config: Config, run_dir: Path, step: int) -> list[str]:
    """What `jaxpt predict` does with a classifier's outputs, and their class does not."""
    if config.task is None:
        return []
    with checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True) as saved:
        task = config.task.with_measured(saved.metrics(step))
    lines = []
    if (temperature := getattr(task, "temperature", None)) is not None:
        lines.append(f"not in Hugging Face's class: logits divided by the temperature {temperature:.4g}, as in predict")
    if thresholds := getattr(task, "thresholds", None):
        between = f"{min(thresholds):.2g} to {max(thresholds):.2g}"
        lines.append(f"not in Hugging Face's class: thresholds of the labels, {between}, as in predict")
    return lines


def export_adapter(run: str | Path, out: str | Path, *, report: Report = print) -> None:
    """Writes a run's low-rank adapter in the layout of Hugging Face's peft, with the vocabulary.

    Args:
      run: a run directory (its newest checkpoint; of a finished run with a task the best), or
        RUN_DIR/checkpoints/STEP.
      out: the directory to create.
      report: called with lines for the user.

    Raises:
      UserError: `out` exists, the run has no adapter, the checkpoint is damaged, or peft has no such adapter.
    """
    out = _new(out)
    run_dir, step = checkpoint.find(run)
    config = configs.load(run_dir)
    if config.train.lora is None:
        raise UserError(f"{run_dir}: has no low-rank adapter (train.lora); leave --adapter out")
    _check_features(config)
    saved = weights.Saved(run_dir, step)
    whole = config.objective.network(config.model)
    model_type = (origin.read(run_dir / origin.FOLDER, origin.CONFIG) or {}).get("model_type")
    network, summands, left_out = exported(whole, model_type)
    layout = trainable.layout(config, whole.shapes(), whole.logical_axes())
    if config.data.tokenizer.add_tokens and not initial.trains_vocabulary(layout):
        tokens, v = config.data.tokenizer.add_tokens, _tokenizer(config, run_dir).vocabulary
        if new := [token for token, i in v.added if token in tokens and i >= v.size - v.behind]:
            raise UserError(
                f"data.tokenizer.add_tokens: the adapter's base has no row for {new[0]}, and train.trainable leaves "
                "the table out; leave --adapter out to export the whole model"
            )
    factors = {path: x for path, x in saved.factors(layout.parts).items() if path in summands}
    trained = {path: x for path, x in layout.ever_trained().items() if path in summands}
    source = config.init_from
    is_base = source is not None and not source.random and reader.reads(Path(source.path))
    base = source.path if is_base else None
    with _created(out) as temporary:
        params = _Sums(saved, summands)
        peft.write(temporary, network, config.train.lora, factors, trained, params, base, model_type)
        vocabularies.give(run_dir, temporary)
    report(f"{out}: low-rank adapter of {hf.family_of(network.config, model_type).class_of(network)}, step {step}")
    if left_out:
        report(f"skipped, not in Hugging Face's class: {', '.join(left_out)}")


def exported(network: Network, model_type: str | None = None) -> tuple[Network, dict[str, tuple[str, ...]], list[str]]:
    """The exported part of a network: the backbone and the heads that Hugging Face's class has.

    Args:
      network: network of the run.
      model_type: of the directory that the model came from.

    Returns:
      (exported network, {path of its parameter: paths of the parameters whose sum it is}, names of the skipped
      heads).

    Raises:
      UserError: the network has adapters in its blocks, or Hugging Face has no such architecture.
    """
    if network.config.adapter is not None:
        raise UserError("model.adapter: Hugging Face's classes do not support adapters in their layers")
    known = hf.family_of(network.config, model_type).known(network.heads)
    exported_network = dataclasses.replace(network, heads={name: network.heads[name] for name in known}, deltas={})
    paths = {path: (path,) for path in stored.stored_params(exported_network)}
    for name, head in network.deltas.items():
        prefix = f"model/{name}/"
        paths |= {path: (path, f"heads/{head}/{path}") for path in paths if path.startswith(prefix)}
    return exported_network, paths, [name for name in network.heads if name not in known]


def _new(out: str | Path) -> Path:
    """The path of a directory to create.

    Raises:
      UserError: something is there.
    """
    out = Path(out)
    if out.exists():
        raise UserError(f"{out}: already exists; choose a new directory")
    disk.check_path(out)
    return out


@contextlib.contextmanager
def _created(out: Path) -> Iterator[Path]:
    """A directory that becomes `out` at the end of the block, or is removed.

    Raises:
      StorageError: the disk is full.
    """
    try:
        with disk.whole_directory(out) as temporary:
            yield temporary
    except Exception as error:  # TensorStore's are ValueErrors
        if (full := disk.full(error)) is None:
            raise
        raise StorageError(f"{out}: {full}; nothing was written") from None


def _check_features(config: Config) -> None:
    """Raises UserError if the head reads other states than those of the last layer."""
    features = getattr(config.objective, "features", None)
    if features is not None and not features.is_plain:
        raise UserError(
            "objective.features: Hugging Face's classes read the last layer's states, without norm and BiLSTM; "
            "`jaxpt predict` and `jaxpt eval` use the run"
        )


@dataclasses.dataclass(frozen=True)
class _Sums(Mapping[str, Any]):
    """The parameters of an `exported` network, read lazily."""

    saved: Mapping[str, Any]
    summands: Mapping[str, tuple[str, ...]]

    def __getitem__(self, path: str) -> Any:
        first, *others = (self.saved[p] for p in self.summands[path])
        return sum(others, start=first)

    def __iter__(self) -> Iterator[str]:
        return iter(self.summands)

    def __len__(self) -> int:
        return len(self.summands)


def _of_task(config: Config, name: str | None) -> tuple[Config, Callable[[str], str]]:
    """The recipe of one task of a mixture, and from the path of a parameter to its path in the run.

    Raises:
      UserError: the run has several heads and none is named, or not this one; or one is named, and it has not several.
    """
    if config.task is None or config.task.kind != "mixture":
        if name is not None:
            raise UserError(f"--task {name}: the run has no tasks with names; leave it out")
        return config, lambda path: path
    if not config.objective.heads(config.model):  # text to text
        if name is not None:
            raise UserError(f"--task {name}: one model answers all tasks of the run; leave it out")
        return config, lambda path: path
    if name not in config.task.task_names:
        raise UserError(f"--task NAME chooses one of {', '.join(config.task.task_names)}"
                        + (" and is missing" if name is None else f", not {name}"))  # fmt: skip
    task_config = each_task(config)[name]
    head = task_config.task.head
    objective = task_config.objective.model_copy(update={"part": None})
    prefix, theirs = f"heads/{head}/", f"heads/{classes.called(head, name)}/"
    return task_config.model_copy(
        update={"objective": objective}
    ), lambda path: theirs + path.removeprefix(prefix) if path.startswith(prefix) else path


def _labels(config: Config) -> dict[str, Any]:
    """Names of the logits of a fine-tuned run, and its loss."""
    task = config.task
    if task is None or not config.objective.heads(config.model):
        return {}
    return {"labels": getattr(task, "shown", None) or None, "problem": imported.PROBLEMS.get(task.kind)}


def _tokenizer(config: Config, run_dir: Path) -> Tokenizer:
    settings = config.data.tokenizer
    kind = settings.kind if "." in settings.kind else None  # the files themselves may name no code
    return tokenizers.load(run_dir / "tokenizer", kind, extra_ids=settings.extra_ids)


def _padding_id(config: Config, tokenizer: Tokenizer) -> int | None:
    """The id of the token that pads; None where there is none: `vocabulary.pad` is then some other token."""
    token = tokenizer.special_tokens().get("pad")
    padding = None if token is None else tokenizer.token_id(token.content)
    if padding is None and config.model.family == "encoder_decoder":  # whose classes do not run without one
        return tokenizer.vocabulary.pad
    return padding


def _special_ids(config: Config, run_dir: Path, more: Mapping[str, str]) -> dict[str, int]:
    """Keys of special tokens in config.json."""
    directory = run_dir / "tokenizer"
    if not directory.is_dir():
        return {}
    vocabulary_files.verify(directory)
    try:
        tokenizer = _tokenizer(config, run_dir)
    except UserError:
        return {}
    vocabulary = tokenizer.vocabulary
    if vocabulary.size > config.model.vocab_size:
        raise UserError(f"{directory}: {vocabulary.size} token ids, but model.vocab_size is {config.model.vocab_size}")
    bos, eos = (
        a if a is not None else b for a, b in ((vocabulary.bos, vocabulary.cls), (vocabulary.eos, vocabulary.sep))
    )
    ids = {"pad": _padding_id(config, tokenizer), "bos": bos, "eos": eos}
    ids |= {key: ids[name] for key, name in more.items()}
    with contextlib.suppress(UserError):  # a vocabulary with which it was not trained
        if start := reader.decoder_start(config, vocabulary):
            ids |= {"decoder_start": start[0], "forced_bos": start[1] if len(start) > 1 else None}
    return {f"{name}_token_id": i for name, i in ids.items() if i is not None}


def _add_end_of_answer(config: Config, run_dir: Path, out: Path) -> None:
    """Adds what ends an answer to generation_config.json: `transformers` generates up to the ids that it names."""
    if config.objective.kind != "dialogue" or not (run_dir / "tokenizer").is_dir():
        return
    keys = origin.read(out, origin.GENERATION)
    if keys is None:  # else those of config.json count
        of_model = origin.read(out, origin.CONFIG) or {}
        keys = {key: i for key, i in of_model.items() if key.endswith("_token_id")}
    eos = keys.get("eos_token_id")
    named = eos if isinstance(eos, list) else [] if eos is None else [eos]
    with contextlib.suppress(UserError):  # a vocabulary that is not read
        if new := [i for i in chat_template.end_ids(_tokenizer(config, run_dir)) if i not in named]:
            text = json.dumps(keys | {"eos_token_id": [*named, *new]}, indent=2, ensure_ascii=False)
            disk.write_text(out / origin.GENERATION, text + "\n")
