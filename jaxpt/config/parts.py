"""The parts of a recipe whose class a `kind` names: what all kinds of each share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, SerializeAsAny, WithJsonSchema

from jaxpt.config.applications import EVALUATORS
from jaxpt.config.fields import Frozen, NonNegativeInt, PositiveInt, Size, execution, extensible
from jaxpt.config.kinds import Kind
from jaxpt.errors import UserError

if TYPE_CHECKING:
    from optax import GradientTransformation, Schedule

HeadName = Literal["classes", "tags", "span", "choice"]
"""classes: a whole text's logits · tags: each token's · span: each token's as start and end · choice: one per text."""
HEAD_NAMES: tuple[str, ...] = get_args(HeadName)


@dataclasses.dataclass(frozen=True)
class PoolerOptions:
    """A layer between the hidden states and the logits: LN(f(dropout(x) · W + b))."""

    activation: str = "tanh"
    """f: a name of `jaxpt.models.layers.ACTIVATIONS`."""
    drops_out: bool = False
    """True: dropout on x."""
    use_bias: bool = True
    """Use b."""
    epsilon: float | None = None
    """ε of LN; None: no norm."""
    norm_bias: bool = False


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """How an architecture's fine-tuning class makes logits: dropout(pooler(x)) · W + b, with the hidden states x."""

    stack: Literal["encoder", "decoder"]
    """Whose hidden states x are. A decoder after an encoder reads the same text as the encoder, shifted to the right by
    one position (T5: after padding, BART: after EOS, mBART: after the text's last token)."""
    position: Literal["first", "last", "eos", "mean", "late", "each"]
    """Where x is taken: at the text's first token, its last one that is no padding, where the encoder's input has its
    last EOS, the mean of all tokens that are no padding, or at each token. `late`: the mean of what the pooler makes of
    each token."""
    pooler: PoolerOptions | None = None
    drops_out: bool = True
    """True: dropout before W by default."""
    use_bias: bool = True
    """Use b."""


def _without_build(part: Frozen, base: type[Frozen]) -> UserError:
    """What is raised where someone's own subclass lacks the method."""
    return UserError(
        f"class {type(part).__name__} of {type(part).__module__} must define `build`; the docstring of "
        f"{base.__name__}.build in jaxpt/config/parts.py says what it is"
    )


class AdapterConfig(Frozen):
    """What every adapter's settings share. Subclassed once in each module of `jaxpt.models.adapters`."""

    kind: str
    """Module of `jaxpt.models.adapters`, or a dotted path to one's own."""

    def build(self, dtype: Any, name: str) -> Any:
        """The Flax module [B, L, D] → [B, L, D] after a part of a block.

        Args:
          dtype: of the computation.
          name: of the module.
        """
        raise _without_build(self, AdapterConfig)


AnyAdapter = Annotated[
    SerializeAsAny[AdapterConfig], Kind("model.adapter", "jaxpt.models.adapters", AdapterConfig, default="bottleneck")
]


class ModelConfig(Frozen):
    """What every architecture's hyperparameters share. Subclassed once in each module of `jaxpt.models`."""

    family: ClassVar[Literal["encoder", "decoder", "encoder_decoder"]]
    """Which of `encode` and `decode` the model has."""

    kind: str
    """Module of `jaxpt.models`, or a dotted path to one's own."""
    vocab_size: Size
    """Number of token ids, special ones included. Storage is padded to a multiple of 128; that never shows."""
    dtype: Literal["auto", "float32", "bfloat16"] = execution("auto")
    """Type of the computation: `auto` is bfloat16 on TPU and GPU, float32 on CPU. Parameters stay float32."""
    remat: Literal["none", "full", "dots", "names"] = execution("none")
    """What the backward pass computes again: nothing, everything, all but matmuls, or all but named activations."""
    attention: Literal["auto", "xla", "chunked", "cudnn", "flash", "fused", "splash"] = execution("auto")
    """Who computes attention: XLA (`chunked`: memory linear in the length), cuDNN (GPU), kernels with dropout, any
    length and T5's bias (`flash`, GPU) or DeBERTa's too (`fused`, TPU), one that skips what a causal mask hides
    (`splash`, TPU)."""
    unroll: PositiveInt | Literal["auto"] = execution("auto")
    """Layers that one turn of the loop over a stack does: 2 makes a small model on a CPU a quarter faster. `auto` is
    all on a GPU, up to 24, where nothing is computed again and each GPU has whole weights; else 1."""
    text_layout: ClassVar[str]
    """How texts and special tokens stand in an example of fine-tuning (`jaxpt.objectives.labelled.FAMILIES`)."""
    equal_widths: ClassVar[bool] = True
    """True if the states of all layers have one width: they can be compared, and given together."""
    fixed_params: ClassVar[tuple[str, ...]] = ()
    """Paths of parameters that are no weights, but made of the vocabulary (`constants`), and never trained."""
    adapter: AnyAdapter | None = None
    """A small module after each attention and feed-forward, at paths such as `*_adapter`; none by default."""

    def constants(self, tokenizer: Any) -> dict[str, Any]:
        """{path: array} of `fixed_params`.

        Args:
          tokenizer: of the run, a `jaxpt.data.tokenizers.base.Tokenizer`.
        """
        return {}

    @property
    def position_limit(self) -> int | None:
        """Longest sequence: `max_positions` of a model that has such a field; None: any length."""
        return getattr(self, "max_positions", None)

    @property
    def position_switch(self) -> int | None:
        """Longest text before its rotary positions are those of longer ones (longrope); None: they never change."""
        return None

    @property
    def counts_in_row(self) -> bool:
        """True if attention depends on distances in the row, not on positions alone: windows, ALiBi."""
        return False

    @property
    def has_capacity(self) -> bool:
        """True if the tokens of a row compete for the places of experts (`jaxpt.models.moe`)."""
        return False

    def check_length(self, length: int) -> None:
        """Raises UserError if sequences of this length have no place in the position table."""
        if self.position_limit is not None and length > self.position_limit:
            raise UserError(
                f"data.length: {length} is beyond the position table of model.kind: {self.kind}, "
                f"which has {self.position_limit} rows; shorten data.length or raise model.max_positions"
            )

    def idle_settings(self) -> tuple[str, ...]:
        """A line for each setting that changes nothing; a new run is refused, one that has a checkpoint, or takes its
        model from elsewhere (`init_from`), goes on."""
        return ()

    def _idle(self, names: Iterable[str], reason: str) -> tuple[str, ...]:
        """A line for each of these fields that differs from its default."""
        named = (name for name in names if getattr(self, name) != type(self).model_fields[name].default)
        return tuple(f"model.{name}: has no effect {reason}; remove it" for name in named)

    @property
    def masked_lm_options(self) -> dict[str, Any] | None:
        """Options of the masked-LM head of this backbone (`jaxpt.models.heads.masked_lm`), or None."""
        return {"width": self.embed_dim, "activation": "gelu", "epsilon": 1e-12}

    def task_head(self, name: HeadName) -> TaskHead:
        """How the backbone is fine-tuned (`jaxpt.models.heads.classes`), as its class in transformers does it.

        By default as BERT (encoders), GPT-2 (decoders) and BART (encoder-decoders).

        Args:
          name: of the head.
        """
        is_text, stack = name in ("classes", "choice"), "encoder" if self.family == "encoder" else "decoder"
        if not is_text:
            return TaskHead(stack, "each", drops_out=name == "tags")
        if self.family == "decoder":
            return TaskHead("decoder", "last", drops_out=False, use_bias=False)
        if self.family == "encoder_decoder":
            return TaskHead("decoder", "eos", PoolerOptions(drops_out=True))
        return TaskHead("encoder", "first", self.pooler(name))

    def pooler(self, name: HeadName) -> PoolerOptions:
        """An encoder's layer before the logits of whole texts: of the head "classes", or of "choice"."""
        return PoolerOptions()


class ObjectiveConfig(Frozen):
    """What every objective's hyperparameters share; `jaxpt.objectives.base.Objective` adds its functions."""

    kind: str
    """Module of `jaxpt.objectives`, or a dotted path to one's own."""
    z_loss: Annotated[float, Field(ge=0)] = 0.0
    """Coefficient of log(Z)^2, added to every token's cross-entropy (T5X: 1e-4)."""
    loss_chunk: NonNegativeInt = execution(0)
    """Target positions in a chunk of logits; 0 chooses a chunk of 1,024 tokens a device, of small vocabularies more."""


class TaskConfig(Frozen):
    """What every task of fine-tuning shares; `jaxpt.data.tasks.base.Task` adds its functions."""

    kind: str
    """Module of `jaxpt.data.tasks`, or a dotted path to one's own."""
    objective: ClassVar[str]
    """Objective of a recipe that names none: the head for this kind of task."""
    default_metrics: ClassVar[tuple[str, ...]]
    """Metrics of a recipe that names none."""
    default_evals: ClassVar[tuple[dict[str, Any], ...]] = ({"kind": "heldout"}, {"kind": "task"})
    """Evaluators of a recipe that names none."""

    @classmethod
    def metrics_of(cls, name: Any) -> tuple[str, ...]:
        """Metrics of a recipe that names none, where the task's name is this."""
        return cls.default_metrics


class EvaluatorConfig(Frozen):
    """What every evaluator's settings share; `jaxpt.train.evaluators.Evaluator` adds its function."""

    kind: str
    """Module of `jaxpt.evals`, or a dotted path to one's own."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = execution(None)
    """Prefix of its metrics; the last part of `kind` by default."""
    every: PositiveInt | Literal["end"] | None = execution(None)
    """Steps between evaluations, `train.eval_every` by default; it runs after the last step, too. `end`: then alone."""

    @property
    def called(self) -> str:
        """Its name, or the last part of its kind."""
        return self.name or self.kind.rpartition(".")[2]


AnyModel = Annotated[SerializeAsAny[ModelConfig], Kind("model", "jaxpt.models", ModelConfig)]
AnyObjective = Annotated[SerializeAsAny[ObjectiveConfig], Kind("objective", "jaxpt.objectives", ObjectiveConfig)]
"""An objective of whichever kind its `kind` names."""

AnyTask = Annotated[SerializeAsAny[TaskConfig], Kind("task", "jaxpt.data.tasks", TaskConfig)]
"""A task of whichever kind its `kind` names."""

AnyEvaluator = Annotated[SerializeAsAny[EvaluatorConfig], Kind("evals", EVALUATORS, EvaluatorConfig)]
"""An evaluator of whichever kind its `kind` names."""


class ScheduleConfig(Frozen):
    """What every schedule of the learning rate shares. Its kinds are the classes of `jaxpt.train.schedules`."""

    kind: str
    """One of `jaxpt.train.schedules`, or the dotted path of a module of one's own."""
    warmup_steps: NonNegativeInt = 0
    """Steps of a linear ramp from 0 to the peak."""
    warmup_limit: PositiveInt | None = extensible(None)
    """A longer warm-up takes a tenth of so many steps; by default of `train.steps`. A run that is extended, or begins
    with another's whole state, sets it, and keeps the warm-up that the state began with."""

    has_ramp: ClassVar[bool] = True
    """Whether the learning rate rises during `warmup_steps`, which then have to fit into the run."""

    def within(self, total_steps: int) -> Self:
        """The schedule as a run of so many steps takes it: a warm-up longer than the run becomes a tenth of it.

        Example:
          >>> from jaxpt.train.schedules import Linear
          >>> Linear(warmup_steps=100).within(20).warmup_steps
          2
          >>> Linear(warmup_steps=100, warmup_limit=20).within(200).warmup_steps
          2
        """
        limit = min(self.warmup_limit or total_steps, total_steps)
        if not self.has_ramp or self.warmup_steps <= limit:
            return self
        return self.model_copy(update={"warmup_steps": max(limit // 10, 1)})

    def peak(self, learning_rate: float, total_steps: int) -> float:
        """The highest rate that `build` reaches in a run of so many steps; the learning rate by default."""
        return learning_rate

    def build(self, learning_rate: float, total_steps: int) -> Schedule:
        """The learning rate as a function of the step.

        Args:
          learning_rate: the peak (for `t5` a factor).
          total_steps: updates in the whole run.

        Returns:
          A function from the step (an int or an int32 array, from 0) to the learning rate.

        Raises:
          UserError: a setting that does not fit into the run.
        """
        raise _without_build(self, ScheduleConfig)


AnySchedule = Annotated[
    SerializeAsAny[ScheduleConfig],
    Kind("optimizer.schedule", "jaxpt.train.schedules", ScheduleConfig, default="constant"),
]


def _factors(value: Any) -> Any:
    """A mapping of patterns to numbers as hashable pairs."""
    if isinstance(value, dict):
        return tuple(value.items())
    if isinstance(value, list) and value:
        raise ValueError("wants a mapping of patterns to factors, such as {'*/bias': 0.5}")
    return value


Multipliers = Annotated[
    tuple[tuple[str, Annotated[float, Field(ge=0)]], ...],
    BeforeValidator(_factors),
    PlainSerializer(dict),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "minimum": 0}}),
]
"""{pattern of paths: factor}."""


class OptimizerConfig(Frozen):
    """What every optimizer shares. Its kinds are the classes of `jaxpt.train.optimizers`.

    In their formulas g is the gradient, p the parameter, η the learning rate and λ the weight decay;
    m and v are moving averages of g and g², and a hat is the correction of their bias to zero.
    """

    kind: str
    """One of `jaxpt.train.optimizers`, or the dotted path of a module of one's own."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate. For schedule `t5` and Adafactor with `scale_by_parameter` it is a factor (T5: 1.0)."""
    schedule: AnySchedule = Field({"kind": "constant"}, validate_default=True)
    """How the learning rate changes over the steps."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay on matrices."""
    decay_all: bool = False
    """Decay biases and norms too, as fairseq's Adam does (RoBERTa, BART, SpanBERT)."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Clip gradients to this global norm, before the optimizer sees them."""
    clip_separately: tuple[str, ...] = ()
    """Patterns, as in `train.trainable` without ranges of layers: the parameters of each are clipped by a norm of their
    own, and those of none together. ['heads/generator']: each network of replaced-token detection (DeBERTa-v3)."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Keep an exponential moving average of the trained parameters; evaluation uses it."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = None
    """Learning rate times layer_decay^(layers above in the stack); the embeddings, below all layers, have the lowest
    rate, final norms the top layer's, heads the full one."""
    layer_decay_offset: NonNegativeInt = 0
    """Layers that `layer_decay` counts between a stack and the heads: 0, the top layer has the full rate (XLNet), 1
    (ULMFiT: with layer_decay 1/2.6), 2 (ELECTRA's released code)."""
    router_bias_rate: Annotated[float, Field(ge=0)] = 1e-3
    """What a step adds to, or takes from, the biases of `model.router_bias`, whatever the optimizer and schedule."""
    rate_multipliers: Multipliers = ()
    """{pattern: factor} of the learning rate, of paths as in `train.trainable`; several that match multiply."""
    decay_multipliers: Multipliers = ()
    """{pattern: factor} of `weight_decay`, likewise; 0 switches it off."""

    def check(self, logical_axes: Any) -> None:
        """Raises UserError for settings that do not fit what some stage trains, whose logical axes these are."""

    def rate_factor(self, axes: tuple[str | None, ...]) -> float:
        """What `build` multiplies the schedule with for a parameter of these logical axes; 1 by default."""
        return 1.0

    def build(self, schedule: Schedule, logical_axes: Any) -> GradientTransformation:
        """The update rule, weight decay and learning rate included, clipping left out.

        Args:
          schedule: from the step to the learning rate.
          logical_axes: a tree like the parameters, a tuple of names for each; "layers" and "expert" come first.

        Returns:
          An optax transformation of gradients to what is added to the parameters.
        """
        raise _without_build(self, OptimizerConfig)


AnyOptimizer = Annotated[
    SerializeAsAny[OptimizerConfig], Kind("optimizer", "jaxpt.train.optimizers", OptimizerConfig, default="adamw")
]
