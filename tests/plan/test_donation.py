"""Programs that update their state where it lies, and such as do not."""

import jax
import jax.numpy as jnp
import pytest

from jaxpt.plan import donation, hlo

N = 1024


def faults(step):
    """(name, reason) of what a program that is compiled here does not update in place."""
    state = {"a": jax.ShapeDtypeStruct((N,), jnp.float32), "b": jax.ShapeDtypeStruct((N,), jnp.float32)}
    compiled = jax.jit(step, donate_argnums=0).lower(state, jnp.ones(N)).compile()
    program = hlo.Program(compiled.as_text())
    sizes = {f"state['{name}']": 4 * N for name in state}
    return [(fault.name, fault.reason) for fault in donation.faults(program, sizes, least=1)]


def test_an_update_in_place():
    def step(state, batch):
        return {"a": state["a"] + batch, "b": state["b"] * batch}

    assert faults(step) == []


def test_arrays_that_change_places_are_copied():
    assert ("state/a", "copy") in faults(lambda state, batch: {"a": state["b"], "b": state["a"]})


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_a_successor_of_another_type_lies_elsewhere():
    def step(state, batch):
        return {"a": state["a"].astype(jnp.bfloat16) + batch.astype(jnp.bfloat16), "b": state["b"] + batch}

    assert ("state/b", "no alias") in faults(step)  # its successor takes the place of a, which has none


# As libtpu writes it: copies to and from VMEM, S(1), are no copies; one that changes the layout is.
TPU = """HloModule jit_step, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }, entry_computation_layout={()}

ENTRY %main (param.1: f32[512,1024], param.2: f32[512,1024]) -> (f32[512,1024], f32[512,1024]) {
  %param.1 = f32[512,1024]{1,0:T(8,128)} parameter(0), metadata={op_name="state.params[\\'up\\'][\\'kernel\\']"}
  %param.2 = f32[512,1024]{1,0:T(8,128)} parameter(1), metadata={op_name="state.params[\\'down\\'][\\'kernel\\']"}
  %copy-start.1 = (f32[512,1024]{1,0:T(8,128)S(1)}, f32[512,1024]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%param.1)
  %copy-done.1 = f32[512,1024]{1,0:T(8,128)S(1)} copy-done(%copy-start.1)
  %negate.1 = f32[512,1024]{1,0:T(8,128)S(1)} negate(%copy-done.1)
  %copy-start.2 = (f32[512,1024]{1,0:T(8,128)}, f32[512,1024]{1,0:T(8,128)S(1)}, u32[]{:S(2)}) copy-start(%negate.1)
  %copy-done.2 = f32[512,1024]{1,0:T(8,128)} copy-done(%copy-start.2)
  %negate.2 = f32[512,1024]{1,0:T(8,128)} negate(%param.2)
  ROOT %tuple.1 = (f32[512,1024]{1,0:T(8,128)}, f32[512,1024]{1,0:T(8,128)}) tuple(%copy-done.2, %negate.2)
}
"""  # noqa: E501

STATE = {f"state.params['{name}']['kernel']": 2**21 for name in ("up", "down")}


def of_tpu(old="", new=""):
    return [(f.name, f.bytes, f.reason) for f in donation.faults(hlo.Program(TPU.replace(old, new)), STATE)]


def test_what_passes_through_vmem_is_not_copied():
    assert of_tpu() == []


def test_a_result_that_is_copied_into_its_place():
    copied = "%copy.1 = f32[512,1024]{1,0:T(8,128)} copy(%negate.2)\n  ROOT %tuple.1"
    text = TPU.replace("tuple(%copy-done.2, %negate.2)", "tuple(%copy-done.2, %copy.1)").replace(
        "ROOT %tuple.1", copied
    )
    (fault,) = donation.faults(hlo.Program(text), STATE)
    assert (fault.name, fault.reason) == ("state.params/down/kernel", "copy")


def test_a_parameter_that_is_laid_out_anew():
    text = "negate(%param.2)", "negate(%copy.1)\n  %copy.1 = f32[512,1024]{0,1:T(8,128)} copy(%param.2)"
    assert of_tpu(*text) == [("state.params/down/kernel", 2**21, "layout")]


def test_a_missing_alias_is_named():
    assert of_tpu(", {1}: (1, {}, may-alias)") == [("state.params/down/kernel", 2**21, "no alias")]
