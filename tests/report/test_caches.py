"""What `jaxpt cache` prints of the batches that it writes."""

import types

import pytest

from jaxpt.data.batches import write
from jaxpt.report import caches


@pytest.mark.parametrize(
    ("features", "figure"),
    [
        ({"encoder_input_tokens": ((5,), "int32")}, "3 steps, 20 rows, 2.00 MB, 20000.00 MB for a million tokens; "),
        ({"words": ((5,), "int32"), "counts": ((5,), "float32")}, "3 steps, 20 rows, 2.00 MB; "),
        ({"decoder_input_tokens": ((5,), "int32")}, "3 steps, 20 rows, 2.00 MB; "),
    ],
)
def test_a_size_by_token_is_that_of_batches_with_text(monkeypatch, capsys, tmp_path, features, figure):
    train = types.SimpleNamespace(files={"a": 2_000_000}, rows=20)
    phase = types.SimpleNamespace(train=train, features=features, steps=3, validation={})
    monkeypatch.setattr(write, "write_batches", lambda *args, **options: types.SimpleNamespace(phases=[phase]))
    caches.write_batches(None, 3, str(tmp_path))
    assert capsys.readouterr().out.startswith(figure)
