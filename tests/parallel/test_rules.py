import jax
import pytest
from jax.sharding import AxisType, PartitionSpec

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


def test_message_names_the_array():
    with pytest.raises(UserError, match=r"kernel: mesh\.tensor=4"):
        kernel = jax.ShapeDtypeStruct((8, 6), "float32")
        rules.shardings({"a": {"kernel": ("embed", "mlp")}}, {"a": {"kernel": kernel}}, mesh())
