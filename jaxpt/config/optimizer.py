"""Settings of the optimizer and of its learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, SerializeAsAny, WithJsonSchema

from jaxpt.config.fields import Frozen, NonNegativeInt
from jaxpt.config.kinds import Kind

if TYPE_CHECKING:
    from optax import GradientTransformation, Schedule


class ScheduleConfig(Frozen):
    """What every schedule of the learning rate shares. Subclassed once in each module of `jaxpt.train.schedules`."""

    kind: str
    """Module of `jaxpt.train.schedules`, or a dotted path to one's own."""
    warmup_steps: NonNegativeInt = 0
    """Steps of a linear ramp from 0 to the peak."""

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
        raise NotImplementedError


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
    """What every optimizer shares. Subclassed once in each module of `jaxpt.train.optimizers`.

    In their formulas g is the gradient, p the parameter, η the learning rate and λ the weight decay;
    m and v are moving averages of g and g², and a hat is the correction of their bias to zero.
    """

    kind: str
    """Module of `jaxpt.train.optimizers`, or a dotted path to one's own."""
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
    rate, final norms and heads the full one."""
    layer_decay_offset: NonNegativeInt = 0
    """Layers that `layer_decay` counts between a stack and the heads: 0, the top layer has the full rate (XLNet), 1
    (ULMFiT: with layer_decay 1/2.6), 2 (ELECTRA's released code)."""
    rate_multipliers: Multipliers = ()
    """{pattern: factor} of the learning rate, of paths as in `train.trainable`; several that match multiply."""
    decay_multipliers: Multipliers = ()
    """{pattern: factor} of `weight_decay`, likewise; 0 switches it off."""

    def check(self, logical_axes: Any) -> None:
        """Raises UserError for settings that do not fit the trained parameters, whose logical axes these are."""

    def build(self, schedule: Schedule, logical_axes: Any) -> GradientTransformation:
        """The update rule, weight decay and learning rate included, clipping left out.

        Args:
          schedule: from the step to the learning rate.
          logical_axes: a tree like the parameters, a tuple of names for each; "layers" and "expert" come first.

        Returns:
          An optax transformation of gradients to what is added to the parameters.
        """
        raise NotImplementedError


AnyOptimizer = Annotated[
    SerializeAsAny[OptimizerConfig], Kind("optimizer", "jaxpt.train.optimizers", OptimizerConfig, default="adamw")
]
