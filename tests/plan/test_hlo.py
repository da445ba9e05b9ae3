import jax
import jax.numpy as jnp
import pytest

from jaxpt.plan import hlo

# As libtpu writes it: no known_trip_count, operands without shapes, S(1) for VMEM.
LOOP = """HloModule jit_step, is_scheduled=true

%fused_slice (param_0: bf16[8,128,384], param_1: s32[]) -> bf16[1,128,384] {
  %param_0 = bf16[8,128,384]{2,1,0:T(8,128)(2,1)} parameter(0)
  %param_1 = s32[]{:T(128)} parameter(1)
  %fusion.3 = bf16[8,128,384]{2,1,0:T(16,128)(2,1)} fusion(%param_0), kind=kLoop, calls=%layout
  ROOT %dynamic-slice.1 = bf16[1,128,384]{2,1,0:T(8,128)(2,1)S(1)} dynamic-slice(%fusion.3, %param_1), dynamic_slice_sizes={1,128,384}
}

%layout (input: bf16[8,128,384]) -> bf16[8,128,384] {
  %input = bf16[8,128,384]{2,1,0:T(8,128)(2,1)} parameter(0)
  ROOT %copy.1 = bf16[8,128,384]{2,1,0:T(16,128)(2,1)} copy(%input)
}

%fused_update (param_2: f32[8,512], param_3: f32[1,512], param_4: s32[]) -> f32[8,512] {
  %param_2 = f32[8,512]{1,0:T(8,128)} parameter(0)
  %param_3 = f32[1,512]{1,0:T(1,128)} parameter(1)
  %param_4 = s32[]{:T(128)} parameter(2)
  ROOT %dynamic-update-slice.1 = f32[8,512]{1,0:T(8,128)} dynamic-update-slice(%param_2, %param_3, %param_4)
}

%condition (carried.1: (s32[], bf16[8,128,384], f32[8,512], f32[1,512])) -> pred[] {
  %constant.2 = s32[]{:T(128)} constant(8)
  %carried.1 = (s32[]{:T(128)}, bf16[8,128,384]{2,1,0:T(8,128)(2,1)}, f32[8,512]{1,0:T(8,128)}, /*index=3*/f32[1,512]{1,0}) parameter(0)
  %get-tuple-element.1 = s32[]{:T(128)} get-tuple-element(%carried.1), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%get-tuple-element.1, %constant.2), direction=LT
}

%body (carried.2: (s32[], bf16[8,128,384], f32[8,512], f32[1,512])) -> (s32[], bf16[8,128,384], f32[8,512], f32[1,512]) {
  %carried.2 = (s32[]{:T(128)}, bf16[8,128,384]{2,1,0:T(8,128)(2,1)}, f32[8,512]{1,0:T(8,128)}, /*index=3*/f32[1,512]{1,0}) parameter(0)
  %get-tuple-element.2 = s32[]{:T(128)} get-tuple-element(%carried.2), index=0
  %get-tuple-element.3 = bf16[8,128,384]{2,1,0:T(8,128)(2,1)} get-tuple-element(%carried.2), index=1
  %get-tuple-element.4 = f32[8,512]{1,0:T(8,128)} get-tuple-element(%carried.2), index=2
  %get-tuple-element.5 = f32[1,512]{1,0} get-tuple-element(%carried.2), index=3
  %fusion.1 = bf16[1,128,384]{2,1,0:T(8,128)(2,1)S(1)} fusion(%get-tuple-element.3, %get-tuple-element.2), kind=kLoop, calls=%fused_slice
  %fusion.2 = f32[8,512]{1,0:T(8,128)} fusion(%get-tuple-element.4, %get-tuple-element.5, %get-tuple-element.2), kind=kLoop, calls=%fused_update
  ROOT %tuple.2 = (s32[]{:T(128)}, bf16[8,128,384]{2,1,0:T(8,128)(2,1)}, f32[8,512]{1,0:T(8,128)}, /*index=3*/f32[1,512]{1,0}) tuple(%get-tuple-element.2, %get-tuple-element.3, %fusion.2, %get-tuple-element.5)
}

ENTRY %main.3_spmd (param.1: bf16[8,128,384], param.2: f32[8,512], param.3: f32[1,512]) -> (s32[], f32[8,512]) {
  %param.1 = bf16[8,128,384]{2,1,0:T(8,128)(2,1)} parameter(0)
  %param.2 = f32[8,512]{1,0:T(8,128)} parameter(1)
  %param.3 = f32[1,512]{1,0} parameter(2)
  %constant.1 = s32[]{:T(128)} constant(2)
  %tuple.1 = (s32[]{:T(128)}, bf16[8,128,384]{2,1,0:T(8,128)(2,1)}, f32[8,512]{1,0:T(8,128)}, /*index=3*/f32[1,512]{1,0}) tuple(%constant.1, %param.1, %param.2, %param.3)
  ROOT %while.1 = (s32[]{:T(128)}, bf16[8,128,384]{2,1,0:T(8,128)(2,1)}, f32[8,512]{1,0:T(8,128)}, /*index=3*/f32[1,512]{1,0}) while(%tuple.1), condition=%condition, body=%body, metadata={op_name="jit(step)/encoder/while" stack_frame_id=67}
}
"""  # noqa: E501


def test_a_loop_without_a_count_runs_from_its_start_to_its_bound():
    program = hlo.Program(LOOP)
    loop = program.computations[program.entry]["while.1"]
    assert program.trips(program.entry, loop) == 6
    assert loop.op_name == "jit(step)/encoder/while"


def test_a_loop_of_which_xla_unrolled_two_turns_into_one_runs_half_as_often():
    by_two = "%constant.9 = s32[] constant(2)\n  %add.9 = s32[] add(%get-tuple-element.2, %constant.9)\n  ROOT %tuple.2"
    text = LOOP.replace("ROOT %tuple.2", by_two).replace("tuple(%get-tuple-element.2,", "tuple(%add.9,")
    program = hlo.Program(text)
    assert program.trips(program.entry, program.computations[program.entry]["while.1"]) == 3


def test_slices_count_as_what_they_take_and_vmem_not_at_all():
    read = 128 * 384 * 2 + 4  # a layer's slice and its index; the result stays in VMEM
    written = 512 * 4 + 512 * 4 + 4
    assert hlo.Program(LOOP).traffic() == 6 * (read + written + 4 + 4 + 1)  # and the condition


# As libtpu writes what a tpu7x's SparseCore does: the operands come after the start.
SPARSE = """HloModule jit_step, is_scheduled=true

%async_computation (param_0: f32[512,64], param_1: s32[32]) -> f32[32,64] {
  %param_0 = f32[512,64]{1,0:T(8,128)} parameter(0)
  %param_1 = s32[32]{0:T(1024)} parameter(1)
  ROOT %custom-call.1 = f32[32,64]{1,0:T(8,128)} custom-call(%param_0, %param_1), custom_call_target="Gather"
}

ENTRY %main (param.1: f32[512,64], param.2: s32[32]) -> f32[32,64] {
  %param.1 = f32[512,64]{1,0:T(8,128)} parameter(0)
  %param.2 = s32[32]{0:T(1024)} parameter(1)
  %start.1 = ((), (), (s32[5]{0:S(10)})) async-start(), async_execution_thread="sparsecore", calls=%async_computation
  %update.1 = ((f32[512,64]{1,0}, s32[32]{0}), f32[32,64]{1,0}, (s32[5]{0})) async-update(%start.1, %param.1, %param.2)
  ROOT %done.1 = f32[32,64]{1,0:T(8,128)} async-done(%update.1)
}
"""


def test_what_a_sparse_core_takes_counts_though_its_start_does_not_name_it():
    assert hlo.Program(SPARSE).traffic() == 4 * (512 * 64 + 32 + 32 * 64)


WHOLE, QUARTER = "f32[1024,1024]{1,0}", "f32[256,1024]{1,0}"  # 4 MiB, 1 MiB
VMEM, QUARTER_VMEM = "f32[1024,1024]{1,0:S(1)}", "f32[256,1024]{1,0:S(1)}"


# As libtpu and XLA for GPUs write them.
@pytest.mark.parametrize(
    ("kind", "operand", "started", "result", "moved"),
    [
        ("copy", WHOLE, f"({VMEM}, {WHOLE}, u32[]{{:S(2)}})", VMEM, 4),
        ("copy", VMEM, f"({WHOLE}, {VMEM}, u32[]{{:S(2)}})", WHOLE, 4),
        ("slice", WHOLE, f"(({WHOLE}), {QUARTER_VMEM}, s32[]{{:S(2)}})", QUARTER_VMEM, 1),
        ("all-gather", QUARTER, f"({QUARTER}, {WHOLE})", WHOLE, 1 + 4),
        ("all-gather", QUARTER, f"({QUARTER}, {VMEM})", VMEM, 1),
        ("all-reduce", WHOLE, WHOLE, WHOLE, 4 + 4),
        ("reduce-scatter", WHOLE, f"(({WHOLE}), {QUARTER})", QUARTER, 4 + 1),
        ("collective-permute", QUARTER, f"({QUARTER}, {QUARTER}, u32[], u32[])", QUARTER, 1 + 1),
    ],
)
def test_what_is_started_here_and_ends_there_reads_and_writes_once(kind, operand, started, result, moved):
    text = f"""HloModule jit_step, is_scheduled=true

ENTRY %main (param.1: {operand}) -> {result} {{
  %param.1 = {operand} parameter(0)
  %start.1 = {started} {kind}-start(%param.1), channel_id=1
  ROOT %done.1 = {result} {kind}-done(%start.1)
}}
"""
    assert hlo.Program(text).traffic() == moved * 2**20


def test_what_goes_over_the_host_to_other_slices_is_read_and_written_once():
    text = f"""HloModule jit_step, is_scheduled=true

ENTRY %main (param.1: {WHOLE}) -> ({WHOLE}, token[]) {{
  %param.1 = {WHOLE} parameter(0)
  %after-all.1 = token[] after-all()
  %send.1 = ({WHOLE}, u32[], token[]) send(%param.1, %after-all.1), channel_id=1, is_host_transfer=true
  %send-done.1 = token[] send-done(%send.1), channel_id=1
  %recv.1 = ({WHOLE}, u32[], token[]) recv(%send-done.1), channel_id=2, is_host_transfer=true
  ROOT %recv-done.1 = ({WHOLE}, token[]) recv-done(%recv.1), channel_id=2
}}
"""
    assert hlo.Program(text).traffic() == pytest.approx(2 * 4 * 2**20, abs=8)


def test_several_arrays_that_are_gathered_together_count_once_each():
    text = """HloModule jit_step, is_scheduled=true

ENTRY %main (param.1: f32[256,1024], param.2: bf16[256]) -> (f32[1024,1024], bf16[1024]) {
  %param.1 = f32[256,1024]{1,0} parameter(0)
  %param.2 = bf16[256]{0} parameter(1)
  %start.1 = ((f32[256,1024]{1,0}, bf16[256]{0}), (f32[1024,1024]{1,0}, bf16[1024]{0})) all-gather-start(%param.1, %param.2)
  ROOT %done.1 = (f32[1024,1024]{1,0}, bf16[1024]{0}) all-gather-done(%start.1)
}
"""  # noqa: E501
    assert hlo.Program(text).traffic() == 5 * (2**20 + 2 * 256)


def test_a_turn_s_result_that_is_stored_in_place_by_a_started_copy_counts_alone():
    """As XLA of jaxlib 0.11 writes a loop that stacks what each turn gives: elements of tuples by `#`, and the update
    of one of 16 layers on a stream of its own."""
    text = """HloModule jit_step, is_scheduled=true

%fused_update (param_0: f32[16,256], param_1: s32[], param_2: f32[256]) -> f32[16,256] {
  %param_0 = f32[16,256]{1,0} parameter(0)
  %param_2 = f32[256]{0} parameter(2)
  %bitcast.1 = f32[1,256]{1,0} bitcast(%param_2)
  %param_1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %update.1 = f32[16,256]{1,0} dynamic-update-slice(%param_0, %bitcast.1, %param_1, %zero)
}

%async_computation (param_3: f32[16,256], param_4: s32[], param_5: f32[256]) -> f32[16,256] {
  %param_3 = f32[16,256]{1,0} parameter(0)
  %param_4 = s32[] parameter(1)
  %param_5 = f32[256]{0} parameter(2)
  ROOT %fusion.1 = f32[16,256]{1,0} fusion(%param_3, %param_4, %param_5), kind=kLoop, calls=%fused_update
}

ENTRY %main (carried: (s32[], f32[16,256], f32[256])) -> f32[16,256] {
  %carried = (s32[], f32[16,256]{1,0}, f32[256]{0}) parameter(0)
  %start.1 = ((f32[16,256]{1,0}, s32[], f32[256]{0}), f32[16,256]{1,0}, u32[]) async-start(%carried#1, %carried#0, %carried#2), calls=%async_computation
  ROOT %done.1 = f32[16,256]{1,0} async-done(%start.1)
}
"""  # noqa: E501
    assert hlo.Program(text).traffic() == 2 * 4 * 256 + 4


def test_a_library_s_workspace_is_not_moved():
    """Of cuDNN's attention: the output and the rows' statistics count, beside what it takes."""
    text = """HloModule jit_step, is_scheduled=true

ENTRY %main (param.1: bf16[2,64,4,16]) -> (bf16[2,4,64,16], f32[2,4,64], u8[4096]) {
  %param.1 = bf16[2,64,4,16]{3,2,1,0} parameter(0)
  ROOT %call.1 = (bf16[2,4,64,16]{3,1,2,0}, f32[2,4,64]{2,1,0}, u8[4096]{0}) custom-call(%param.1, %param.1, %param.1), custom_call_target="__cudnn$fmhaSoftmax"
}
"""  # noqa: E501
    assert hlo.Program(text).traffic() == 4 * 2 * (2 * 64 * 4 * 16) + 4 * 2 * 4 * 64


def test_gathers_and_scatters_count_their_rows_in_whole_granules():
    """Of a table in main memory: rows of 128 numbers as they are, single ones as 64 bytes each."""
    text = """HloModule jit_step, is_scheduled=true

ENTRY %main (param.1: f32[1000,128], param.2: s32[50,1], param.3: f32[50,128]) -> f32[1000,128] {
  %param.1 = f32[1000,128]{1,0} parameter(0)
  %param.2 = s32[50,1]{1,0} parameter(1)
  %param.3 = f32[50,128]{1,0} parameter(2)
  %rows = f32[50,128]{1,0} gather(%param.1, %param.2), offset_dims={1}, slice_sizes={1,128}
  %single = f32[50]{0} gather(%param.1, %param.2), offset_dims={}, slice_sizes={1,1}
  ROOT %scatter.1 = f32[1000,128]{1,0} scatter(%param.1, %param.2, %param.3), update_window_dims={1}, to_apply=%add
}
"""
    moved = {i.name: moved for _, i, _, moved in hlo.Program(text).moves()}
    row = 50 * 128 * 4
    assert moved == {"rows": 2 * row, "single": 50 * 64 + 50 * 4, "scatter.1": 50 * 4 + row + 2 * row}


def test_nested_loops_of_a_program_that_was_compiled_here():
    def f(w, x):
        def outer(x, w):
            return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ w), x), None

        return jax.lax.scan(outer, x, w)[0]

    compiled = jax.jit(f).lower(jnp.ones((5, 8, 8)), jnp.ones((4, 8))).compile()
    program = hlo.Program(compiled.as_text())
    assert max(times for _, _, times in program.runs()) == 15
