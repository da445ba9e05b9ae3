"""What `jaxpt cache` prints of the batches that it writes, and what it refuses as a training does."""

import types
from pathlib import Path

import pytest

from jaxpt import cli
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


@pytest.mark.parametrize("batches", [(), ("--batches", "2", "--out", "b")])
def test_a_file_of_two_paths_is_refused(batches, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("the cat sat\n")
    recipe = Path(__file__).parents[2] / "configs" / "smoke" / "gpt2_tiny.yaml"
    assert cli.main(["cache", str(recipe), "run_dir=x", "data.path=[a.txt, ./a.txt]", *batches]) == 2
    out, err = capsys.readouterr()
    assert (
        err == "jaxpt: data.path: ./a.txt: is read twice, a.txt and ./a.txt both name it; leave one out\n" and not out
    )
