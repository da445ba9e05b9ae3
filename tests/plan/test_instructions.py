import pytest

from jaxpt.plan import instructions


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[]", 4),
        ("pred[3]{0}", 3),
        ("bf16[2,3]{1,0:T(8,128)(2,1)}", 12),
        ("s4[8]", 4),
        ("f8e4m3fn[8]", 8),
        ("token[]", 0),
    ],
)
def test_sizes(shape, size):
    assert instructions.size(shape) == size
