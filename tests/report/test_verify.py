"""`jaxpt verify`: a flipped bit in any file of a run is named."""

import json
import shutil

import pytest

from jaxpt.cli import main
from jaxpt.config import CheckpointConfig
from jaxpt.train.checkpoint import Checkpoints
from jaxpt.train.run_dir import write_receipt
from tests.inference.test_loaded import made


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """With checkpoint, tokenizer, receipt and metrics."""
    folder = tmp_path_factory.mktemp("verify")
    found = folder / "run"
    assert main(["import", str(made(folder / "hf", "gpt2")), str(found)]) == 0
    write_receipt(found, {"finished": True, "step": 1})
    (found / "metrics.jsonl").write_text(json.dumps({"step": 1, "train/loss": 2.0}) + "\n")
    return found


def test_a_whole_run(run_dir, capsys):
    assert main(["verify", str(run_dir)]) == 0
    said = capsys.readouterr().out
    assert "run.json: whole" in said and "checkpoint" in said and said.endswith("all is whole\n")


def damaged(file):
    """The file's content, of which a bit is flipped on disk."""
    whole = file.read_bytes()
    file.write_bytes(whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:])
    return whole


PATTERNS = ["run.json", "tokenizer/*.model", "tokenizer/*.json", "checkpoints/*/state/**/*", "checkpoints/*/meta/*"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_flipped_bit_is_named(run_dir, tmp_path, pattern, capsys):
    """In each file; of a checkpoint's many the command is asked for the first and the last one, its reader for all."""
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    files = sorted(path for path in copy.glob(pattern) if path.is_file() and path.stat().st_size)
    reader = Checkpoints(copy, CheckpointConfig(), read_only=True)
    for number, file in enumerate(files):
        whole = damaged(file)
        if "state" not in pattern or number in (0, len(files) - 1):
            assert main(["verify", str(copy)]) == 2, file
            said = capsys.readouterr()
            assert "Traceback" not in said.err and str(copy) in said.out + said.err
        if "checkpoints" in pattern:
            assert file.name in reader.damage(0), file
        file.write_bytes(whole)
    reader.close()
    assert main(["verify", str(copy)]) == 0


def test_no_run_is_one_line(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 2
    assert "is no run_dir" in capsys.readouterr().err
