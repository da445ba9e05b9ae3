"""The parts of a recipe that say on which devices it runs, and what of a run lies where."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, model_validator

from jaxpt.config.fields import Frozen, NonNegativeInt, PositiveInt, execution


def _axis(size: int) -> int:
    if size != -1 and size < 1:
        raise ValueError(f"wants a number of devices above 0, or -1 for the remaining ones, got {size}")
    return size


Axis = Annotated[int, AfterValidator(_axis)]


MeshAxis = Literal["data", "pipeline", "fsdp", "expert", "context", "tensor"]
AXES: tuple[MeshAxis, ...] = get_args(MeshAxis)
"""From the axis with the slowest links between devices to the axis with the fastest."""
MeshAxes = tuple[MeshAxis, ...] | None


class RulesConfig(Frozen):
    """Mesh axes over which a logical axis is sharded, outermost first; [] replicates it.

    What is left out follows `mesh.preset`. Rows of a batch are always sharded over data, fsdp and expert.
    """

    vocab: MeshAxes = execution(None)
    """Rows of the embedding tables."""
    embed: MeshAxes = execution(None)
    """The model's width, in kernels and tables."""
    expert_embed: MeshAxes = execution(None)
    """Width of experts' kernels."""
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
    """Sizes of the device mesh's axes; -1, on one of them, takes the remaining devices."""

    data: Axis = execution(-1)
    """Data parallelism: replicas of the model, each with its part of the batch."""
    pipeline: Axis = execution(1)
    """Pipeline parallelism: stages of layers, which work on different microbatches of `train.grad_accum_steps` at the
    same time. For slow networks: only the activations between two stages are sent."""
    fsdp: Axis = execution(1)
    """Fully sharded data parallelism: shards of parameters, optimizer state and batch."""
    expert: Axis = execution(1)
    """Expert parallelism: shards of the experts of a mixture, of other parameters, and of the batch. Tokens are
    gathered along it, so no routing is too uneven. It divides the number of experts."""
    context: Axis = execution(1)
    """Context parallelism: shards of the length, for long texts. Queries stay on their device, keys and values are
    gathered. Of two lengths (encoder, decoder) one that it does not divide is replicated."""
    tensor: Axis = execution(1)
    """Tensor parallelism: shards of heads, feed-forward widths and the vocabulary."""
    preset: Literal["default", "replicated", "megatron"] = execution("default")
    """Table from logical to mesh axes: `default`; `replicated`: parameters are replicated; `megatron`: activations
    between blocks are sharded along the length over `tensor` as well."""
    rules: RulesConfig = RulesConfig()
    """Changes to that table, such as {embed: [fsdp, data]}."""

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis, in the order of `AXES`."""
        return {axis: getattr(self, axis) for axis in AXES}

    @model_validator(mode="after")
    def _one_free_axis(self) -> Self:
        if [*self.sizes.values()].count(-1) > 1:
            raise ValueError("-1 (the remaining devices) may stand on one axis only")
        return self


class PlanConfig(Frozen):
    """The slice that a recipe's mesh, rematerialisation and gradient accumulation are made for."""

    topology: str | None = execution(None)
    """What `jaxpt plan` compiles for without `--topology`, such as v5e:4x4, h100:8 or v5p-128; null: this machine's
    devices. A run takes the devices that it finds."""
    slices: PositiveInt = execution(1)
    """Number of such slices."""


class DistributedConfig(Frozen):
    """How the processes of a run find each other; none of it is saved with the run.

    Without it Slurm's `srun`, Open MPI and the metadata of TPUs say it.
    """

    coordinator: str | None = execution(None)
    """Address of process 0, `host:port`, for all others to find; else from `JAXPT_COORDINATOR`. It, `processes`
    and `process` are given together, or none of them."""
    processes: PositiveInt | None = execution(None)
    """Number of processes; else from `JAXPT_PROCESSES`. 1: this process runs alone, whatever the environment says."""
    process: NonNegativeInt | None = execution(None)
    """Index of this process, from 0; else from `JAXPT_PROCESS`."""
    timeout: PositiveInt = execution(300)
    """Seconds to wait for the others at the start."""
    min_processes: PositiveInt | None = execution(None)
    """Where some do not come in `timeout` seconds, those that did go on if they are at least so many: the most that
    divide `processes`. null: all have to come."""
    heartbeat_timeout: PositiveInt = execution(60)
    """Seconds without a sign of life in a step, after which a process counts as gone and the run ends: it was killed or
    stopped (SIGSTOP), or its machine sleeps."""
