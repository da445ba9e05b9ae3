import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jaxpt.config import MeshConfig, RulesConfig
from jaxpt.errors import UserError
from jaxpt.parallel import rules


def mesh(data=1, fsdp=2, tensor=4):
    return jax.make_mesh((data, fsdp, tensor), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


def test_kernel_is_split_over_fsdp_and_tensor():
    assert rules.spec(("layers", "embed", "mlp"), (3, 8, 16), mesh()) == PartitionSpec(None, "fsdp", "tensor")


def test_batch_goes_over_data_and_fsdp():
    assert rules.spec(("batch", "length"), (8, 5), mesh()) == PartitionSpec(("data", "fsdp"), None)


@pytest.mark.parametrize(
    ("axes", "shape", "message"),
    [
        (("embed", "mpl"), (8, 8), "'mpl' is not in the table"),
        (("mlp", "heads"), (8, 8), "both want mesh axis 'tensor'"),
        (("embed", "mlp"), (8, 6), "does not divide its axis 'mlp' of size 6"),
        (("embed",), (8, 6), "1 logical axes"),
    ],
)
def test_what_would_replicate_silently_is_an_error(axes, shape, message):
    with pytest.raises(UserError, match=message):
        rules.spec(axes, shape, mesh(), "params/x")


def test_every_line_of_the_table_may_be_changed_but_the_batch():
    assert set(RulesConfig.model_fields) | {"batch", "buckets", "classes"} == set(rules.DEFAULT)


@pytest.mark.parametrize("preset", rules.PRESETS)
def test_presets_change_lines_that_there_are(preset):
    assert rules.PRESETS[preset].keys() <= rules.DEFAULT.keys()
    assert rules.table(MeshConfig(preset=preset)) == {**rules.DEFAULT, **rules.PRESETS[preset]}


def test_a_recipe_changes_single_lines():
    table = rules.table(MeshConfig(preset="replicated", rules=RulesConfig(embed=("fsdp", "data"), act_mlp=())))
    assert rules.spec(("embed", "mlp"), (16, 8), mesh(2, 2, 2), table=table) == PartitionSpec(("fsdp", "data"), None)
    assert rules.spec(("batch", "act_mlp"), (16, 8), mesh(2, 2, 2), table=table)[1] is None


def test_experts_are_cut_where_a_recipe_says_so():
    axes, shape = ("layers", "expert", "expert_embed", "mlp"), (3, 4, 16, 8)
    assert rules.spec(axes, shape, mesh(2, 2, 2))[1] is None
    table = rules.table(MeshConfig(rules=RulesConfig(expert=("data",))))
    assert rules.spec(axes, shape, mesh(2, 2, 2), table=table) == PartitionSpec(None, "data", "fsdp", "tensor")


def test_a_large_parameter_that_lies_whole_is_found():
    shapes = {
        "large": jax.ShapeDtypeStruct((2**12, 2**10), "float32"),
        "small": jax.ShapeDtypeStruct((8, 8), "float32"),
    }
    whole = jax.tree.map(lambda _: rules.replicated(mesh()), shapes)
    assert rules.large_replicated_params(shapes, whole) == ["large"]
    cut = rules.shardings({"large": ("embed", None), "small": (None, None)}, shapes, mesh())
    assert rules.large_replicated_params(shapes, cut) == []
    assert rules.large_replicated_params(shapes, jax.tree.map(lambda _: rules.replicated(mesh(8, 1, 1)), shapes)) == []


def test_message_names_the_array():
    with pytest.raises(UserError, match=r"kernel: mesh\.tensor=4"):
        kernel = jax.ShapeDtypeStruct((8, 6), "float32")
        rules.shardings({"a": {"kernel": ("embed", "mlp")}}, {"a": {"kernel": kernel}}, mesh())


def test_experts_leave_the_width_of_their_kernels_to_other_axes():
    """Other parameters are split over the experts' axis as well: they would be whole on each device along it."""
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    both = jax.sharding.Mesh(devices, ("fsdp", "expert"))
    assert tuple(rules.spec(("layers", "expert", "expert_embed", "mlp"), (2, 8, 16, 32), both)) == (
        None, "expert", "fsdp", None
    )  # fmt: skip
    assert tuple(rules.spec(("embed", "mlp"), (16, 32), both)) == (("fsdp", "expert"), None)
    with pytest.raises(UserError, match="both want mesh axis 'expert'"):
        rules.spec(("embed", "expert"), (16, 8), both)
