"""A run's directory: which configuration it belongs to, whether a run may go on in it, what a failed start leaves."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config, DistributedConfig
from jaxpt.data import fingerprint
from jaxpt.errors import UserError, listed, shown
from jaxpt.runtime import signals
from jaxpt.runtime.disk import check_path, check_writable, checksum, write_text

RUN_ID = "run_id"
"""The file with the run's id, beside its checkpoints."""


def check(config: Config) -> Path:
    """Finds out whether a run may start or go on in its run_dir; nothing is written.

    Args:
      config: what was asked for.

    Returns:
      The directory, which need not exist yet.

    Raises:
      UserError: it cannot be written, Orbax would take its path, or that of its copy, for another one, or it, or its
        copy, belongs to a run of another identity (the differing keys are named).
    """
    saves = config.checkpoint
    paths = {"run_dir": config.run_dir, "checkpoint.copy_to": saves.copy_to, "checkpoint.local_dir": saves.local_dir}
    for key, path in paths.items():
        if path is not None and "://" in path:
            raise UserError(f"{key}: {path} is no path of a mounted file system, which a run's directory has to be")
        if path is not None:
            check_path(path)
    run_dir = Path(config.run_dir)
    _check_owner(run_dir, config, "run_dir")
    if saves.copy_to is not None:
        _check_copy(run_dir, Path(saves.copy_to), config)
    with _writing(run_dir):
        check_writable(run_dir)
    return run_dir


def _check_owner(directory: Path, config: Config, setting: str) -> None:
    """Raises UserError where a directory, which a setting names, belongs to a run of another identity."""
    if (old := _saved(directory)) is None:
        return
    changed = configs.differences(old, config)
    if not has_checkpoint(directory):  # whose digests would say whether the files are the same
        changed += configs.differences(old, config, "content")
    if changed:
        key, was, now = changed[0]
        more = f" (and {', '.join(k for k, _, _ in changed[1:6])})" if len(changed) > 1 else ""
        raise UserError(
            f"{directory}: belongs to another run: {key} is {shown(was)} there, {shown(now)} was asked for{more}; "
            f"choose another {setting}=…, or delete this one"
        )


def _check_copy(run_dir: Path, copy: Path, config: Config) -> None:
    """Raises UserError where a copy is of another run. That of a run_dir that is lost has the settings of this run."""
    check_same_run(run_dir, copy)
    known = _id_of(run_dir)
    if (known is not None and _saved(run_dir) is not None) or (old := _saved(copy)) is None:
        return
    _check_owner(copy, config, "checkpoint.copy_to")
    owner = Path(old.run_dir)
    if known is None and owner.absolute() != run_dir.absolute() and _id_of(owner) == _id_of(copy) is not None:
        raise UserError(f"checkpoint.copy_to: {copy}: holds the copy of {owner}; choose another directory")


def check_same_run(run_dir: Path, copy: Path) -> None:
    """Raises UserError where a run_dir and the copy of one are of two runs; what has no id may be of any."""
    ids = [_id_of(directory) for directory in (run_dir, copy)]
    if None not in ids and ids[0] != ids[1]:
        raise UserError(f"checkpoint.copy_to: {copy}: holds the copy of another run; choose another directory")


def _id_of(run_dir: Path) -> bytes | None:
    """The id of a run_dir's run, as it is written there."""
    file = run_dir / "checkpoints" / RUN_ID
    return file.read_bytes() if file.is_file() else None


def _saved(run_dir: Path) -> Config | None:
    """The configuration that a run_dir belongs to."""
    file = run_dir / "config.yaml"
    return configs.load(file) if file.exists() else None


@contextlib.contextmanager
def _writing(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{run_dir}: cannot write the run_dir: {error.strerror or error}") from None


def with_own_warmup(config: Config) -> Config:
    """The configuration of a run, with the warm-up that it began with.

    A warm-up that was shortened would have its full length in a run of more steps: the learning rate would fall in the
    middle. `optimizer.schedule.warmup_limit` keeps it. A branch that begins with the whole state of a run
    (`init_from.state`) and has its warm-up keeps that run's.

    Args:
      config: what was asked for.
    """
    schedule, steps = config.optimizer.schedule, config.train.steps
    old = next((saved for saved in map(_saved, with_checkpoints(config)) if saved), None) or _source(config)
    if old is None or schedule.warmup_limit is not None:
        return config
    limit = old.optimizer.schedule.warmup_limit or old.train.steps
    limited = schedule.model_copy(update={"warmup_limit": limit})
    if limited.within(steps).warmup_steps == schedule.within(steps).warmup_steps:
        return config
    return config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"schedule": limited})})


def _source(config: Config) -> Config | None:
    """The configuration of the run whose whole state a run begins with, if it has the same warm-up."""
    if config.init_from is None or not config.init_from.state:
        return None
    source = _saved(configs.run_dir_of(config.init_from.path))
    is_same = source and source.optimizer.schedule.warmup_steps == config.optimizer.schedule.warmup_steps
    return source if is_same else None


def changes(config: Config) -> str:
    """What a resume changes of its run, in words.

    Args:
      config: of the resume, before `save_config`.

    Returns:
      As "train.steps 50 → 100, data.readers 0 → 4"; "" where nothing changed.
    """
    if (old := _saved(Path(config.run_dir))) is None:
        return ""
    edits = [edit for role in ("extensible", "execution") for edit in configs.differences(old, config, role)]
    words = [f"{key} {shown(was)} → {shown(now)}" for key, was, now in edits if key != "run_dir"]
    return listed(words, 6)


def make(run_dir: Path) -> list[Path]:
    """Makes a run_dir that a file can be written to.

    Args:
      run_dir: of a run.

    Returns:
      The directories that were not there before, the run_dir first.

    Raises:
      UserError: it cannot be written.
    """
    missing = [path for path in (run_dir, *run_dir.parents) if not path.exists()]
    with _writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=run_dir) as probe:
            probe.write(b"x")
    return missing


@contextlib.contextmanager
def removed_on_failure(run_dir: Path, new_dirs: Sequence[Path]) -> Iterator[None]:
    """Removes what a run wrote if it fails, or is stopped, before its first step: the run_dir would belong to settings
    that the next try changes.

    Args:
      run_dir: it exists, and this process holds its lock.
      new_dirs: directories to remove with it, as `make` gave them.
    """
    before = {path.name for path in run_dir.iterdir()} - ({".lock"} if new_dirs else set())

    def remove() -> None:
        if has_checkpoint(run_dir) or any("train/loss" in record for record in records(run_dir)[0]):
            return
        for path in [path for path in run_dir.iterdir() if path.name not in before]:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            for path in new_dirs:
                path.rmdir()

    with signals.on_leave(lambda number: remove()):
        try:
            yield
        except BaseException:
            remove()
            raise


def has_checkpoint(run_dir: Path) -> bool:
    """Whether a run was saved, after a step or when it was imported."""
    return any(path.name.isdigit() for path in (run_dir / "checkpoints").glob("*"))


def with_checkpoints(config: Config) -> list[Path]:
    """Where a run can resume from: of its run_dir and its copy (`checkpoint.copy_to`) those with a checkpoint."""
    places = (config.run_dir, config.checkpoint.copy_to)
    return [Path(place) for place in places if place and has_checkpoint(Path(place))]


def moved(config: Config) -> list[tuple[str, Any, Any]]:
    """Paths that are others than config.yaml says, in a run with a checkpoint: its digests decide about the files.

    Args:
      config: what was asked for, which has passed `check`.

    Returns:
      (key, path there, path now) for each.
    """
    old = _saved(Path(config.run_dir))
    if old is None or not has_checkpoint(Path(config.run_dir)):
        return []
    return configs.differences(old, config, "content")


def edited(config: Config, meta: Mapping[str, Any]) -> list[str]:
    """Identity keys that are others than when a checkpoint was saved: config.yaml was changed by hand.

    Args:
      config: what was asked for.
      meta: what was saved beside the checkpoint.

    Returns:
      "key was …, is …" for each; none for checkpoints of earlier versions.
    """
    try:
        old = configs.build(meta["config"])
    except (KeyError, UserError):
        return []
    return [f"{key} was {shown(was)}, is {shown(now)}" for key, was, now in configs.differences(old, config)]


def edited_modules(code: Mapping[str, str], meta: Mapping[str, Any]) -> str:
    """Modules of one's own whose code is another than when a checkpoint was saved.

    Args:
      code: {module: digest of its source}, now.
      meta: what was saved beside the checkpoint.

    Returns:
      Their names; "" where there are none, or an earlier version saved the checkpoint.
    """
    was = meta.get("code", {})
    return ", ".join(name for name, digest in code.items() if was.get(name, digest) != digest)


def save_config(config: Config) -> None:
    """Writes `config.yaml`: from now on the run_dir belongs to this configuration, whichever process asks."""
    text = configs.to_yaml(_of_run(config))
    write_text(Path(config.run_dir) / "config.yaml", configs.with_checksum(text))


def settings(config: Config) -> dict[str, Any]:
    """The configuration as a checkpoint keeps it, for `edited`."""
    return configs.dump(_of_run(config))


def _of_run(config: Config) -> Config:
    """Whichever process asks."""
    return config.model_copy(update={"distributed": DistributedConfig()})


def receipt(run_dir: Path) -> dict[str, Any]:
    """What run.json says: where the run ended or was stopped; {} where it has not.

    Args:
      run_dir: of the run.

    Raises:
      UserError: the file was altered.
    """
    file = run_dir / "run.json"
    if not file.is_file():
        return {}
    try:
        contents = json.loads(file.read_text(encoding="utf-8"))
        written = contents.pop("crc32", None)
        # Earlier versions wrote neither; of the two names one bit can spoil one.
        if (written is not None or "format" in contents) and written != checksum(contents):
            raise ValueError(written)
        contents.pop("format", None)
    except (ValueError, TypeError, AttributeError):
        raise UserError(f"{file} is damaged; re-run the run's own command to write it anew, or delete it") from None
    return contents


def write_receipt(run_dir: Path, contents: Mapping[str, Any]) -> None:
    """Writes run.json with a checksum.

    Args:
      run_dir: the run's directory.
      contents: what `receipt` will return.
    """
    plain = {"format": 2} | json.loads(json.dumps(contents, default=str))
    write_text(run_dir / "run.json", json.dumps(plain | {"crc32": checksum(plain)}, indent=2) + "\n")


def records(run_dir: Path) -> tuple[list[dict[str, Any]], int]:
    """The lines of metrics.jsonl.

    Args:
      run_dir: of a run that has ended, is under way, or was killed.

    Returns:
      (whole lines, number of others: damaged, or cut short by a kill).
    """
    file, entries, damaged = run_dir / "metrics.jsonl", [], 0
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            record = json.loads(line)
            # Earlier versions wrote no checksum, and figures alone: a word at the end is one whose name was spoiled.
            written = record.pop("crc32", None)
            if written not in (None, f"{checksum(record):08x}") or isinstance([*record.values()][-1], str):
                raise ValueError(written)
            entries.append({**record, "step": int(record["step"])})
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            damaged += 1
    return entries, damaged


def metrics_line(record: Mapping[str, Any]) -> str:
    """A line of metrics.jsonl, with a checksum that `records` compares."""
    return json.dumps({**record, "crc32": f"{checksum(record):08x}"}) + "\n"


def quarantine(run_dir: Path, say: Callable[[str], None]) -> None:
    """Renames a damaged run.json, which a resume writes anew, to run.json.damaged.

    Args:
      run_dir: of a run that is about to be resumed.
      say: called with a line about it.
    """
    try:
        receipt(run_dir)
    except UserError:
        file = run_dir / "run.json"
        file.replace(file.with_name("run.json.damaged"))
        say(f"{file} is damaged; put aside as run.json.damaged: the run's seconds are counted from now")


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a file with a line of JSON for each row, as `write_text`; its directory need not exist."""
    path.parent.mkdir(exist_ok=True)
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def check_fingerprint(saved: dict[str, Any], current: dict[str, Any], where: str, edited: str = "") -> None:
    """Raises UserError, naming the differences, where the data are not those of the checkpoint.

    Args:
      saved: the data's fingerprint in the checkpoint.
      current: the data's fingerprint now.
      where: the checkpoint, for the message.
      edited: names of modules of one's own that may have made them others.
    """
    differences = fingerprint.changes(saved, current)
    was, now = fingerprint.leaves(saved), fingerprint.leaves(current)
    # A file that was renamed is known by its content.
    contents = {key: f"{key.removesuffix('name')}blake2b" for key in differences if key.endswith(".name")}
    renamed = {key for key, content in contents.items() if was.get(content, 0) == now.get(content, 1)}
    changed = [key for key in differences if key not in renamed]
    if renamed:  # the digests that stand for records in the making are those of the names, too
        changed = [key for key in changed if not key.startswith("stores.")]
    if changed:
        # Settings of the run first; records differ because something else does.
        changed.sort(key=lambda key: (key.startswith(("records", "stores")), "." in key))
        details = [f"{key} was {shown(differences[key][0])}, is {shown(differences[key][1])}" for key in changed]
        raise UserError(
            f"{where}: was trained on other data: {listed(details)}; "
            f"restore the data{f' ({edited} was edited since then)' * bool(edited)}, or branch into a new run_dir with "
            "init_from"
        )
