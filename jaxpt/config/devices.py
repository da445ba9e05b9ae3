"""The parts of a recipe that say on which devices it runs, and what of a run lies where."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, model_validator

from jaxpt.config.fields import Frozen, NonNegativeInt, PositiveInt, execution


def _axis(size: int) -> int:
    if size != -1 and size < 1:
        raise ValueError(f"wants a number of devices above 0, or -1 for what is left, got {size}")
    return size


Axis = Annotated[int, AfterValidator(_axis)]


MeshAxis = Literal["data", "stage", "fsdp", "sequence", "tensor"]
AXES: tuple[MeshAxis, ...] = get_args(MeshAxis)
"""From the one whose devices may be far from each other to the one whose devices are neighbours."""
MeshAxes = tuple[MeshAxis, ...] | None


class RulesConfig(Frozen):
    """Mesh axes over which a logical axis is cut, outermost first; [] keeps it whole.

    What is left out goes by `mesh.preset`. Rows of a batch lie over data and fsdp whatever the table says.
    """

    vocab: MeshAxes = execution(None)
    """Rows of the embedding tables."""
    embed: MeshAxes = execution(None)
    """The model's width, in kernels and tables."""
    heads: MeshAxes = execution(None)
    """Heads times their width, in the kernels of attention."""
    mlp: MeshAxes = execution(None)
    """Width inside the feed-forward blocks."""
    layers: MeshAxes = execution(None)
    """The layers of a scanned stack."""
    expert: MeshAxes = execution(None)
    """Experts of a mixture, the axis before their own [in, out]."""
    positions: MeshAxes = execution(None)
    """Rows of a position table."""
    norm: MeshAxes = execution(None)
    """Vectors of the model's width, such as norms and biases."""
    length: MeshAxes = execution(None)
    """Activations inside of attention and feed-forward: positions."""
    residual_length: MeshAxes = execution(None)
    """Activations between blocks: positions."""
    act_embed: MeshAxes = execution(None)
    """Activations between blocks: the model's width."""
    act_heads: MeshAxes = execution(None)
    """Activations: heads."""
    act_mlp: MeshAxes = execution(None)
    """Activations: width inside the feed-forward blocks."""
    act_vocab: MeshAxes = execution(None)
    """Logits: the vocabulary."""


class MeshConfig(Frozen):
    """Sizes of the device mesh's axes; -1, on one of them, takes what is left."""

    data: Axis = execution(-1)
    """Copies of the model, each with its part of the batch."""
    stage: Axis = execution(1)
    """Parts that the layers are cut into, each with its own devices: they work on different microbatches of
    `train.accumulation` at the same time. For slow networks: only what lies between two layers goes over them."""
    fsdp: Axis = execution(1)
    """Parts that parameters, optimizer state and batch are cut into."""
    sequence: Axis = execution(1)
    """Parts that the length is cut into, for long texts: queries stay where they are, keys and values are gathered. Of
    two lengths (encoder, decoder) one that it does not divide stays whole."""
    tensor: Axis = execution(1)
    """Parts that heads, feed-forward widths and the vocabulary are cut into."""
    preset: Literal["default", "replicated", "megatron"] = execution("default")
    """Table from logical to mesh axes: `default`; `replicated`, parameters whole on all devices; `megatron`, what lies
    between blocks is cut along the length over `tensor` as well."""
    rules: RulesConfig = RulesConfig()
    """Changes to that table, such as {embed: [fsdp, data]}."""

    @model_validator(mode="after")
    def _one_free_axis(self) -> Self:
        if [getattr(self, axis) for axis in AXES].count(-1) > 1:
            raise ValueError("-1 (what is left) may stand on one axis only")
        return self


class PlanConfig(Frozen):
    """The slice that a recipe's mesh, rematerialisation and accumulation are made for."""

    topology: str | None = execution(None)
    """What `jaxpt plan` compiles for without `--topology`, such as v5e:4x4; null: this machine's devices. A run takes
    the devices that it finds."""
    slices: PositiveInt = execution(1)
    """Number of such slices."""


class DistributedConfig(Frozen):
    """How the processes of a run find each other; none of it is saved with the run.

    Without it Slurm's `srun` and the metadata of TPUs are asked.
    """

    coordinator: str | None = execution(None)
    """Address of process 0, `host:port`, for all others to find; else from `JAXPT_COORDINATOR`. It, `processes`
    and `process` are given together, or none of them."""
    processes: PositiveInt | None = execution(None)
    """How many there are; else from `JAXPT_PROCESSES`. 1: this one alone, whatever the environment says."""
    process: NonNegativeInt | None = execution(None)
    """Which of them this is, from 0; else from `JAXPT_PROCESS`."""
    timeout: PositiveInt = execution(300)
    """Seconds to wait for the others at the start."""
