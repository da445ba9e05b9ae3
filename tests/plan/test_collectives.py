import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpt.plan import collectives, hlo

LAYERS, D, B = 6, 64, 16
MESH = {"data": 2, "fsdp": 2, "tensor": 2}


@pytest.fixture(scope="module")
def found():
    """Of the gradient of six layers whose weights are gathered over fsdp, on a mesh of (2, 2, 2)."""
    mesh = jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=(AxisType.Auto,) * 3)

    def place(*spec):
        return NamedSharding(mesh, PartitionSpec(*spec))

    def loss(w, x):
        def layer(x, w):
            return jnp.tanh(x @ jax.lax.with_sharding_constraint(w, place())), None

        return jax.lax.scan(layer, x, w)[0].sum()

    w = jax.ShapeDtypeStruct((LAYERS, D, D), jnp.float32, sharding=place(None, "fsdp"))
    x = jax.ShapeDtypeStruct((B, D), jnp.float32, sharding=place(("data", "fsdp")))
    with jax.set_mesh(mesh):
        compiled = jax.jit(jax.grad(loss), out_shardings=w.sharding).lower(w, x).compile()
    return {c.kind: c for c in collectives.find(hlo.Program(compiled.as_text()), MESH)}


def test_weights_are_gathered_once_for_each_layer(found):
    gather = found["all-gather"]
    assert gather.axes == ("fsdp",) and gather.count == LAYERS
    assert gather.bytes == LAYERS * D * D * 4
    assert gather.sent == gather.bytes // 2  # each of two devices has half, and sends it


def test_gradients_are_summed_over_the_batch(found):
    reduce = found["all-reduce"]
    assert reduce.axes == ("data", "fsdp") and reduce.count == LAYERS
    assert reduce.bytes == LAYERS * D * D * 4 and reduce.sent == 2 * reduce.bytes * 3 // 4


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ("tensor",)),
        ("{{0,2},{1,3},{4,6},{5,7}}", ("fsdp",)),
        ("[4,2]<=[2,4]T(1,0)", ("data",)),
        ("[2,4]<=[8]", ("fsdp", "tensor")),
        ("{}", ("data", "fsdp", "tensor")),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_1'}", ("tensor",)),
        ("mesh['axis_0'=2,'axis_1'=2,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_2'}", ("data",)),
        ("mesh['axis_0'=8] {'axis_0':(2)2}", ("fsdp",)),
    ],
)
def test_replica_groups_in_all_forms_are_axes_of_the_mesh(groups, axes):
    text = f"""HloModule jit_step, is_scheduled=true

ENTRY %main (param.1: f32[64]) -> f32[64] {{
  %param.1 = f32[64]{{0}} parameter(0)
  ROOT %all-reduce.1 = f32[64]{{0}} all-reduce(%param.1), channel_id=3, replica_groups={groups}, to_apply=%add
}}
"""
    (one,) = collectives.find(hlo.Program(text), MESH)
    assert one.axes == axes


def test_what_tokens_cost_is_told_from_what_weights_do():
    text = """HloModule jit_step, is_scheduled=true

ENTRY %main (param.1: f32[64]) -> f32[256] {
  %param.1 = f32[64]{0} parameter(0)
  %all-gather.1 = f32[256]{0} all-gather(%param.1), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, metadata={op_name="jit(step)/feed_forward/shard_map/dispatch/all_gather"}
  ROOT %all-gather.2 = f32[256]{0} all-gather(%param.1), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}, metadata={op_name="jit(step)/feed_forward/shard_map/all_gather"}
}
"""  # noqa: E501
    found = collectives.find(hlo.Program(text), {"expert": 4})
    assert [(one.has_tokens, one.count, one.sent) for one in found] == [(True, 1, 768), (False, 1, 768)]


# As libtpu writes them: an all-gather in pieces that overlap with computing, a reduce-scatter as a fusion.
TPU = """HloModule jit_step, is_scheduled=true

%fused.1 (param_0: bf16[128,64]) -> (bf16[128,64], bf16[256,64]) {
  %param_0 = bf16[128,64]{1,0} parameter(0)
  %all-gather.1 = bf16[256,64]{1,0} all-gather(%param_0), channel_id=5, replica_groups=mesh['axis_0'=2] {'axis_0'}, dimensions={0}
  ROOT %custom-call.1 = (bf16[128,64]{1,0}, bf16[256,64]{1,0}) custom-call(%all-gather.1), custom_call_target="AsyncStart"
}

%fused.2 (param_1: bf16[128,64]) -> bf16[256,64] {
  %param_1 = bf16[128,64]{1,0} parameter(0)
  ROOT %all-gather.2 = bf16[256,64]{1,0} all-gather(%param_1), channel_id=5, replica_groups=mesh['axis_0'=2] {'axis_0'}, dimensions={0}
}

%all-reduce-scatter.1 (param_2: f32[256,64]) -> f32[128,64] {
  %param_2 = f32[256,64]{1,0} parameter(0)
  %all-reduce.1 = f32[256,64]{1,0} all-reduce(%param_2), channel_id=6, replica_groups={{0,1}}, to_apply=%add
  %constant.1 = s32[] constant(0)
  ROOT %dynamic-slice.1 = f32[128,64]{1,0} dynamic-slice(%all-reduce.1, %constant.1, %constant.1), dynamic_slice_sizes={128,64}
}

ENTRY %main (param.1: bf16[128,64], param.2: f32[256,64]) -> f32[128,64] {
  %param.1 = bf16[128,64]{1,0} parameter(0)
  %param.2 = f32[256,64]{1,0} parameter(1)
  %async-collective-start = (bf16[128,64]{1,0}, bf16[256,64]{1,0}) fusion(%param.1), kind=kCustom, calls=%fused.1
  %async-collective-done = bf16[256,64]{1,0} fusion(%param.1), kind=kCustom, calls=%fused.2
  %collective-permute-start.1 = (bf16[128,64]{1,0}, bf16[128,64]{1,0}, u32[], u32[]) collective-permute-start(%param.1), channel_id=7, source_target_pairs={{0,1},{1,0}}
  %collective-permute-done.1 = bf16[128,64]{1,0} collective-permute-done(%collective-permute-start.1)
  ROOT %fusion.1 = f32[128,64]{1,0} fusion(%param.2), kind=kCustom, calls=%all-reduce-scatter.1
}
"""  # noqa: E501


def test_collectives_inside_of_a_tpus_fusions():
    found = {c.kind: c for c in collectives.find(hlo.Program(TPU), {"data": 1, "fsdp": 2, "tensor": 1})}
    assert {kind: (c.count, c.bytes, c.sent) for kind, c in found.items()} == {
        "all-gather": (1, 256 * 64 * 2, 128 * 64 * 2),
        "reduce-scatter": (1, 256 * 64 * 4, 128 * 64 * 4),
        "collective-permute": (1, 128 * 64 * 2, 128 * 64 * 2),
    }
    assert all(c.axes == ("fsdp",) for c in found.values())


def test_collectives_of_a_shard_map_share_a_channel_and_count_each():
    line = "  %reduce_scatter.{} = f32[128,64] reduce-scatter(%param.2), channel_id=1, replica_groups={{{{0,1}}}}\n"
    text = TPU.replace("  ROOT %fusion.1", line.format(1) + line.format(2) + "  ROOT %fusion.1")
    found = next(c for c in collectives.find(hlo.Program(text), {"fsdp": 2}) if c.kind == "reduce-scatter")
    assert (found.count, found.sent) == (3, 3 * 128 * 64 * 4)


def test_what_overlaps_with_a_loop_runs_as_often_as_it_is_started():
    body = """%body (carried: bf16[256,64]) -> bf16[256,64] {
  %carried = bf16[256,64]{1,0} parameter(0)
  ROOT %inside = bf16[256,64]{1,0} fusion(%carried), kind=kCustom, calls=%fused.2
}

"""
    loop = "call(%param.1), to_apply=%body"
    text = TPU.replace("ENTRY", body + "ENTRY").replace("fusion(%param.1), kind=kCustom, calls=%fused.2", loop)
    gather = next(c for c in collectives.find(hlo.Program(text), {"fsdp": 2}) if c.kind == "all-gather")
    assert (gather.count, gather.sent) == (1, 128 * 64 * 2)


def test_an_all_gather_that_fusions_of_a_loop_hand_on_is_written_once():
    """A product in the loop overlaps with it: each turn reads and writes its own arrays alone."""
    text = """HloModule jit_step, is_scheduled=true

%start (param_0: bf16[128,64]) -> (bf16[128,64], bf16[256,64]) {
  %param_0 = bf16[128,64]{1,0} parameter(0)
  %all-gather.1 = bf16[256,64]{1,0} all-gather(%param_0), channel_id=5, replica_groups={{0,1}}, dimensions={0}
  ROOT %custom-call.1 = (bf16[128,64]{1,0}, bf16[256,64]{1,0}) custom-call(%all-gather.1), custom_call_target="AsyncCollectiveStart"
}

%between (param_1: bf16[128,64], param_2: bf16[256,64], param_3: f32[8,128]) -> (f32[8,128], bf16[128,64], bf16[256,64]) {
  %param_1 = bf16[128,64]{1,0} parameter(0)
  %param_2 = bf16[256,64]{1,0} parameter(1)
  %param_3 = f32[8,128]{1,0} parameter(2)
  %all-gather.2 = bf16[256,64]{1,0} all-gather(%param_1), channel_id=5, replica_groups={{0,1}}, dimensions={0}
  %add.1 = f32[8,128]{1,0} add(%param_3, %param_3)
  ROOT %tuple.1 = (f32[8,128]{1,0}, bf16[128,64]{1,0}, bf16[256,64]{1,0}) tuple(%add.1, %param_1, %param_2)
}

%end (param_4: bf16[128,64], param_5: bf16[256,64]) -> bf16[256,64] {
  %param_4 = bf16[128,64]{1,0} parameter(0)
  %param_5 = bf16[256,64]{1,0} parameter(1)
  %all-gather.3 = bf16[256,64]{1,0} all-gather(%param_4), channel_id=5, replica_groups={{0,1}}, dimensions={0}
  ROOT %custom-call.2 = bf16[256,64]{1,0} custom-call(%param_4, %param_5, %all-gather.3), custom_call_target="AsyncCollectiveDone"
}

%condition (carried.1: (s32[], bf16[128,64])) -> pred[] {
  %carried.1 = (s32[], bf16[128,64]{1,0}) parameter(0)
  ROOT %lt = pred[] constant(true)
}

%body (carried.2: (s32[], bf16[128,64])) -> (s32[], bf16[128,64]) {
  %carried.2 = (s32[], bf16[128,64]{1,0}, bf16[256,64]{1,0}, f32[8,128]{1,0}) parameter(0)
  %shard = bf16[128,64]{1,0} get-tuple-element(%carried.2), index=1
  %whole = bf16[256,64]{1,0} get-tuple-element(%carried.2), index=2
  %sum = f32[8,128]{1,0} get-tuple-element(%carried.2), index=3
  ROOT %fusion.2 = (f32[8,128]{1,0}, bf16[128,64]{1,0}, bf16[256,64]{1,0}) fusion(%shard, %whole, %sum), kind=kOutput, calls=%between
}

ENTRY %main (param.1: bf16[128,64]) -> bf16[256,64] {
  %param.1 = bf16[128,64]{1,0} parameter(0)
  %fusion.1 = (bf16[128,64]{1,0}, bf16[256,64]{1,0}) fusion(%param.1), kind=kCustom, calls=%start
  %while.1 = (s32[], bf16[128,64]{1,0}) while(%fusion.1), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  %shard.1 = bf16[128,64]{1,0} get-tuple-element(%while.1), index=1
  %whole.1 = bf16[256,64]{1,0} get-tuple-element(%while.1), index=2
  ROOT %fusion.3 = bf16[256,64]{1,0} fusion(%shard.1, %whole.1), kind=kCustom, calls=%end
}
"""  # noqa: E501
    shard, whole, turn = 128 * 64 * 2, 256 * 64 * 2, 2 * 8 * 128 * 4
    assert hlo.Program(text).traffic() == shard + whole + 12 * turn


# As libtpu writes a sum over slices: each device hands its part to the host.
SLICES = """HloModule jit_step, is_scheduled=true

ENTRY %main (param.1: bf16[64,8,128]) -> bf16[64,8,128] {
  %param.1 = bf16[64,8,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %after-all.1 = token[] after-all()
  %send.1 = (bf16[64,8,128]{2,1,0}, u32[]{:S(2)}, token[]) send(%param.1, %after-all.1), channel_id=6, is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.106_0",_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1:4}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %send-done.1 = token[] send-done(%send.1), channel_id=6, is_host_transfer=true
  %recv.1 = (bf16[64,8,128]{2,1,0}, u32[]{:S(2)}, token[]) recv(%send-done.1), channel_id=7, is_host_transfer=true, frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
  ROOT %recv-done.1 = (bf16[64,8,128]{2,1,0}, token[]) recv-done(%recv.1), channel_id=7, is_host_transfer=true
}
"""  # noqa: E501


def test_sums_over_slices_go_over_the_data_centres_network():
    (one,) = collectives.find(hlo.Program(SLICES), {"data": 4, "fsdp": 4}, {"data": 4, "fsdp": 1})
    part = 64 * 8 * 128 * 2
    assert (one.kind, one.axes, one.network) == ("all-reduce", ("data",), "DCN")
    assert (one.count, one.bytes, one.sent) == (1, part, 2 * part * 3 // 4)


@pytest.mark.parametrize(
    ("target", "kind", "axes", "share"),
    [
        ("{{100000,300000},{100001,300001},{200000,400000},{200001,400001}}", "ALL_REDUCE", ("data",), 1),
        ("{{100000,200000},{300000,400000}}", "ALL_REDUCE", ("pipeline",), 1),
        ("{{100000->200000},{300000->400000}}", "ONE_TO_ONE", ("pipeline",), 1),
        ("{{100000,200000,300000,400000}}", "ALL_REDUCE", ("data", "pipeline"), 2 * 3 / 4),
    ],
)
def test_what_some_slices_exchange_is_told_by_their_devices(target, kind, axes, share):
    """4 slices, of which every two hold the two stages of a copy."""
    text = SLICES.replace('"{1:4}x{0:3}"', target).replace("ALL_REDUCE", kind)
    mesh, between = {"data": 2, "pipeline": 2, "fsdp": 2}, {"data": 2, "pipeline": 2, "fsdp": 1}
    (one,) = collectives.find(hlo.Program(text), mesh, between)
    kind = "collective-permute" if kind == "ONE_TO_ONE" else "all-reduce"
    assert (one.kind, one.axes, one.network) == (kind, axes, "DCN")
    assert one.sent == 64 * 8 * 128 * 2 * share


# As libtpu writes what a tpu7x leaves to its SparseCore: the operands come after the start.
SPARSE = """HloModule jit_step, is_scheduled=true

%called_computation.1 (param_0: f32[512,64]) -> f32[512,64] {
  %param_0 = f32[512,64]{1,0:T(8,128)} parameter(0)
  ROOT %all-reduce.1 = f32[512,64]{1,0:T(8,128)} all-reduce(%param_0), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
}

%async_computation.1 (param_1: f32[512,64]) -> f32[512,64] {
  %param_1 = f32[512,64]{1,0:T(8,128)} parameter(0)
  ROOT %custom-call.1 = f32[512,64]{1,0:T(8,128)} custom-call(%param_1), called_computations={%called_computation.1}
}

ENTRY %main (param.1: f32[512,64]) -> f32[512,64] {
  %param.1 = f32[512,64]{1,0:T(8,128)} parameter(0)
  %start.1 = ((), (), (s32[5]{0:S(10)})) async-start(), async_execution_thread="sparsecore", calls=%async_computation.1
  %update.1 = ((f32[512,64]{1,0}), f32[512,64]{1,0}, (s32[5]{0})) async-update(%start.1, %param.1)
  ROOT %done.1 = f32[512,64]{1,0:T(8,128)} async-done(%update.1)
}
"""  # noqa: E501


def test_collectives_of_a_sparse_core():
    (one,) = collectives.find(hlo.Program(SPARSE), {"data": 4})
    assert (one.kind, one.axes, one.count, one.bytes) == ("all-reduce", ("data",), 1, 512 * 64 * 4)


@pytest.mark.parametrize(
    ("mesh", "machine", "network", "sent"),
    [
        ({"data": 4}, None, "ICI", 1.5),  # TPUs: 3/4 of the array twice
        ({"data": 4}, 4, "ICI", 1.5),
        ({"data": 4}, 2, "DCN", 0.75),  # two GPUs of each machine share what enters and leaves it
        ({"data": 4}, 1, "DCN", 1.5),
    ],
)
def test_machines_with_gpus_share_what_a_ring_sends_between_them(mesh, machine, network, sent):
    (one,) = collectives.find(hlo.Program(SPARSE), mesh, None, machine)
    assert (one.network, one.sent) == (network, sent * 512 * 64 * 4)


@pytest.mark.parametrize("kind", ["all-to-all", "ragged-all-to-all"])
@pytest.mark.parametrize(
    ("machine", "network", "share"), [(None, "ICI", 3 / 4), (4, "ICI", 3 / 4), (2, "DCN", 2 / 4), (1, "DCN", 3 / 4)]
)
def test_in_an_all_to_all_each_gpu_sends_its_own_parts_to_other_machines(kind, machine, network, share):
    """No ring: a GPU's network card carries what the others do not have to."""
    # A ragged one has its destination, and the places in it, beside what is sent.
    operands = "%param_0, %param_0" if kind.startswith("ragged") else "%param_0"
    text = SPARSE.replace(" all-reduce(%param_0", f" {kind}({operands}")
    (one,) = collectives.find(hlo.Program(text), {"data": 4}, None, machine)
    assert (one.kind, one.network, one.sent) == (kind, network, share * 512 * 64 * 4)


def test_devices_alone_exchange_nothing():
    assert collectives.find(hlo.Program(TPU.replace("{{0,1}}", "{{0},{1}}")), {"data": 2})[-1].kind != "reduce-scatter"
