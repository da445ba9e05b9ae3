"""Low-rank adapters in the layout of Hugging Face's peft: adapter_config.json and adapter_model.safetensors.

Their `lora_A` [R, I] and `lora_B` [O, R] of a linear layer are our factors transposed. Where one of their matrices
holds several of ours side by side (GPT-2's `c_attn`: query, key, value), the adapters of K of them are one of rank
K · R: A stacked, B with a block for each and zeros elsewhere. It computes the same; trained further by peft, the zeros
would move. The other way round their B is cut, and each of ours has all of A.

Shapes: I rows of W · O its columns · R rank · L layers of a stack
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt.config import LoraConfig
from jaxpt.errors import UserError, printable, shown
from jaxpt.hf import directory as hf
from jaxpt.hf import files, mapping
from jaxpt.hf.options import Family
from jaxpt.hf.table import Table
from jaxpt.models import stored
from jaxpt.models.heads import classes
from jaxpt.models.network import Network
from jaxpt.runtime import hub, linear_regex
from jaxpt.train.lora import Factors

PREFIX = "base_model.model."
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TASKS = {
    "LMHeadModel": "CAUSAL_LM", "ForCausalLM": "CAUSAL_LM", "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}  # fmt: skip
"""peft's name of a task, by the end of the class's name; of others (multiple choice) `auto_mapping` names the class."""
_HEADS = {"SEQ_CLS": "classes", "TOKEN_CLS": "tags", "QUESTION_ANS": "span"}
"""Our head of each of peft's tasks that has one."""
_WRAPPED = ("classifier", "score", "qa_outputs")
"""Modules of heads that peft saves as a whole, whatever `modules_to_save` says."""
_READ = frozenset((
    "peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha", "lora_dropout", "use_rslora",
    "rank_pattern", "alpha_pattern", "modules_to_save", "bias", "init_lora_weights", "ensure_weight_tying",
))  # fmt: skip
"""Keys of adapter_config.json that are read."""
_HARMLESS = frozenset((
    "task_type", "auto_mapping", "peft_version", "inference_mode", "target_modules", "exclude_modules",
    "fan_in_fan_out", "layers_to_transform", "layers_pattern", "megatron_core", "qalora_group_size", "loftq_config",
    "eva_config", "corda_config", "lora_ga_config", "runtime_config",
))  # fmt: skip
"""Keys that say how the factors came to be, or what the tensors' names say too."""
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
"""Values of `init_lora_weights` that leave the base as it is: the model is W + s · A · B with the W of its files."""


@dataclasses.dataclass(frozen=True)
class Adapter:
    """An adapter that was read."""

    config: LoraConfig
    factors: Mapping[str, Factors]
    """{path of a matrix: its adapter}; layers without one have zeros, which stay zero in a training."""
    saved: tuple[stored.Piece, ...]
    """Other parameters that were trained (`modules_to_save`), as in `mapping.pieces`."""


# ---- to peft --------------------------------------------------------------------------------------------------------


def write(
    out: Path,
    network: Network,
    config: LoraConfig,
    factors: Mapping[str, Factors],
    trained: Mapping[str, np.ndarray],
    params: Mapping[str, Any],
    base: str | None = None,
    model_type: str | None = None,
) -> None:
    """Writes adapter_config.json and adapter_model.safetensors.

    The head of a fine-tuned class is saved as a whole, trained or not: peft expects it, and the base may not have it.

    Args:
      out: an existing directory.
      network: as exported: the backbone with the heads of Hugging Face's class.
      config: of the adapter.
      factors: {path of a matrix: its adapter}.
      trained: {path of another parameter: which of its layers were trained, bool [L] or []}; their modules are saved.
      params: {path: parameter} of the model with its adapter merged, read when asked for.
      base: directory or name of the base model, as `init_from.path` has it.
      model_type: of the directory that the model came from.

    Raises:
      UserError: an adapter is of no linear layer there, or of a module that is saved as a whole.
    """
    family = hf.family_of(network.config, model_type)
    class_name, table = family.class_of(network), family.table_of(network)
    if class_name.endswith("Model") and not class_name.endswith("LMHeadModel"):
        table = table.without_prefix()
    entries = mapping.tensors_of(table, network)
    paths = {path for entry in entries for path in entry.row.paths}
    if unknown := factors.keys() - paths:
        raise UserError(f"train.lora.targets: {min(unknown)} is not in Hugging Face's class")
    if is_tuned := classes.name_of(network.heads) is not None:
        factors = {path: x for path, x in factors.items() if not path.startswith("heads/")}
        trained = {**trained, **{path: np.array(True) for path in paths if path.startswith("heads/")}}
    tensors: dict[str, np.ndarray] = {}
    parts: dict[str, int] = {}
    for entry in entries:
        adapted = [path for path in entry.row.paths if path in factors and factors[path].held[_layer(entry)].all()]
        if adapted:
            if not _is_linear(entry) or (table.fused_experts and "expert" in entry.params[0].axes[:-2]):
                raise UserError(
                    f"train.lora.targets: {adapted[0]} is no linear layer in Hugging Face's class, so peft has no such "
                    "adapter; export without --adapter merges it"
                )
            a, b = _joined(entry, adapted, factors)
            tensors |= {f"{PREFIX}{entry.module}.lora_A.weight": a, f"{PREFIX}{entry.module}.lora_B.weight": b}
            parts[entry.module] = len(adapted)
    if not parts:
        but = ", but for its head, which peft saves as a whole" if is_tuned else ""
        raise UserError(f"train.lora.targets: none of them is in Hugging Face's class{but}")
    saved = _whole_modules(entries, trained)
    if both := [name for name in saved if name in parts]:
        raise UserError(f"train.trainable: {both[0]} has a low-rank adapter, and is trained besides; peft has no such")
    whole = dict(mapping.tensors(params, table, network, saved))
    tensors |= {f"{PREFIX}{name}": x for name, x in whole.items()}
    name, revision = (base and hub.parse(base)) or (base, None)
    task_type = next((task for end, task in TASKS.items() if class_name.endswith(end)), None)
    of_class = {"base_model_class": class_name, "parent_library": "transformers"} if task_type is None else None
    settings = _sizes(config, parts) | {
        "peft_type": "LORA",
        "task_type": task_type,
        "auto_mapping": of_class,
        "base_model_name_or_path": name,
        "revision": revision,
        "lora_dropout": config.dropout,
        "target_modules": sorted(parts),
        "modules_to_save": sorted({_saved_as(name) for name in saved}) or None,
        "fan_in_fan_out": any(row.transform == "identity" for row in table.rows if set(row.paths) & set(factors)),
        "bias": "none",
        "inference_mode": True,
    }
    (out / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    announced = {name: (x.shape, x.dtype) for name, x in tensors.items()}
    files.write(out, announced, tensors.items(), stem=WEIGHTS.removesuffix(".safetensors"))


def _sizes(config: LoraConfig, parts: Mapping[str, int]) -> dict[str, Any]:
    """Keys of ranks and scales; `parts`: {module: how many of ours in it have an adapter}."""
    largest = max(parts.values())
    smaller = {name: count for name, count in parts.items() if count != largest}
    return {
        "r": largest * config.rank,
        "lora_alpha": largest * config.alpha,
        "rank_pattern": {name: count * config.rank for name, count in smaller.items()},
        "alpha_pattern": {name: count * config.alpha for name, count in smaller.items()},
    }


def _is_linear(entry: mapping.Tensor) -> bool:
    """Whether a tensor is the matrix of a linear layer in their class; each expert has its own."""
    *stack, rows, _ = ("", "", *entry.params[0].axes)
    is_matrix = rows not in ("", "layers", "expert", "vocab") and {*stack} <= {"", "layers", "expert"}
    return is_matrix and entry.name.endswith(".weight") and entry.row.shape is None


def _layer(entry: mapping.Tensor) -> tuple[int, ...]:
    """Index of a tensor's layer, without that of its expert."""
    return () if entry.index is None else (entry.index,)


def _joined(
    entry: mapping.Tensor, adapted: Sequence[str], factors: Mapping[str, Factors]
) -> tuple[np.ndarray, np.ndarray]:
    """(lora_A [K · R, I], lora_B [O, K · R]) of a matrix of theirs, K of whose parts have an adapter."""
    a = [factors[path].a[entry.at].T for path in adapted]
    rank, row, column = len(a[0]), 0, 0
    b = np.zeros((sum(entry.widths), rank * len(a)), a[0].dtype)
    for path, width in zip(entry.row.paths, entry.widths):
        if path in adapted:
            b[row : row + width, column : column + rank] = factors[path].b[entry.at].T[:width]
            column += rank
        row += width
    order = entry.row.order(entry.widths)
    return np.ascontiguousarray(np.concatenate(a)), b if order is None else b[order]


def _whole_modules(entries: Iterable[mapping.Tensor], trained: Mapping[str, np.ndarray]) -> list[str]:
    """Names of the modules of which something was trained besides the adapter."""
    names = set()
    for entry in entries:
        moved = [path for path in entry.row.paths if path in trained and trained[path][_layer(entry)].all()]
        if moved and (entry.tied or not entry.name.endswith((".weight", ".bias"))):
            raise UserError(f"train.trainable: {moved[0]} is tied or no module of its own, peft cannot save it")
        names |= {entry.module} if moved else set()
    return sorted(names)


def _saved_as(module: str) -> str:
    """The module that peft saves for one of the head's: RoBERTa's classifier.dense is a part of classifier."""
    top = module.partition(".")[0]
    return top if top in _WRAPPED else module


# ---- from peft ------------------------------------------------------------------------------------------------------


def is_adapter(path: str | Path) -> bool:
    """Whether a directory holds an adapter in peft's layout."""
    return (Path(path) / CONFIG).is_file()


def settings_of(source: Path) -> dict[str, Any]:
    """The keys of adapter_config.json.

    Raises:
      UserError: it is of another kind than W + s · A · B.
    """
    file = source / CONFIG
    settings = files.read_object(file)
    if settings.get("peft_type") != "LORA":
        raise UserError(f"{file}: peft_type: {shown(settings.get('peft_type'))} is not supported, only 'LORA'")
    _check_numbers(file, settings)
    for key, value in settings.items():
        if key not in _READ | _HARMLESS and value not in (None, False, [], {}):
            raise UserError(
                f"{file}: {printable(key, 80)}: {shown(value)} is not supported: it may change what the adapter does; "
                f"{_MERGE}"
            )
    if settings.get("bias", "none") not in ("none", None):
        raise UserError(f'{file}: bias: {shown(settings["bias"])} is not supported, only "none"; {_MERGE}')
    start = settings.get("init_lora_weights")
    if (start.lower() if isinstance(start, str) else start) not in _PLAIN_STARTS:
        raise UserError(
            f"{file}: init_lora_weights: {shown(start)} is not supported: its factors belong to a changed base; save "
            f"it with path_initial_model_for_weight_conversion, as a plain adapter; or {_MERGE}"
        )
    return settings


_MERGE = "merge it with peft (merge_and_unload, save_pretrained) and import the merged model"


def _check_numbers(file: Path, settings: Mapping[str, Any]) -> None:
    """Raises UserError if a key that a weight is computed with has another type."""

    def is_number(x: Any) -> bool:
        return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < math.inf

    def is_numbers(x: Any) -> bool:
        return x is None or (isinstance(x, dict) and all(map(is_number, x.values())))

    modules = settings.get("modules_to_save")
    for key, expected, is_right in (
        ("base_model_name_or_path", "a string", isinstance(settings.get("base_model_name_or_path"), str | None)),
        ("revision", "a string", isinstance(settings.get("revision"), str | None)),
        ("r", "a number", is_number(settings.get("r", 8))),
        ("lora_alpha", "a number", is_number(settings.get("lora_alpha", 8))),
        ("lora_dropout", "a number from 0 to 1", is_number(x := settings.get("lora_dropout") or 0.0) and 0 <= x <= 1),
        ("modules_to_save", "a list of names",
         modules is None or (isinstance(modules, list) and all(isinstance(name, str) for name in modules))),
        ("alpha_pattern", "a mapping of modules to numbers", is_numbers(settings.get("alpha_pattern"))),
        ("rank_pattern", "a mapping of modules to numbers", is_numbers(settings.get("rank_pattern"))),
    ):  # fmt: skip
        if not is_right:
            raise UserError(f"{file}: {key}: wants {expected}, got {shown(settings[key])}")
    for key in ("alpha_pattern", "rank_pattern"):
        for pattern in settings.get(key) or {}:
            linear_regex.check(pattern, f"{file}: {key}")


def read(source: str | Path, network: Network, model_type: str | None = None) -> Adapter:
    """Reads an adapter for a base model.

    Args:
      source: has adapter_config.json and adapter_model.safetensors or .bin.
      network: the base model.
      model_type: of the base model's directory.

    Returns:
      The adapter. It has one rank and one scale: lower ranks are filled up with zeros, scales are moved into B.

    Raises:
      UserError: it is of another kind, or of modules that the model has not.
    """
    source = Path(source)
    settings, tensors = settings_of(source), files.Tensors(source, (WEIGHTS, "adapter_model.bin"))
    table = hf.family_of(network.config, model_type).table_of(network)
    adapted, others = _sorted(source, tensors)
    names = mapping.canonical_names([*(f"{name}.weight" for name in adapted), *others], table, network)
    entries = {entry.name: entry for entry in mapping.tensors_of(table, network) if entry.name.endswith(".weight")}
    layer_factors: dict[str, dict[Any, tuple[np.ndarray, np.ndarray, float]]] = {}
    for name, in_file in names.items():
        if (module := in_file.removesuffix(".weight")) not in adapted or in_file in others:
            continue
        if name not in entries or not _is_linear(entry := entries[name]):
            raise UserError(f"{source}: {module} is no linear layer of this {network.config.kind}; {_MERGE}")
        a, b = (stored.finite(f"{module}.lora_{x}", np.asarray(tensors[adapted[module][x]], np.float32)) for x in "AB")
        if not len(a) or a.shape[1:] != entry.joined_shape[:1] or b.shape != (sum(entry.widths), len(a)):
            raise UserError(f"{source}: {module}: lora_A {a.shape} and lora_B {b.shape} do not fit the model")
        if (rank := _of_module(settings, "rank_pattern", "r", module)) != len(a):
            raise UserError(f"{source}: {module}: lora_A has rank {len(a)}, but {CONFIG} says {shown(rank)}")
        for path, (own_a, own_b) in _cut(entry, a, b).items():
            layer_factors.setdefault(path, {})[entry.at] = own_a.T, own_b.T, _scale(settings, module, len(a))
    if not layer_factors:
        raise UserError(f"{source}: has no low-rank adapter")
    _check_saved(source, settings, table, names)
    comparison = mapping.find({name: tensors.shapes[others[name]] for name in others}, table, network)
    if comparison.mismatched or comparison.unexpected:
        raise UserError(f"{source}: modules_to_save: {comparison.why(network)}")
    state = {name: tensors[key] for name, key in others.items()}
    config, factors = _uniform(layer_factors, stored.stored_params(network), settings)
    return Adapter(config, factors, tuple(mapping.pieces(state, comparison, table, network)))


def saved_head(source: Path, family: Family) -> tuple[str, dict[str, tuple[int, ...]]] | None:
    """The head for fine-tuning that an adapter saves as a whole, for a base model that may lack it.

    Args:
      source: as in `read`.
      family: of the base model.

    Returns:
      (name of our head, {their name: shape} of all tensors of the adapter); None: it saves no such head.
    """
    settings = settings_of(source)
    head, of_class = _HEADS.get(str(settings.get("task_type"))), settings.get("auto_mapping")
    if head is None and isinstance(of_class, dict):
        heads = {task.name: name for name, task in family.tasks.items()}
        head = heads.get(str(of_class.get("base_model_class")))
    if head not in family.tasks:
        return None
    tensors = files.Tensors(source, (WEIGHTS, "adapter_model.bin"))
    shapes = {name.removeprefix(PREFIX): shape for name, shape in tensors.shapes.items()}
    is_saved = len(shapes.get(f"{family.tasks[head].classifier}.weight", ())) == 2
    return (head, shapes) if is_saved else None


def _sorted(source: Path, tensors: files.Tensors) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """({module: {"A": key, "B": key}}, {other tensor: key}) of the keys of a file."""
    adapted: dict[str, dict[str, str]] = {}
    others: dict[str, str] = {}
    for key in tensors:
        name = key.removeprefix(PREFIX)
        if match := re.fullmatch(r"(.+)\.lora_([AB])\.weight", name):
            adapted.setdefault(match[1], {})[match[2]] = key
        elif ".lora_" in name:
            raise UserError(f"{source}: {name} is no factor of a linear layer; {_MERGE}")
        elif ".base_layer." in name:  # of a table that has an adapter
            raise UserError(f"{source}: {name}: a weight of the base, which the adapter's would replace; {_MERGE}")
        else:
            others[name] = key
    if half := [name for name, factors in adapted.items() if len(factors) < 2]:
        raise UserError(f"{source}: {half[0]} has only one of lora_A and lora_B")
    return adapted, others


def _of_module(settings: Mapping[str, Any], patterns: str, plain: str, module: str) -> float:
    """The rank or alpha of a module: of the first pattern that fits, else that of all; 8 by default."""
    pairs = (settings.get(patterns) or {}).items()
    matching = (x for name, x in pairs if linear_regex.matches(module, rf"(.*\.)?({name})"))
    return next(matching, settings.get(plain, 8))


def _scale(settings: Mapping[str, Any], module: str, rank: int) -> float:
    """What the product of a module's factors is multiplied by."""
    return _of_module(settings, "alpha_pattern", "lora_alpha", module) / (
        rank**0.5 if settings.get("use_rslora") else rank
    )


def _check_saved(source: Path, settings: Mapping[str, Any], table: Table, names: Mapping[str, str]) -> None:
    """Raises UserError where a module is saved that their class ties to another, which peft leaves as it was."""
    tied = {row.theirs.rpartition(".")[0] for row in table.rows if row.tied and row.theirs in names}
    for name in () if settings.get("ensure_weight_tying") else settings.get("modules_to_save") or ():
        if any(module == name or module.endswith(f".{name}") for module in tied):
            raise UserError(
                f"{source}: modules_to_save: {shown(name)} is tied to the projection to the vocabulary, which peft "
                f"leaves as it was without ensure_weight_tying; {_MERGE}"
            )


def _cut(entry: mapping.Tensor, a: np.ndarray, b: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{our path: (lora_A, lora_B)} of a matrix of theirs; blocks that `write` made become what they were."""
    pieces = {path: part.T for path, part in zip(entry.row.paths, entry.cut(b.T))}
    used = {path: np.flatnonzero(piece.any(0)) for path, piece in pieces.items()}
    blocks = {path: columns for path, columns in used.items() if len(columns)}
    of_block = {len(columns) for columns in blocks.values()}
    if len(pieces) > 1 and len(of_block) == 1 and sorted(np.concatenate([*blocks.values()])) == list(range(len(a))):
        return {path: (a[columns], pieces[path][:, columns]) for path, columns in blocks.items()}
    return {path: (a, piece) for path, piece in pieces.items()}


def _uniform(
    layer_factors: Mapping[str, Mapping[Any, tuple[np.ndarray, np.ndarray, float]]],
    expected: Mapping[str, stored.StoredParam],
    settings: Mapping[str, Any],
) -> tuple[LoraConfig, dict[str, Factors]]:
    """One rank and one scale for all, in the shapes of storage."""
    every = [factors for layers in layer_factors.values() for factors in layers.values()]
    rank = max(a.shape[1] for a, _, _ in every)
    scale = max(abs(scale) for _, _, scale in every) or 1.0  # lora_alpha: 0 is an adapter that does nothing
    factors = {}
    for path, layers in layer_factors.items():
        *stack, rows, columns = expected[path].shape
        a = np.zeros((*stack, rows, rank), np.float32)
        b = np.zeros((*stack, rank, columns), np.float32)
        for at, (own_a, own_b, own_scale) in layers.items():
            a[at][:, : own_a.shape[1]] = own_a
            b[at][: len(own_b), : own_b.shape[1]] = own_b * (own_scale / scale)
        layers_axis = stack[: "layers" in expected[path].axes]
        factors[path] = Factors(np.ones(layers_axis, bool), a, b)
    dropout = settings.get("lora_dropout") or 0.0
    return LoraConfig(targets=tuple(layer_factors), rank=rank, alpha=scale * rank, dropout=dropout), factors
