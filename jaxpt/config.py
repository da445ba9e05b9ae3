"""A recipe (YAML) and command-line overrides become one frozen, typed, hashable tree; and back.

This module imports neither jax nor tensorflow. The hyperparameters of a model or an objective live beside their code:
`kind: t5` names the module `jaxpt.models.t5`, a dotted `kind` names anyone's own, and the one `ModelConfig` or
`ObjectiveConfig` class defined in that module says which keys there are.

Every field is one of three: *identity* (the default: a resume under another value is refused), *execution* (free to
change: mesh, accumulation, readers) or *extensible* (the end of the run).
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import json
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, WrapValidator, model_validator

from jaxpt.errors import UserError

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def execution(default: Any, **kwargs: Any) -> Any:
    """A field that changes how a run is carried out, not what it computes: free to change on a resume."""
    return Field(default, json_schema_extra={"role": "execution"}, **kwargs)


def extensible(default: Any, **kwargs: Any) -> Any:
    """A field that says when a run ends: a finished run may be continued under a larger value."""
    return Field(default, json_schema_extra={"role": "extensible"}, **kwargs)


class Frozen(BaseModel):
    """A part of the tree: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class ModelConfig(Frozen):
    """What every architecture's hyperparameters share. Subclassed once in each module of `jaxpt.models`."""

    kind: str
    """Module of `jaxpt.models`, or a dotted path to one's own."""
    vocab_size: PositiveInt
    """Number of token ids, special ones included. Storage is padded to a multiple of 128; that never shows."""
    dtype: Literal["auto", "float32", "bfloat16"] = execution("auto")
    """Type of the computation: `auto` is bfloat16 on TPU and GPU, float32 on CPU. Parameters stay float32."""
    remat: Literal["none", "full", "dots", "names"] = execution("none")
    """What the backward pass computes again: nothing, everything, all but matmuls, or all but named activations."""


class ObjectiveConfig(Frozen):
    """What every objective's hyperparameters share; `jaxpt.objectives.base.Objective` adds its functions."""

    kind: str
    """Module of `jaxpt.objectives`, or a dotted path to one's own."""
    z_loss: Annotated[float, Field(ge=0)] = 0.0
    """Coefficient of log(Z)^2, added to every token's cross-entropy (T5X: 1e-4)."""
    loss_chunk: NonNegativeInt = execution(0)
    """Target positions whose logits exist at one time; 0 chooses so that a chunk's logits stay near 64 MiB a device."""


class TokenizerConfig(Frozen):
    """Which vocabulary, and how to train one when no path is given."""

    kind: Literal["sentencepiece", "wordpiece", "bpe"]
    """SentencePiece unigram (T5), WordPiece (BERT) or byte-level BPE (GPT-2)."""
    path: str | None = None
    """A `.model`, `vocab.txt`, `tokenizer.json`, or a directory with one of these or `vocab.json` + `merges.txt`."""
    vocab_size: PositiveInt | None = None
    """Ids to train, special ones included; `model.vocab_size` by default."""
    lowercase: bool = False
    """Fold case and strip accents before tokenizing (BERT uncased)."""
    extra_ids: NonNegativeInt | None = None
    """Sentinels at the end of a SentencePiece vocabulary; 100 by default (T5's)."""
    characters: PositiveInt = 20_000_000
    """A vocabulary is trained on about the first so many characters of the training split."""


class DataConfig(Frozen):
    """Where the text comes from, and the shape of a batch."""

    source: Literal["auto", "builtin", "text", "jsonl", "parquet", "tfds", "task"] = "auto"
    """`auto` goes by the suffix of `path`; without a path it is the built-in corpus (text that CPython ships)."""
    path: str | tuple[str, ...] | None = None
    """Files, directories excluded; globs, `gs://` and `.gz` are fine. For `tfds` the data set's name."""
    validation_path: str | tuple[str, ...] | None = None
    """Files of the validation split; without them a fraction of the documents is held out, chosen by hash."""
    validation_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.02
    """Fraction of documents held out when there is no `validation_path`."""
    documents: Literal["line", "blank_line"] = "line"
    """Text files: one document per line, or documents parted by blank lines."""
    field: str = "text"
    """JSONL, Parquet and TFDS: the field that holds the text."""
    task: str | None = None
    """Name of a registered SeqIO Task (`source: task`)."""
    modules: tuple[str, ...] = ()
    """Python modules to import first: they may register SeqIO Tasks."""
    tokenizer: TokenizerConfig
    length: PositiveInt = 128
    """Tokens in an example (of the encoder's input for an encoder-decoder)."""
    batch_size: PositiveInt = 32
    """Examples in a step, over all devices and accumulation steps."""
    cache_dir: str | None = execution(None)
    """Where prepared data is kept; `$XDG_CACHE_HOME/jaxpt` or `~/.cache/jaxpt` by default."""
    readers: NonNegativeInt = execution(0)
    """Threads that prepare batches; 0 lets tf.data choose."""


class ScheduleConfig(Frozen):
    """How the learning rate goes over the steps."""

    kind: Literal["constant", "linear", "cosine", "inverse_sqrt", "wsd", "bert", "t5"] = "constant"
    """`bert`: linear warm-up, linear decay to 0. `t5`: 1/sqrt(max(step, warmup_steps)). `wsd`: warm-up, stable, decay."""
    warmup_steps: NonNegativeInt = 0
    decay_steps: NonNegativeInt | None = None
    """wsd: length of the final decay (a tenth of the run by default)."""
    end_fraction: Fraction = 0.0
    """Learning rate at the end, as a fraction of the peak (linear, cosine, wsd)."""


class OptimizerConfig(Frozen):
    """The optimizer, applied per logical layer and matrix, after clipping by the global norm."""

    kind: Literal["adamw", "adafactor", "lamb", "lion", "muon", "sgd"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate. For schedule `t5` and Adafactor with `scale_by_parameter` it is a factor (T5: 1.0)."""
    schedule: ScheduleConfig = ScheduleConfig()
    b1: Fraction | None = None
    """First-moment decay; the optimizer's own default when absent."""
    b2: Fraction | None = None
    """Second-moment decay; the optimizer's own default when absent."""
    eps: Annotated[float, Field(gt=0)] | None = None
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay on matrices; never on biases and norms."""
    bias_correction: bool = True
    """AdamW: false is BERT's Adam."""
    scale_by_parameter: bool = True
    """Adafactor: multiply the step by the parameter's root mean square, as T5 does."""
    adam_learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Muon: learning rate of the AdamW that takes embeddings, norms and biases (`learning_rate` by default)."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Clip gradients to this global norm."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Keep an exponential moving average of the parameters; evaluation uses it."""


class Phase(Frozen):
    """A stretch of the run under other data settings, such as BERT's 512-token phase."""

    steps: PositiveInt | None = extensible(None)
    """Length in steps; the last phase may leave it out and takes the rest."""
    set: tuple[tuple[str, Any], ...] = ()
    """Overrides in this phase: keys of `data.*` (length, batch_size) and `objective.*`."""

    @model_validator(mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("set"), dict):
            value = {**value, "set": tuple((k, _freeze(v)) for k, v in value["set"].items())}
        return value


class TrainConfig(Frozen):
    """How long, how often, and in how many pieces."""

    steps: PositiveInt = extensible(1000)
    accumulation: PositiveInt = execution(1)
    """Microbatches of a step, one after the other; losses and gradients are those of the whole batch."""
    phases: tuple[Phase, ...] = ()
    eval_every: PositiveInt | None = execution(None)
    """Steps between evaluations; a tenth of the run by default."""
    eval_examples: PositiveInt | None = None
    """Use only the first so many validation examples; all by default."""
    log_every: PositiveInt = execution(10)
    layer_norms: bool = execution(False)
    """Write each layer's gradient, update and parameter norm to the metrics."""


class CheckpointConfig(Frozen):
    """When to save and what to keep. The newest is always kept; a save is atomic and asynchronous."""

    every: PositiveInt | None = execution(None)
    """Steps between checkpoints; as often as evaluations by default."""
    keep_last: PositiveInt = execution(2)
    keep_best: NonNegativeInt = execution(1)
    """Keep so many with the lowest validation loss."""
    keep_every: PositiveInt | None = execution(None)
    """Keep those whose step divides by this for good."""


class MeshConfig(Frozen):
    """Sizes of the device mesh's axes; -1, on one of them, takes what is left."""

    data: int = execution(-1)
    fsdp: int = execution(1)
    tensor: int = execution(1)


class InitConfig(Frozen):
    """Where the weights come from, instead of being drawn at random."""

    path: str
    """A run_dir, or one of its `checkpoints/STEP`."""
    step: NonNegativeInt | None = None
    """Which checkpoint; the newest by default."""
    state: bool = False
    """Go on from the whole state (optimizer, step and with it the place in the data), not from the weights alone."""


class LogConfig(Frozen):
    tensorboard: bool = execution(True)
    wandb: str | None = execution(None)
    """Name of a Weights & Biases project; needs `pip install wandb`."""


def _by_kind(package: str, base: type[Frozen], value: Any, _handler: Any) -> Frozen:
    """Validates a mapping by the class that its `kind` names."""
    if isinstance(value, base):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise ValueError(f"wants a mapping with a `kind`, one of: {', '.join(kinds(package))}")
    return _strictly(resolve(value["kind"], package, base), value)


class Config(Frozen):
    """A whole run."""

    run_dir: str = execution("")
    """Where everything of the run goes; `runs/<name of the recipe>` by default."""
    seed: NonNegativeInt = 0
    model: Annotated[
        SerializeAsAny[ModelConfig], WrapValidator(functools.partial(_by_kind, "jaxpt.models", ModelConfig))
    ]
    objective: Annotated[
        SerializeAsAny[ObjectiveConfig], WrapValidator(functools.partial(_by_kind, "jaxpt.objectives", ObjectiveConfig))
    ]
    data: DataConfig
    init_from: InitConfig | None = None
    """Branch from another run."""
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    mesh: MeshConfig = MeshConfig()
    log: LogConfig = LogConfig()


# ---- kinds ----------------------------------------------------------------------------------------------------------


def kinds(package: str) -> list[str]:
    """The kinds that `package` offers: its modules that define one configuration class.

    Args:
      package: `jaxpt.models` or `jaxpt.objectives`.

    Returns:
      Module names in alphabetical order.
    """
    base = {"jaxpt.models": ModelConfig, "jaxpt.objectives": ObjectiveConfig}[package]
    names = [m.name for m in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    return sorted(n for n in names if _defined(f"{package}.{n}", base))


def _defined(module: str, base: type[Frozen]) -> list[type[Frozen]]:
    """Classes under `base` that `module` itself defines, abstract ones (without a default `kind`) left out."""
    found = vars(importlib.import_module(module)).values()
    return [
        c
        for c in found
        if isinstance(c, type) and issubclass(c, base) and c.__module__ == module and c.model_fields["kind"].default is not ...
        and not c.model_fields["kind"].is_required()
    ]


@functools.cache
def resolve(kind: str, package: str, base: type[Frozen]) -> type[Frozen]:
    """The configuration class that a `kind` names.

    Args:
      kind: a module of `package` ("t5"), or the dotted path of a module that defines exactly one subclass of `base`.
      package: where short names are looked up.
      base: `ModelConfig` or `ObjectiveConfig`.

    Returns:
      The class.

    Raises:
      UserError: no such module (the nearest right names are given), or not exactly one class in it.
    """
    module = kind if "." in kind else f"{package}.{kind}"
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise  # the module is there; something that it imports is not
        raise UserError(f"kind: {kind!r} is none of {', '.join(kinds(package))}{_nearest(kind, kinds(package))}") from None
    classes = _defined(module, base)
    if len(classes) != 1:
        raise UserError(f"kind: module {module} must define one subclass of {base.__name__}, it defines {len(classes)}")
    return classes[0]


# ---- reading --------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers and booleans (1e-4 is a number, `no` a word); a key given twice is an error."""

    yaml_implicit_resolvers = {
        k: [(t, r) for t, r in v if t not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")]
        for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _resolver(tag: str, pattern: str, first: str) -> None:
    import re

    _Loader.add_implicit_resolver(tag, re.compile(pattern), list(first))


_resolver("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
_resolver(
    "tag:yaml.org,2002:float",
    r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$",
    "-+0123456789.",
)


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{where}{at}: not valid YAML: {problem}") from None


def _read(path: Path, seen: tuple[Path, ...] = ()) -> tuple[dict[str, Any], dict[str, str]]:
    """A recipe with its `base:` merged in, and for each dotted key the file that set it."""
    if path in seen:
        raise UserError(f"{path}: base: goes round in a circle: {' → '.join(map(str, (*seen, path)))}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; a recipe is a YAML file") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    own = _parse(text, str(path))
    if not isinstance(own, dict):
        raise UserError(f"{path}: wants a mapping of keys to values, got {type(own).__name__}")
    bases = own.pop("base", [])
    tree: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        base_tree, base_origin = _read(path.parent / base, (*seen, path))
        tree, origin = _merge(tree, base_tree), origin | base_origin
    origin |= {key: str(path) for key, _ in _leaves(own)}
    return _merge(tree, own), origin


def _merge(old: Any, new: Any) -> Any:
    """Mappings are merged key by key (a new `kind` starts afresh), everything else is replaced."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    if "kind" in new and "kind" in old and new["kind"] != old["kind"]:
        return new
    return old | {k: _merge(old[k], v) if k in old else v for k, v in new.items()}


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}{key}.")
    else:
        yield prefix[:-1], tree


def _freeze(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, Mapping):
        return tuple((k, _freeze(v)) for k, v in value.items())
    return value


def _put(tree: dict[str, Any], key: str, value: Any, where: str) -> None:
    *parents, last = key.split(".")
    for part in parents:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise UserError(f"{where}: {key}: {part} is a value, it has no keys")
    tree[last] = _merge(tree.get(last), value)


def load(path: str | Path, overrides: tuple[str, ...] | list[str] = ()) -> Config:
    """Reads a recipe, applies `key=value` overrides and checks every key and type.

    Args:
      path: a YAML file; its `base:` (a path relative to it, or a list of them) is merged under it.
      overrides: such as `optimizer.learning_rate=3e-4`; the value is read as YAML.

    Returns:
      The frozen configuration; `run_dir` is filled in.

    Raises:
      UserError: names the file (or the override), the key, what was given and what is wanted.

    Example:
      >>> config = load("configs/smoke/t5_tiny.yaml", ["train.steps=20"])
      >>> config.train.steps
      20
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.yaml"
    tree, origin = _read(path)
    for item in overrides:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise UserError(f"{item!r}: wants key=value, such as train.steps=100")
        _put(tree, key, _parse(text, item), item)
        origin = {k: v for k, v in origin.items() if k != key and not k.startswith(key + ".")}
        origin[key] = f"command line ({item})"
    tree.setdefault("run_dir", f"runs/{path.stem}")
    return build(tree, lambda key: _origin(key, origin, str(path)))


def _origin(key: str, origin: Mapping[str, str], default: str) -> str:
    """The file of a key, or of the nearest key above it or below it."""
    parts = key.split(".")
    for n in range(len(parts), 0, -1):
        prefix = ".".join(parts[:n])
        for known, where in origin.items():
            if known == prefix or known.startswith(prefix + "."):
                return where
    return default


def build(tree: Mapping[str, Any], where: Any = lambda key: "config") -> Config:
    """Validates a plain tree of values; `where(key)` names the file that set a key, for messages."""
    try:
        config = _strictly(Config, tree)
    except ValidationError as error:
        raise UserError(_explain(error, where)) from None
    except UserError as error:
        raise UserError(f"{where('')}: {error}") from None
    for index in range(len(config.train.phases)):
        at_phase(config, index)
    return config


def _strictly(cls: type[Frozen], value: Any) -> Any:
    """JSON mode: lists become tuples, but "32" is no integer and 1 no boolean."""
    return cls.model_validate_json(json.dumps(value), strict=True)


def _explain(error: ValidationError, where: Any) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("function-", "tuple[", "str", "constrained")))
    file = where(key)
    if first["type"] == "extra_forbidden":
        known = _known_keys(error, first["loc"])
        return f"{file}: unknown key {key}{_nearest(key.rpartition('.')[2], known)}"
    if first["type"] == "missing":
        return f"{file}: key {key} is missing"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{file}: {key}: wants {message}, got {first['input']!r}" if "Input should" in first["msg"] else f"{file}: {key}: {message}"


def _known_keys(error: ValidationError, loc: tuple[Any, ...]) -> list[str]:
    """Keys that were possible where an unknown one was found."""
    cls: Any = Config
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        if part in ("model", "objective"):
            package = f"jaxpt.{part}s"
            base = ModelConfig if part == "model" else ObjectiveConfig
            fields: set[str] = set()
            for name in kinds(package):
                fields |= set(resolve(name, package, base).model_fields)
            return sorted(fields)
        cls = {"phases": Phase}.get(part) or cls.model_fields[part].annotation
    return list(cls.model_fields)


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=2, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else f"; known here: {', '.join(known)}"


# ---- phases ---------------------------------------------------------------------------------------------------------


def phase_starts(config: Config) -> tuple[int, ...]:
    """First step of each phase; one phase from step 0 where the recipe has none.

    Args:
      config: the run's configuration.

    Returns:
      A tuple of steps that starts with 0.

    Raises:
      UserError: the phases do not fill `train.steps`.
    """
    phases = config.train.phases or (Phase(),)
    starts, at = [], 0
    for index, phase in enumerate(phases):
        starts.append(at)
        if phase.steps is None and index + 1 < len(phases):
            raise UserError(f"train.phases.{index}.steps is missing: only the last phase may leave it out")
        at += phase.steps or 0
    if (phases[-1].steps is not None and at != config.train.steps) or starts[-1] >= config.train.steps:
        raise UserError(f"train.phases: they take {at} steps, train.steps is {config.train.steps}; leave the last phase's steps out")
    return tuple(starts)


def at_phase(config: Config, index: int) -> Config:
    """The configuration as it is in one phase, the phase's `set:` applied.

    Args:
      config: the run's configuration.
      index: which phase, from 0.

    Returns:
      A configuration without phases.
    """
    tree = dump(config)
    phases = tree["train"].pop("phases", [])
    phase_starts(config)
    for key, value in (phases[index].get("set", {}) if phases else {}).items():
        if not key.startswith(("data.", "objective.")):
            raise UserError(f"train.phases.{index}.set: {key}: a phase may set keys of data and objective alone")
        _put(tree, key, value, f"train.phases.{index}.set")
    return build({**tree, "train": {**tree["train"], "phases": []}}, lambda key: f"train.phases.{index}.set")


# ---- writing --------------------------------------------------------------------------------------------------------


def dump(config: Config) -> dict[str, Any]:
    """The tree as plain values, ready for YAML or JSON."""
    tree = config.model_dump(mode="json")
    for phase in tree["train"]["phases"]:
        phase["set"] = {key: value for key, value in phase["set"]}
    return tree


def to_yaml(config: Config) -> str:
    """The resolved configuration as YAML, every default written out; `load` reads it back to an equal tree."""
    return yaml.safe_dump(dump(config), sort_keys=False, allow_unicode=True, width=120)


def differences(old: Config, new: Config, role: str = "identity") -> list[tuple[str, Any, Any]]:
    """Keys of one role whose values differ.

    Args:
      old: a saved configuration.
      new: the one asked for.
      role: identity, execution or extensible.

    Returns:
      (dotted key, old value, new value) for each.
    """
    a, b, roles = dict(_leaves(dump(old))), dict(_leaves(dump(new))), _roles(new)
    return [(k, a.get(k), b.get(k)) for k in a | b if a.get(k) != b.get(k) and roles.get(k, "identity") == role]


def _roles(part: Frozen, prefix: str = "") -> dict[str, str]:
    roles: dict[str, str] = {}
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, Frozen):
            roles |= _roles(value, f"{prefix}{name}.")
        else:
            extra = field.json_schema_extra
            roles[prefix + name] = extra.get("role", "identity") if isinstance(extra, dict) else "identity"
    return roles


def json_schema() -> dict[str, Any]:
    """A JSON Schema of recipes, so that editors complete them and point at mistakes.

    Returns:
      The schema, with a choice for each model and objective of the package.
    """
    schema = Config.model_json_schema()
    definitions = schema["$defs"]
    for part, base in (("model", ModelConfig), ("objective", ObjectiveConfig)):
        package, choices = f"jaxpt.{part}s", []
        for name in kinds(package):
            cls = resolve(name, package, base)
            own = cls.model_json_schema()
            definitions |= own.pop("$defs", {})
            own["properties"]["kind"] = {"const": name}
            definitions[cls.__name__] = own
            choices.append({"$ref": f"#/$defs/{cls.__name__}"})
        schema["properties"][part] = {"anyOf": choices}
    schema["properties"]["base"] = {
        "description": "Recipe(s) that this one starts from, relative to this file.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    schema.pop("required", None)  # a base may hold them
    return schema
