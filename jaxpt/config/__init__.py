"""A recipe (YAML) and command-line overrides become one frozen, typed, hashable tree; and back.

Nothing here imports jax or tensorflow. The hyperparameters of a model, an objective, an optimizer or a schedule live
beside their code: `kind: t5` names the module `jaxpt.models.t5`, a dotted `kind` names anyone's own, and the one class
under `ModelConfig` (`ObjectiveConfig`, `OptimizerConfig`, `ScheduleConfig`) in that module says which keys there are.

Every field is one of four: *identity* (the default: a resume under another value is refused), *content* (a path: a
resume is refused where the files there are others), *execution* (free to change: mesh, accumulation, readers) or
*extensible* (the end of the run). What is kept on disk (prepared records, a
compiled step) depends on every field that does not say `unaffected`.

  files    YAML, `base:`, overrides           tree     the settings (`data`, `devices`: blocks; `fields`)
  check    plain values → tree                parts    what all kinds of a model, an optimizer, … share
  phases   the tree in each phase of a run    explain  errors in one line
  kinds    `kind` → class                     roles    what a resume may change
  layers   what a base or a phase takes away
"""

from jaxpt.config.check import build, dump
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
    plugin_modules,
    unaffected,
)
from jaxpt.config.files import is_changed, load, run_dir_of, to_yaml, with_checksum
from jaxpt.config.kinds import kinds, resolve
from jaxpt.config.parts import (
    HEAD_NAMES,
    AdapterConfig,
    AnyAdapter,
    AnyEvaluator,
    AnyModel,
    AnyObjective,
    AnyOptimizer,
    AnySchedule,
    AnyTask,
    EvaluatorConfig,
    HeadName,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PoolerOptions,
    ScheduleConfig,
    TaskConfig,
    TaskHead,
)
from jaxpt.config.phases import (
    TrainStage,
    at_phase,
    batch_text,
    extension,
    model_at,
    phase_configs,
    phase_lines,
    phase_of,
    phase_starts,
    train_stages,
    without_unfreezing,
)
from jaxpt.config.roles import cache_key_fields, differences
from jaxpt.config.schema import SCHEMAS, json_schema, schema_text, write_schemas
from jaxpt.config.tree import (
    CheckpointConfig,
    Config,
    InitConfig,
    LogConfig,
    LoraConfig,
    Phase,
    ProfileConfig,
    TrainConfig,
)
