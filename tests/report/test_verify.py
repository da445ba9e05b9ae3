"""`jaxpt verify`: a flipped bit in any file of a run is named."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from jaxpt import config as configs
from jaxpt.cli import main
from jaxpt.config import CheckpointConfig
from jaxpt.train.checkpoint import Checkpoints
from jaxpt.train.lock import hold
from jaxpt.train.run_dir import write_receipt
from tests.inference.test_loaded import made

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import flips


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
            assert flips.NOT_WHOLE.search(said.out) or "jaxpt: " in said.err  # what the campaign of flips takes it by
        if "checkpoints" in pattern:
            assert file.name in reader.damage(0), file
        file.write_bytes(whole)
    reader.close()
    assert main(["verify", str(copy)]) == 0


def lines_of(run_dir, capsys):
    """What `jaxpt verify` finds fault with."""
    code = main(["verify", str(run_dir)])
    lines = capsys.readouterr().out.splitlines()
    faults = dict(line.split(": ", 1) for line in lines[:-1] if not line.endswith(": whole"))
    assert code == (2 if faults else 0) and lines[-1].endswith("all is whole") == (not faults)
    return faults


def test_files_of_a_trained_run_that_are_gone_are_missed(run_dir, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    steps = configs.load(copy).train.steps
    shutil.rmtree(copy / "tokenizer")
    for name in ("run.json", "metrics.jsonl"):
        (copy / name).unlink()
    assert lines_of(copy, capsys) == {}, "an imported model need not have them"
    (copy / "checkpoints" / "0").rename(copy / "checkpoints" / f"{steps - 1}")
    faults = lines_of(copy, capsys)
    assert [name for name, fault in faults.items() if fault == "missing"] == ["tokenizer", "metrics.jsonl"]
    (copy / "checkpoints" / f"{steps - 1}").rename(copy / "checkpoints" / f"{steps}")
    assert lines_of(copy, capsys)["run.json"] == "missing"
    with hold(copy):  # in its last evaluation
        main(["verify", str(copy)])
        *_, last = lines = capsys.readouterr().out.splitlines()
    assert "run.json: not there yet: the run is under way, and writes it at its end" in lines
    assert "run.json" not in last


def test_a_configuration_that_was_edited_is_named(run_dir, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    with (copy / "config.yaml").open("a") as file:
        file.write("# a word\n")
    assert lines_of(copy, capsys) == {"config.yaml": "was changed since the run wrote it (its checksum differs)"}


def test_lines_of_evaluations_are_read(run_dir, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    (copy / "evaluations").mkdir()
    file = copy / "evaluations" / "lines.jsonl"
    file.write_text('{"evaluator": "a"}\n')
    assert lines_of(copy, capsys) == {}
    file.write_bytes(b'{"evaluator": "a"}\n\xff{"eval\n')
    assert lines_of(copy, capsys) == {"evaluations/lines.jsonl": "line 2 is no JSON object"}


def test_no_run_is_one_line(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 2
    assert "is no run_dir" in capsys.readouterr().err
