from jaxpt.plan import hlo, memory

REPORT = """Memory Space: default (color=0)
Total bytes: 2532245504 (2.36GiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list

Memory Space: vmem (color=1)
Total bytes: 117440512 (112.00MiB)
"""

ASSIGNMENT = """BufferAssignment:
allocation 0: size 4096, page 0, parameter 0, shape |f32[8,128]| at ShapeIndex {}, maybe-live-out:
 value: <1 param.1 @0> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)}
allocation 1: size 9999, page 0, preallocated-temp:
 value: <2 custom-call.1 @0> (size=8192,offset=0): f32[2,8,128]{2,1,0:T(8,128)}
 value: <3 while.1{2} (phi) @0> (size=8192,offset=0): f32[2,8,128]{2,1,0:T(8,128)}
 value: <4 fusion.1{1} @0> (size=8192,offset=0): f32[2,8,128]{2,1,0:T(8,128)}
 value: <5 fusion.9 @1> (size=16384,offset=0): f32[4,8,128]{2,1,0:T(8,128)S(1)}
"""

LIVE = """HloLiveRange (max 9):
  BufferLiveRange:
    fusion.9{}:1-2
  Live ranges at 5 (peak):
    fusion.9{}: 16384 bytes (cumulative: 16384 bytes)
    custom-call.1{}: 8192 bytes (cumulative: 24576 bytes)
    param.1{}: 4096 bytes (cumulative: 28672 bytes)
"""

PROGRAM = r"""HloModule jit_step

%inside (param_0: f32[8,128]) -> (f32[], f32[2,8,128]) {
  %param_0 = f32[8,128]{1,0} parameter(0)
  %exp.1 = f32[8,128]{1,0} exponential(%param_0), metadata={op_name="jit(step)/jvp(M)/stack/while/body/closed_call/block_0/attention/exp"}
  ROOT %tuple.1 = (f32[], f32[2,8,128]{2,1,0}) tuple(%param_0, %exp.1)
}

ENTRY %main (param.1: f32[8,128]) -> f32[] {
  %param.1 = f32[8,128]{1,0} parameter(0), metadata={op_name="state.params[\'up\'][\'kernel\']"}
  %custom-call.1 = f32[2,8,128]{2,1,0} custom-call(), custom_call_target="AllocateBuffer", metadata={op_name="broadcast.163"}
  %while.1 = (s32[], f32[], f32[2,8,128]{2,1,0}) while(%custom-call.1), metadata={op_name="jit(step)/jvp(M)/stack/while"}
  ROOT %fusion.1 = (f32[], f32[2,8,128]{2,1,0}) fusion(%param.1), kind=kLoop, calls=%inside
}
"""  # noqa: E501


def test_the_total_is_that_of_main_memory_without_what_lies_within_fusions():
    within = "allocation 2: size 4096, page 0, thread-local:\n value: <6 add.1 @0> (size=4096,offset=0): f32[1024]{0}\n"
    elsewhere = "allocation 3: size 512, color 1, page 0, thread-local:\n"
    assert memory.total(REPORT, ASSIGNMENT) == 2532245504
    assert memory.total(REPORT, ASSIGNMENT + within + elsewhere) == 2532245504 - 4096


def test_a_buffer_has_the_name_of_what_is_written_into_it():
    found = memory.largest(LIVE, ASSIGNMENT, hlo.Program(PROGRAM))
    assert [(b.name, b.shape, b.bytes) for b in found] == [
        ("forward: stack/block_0/attention/exp", "f32[2,8,128]", 8192),
        ("state.params/up/kernel", "f32[8,128]", 4096),
    ]


def test_what_xla_makes_again_has_the_name_of_the_first():
    live, assignment = (text.replace("param.1", "exp.1.remat_compressed.2") for text in (LIVE, ASSIGNMENT))
    found = memory.largest(live, assignment, hlo.Program(PROGRAM))
    assert found[1].name == "forward: stack/block_0/attention/exp"


def test_a_cpus_products_take_copies_of_their_operands():
    """[4096, 512] · [512, 8] is copied whole, of [8, 4096] · [4096, 16] 640 of the 4096, of batches nothing."""
    text = """HloModule jit_step, is_scheduled=true

%inner (x: f32[4096,512], w: f32[512,8]) -> f32[4096,8] {
  %x = f32[4096,512]{1,0} parameter(0)
  %w = f32[512,8]{1,0} parameter(1)
  ROOT %dot.1 = f32[4096,8]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (a: f32[8,4096], b: f32[4096,16], c: f32[9,4096,4096]) -> f32[8,16] {
  %a = f32[8,4096]{1,0} parameter(0)
  %b = f32[4096,16]{1,0} parameter(1)
  %c = f32[9,4096,4096]{2,1,0} parameter(2)
  %dot.2 = f32[9,4096,4096]{2,1,0} dot(%c, %c), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}
  ROOT %dot.3 = f32[8,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    assert memory.packed(hlo.Program(text)) == 4 * (4096 + 8) * 512
    assert memory.packed(hlo.Program(text.replace("[4096,512]", "[1,512]"))) == 4 * (8 + 16) * 640
