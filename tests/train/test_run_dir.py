"""What a resume may change, and what it may not: the difference is named."""

import json
import shutil
from pathlib import Path

import pytest

from jaxpt import config as configs
from jaxpt import errors
from jaxpt.data import datasets, tokenizers
from jaxpt.errors import UserError
from jaxpt.train.loop import train
from jaxpt.train.run_dir import (
    changes,
    check,
    check_fingerprint,
    edited,
    make,
    metrics_line,
    moved,
    quarantine,
    receipt,
    records,
    removed_on_failure,
    save_config,
    settings,
    with_own_warmup,
    write_receipt,
)
from tests import families

LINES = "\n".join(f"number {i} says that the cat sat on the mat and the dog ran to the house" for i in range(60))
SECTIONS = {
    "model": {"vocab_size": 160},
    "data": {"tokenizer": {"kind": "sentencepiece", "extra_ids": 20}, "validation_fraction": 0.1},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    (directory / "a.txt").write_text(LINES)

    def make(**changed):
        sections = {"run_dir": str(directory / "run"), "seed": 0} | SECTIONS
        paths = {"path": str(directory / "a.txt"), "cache_dir": str(directory / "cache")}
        sections["data"] = {**sections["data"], **paths}
        for name, value in changed.items():
            sections[name] = {**sections.get(name, {}), **value} if isinstance(value, dict) else value
        return families.config("t5", **sections)

    return make


def fingerprint(config):
    return json.loads(json.dumps(datasets.prepare(config, save=False).fingerprint))


@pytest.fixture(scope="module")
def saved(config):
    make(check(config()))
    save_config(config())
    return fingerprint(config())


REFUSED = {
    "density": ({"objective": {"density": 0.5}}, "objective.density is 0.15 there, 0.5", "density was 0.15, is 0.5"),
    "length": ({"data": {"length": 16}}, "data.length is 32 there, 16", "length was 32, is 16"),
    "seed": ({"seed": 7}, "seed is 0 there, 7", "seed was 0, is 7"),
    "batch": ({"data": {"batch_size": 16}}, "data.batch_size is 8 there, 16", "batch_size was 8, is 16"),
    "vocabulary": ({"data": {"tokenizer": {"kind": "sentencepiece", "extra_ids": 30}}}, "extra_ids", "tokenizer was"),
    "held out": ({"data": {"validation_fraction": 0.2}}, "validation_fraction is 0.1", "held_out was 0.1, is 0.2"),
}


def test_a_copy_of_another_run_is_refused_before_anything_is_fetched(config, tmp_path):
    """Of other settings, or of the same if the other run_dir is still there; a run that lost its own goes on."""
    run_dir, copy, lost = tmp_path / "run", tmp_path / "copy", tmp_path / "lost"
    asked = config(run_dir=str(run_dir), checkpoint={"copy_to": str(copy)})
    make(lost)
    save_config(asked.model_copy(update={"run_dir": str(lost)}))
    (lost / "checkpoints/4").mkdir(parents=True)
    (lost / "checkpoints/run_id").write_text("1234")
    shutil.copytree(lost, copy)
    with pytest.raises(UserError, match=rf"^checkpoint\.copy_to: {copy}: holds the copy of {lost}; choose another"):
        check(asked)
    shutil.rmtree(lost)
    assert check(asked) == run_dir
    wanted = rf"^{copy}: belongs to another run: seed is 0 there, 7 .*; choose another checkpoint\.copy_to=…"
    for _ in range(2):
        with pytest.raises(UserError, match=wanted):
            check(asked.model_copy(update={"seed": 7}))
        shutil.copytree(copy / "checkpoints", run_dir / "checkpoints", dirs_exist_ok=True)  # without its settings
    save_config(asked)
    assert check(asked) == run_dir
    (run_dir / "checkpoints/run_id").write_text("5678")
    with pytest.raises(UserError, match=rf"^checkpoint\.copy_to: {copy}: holds the copy of another run"):
        check(asked)


@pytest.mark.parametrize("case", REFUSED)
def test_another_run_is_refused_and_the_difference_named(config, saved, case):
    changed, in_settings, _ = REFUSED[case]
    with pytest.raises(UserError) as error:
        check(config(**changed))
    assert in_settings in str(error.value)


def together(changes):
    """Sections of a recipe with all of some changes."""
    merged = {}
    for changed in changes:
        for name, section in changed.items():
            merged[name] = {**merged.get(name, {}), **section} if isinstance(section, dict) else section
    return merged


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases", [("density",), ("length", "seed", "batch"), ("vocabulary",), ("held out",)], ids=lambda cases: cases[0]
)
def test_another_stream_is_refused_and_the_difference_named(config, saved, cases):
    found = fingerprint(config(**together(REFUSED[case][0] for case in cases)))
    for case in cases:
        words = REFUSED[case][2]
        # Of several changes the one with the name that the words begin with.
        alone = found if len(cases) == 1 else saved | {words.split()[0]: found[words.split()[0]]}
        with pytest.raises(UserError, match="other data") as error:
            check_fingerprint(saved, alone, "RUN")
        assert words in str(error.value) and "\n" not in str(error.value)


def test_edited_modules_are_named_where_they_made_other_records():
    with pytest.raises(UserError, match=r"records was 1, is 2; restore the data \(lab\.x was edited since then\), or"):
        check_fingerprint({"records": 1}, {"records": 2}, "RUN", "lab.x")


def test_another_text_is_refused(config, saved, tmp_path):
    (tmp_path / "a.txt").write_text(LINES.replace("cat", "cow"))
    with pytest.raises(UserError, match=r"source\.files\.train\.0\.blake2b was '[0-9a-f]+', is '[0-9a-f]+'"):
        check_fingerprint(saved, fingerprint(config(data={"path": str(tmp_path / "a.txt")})), "RUN")


CARRIED_OUT = [
    ({"train": {"grad_accum_steps": 4}}, "train.grad_accum_steps 1 → 4"),
    ({"mesh": {"data": 2, "fsdp": 2, "tensor": 2}}, "mesh.data -1 → 2, mesh.fsdp 1 → 2, mesh.tensor 1 → 2"),
    ({"data": {"readers": 3}}, "data.readers 0 → 3"),
    ({"model": {"remat": "full", "dtype": "bfloat16"}}, "model.dtype 'float32' → 'bfloat16', model.remat"),
    ({"train": {"steps": 20, "eval_every": 3}}, "train.steps 10 → 20, train.eval_every"),
]


def test_how_a_run_is_carried_out_may_change(config, saved):
    """It stays the same run, on the same data, and what changes can be told."""
    for changed, words in CARRIED_OUT:
        assert check(config(**changed)) == check(config()) and moved(config(**changed)) == []
        assert words in changes(config(**changed))
    assert fingerprint(config(**together(changed for changed, _ in CARRIED_OUT))) == saved


@pytest.mark.parametrize("place", ["run_dir", "copy"])
def test_a_run_that_is_extended_keeps_its_warm_up(config, tmp_path, place):
    """One that was shortened, also in a run of an earlier version, or of which the copy alone is left."""

    def asked(steps, **schedule):
        optimizer = {"schedule": {"kind": "constant", "warmup_steps": 100} | schedule}
        paths = {"run_dir": str(tmp_path / "run_dir"), "checkpoint": {"copy_to": str(tmp_path / "copy")}}
        return config(train={"steps": steps}, optimizer=optimizer, **paths)

    def limit(asked):
        return with_own_warmup(asked).optimizer.schedule.warmup_limit

    assert limit(asked(60)) is None
    (tmp_path / place / "checkpoints/60").mkdir(parents=True)
    save_config(asked(60).model_copy(update={"run_dir": str(tmp_path / place)}))
    assert with_own_warmup(asked(60)) == asked(60), "it is as long as it was"
    for steps in (120, 240):
        extended = with_own_warmup(asked(steps))
        assert extended.optimizer.schedule.warmup_limit == 60
        assert extended.optimizer.schedule.within(steps).build(1.0, steps)(7) == 1.0
        assert configs.differences(asked(steps), extended) == [], "it is the same run"
        save_config(extended.model_copy(update={"run_dir": str(tmp_path / place)}))
    assert limit(asked(240, warmup_limit=200)) == 200, "what is asked for goes before"
    assert limit(asked(240, warmup_steps=60)) is None, "it was not shortened"


def test_a_branch_with_the_whole_state_warms_up_no_second_time(config, tmp_path):
    def asked(steps, warmup=2000, run="a", **init_from):
        source = {"path": str(tmp_path / "a"), **init_from} if init_from else None
        schedule = {"kind": "constant", "warmup_steps": warmup}
        paths = {"run_dir": str(tmp_path / run), "init_from": source}
        return config(train={"steps": steps}, optimizer={"schedule": schedule}, **paths)

    def limit(asked):
        return with_own_warmup(asked).optimizer.schedule.warmup_limit

    (tmp_path / "a").mkdir()
    save_config(asked(1000))
    branch = with_own_warmup(asked(4000, run="b", state=True))
    assert branch.optimizer.schedule.within(4000).build(1.0, 4000)(1000) == 1.0
    assert branch.optimizer.schedule.warmup_limit == 1000
    checkpoint = str(tmp_path / "a" / "checkpoints" / "1000")
    assert limit(asked(4000, run="b", state=True, path=checkpoint)) == 1000
    assert limit(asked(4000, run="b", state=False)) is None, "weights alone begin at step 0"
    assert limit(asked(4000, warmup=3000, run="b", state=True)) is None, "it was asked for"
    (tmp_path / "b" / "checkpoints" / "4000").mkdir(parents=True)
    save_config(asked(4000, run="b", state=True))
    assert limit(asked(8000, run="b", state=True)) is None, "earlier versions warmed up: it goes on as it began"


def test_the_same_files_elsewhere_are_the_same_run(config, saved, tmp_path):
    """Once a checkpoint has their digests; before, a path is all that says whose run it is."""
    (tmp_path / "renamed.txt").write_text(LINES)
    there = config(data={"path": str(tmp_path / "renamed.txt")})
    with pytest.raises(UserError, match=r"belongs to another run: data\.path is"):
        check(there)
    assert moved(there) == []
    step = check(config()) / "checkpoints" / "3"
    step.mkdir(parents=True)
    assert check(there) == check(config()) and moved(config()) == []
    assert moved(there) == [("data.path", config().data.path, there.data.path)]
    check_fingerprint(saved, fingerprint(there), "RUN")
    shutil.rmtree(step.parent)


def test_a_renamed_file_resumes_where_its_records_were_not_ready(config, saved, tmp_path):
    """The digests that stand for the records are those of the names, too."""
    (tmp_path / "renamed.txt").write_text(LINES)
    unready = {"order": 3, "records": {"train": "1", "validation": None}, "stores": {"train": "a", "validation": "b"}}
    ready = {"order": 3, "records": {"train": "1", "validation": "2"}, "stores": {"train": "c", "validation": "d"}}
    there = fingerprint(config(data={"path": str(tmp_path / "renamed.txt")}))
    check_fingerprint(saved | unready, there | ready, "RUN")
    with pytest.raises(UserError, match=r"other data: stores\.validation was 'b', is 'd'"):
        check_fingerprint(saved | unready, saved | ready, "RUN")


@pytest.mark.slow
def test_a_moved_file_resumes_another_one_is_refused_before_records_are_made(config, tmp_path, capsys):
    for name, text in (("a", LINES), ("same", LINES), ("other", LINES.replace("cat", "cow"))):
        (tmp_path / f"{name}.txt").write_text(text)

    def run(name, steps):
        paths = {"path": str(tmp_path / f"{name}.txt"), "cache_dir": str(tmp_path / "cache")}
        settings = {"steps": steps, "eval_every": 99, "eval_examples": 8}
        return train(config(run_dir=str(tmp_path / "run"), data=paths, train=settings, evals=[]))

    assert run("a", 2) == 0
    records = list((tmp_path / "cache" / "records").iterdir())
    with pytest.raises(UserError, match=r"was trained on other data: .*blake2b"):
        run("other", 3)
    assert list((tmp_path / "cache" / "records").iterdir()) == records
    (tmp_path / "a.txt").unlink()
    assert run("same", 3) == 0 and receipt(tmp_path / "run")["step"] == 3
    said = " ".join(capsys.readouterr().out.split())  # its lines are wrapped
    assert "same.txt: the run resumes if the files there are the same" in said


def test_a_vocabulary_elsewhere_must_be_the_same(config, saved, tmp_path):
    own = tokenizers.load(check(config()) / "tokenizer") if (check(config()) / "tokenizer").is_dir() else None
    own = own or datasets.prepare(config(), save=False).tokenizer
    own.save(tmp_path / "same")
    other = tokenizers.train([LINES], config().data.tokenizer, 150)
    other.save(tmp_path / "other")
    tokenizer = {"kind": "sentencepiece", "extra_ids": 20}
    tokenizers.check_same(config(data={"tokenizer": tokenizer | {"path": str(tmp_path / "same")}}), own, "of ours")
    with pytest.raises(UserError, match=r"data\.tokenizer\.path: .*other: is not the vocabulary of ours"):
        tokenizers.check_same(config(data={"tokenizer": tokenizer | {"path": str(tmp_path / "other")}}), own, "of ours")


def test_a_key_that_was_edited_by_hand_is_named(config):
    meta = json.loads(json.dumps({"config": settings(config())}))
    assert edited(config(train={"steps": 99}, mesh={"fsdp": 2}), meta) == edited(config(), {}) == []
    assert edited(config(objective={"density": 0.5}), meta) == ["objective.density was 0.15, is 0.5"]


def test_a_changed_config_is_noted(config, saved, monkeypatch):
    said = []
    monkeypatch.setattr(errors, "note", said.append)
    file = check(config()) / "config.yaml"
    whole = file.read_text()
    assert configs.load(file.parent).seed == 0 and not said
    shorter = whole[: whole.rindex("\nlog:") + 1]
    for changed in (whole.replace("seed: 0", "seed: 4"), shorter, whole.partition("\n")[2]):
        file.write_text(changed)
        configs.load(file.parent)
    assert len(said) == 2 and all("was changed since the run wrote it" in line for line in said)
    file.write_text(whole)


@pytest.mark.slow
def test_the_records_do_not_depend_on_the_processes(config, saved, tmp_path):
    """Made anew by one process they have the same bytes."""
    again = config(data={"cache_dir": str(tmp_path)})
    found = datasets.prepare(again, save=False, workers=1).fingerprint
    assert json.loads(json.dumps(found)) == saved

    def shards(directory):
        """Of all records there: contents by place."""
        files = [path for path in (directory / "records").rglob("*") if path.is_file() and path.suffix != ".lock"]
        return {path.relative_to(directory): path.read_bytes() for path in files}

    made, before = shards(tmp_path), shards(Path(config().data.cache_dir))
    assert made and {path: before.get(path) for path in made} == made


def flips(path):
    """The file with one bit flipped, at every place in turn."""
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        yield
    path.write_bytes(whole)


def test_no_flipped_bit_of_the_receipt_goes_unnoticed(tmp_path):
    found = {"finished": True, "step": 400, "best_step": 300, "data": {"task": "wörter"}, "loss": 4.25}
    write_receipt(tmp_path, found)
    silent = 0
    for _ in flips(tmp_path / "run.json"):
        try:
            silent += receipt(tmp_path) != found
        except UserError as error:
            assert "run.json is damaged" in str(error)
    assert silent == 0 and receipt(tmp_path) == found


def test_a_damaged_receipt_is_put_aside(tmp_path):
    said = []
    quarantine(tmp_path, said.append)
    write_receipt(tmp_path, {"step": 1})
    quarantine(tmp_path, said.append)
    assert not said and receipt(tmp_path) == {"step": 1}
    (tmp_path / "run.json").write_bytes(b"\xff{")
    quarantine(tmp_path, said.append)
    assert len(said) == 1 and receipt(tmp_path) == {} and (tmp_path / "run.json.damaged").exists()


@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_start_leaves_what_was_there(tmp_path, exists):
    run_dir = tmp_path / "runs" / "a"
    if exists:
        run_dir.mkdir(parents=True)
        (run_dir / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError), removed_on_failure(run_dir, make(run_dir)):
        for name in ("tokenizer", "checkpoints"):
            (run_dir / name).mkdir()
        for name in ("tokenizer/vocab.txt", "config.yaml", "metrics.jsonl", ".lock"):
            (run_dir / name).write_text('{"step": 0, "phase/flops_per_step": 1}')
        raise UserError("out of memory")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kept", ["checkpoints/4/state", "metrics.jsonl"])
def test_a_run_that_has_stepped_stays(tmp_path, kept):
    run_dir = tmp_path / "a"
    with pytest.raises(UserError), removed_on_failure(run_dir, make(run_dir)):
        (run_dir / kept).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / kept).write_text('{"step": 1, "train/loss": 4.5}')
        (run_dir / "config.yaml").write_text("seed: 0")
        raise UserError("the loss was not finite")
    assert (run_dir / "config.yaml").exists() and (run_dir / kept).exists()


def test_a_receipt_without_a_checksum_is_read(tmp_path):
    """Those of earlier versions."""
    (tmp_path / "run.json").write_text('{"step": 3}')
    assert receipt(tmp_path) == {"step": 3}


def test_damaged_lines_of_metrics_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    written = [{"step": 1, "train/loss": 2.5}, {"step": 2, "train/loss": 2.25}]
    path.write_text("".join(map(metrics_line, written)))
    assert records(tmp_path) == (written, 0)
    for _ in flips(path):
        found, damaged = records(tmp_path)
        assert 1 <= len(found) + damaged <= 3 and damaged and all(one in written for one in found)
    path.write_bytes(b'{"step": 1}\n\xff\n{"loss": 1}\n[]\n{"step": "x"}\n{"step": 3, "lo')
    assert records(tmp_path) == ([{"step": 1}], 5)
