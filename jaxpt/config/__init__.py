"""A recipe (YAML) and command-line overrides become one frozen, typed, hashable tree; and back.

Nothing here imports jax or tensorflow. The hyperparameters of a model, an objective, an optimizer or a schedule live
beside their code: `kind: t5` names the module `jaxpt.models.t5`, a dotted `kind` names anyone's own, and the one class
under `ModelConfig` (`ObjectiveConfig`, `OptimizerConfig`, `ScheduleConfig`) in that module says which keys there are.

Every field is one of four: *identity* (the default: a resume under another value is refused), *content* (a path: a
resume is refused where the files there are others), *execution* (free to change: mesh, accumulation, readers) or
*extensible* (the end of the run). What is kept on disk (prepared records, a
compiled step) depends on every field that does not say `unaffected`.

  files    YAML, `base:`, overrides         tree     the settings (`data`, `optimizer`, `devices`: parts; `fields`)
  check    plain values → tree, phases      explain  errors in one line
  kinds    `kind` → class                   roles    what a resume may change
  layers   what a base or a phase takes away  heads    how an architecture is fine-tuned
  stretches  phases, cut where unfreezing opens more   fine_tuning  what a task implies
"""

from jaxpt.config.check import (
    at_phase,
    batch_text,
    build,
    dump,
    phase_lines,
    phase_of,
    phase_starts,
    without_unfreezing,
)
from jaxpt.config.data import DataConfig, MixtureTask, SourceConfig, TokenizerConfig
from jaxpt.config.devices import AXES, DistributedConfig, MeshConfig, PlanConfig, RulesConfig
from jaxpt.config.fields import (
    Fraction,
    Frozen,
    LanguageCode,
    Layers,
    NonNegativeInt,
    Overrides,
    PositiveFloat,
    PositiveInt,
    Size,
    execution,
    extensible,
    own_modules,
    unaffected,
)
from jaxpt.config.files import load, to_yaml, with_checksum
from jaxpt.config.heads import HEAD_NAMES, HeadName, PoolerOptions, TaskHead
from jaxpt.config.kinds import kinds, resolve
from jaxpt.config.optimizer import AnyOptimizer, AnySchedule, OptimizerConfig, ScheduleConfig
from jaxpt.config.roles import affecting, differences
from jaxpt.config.schema import SCHEMAS, json_schema, schema_text, write_schemas
from jaxpt.config.stretches import stretches
from jaxpt.config.tree import (
    AdapterConfig,
    AnyAdapter,
    AnyEvaluator,
    AnyModel,
    AnyObjective,
    AnyTask,
    CheckpointConfig,
    Config,
    EvaluatorConfig,
    InitConfig,
    LogConfig,
    LoraConfig,
    ModelConfig,
    ObjectiveConfig,
    Phase,
    TaskConfig,
    TrainConfig,
)

__all__ = [
    "AXES",
    "HEAD_NAMES",
    "SCHEMAS",
    "AdapterConfig",
    "AnyAdapter",
    "AnyEvaluator",
    "AnyModel",
    "AnyObjective",
    "AnyOptimizer",
    "AnySchedule",
    "AnyTask",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "DistributedConfig",
    "EvaluatorConfig",
    "Fraction",
    "Frozen",
    "HeadName",
    "InitConfig",
    "LanguageCode",
    "Layers",
    "LogConfig",
    "LoraConfig",
    "MeshConfig",
    "MixtureTask",
    "ModelConfig",
    "NonNegativeInt",
    "ObjectiveConfig",
    "OptimizerConfig",
    "Overrides",
    "Phase",
    "PlanConfig",
    "PoolerOptions",
    "PositiveFloat",
    "PositiveInt",
    "RulesConfig",
    "ScheduleConfig",
    "Size",
    "SourceConfig",
    "TaskConfig",
    "TaskHead",
    "TokenizerConfig",
    "TrainConfig",
    "affecting",
    "at_phase",
    "batch_text",
    "build",
    "differences",
    "dump",
    "execution",
    "extensible",
    "json_schema",
    "kinds",
    "load",
    "own_modules",
    "phase_lines",
    "phase_of",
    "phase_starts",
    "resolve",
    "schema_text",
    "stretches",
    "to_yaml",
    "unaffected",
    "with_checksum",
    "without_unfreezing",
    "write_schemas",
]
