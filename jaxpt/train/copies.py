"""A second place for a run's checkpoints (`checkpoint.copy_to`): copied in the background, and fetched where the
run_dir has none or its newest one is damaged.

The copy is a run_dir of the same layout, on any mounted file system or bucket: checkpoints, the run's id, config.yaml,
tokenizer, metrics and run.json. A checkpoint appears there under its name when its copy has the checksums that were
written with it. A copy that was cut off has the suffix `.partial`, and is begun anew. Those that are there when a run
starts are compared once, and copied again where they are damaged.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxpt.errors import UserError
from jaxpt.parallel import processes
from jaxpt.runtime import disk
from jaxpt.train import checksums
from jaxpt.train.run_dir import RUN_ID, check_same_run

PARTS = ("meta", "state")
"""Directories of a checkpoint that have checksums."""
BESIDE = ("config.yaml", "run.json", "metrics.jsonl", "tokenizer")
"""What a run_dir has besides its checkpoints."""
FIGURES = "metrics"
"""What ranks a checkpoint, a file in a directory; a resumed run adds it where a signal came before the evaluation."""
_POLL_SECONDS = 2.0


def steps(run_dir: Path) -> list[int]:
    """Steps of the checkpoints in a run_dir, ascending."""
    return sorted(int(path.name) for path in (run_dir / "checkpoints").glob("*") if path.name.isdigit())


def _checkpoint(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / str(step)


def _is_whole(run_dir: Path, step: int) -> bool:
    """True if a run_dir has the checkpoint of a step, as it was written."""
    return _checkpoint(run_dir, step).is_dir() and damage(_checkpoint(run_dir, step)) is None


def damage(checkpoint: Path, contents: bool = True) -> str | None:
    """The first file of `RUN_DIR/checkpoints/STEP` that is missing or altered; None where all are as written.

    `contents`: compare them too, not only which files there are and how long.
    """
    return next((file for part in PARTS if (file := checksums.damage(checkpoint / part, contents))), None)


def _other_state(source: Path, target: Path) -> str | None:
    """Says that a copy is whole, but of another state than the checkpoint that the run saved at this step."""
    files = [[place / part / checksums.NAME for place in (source, target)] for part in PARTS]
    same = all(mine.read_bytes() == yours.read_bytes() for mine, yours in files)
    return None if same else f"{target} is no copy of {source}"


def _files(directory: Path) -> list[tuple[str, int, int]]:
    """(path, time of the last change, size) of the files below a directory."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return [(str(path), stat.st_mtime_ns, stat.st_size) for path in paths for stat in [path.stat()]]


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copies a checkpoint, which is there under its name when it is whole; one that was there goes.

    Args:
      source: `RUN_DIR/checkpoints/STEP`.
      target: the same of another run_dir.

    Raises:
      OSError: the disk fails, or the source is gone.
      UserError: the copy is not whole.
    """
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, partial)
    if (reason := damage(partial)) is not None:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(f"{target}: the copy of {source} is not whole: {reason}")
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)


def _copy_whole(source: Path, target: Path) -> None:
    """Copies a file or a directory, which is there under its name when it is whole."""
    if source.is_dir():
        with disk.whole_directory(target) as directory:
            shutil.copytree(source, directory, dirs_exist_ok=True)
    else:
        disk.write_bytes(target, source.read_bytes())


def repair(run_dir: Path, copy: Path, fault: Callable[[Path], str | None] = damage) -> Iterator[int]:
    """Fetches the checkpoints that are damaged in a run_dir, or whose fetching was cut off, where the copy is whole.

    Args:
      run_dir: which nothing else writes in meanwhile.
      copy: `checkpoint.copy_to`.
      fault: says what is wrong with a checkpoint, None where it is whole.

    Yields:
      The steps that were fetched.

    Raises:
      UserError: the copy is of another run.
    """
    check_same_run(run_dir, copy)
    cut_off = {int(path.stem) for path in (run_dir / "checkpoints").glob("*.partial") if path.stem.isdigit()}
    for step in sorted({*steps(run_dir), *cut_off}):
        local, source = (directory / "checkpoints" / str(step) for directory in (run_dir, copy))
        if (not local.exists() or fault(local)) and source.is_dir() and damage(source) is None:
            copy_checkpoint(source, local)
            yield step


def fetch(run_dir: Path, copy: Path, report: Callable[[str], None]) -> None:
    """Takes the checkpoints of a copy that are whole, unless the run_dir has the newest of them, or a newer one, whole.

    The older ones come first: a fetch that is cut off lacks the newest, so the next start fetches the rest. Without
    the older ones the run would forget its best checkpoint, and the copy would follow.

    Args:
      run_dir: of a run that is about to start; it exists, and has passed `run_dir.check`.
      copy: `checkpoint.copy_to`, which need not exist yet.
      report: called with a line about what was fetched.

    Raises:
      UserError: the copy is of another run.
    """
    disk.check_path(copy)
    if copy.absolute() == run_dir.absolute():
        raise UserError(f"checkpoint.copy_to: {copy} is the run_dir itself; choose another directory")
    check_same_run(run_dir, copy)
    local, copied = steps(run_dir), steps(copy)
    newest = next((step for step in reversed(local) if _is_whole(run_dir, step)), -1)
    if max(copied, default=-1) <= newest:
        return
    missing = [step for step in copied if _is_whole(copy, step) and not _is_whole(run_dir, step)]
    if not missing or missing[-1] < newest:
        return
    _fetch_beside(run_dir, copy)
    for step in missing:
        copy_checkpoint(_checkpoint(copy, step), _checkpoint(run_dir, step))
        report(f"checkpoint {step} is {'damaged' if step in local else 'missing'} here: fetched from {copy}")


def _fetch_beside(run_dir: Path, copy: Path) -> None:
    """What a new run_dir needs of the copy's: its id, its vocabulary, its figures."""
    (run_dir / "checkpoints").mkdir(exist_ok=True)
    for name in (f"checkpoints/{RUN_ID}", *BESIDE):
        source, target = copy / name, run_dir / name
        if source.exists() and not target.exists():
            _copy_whole(source, target)


class Copier(threading.Thread):
    """Copies checkpoints when they are finished, and removes from the copy those that the run does not keep."""

    def __init__(self, run_dir: Path, copy: Path, warn: Callable[[str], None]) -> None:
        """From one run_dir to another; `warn` is called with a line where that fails, for the run goes on."""
        super().__init__(name="jaxpt-copies", daemon=True)
        self._run_dir, self._copy, self._warn = run_dir, copy, warn
        self._ended, self._failed = threading.Event(), ""
        self._damaged: dict[int, list[tuple[str, int, int]]] = {}
        """{step that is damaged in the run_dir: its files as they then were}; it is copied when they have changed."""
        self._lock = threading.Lock()
        """Of whoever changes the copy."""

    def run(self) -> None:
        """Copies until `end`."""
        while not self._ended.wait(_POLL_SECONDS):
            self.copy()

    def copy(self) -> None:
        """Copies what is not there yet."""
        with self._lock:
            self._copy_missing()

    def renew(self, contents: bool) -> None:
        """Copies again what is there damaged, or of another state than the run_dir's checkpoint, if that is whole.

        Args:
          contents: compare all bytes, not only which files there are and how long.
        """
        try:
            check_same_run(self._run_dir, self._copy)
        except UserError:  # `copy` says so
            return
        for step in sorted({*steps(self._run_dir)} & {*steps(self._copy)}, reverse=True):
            source, target = (_checkpoint(place, step) for place in (self._run_dir, self._copy))
            try:
                reason = damage(target, contents) or _other_state(source, target)
                with self._lock:
                    if reason is not None and source.is_dir() and target.is_dir():  # else the run removed it meanwhile
                        copy_checkpoint(source, target)
                        self._warn(f"checkpoint.copy_to: {reason}; copied again")
            except (OSError, UserError, shutil.Error) as error:
                if source.is_dir():
                    self._warn(f"checkpoint.copy_to: {error}")

    def _copy_missing(self) -> None:
        failure = None
        try:
            for step in reversed(steps(self._run_dir)):  # the oldest are the next that the run removes
                source, target = (place / "checkpoints" / str(step) for place in (self._run_dir, self._copy))
                try:
                    check_same_run(self._run_dir, self._copy)
                    if not target.exists():
                        self._copy_step(step, source, target)
                    elif (source / FIGURES / FIGURES).is_file() and not (target / FIGURES).exists():
                        _copy_whole(source / FIGURES, target / FIGURES)
                except (OSError, UserError) as error:
                    if source.is_dir():  # else the run removed it meanwhile
                        failure = failure or error
            if failure is not None:
                raise failure
            self._remove_old()
            self._failed = ""
        except (OSError, UserError, shutil.Error) as error:
            place = f"checkpoint.copy_to: {self._copy}: "
            reason = (disk.full(error) or str(error)).removeprefix(place)
            if reason != self._failed:
                self._warn(f"{place}cannot copy: {reason}; the run goes on, and tries again")
            self._failed = reason

    def _copy_step(self, step: int, source: Path, target: Path) -> None:
        """Copies a checkpoint; one that is damaged in the run_dir is named once, and left until its files change."""
        files = _files(source)
        if self._damaged.get(step) == files:
            return
        self._copy_beside()
        try:
            copy_checkpoint(source, target)
        except UserError:
            if not source.is_dir() or (reason := damage(source)) is None:
                raise
            self._damaged[step] = files
            self._warn(f"checkpoint.copy_to: {reason}; this checkpoint is copied once it is mended; the run goes on")

    def _copy_beside(self) -> None:
        check_same_run(self._run_dir, self._copy)
        (self._copy / "checkpoints").mkdir(parents=True, exist_ok=True)
        for name in (f"checkpoints/{RUN_ID}", *BESIDE):
            source, target = self._run_dir / name, self._copy / name
            if source.is_file() or (source.is_dir() and not target.exists()):
                _copy_whole(source, target)

    def _remove_old(self) -> None:
        """Only what is older than a whole one that both have."""
        check_same_run(self._run_dir, self._copy)
        local_steps, copied_steps = set(steps(self._run_dir)), steps(self._copy)
        for cut_off in (self._copy / "checkpoints").glob("*.partial"):  # of what the run has removed since
            if cut_off.stem.isdigit() and int(cut_off.stem) not in local_steps:
                shutil.rmtree(cut_off)
        newest = max(local_steps & set(copied_steps), default=0)
        for step in copied_steps:
            if step < newest and step not in local_steps:
                shutil.rmtree(self._copy / "checkpoints" / str(step))

    def end(self, waits: bool) -> None:
        """Stops; `waits`: after a last look, so that the copy has all that the run has."""
        is_first = not self._ended.is_set()
        self._ended.set()
        if waits and is_first:
            self.join()
            self.copy()
            with contextlib.suppress(OSError, UserError):
                self._copy_beside()


@contextlib.contextmanager
def copying(
    run_dir: Path, copy: str | None, warn: Callable[[str], None], contents: bool = True
) -> Iterator[Callable[[], None]]:
    """Copies to `checkpoint.copy_to`, if there is one, within this block; at its end all that is finished is copied.

    All processes of a run enter it, and leave it together: one that ended before would end process 0, which copies.

    Args:
      run_dir: of the run.
      copy: the second place; None in the other processes, and where there is none.
      warn: called with a line where copying fails.
      contents: as of `Copier.renew`, which begins beside it; only the end of the block waits for that.

    Yields:
      What copies the rest before the block ends, for processes that leave otherwise; all of them call it.
    """

    def wait() -> None:
        processes.from_first("the last copy of the checkpoints")

    if copy is None:
        yield wait
        wait()
        return
    copier = Copier(run_dir, Path(copy), warn)
    renewing = threading.Thread(target=copier.renew, args=(contents,), name="jaxpt-renew", daemon=True)
    renewing.start()
    copier.start()

    def end() -> None:
        copier.end(waits=True)
        wait()

    try:
        yield end
    except BaseException:
        copier.end(waits=False)
        raise
    renewing.join()
    end()
