"""The tree of settings: one frozen class for each part of a recipe, every field with its type, bounds and meaning."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from jaxpt import metrics
from jaxpt.config.applications import RECIPES
from jaxpt.config.data import DataConfig
from jaxpt.config.devices import DistributedConfig, MeshConfig, PlanConfig
from jaxpt.config.fields import (
    Frozen,
    NonNegativeInt,
    Overrides,
    PositiveFloat,
    PositiveInt,
    execution,
    extensible,
    unaffected,
)
from jaxpt.config.parts import AnyEvaluator, AnyModel, AnyObjective, AnyOptimizer, AnyTask
from jaxpt.errors import UserError


class Phase(Frozen):
    """A stretch of the run under other data settings, such as BERT's 512-token phase."""

    steps: PositiveInt | None = None
    """Length in steps; the last phase may leave it out and takes the rest."""
    set: Overrides = ()
    """Overrides in this phase: keys of `data.*` (length, batch_size), `objective.*`, `train.trainable`, and for longer
    texts `model.max_positions` and `model.rope_*`. On a command line `train.phases.0.set.data.length=48` is the first
    phase's; a plain `data.length=48`, lost to it, is refused."""


class LoraConfig(Frozen):
    """A low-rank adapter: W + alpha/rank · A · B in the place of W, with A and B trained. Export and evaluation see the
    sum. Paper: https://arxiv.org/abs/2106.09685"""

    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("*/attention/query", "*/attention/value")
    """Patterns, as in `train.trainable`, of the matrices that have one; the paper's by default."""
    rank: PositiveInt = 8
    """Columns of A and rows of B."""
    alpha: PositiveFloat = 16.0
    """The product is scaled by alpha/rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Rate on the adapter's input features; a draw is shared by all tokens of a microbatch."""


class UnfreezeConfig(Frozen):
    """Gradual unfreezing: first heads and final norms are trained, then one layer more from the top of the stack at a
    time (of an encoder-decoder the decoder's first), the embeddings last. A parameter has no optimizer state before it
    is opened. `train.trainable` and its phases may leave parameters out. Paper: https://arxiv.org/abs/1801.06146"""

    every: PositiveInt | None = None
    """Steps after which one group more is opened, until all are."""
    steps: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    """Or the steps after which one group more is opened, from 0; the last one opens all that is left: [0, 100, 200] is
    heads, top layer, everything."""

    @model_validator(mode="after")
    def _one_of_both(self) -> UnfreezeConfig:
        if (self.every is None) == (self.steps is None):
            raise ValueError("set either every or steps")
        if self.steps is not None and (self.steps[0] or list(self.steps) != sorted(set(self.steps))):
            raise ValueError(f"steps: {list(self.steps)} must begin with 0 and rise")
        return self


class TrainConfig(Frozen):
    """How long, how often, and in how many pieces."""

    steps: PositiveInt = extensible(1000)
    grad_accum_steps: PositiveInt = execution(1)
    """Microbatches of a step, one after the other; losses and gradients are those of the whole batch."""
    trainable: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Patterns of the parameters that are trained, the others are frozen; all are trained by default, with `lora` the
    adapter and the head of a task. A pattern is a path in which `*` stands for any characters, and holds for all below
    it: 'model/encoder', 'heads', '*/bias'; 'model/encoder[8:]' are layers of a stack; '!model/encoder[:8]' leaves
    parameters out. A phase may set it."""
    lora: LoraConfig | None = None
    """Train a low-rank adapter, under the path `adapter`."""
    unfreeze: UnfreezeConfig | None = None
    """Open the model from the top, layer by layer; everything is trained from the start by default."""
    phases: tuple[Phase, ...] = ()
    eval_every: Annotated[PositiveInt | None, unaffected("program")] = execution(None)
    """Steps between evaluations; a tenth of the run by default."""
    eval_on_start: Annotated[bool, unaffected("program")] = execution(False)
    """Evaluate before the first step, too: what the model of `init_from` reaches."""
    eval_examples: Annotated[PositiveInt | None, unaffected("program")] = None
    """Use only the first so many validation examples; all by default."""
    patience: Annotated[PositiveInt | None, unaffected("program")] = execution(None)
    """End the run after so many evaluations in a row in which `checkpoint.best_metric` did not improve. Each of
    `train.phases` counts anew."""
    log_every: Annotated[PositiveInt, unaffected("program")] = execution(10)
    compiler_options: tuple[Annotated[str, Field(pattern=r"^(![a-z0-9_]+|[a-z0-9_]+=.*)$")], ...] = execution(())
    """Options of XLA for the training and evaluation steps, besides those of `jaxpt.parallel.compiler`:
    `name=value` adds one, `!name` leaves one out. They are part of what a compiled step was made for."""
    deterministic: bool = execution(False)
    """Give the same bits in each run on GPUs too, as CPUs and TPUs always do. It costs speed: XLA uses no atomic
    additions, times no kernels to choose from, and cuDNN's attention is left out."""
    on_spike: Literal["keep", "skip", "rewind"] = execution("keep")
    """A finite spike of loss or gradient norm: `keep` says so, `skip` leaves the weights as they are, too, and `rewind`
    also goes back to the checkpoint before and leaves out the batches that made it (`jaxpt.train.spikes`)."""
    max_rewinds: Annotated[NonNegativeInt, unaffected("program")] = execution(3)
    """The run ends at the spike after so many rewinds."""
    stall_seconds: Annotated[PositiveFloat | None, unaffected("program")] = execution(600.0)
    """A step, batch or save that takes longer is named, with its process and the stacks of all threads; null: never."""
    stall_exit: Annotated[bool, unaffected("program")] = execution(False)
    """End the run then, all of its processes, with exit code 75: launchers start it again."""
    check_replicas_every: Annotated[PositiveInt | None, unaffected("program")] = execution(100)
    """Steps between comparisons of the bits of data-parallel replicas, also made before each save: one that differs is
    named, and the run ends with exit code 75. Runs of fewer steps, and single devices, compare nothing; null: never."""
    recompute_every: Annotated[PositiveInt | None, unaffected("program")] = execution(None)
    """Run each step of this multiple twice and compare the bits; it takes the memory of a second state."""
    layer_norms: bool = execution(False)
    """Write each layer's gradient, update and parameter norm to the metrics."""
    compiled: Annotated[str | None, unaffected("program")] = execution(None)
    """Directory of steps that `jaxpt plan --save` compiled ahead, loaded instead of compiling; refused where they were
    made for something else. Its files can run any code: name only what you or yours have written."""


class CheckpointConfig(Frozen):
    """When to save and what to keep. The newest is always kept; a save is atomic and asynchronous."""

    every: PositiveInt | None = execution(None)
    """Steps between checkpoints; as often as evaluations by default."""
    every_minutes: PositiveFloat | None = execution(None)
    """Save also when so many minutes have passed since the last checkpoint."""
    grace_seconds: PositiveFloat | None = execution(None)
    """Seconds from SIGTERM or SIGINT until the machine or scheduler kills the process. A step and save that take longer
    are given up then, with a line, exit code 128 + signal, and the last finished checkpoint; no limit by default."""
    copy_to: str | None = execution(None)
    """A second directory for the checkpoints, best on another disk or a mounted bucket: each is copied there in the
    background, and fetched at a start where the run_dir has none or a damaged one. It is of one run: in a study
    `/backup/{row}` gives each row its own."""
    local_dir: str | None = execution(None)
    """A directory on each host, such as `/dev/shm/jaxpt` or one of its SSD, for checkpoints between those of the
    run_dir: a start takes the newest step that all hosts together have. It takes three times the host's part of the
    state."""
    local_every: PositiveInt = execution(100)
    """Steps between checkpoints in `local_dir`."""
    keep_last: PositiveInt = execution(2)
    keep_best: NonNegativeInt = execution(1)
    """Keep so many with the best `best_metric`."""
    best_metric: str = execution("validation/loss")
    """The metric that `keep_best` and `train.patience` go by: an evaluator's name, a slash and one of its metrics.
    Under another one patience counts anew."""
    best_mode: Literal["min", "max"] = execution("min")
    """`min` if low values of `best_metric` are better, `max` if high ones are; by default that of the metric."""
    keep_every: PositiveInt | None = execution(None)
    """Keep checkpoints at multiples of this step forever."""
    save_initial_state: bool = execution(False)
    """Save the state before the first step, too, and keep the oldest checkpoint."""
    verify: Literal["contents", "sizes"] = execution("contents")
    """What is compared with a checkpoint's checksums before it is read: all bytes, or the files' names and sizes."""

    @model_validator(mode="before")
    @classmethod
    def _mode_of_metric(cls, tree: Any) -> Any:
        """Adds the `best_mode` of a `best_metric` that is described."""
        if isinstance(tree, dict) and isinstance(name := tree.get("best_metric"), str) and "best_mode" not in tree:
            metric = metrics.of_value(name.rpartition("/")[2])
            return tree if metric is None else tree | {"best_mode": metric.mode}
        return tree


class InitConfig(Frozen):
    """Where the weights come from, instead of being drawn at random."""

    path: str
    """A run_dir, one of its `checkpoints/STEP`, a directory in Hugging Face's form, or a model of its hub:
    `OWNER/NAME` or `OWNER/NAME@REVISION` (extra [hub])."""
    step: NonNegativeInt | None = None
    """Which checkpoint; by default the newest, of a finished run with a task the best."""
    random: bool = False
    """Take its model and vocabulary, but draw all weights: what pretraining is compared with."""
    state: bool = False
    """Go on from the whole state (optimizer, step and with it the place in the data), not from the weights alone."""
    partial: bool = False
    """Take the weights that fit and draw the others: a new head, more layers of another kind. Both are listed."""
    layers: tuple[NonNegativeInt, ...] | None = None
    """Layers of the source that fill this model's stack, in this order (DistilBERT: [0, 2, 4, 7, 9, 11]); all by
    default."""
    vocabulary: Literal["same", "first", "mean", "tokens", "new"] = "same"
    """Another vocabulary: `first` takes the rows of the ids that both have, `new` draws all rows. `mean` is for one
    that extends the source's: a new token's row is the mean of the rows of the pieces that it had before. `tokens`
    takes the row of the same token, whatever its id; one that the source has not gets the mean of all rows (ULMFiT)."""

    upcycle: bool = False
    """From a dense model to a mixture of experts: each expert begins as a copy of the layer's feed-forward, routers are
    drawn (https://arxiv.org/abs/2212.05055)."""

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        if self.upcycle and (self.random or self.state or self.layers is not None):
            raise ValueError("upcycle: takes the weights of all layers; leave out random, state and layers")
        if self.random and (self.state or self.layers is not None):
            raise ValueError("with random: true no weights are taken; leave out state and layers")
        if self.state and (self.partial or self.layers is not None or self.vocabulary != "same"):
            raise ValueError("with state: true the whole state is taken; leave out partial, layers and vocabulary")
        return self


class LogConfig(Frozen):
    """Where the curves go, besides the run's metrics.jsonl."""

    tensorboard: bool = execution(True)
    """Write TensorBoard event files to `run_dir/tensorboard`. To see them: `pip install tensorboard`, then
    `tensorboard --logdir RUN_DIR/tensorboard`."""
    wandb: str | None = execution(None)
    """Name of a Weights & Biases project; needs `pip install wandb`. There the run has the id in
    `run_dir/checkpoints/run_id`."""


class ProfileConfig(Frozen):
    """A trace of some steps, with a table of where their time went."""

    first: PositiveInt = execution(10)
    """The first step that is traced; those before it are slower."""
    steps: PositiveInt = execution(3)
    """Number of steps that are traced; a trace of many steps is too large to look at."""

    @property
    def last(self) -> int:
        """The last step that is traced."""
        return self.first + self.steps - 1


_EVALUATORS: Any = ({"kind": "heldout"}, {"kind": "baseline"}, {"kind": "samples"})
_TAKEN = ("train", "speed", "phase", "learning_rate", "step", "time")
"""What else metrics.jsonl has."""


class Config(Frozen):
    """A whole run."""

    run_dir: Annotated[str, unaffected("program")] = execution("")
    """Where everything of the run goes; `runs/<name of the recipe>` by default."""
    seed: NonNegativeInt = 0
    model: AnyModel
    """From `init_from.path` where the recipe names no kind."""
    task: AnyTask | None = None
    """Fine-tuning: columns, labels and metrics of labelled data."""
    objective: AnyObjective
    """By default the head for the task's kind."""
    data: Annotated[DataConfig, unaffected("program")]  # a step sees features alone: their shapes are compared
    init_from: Annotated[InitConfig | None, unaffected("program")] = None
    """Branch from another run."""
    optimizer: AnyOptimizer = Field({"kind": "adamw"}, validate_default=True)
    train: TrainConfig = TrainConfig()
    evals: Annotated[tuple[AnyEvaluator, ...], unaffected("program")] = execution(_EVALUATORS, validate_default=True)
    """What is evaluated, in this order: held-out loss, baseline and samples by default."""
    checkpoint: Annotated[CheckpointConfig, unaffected("program")] = CheckpointConfig()
    mesh: MeshConfig = MeshConfig()
    plan: Annotated[PlanConfig, unaffected("program")] = PlanConfig()
    distributed: Annotated[DistributedConfig, unaffected("program")] = DistributedConfig()
    log: Annotated[LogConfig, unaffected("program")] = LogConfig()
    profile: Annotated[ProfileConfig | None, unaffected("program")] = execution(None)
    """Trace some steps into `run_dir/profile`, for xprof and Perfetto; `{}` takes the defaults."""

    def __new__(cls, *paths: Any, **values: Any) -> Self:
        """Refuses the path of a recipe, which `load` reads."""
        if paths:
            raise UserError(f"jaxpt.Config: takes no path; jaxpt.Config.load({str(paths[0])!r}) reads a recipe")
        return super().__new__(cls)

    @classmethod
    def load(cls, path: str | Path, /, **overrides: Any) -> Config:
        """Reads a recipe, or a run's configuration, as `jaxpt train` does.

        Args:
          path: a YAML file, or the directory of a run.
          **overrides: values of keys, dotted or nested: `**{"train.steps": 100}` or `train={"steps": 100}`.

        Raises:
          UserError: names the file or the key, what was given and what is wanted.

        Example: `jaxpt.Config.load("configs/smoke/t5_tiny.yaml", seed=1).train.steps`
        """
        return importlib.import_module(RECIPES).read_config(path, overrides)

    @model_validator(mode="after")
    def _evaluators(self) -> Self:
        names = [evaluator.called for evaluator in self.evals]
        for name in names:
            if name in _TAKEN:
                raise UserError(f"evals: the name {name!r} is taken: metrics of the training begin so")
            if names.count(name) > 1:
                raise UserError(f"evals: two have the name {name!r}; rename one of them")
        if self.data.train_rows is not None and self.task is None:
            raise UserError("data.train_rows: is for recipes with a task; without one data.path names less text")
        if self.data.test_fraction is not None and self.task is None:
            raise UserError(
                "data.test_fraction: is for recipes with a task; without one there is data.validation_fraction"
            )
        metric = self.checkpoint.best_metric
        during = [evaluator.called for evaluator in self.evals if evaluator.every != "end"]
        if metric.partition("/")[0] not in during and metric != CheckpointConfig().best_metric:
            known = ", ".join(during) or "none"
            raise UserError(
                f"checkpoint.best_metric: {metric}: its first part names no evaluator that runs during training; "
                f"evals has: {known}"
            )
        return self
