"""Locks are held by one at a time; an error's number is found wherever it stands."""

import doctest
import errno
import os
import resource
from pathlib import Path

import pytest

from jaxpt.errors import UserError
from jaxpt.runtime import disk


def test_docstrings():
    assert doctest.testmod(disk).failed == 0


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with path.open() as first, path.open() as second:
        assert disk.lock(first.fileno()) and not disk.lock(second.fileno())
        first.close()
        assert disk.lock(second.fileno())


def test_a_file_of_the_largest_size_is_read_and_a_byte_more_is_not(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[1, 2]")
    assert disk.read_json(path, limit=6) == [1, 2]
    with pytest.raises(UserError, match=r"a\.json: has 6 bytes, expected at most 5"):
        disk.read_json(path, limit=5)


def test_an_address_is_no_directory_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (Path("gs://bucket/a"), "s3://bucket/a"):
        with pytest.raises(UserError, match="is an address; files are written to mounted"):
            disk.check_mounted(path)
    for write in (disk.whole_file, disk.whole_directory):
        with pytest.raises(UserError, match=r"^gs:/bucket/a: is an address"), write(Path("gs://bucket/a")):
            pass
    assert not list(tmp_path.iterdir())
    disk.write_text(tmp_path / "a: b", "")  # a name is not one


def test_a_full_disk_is_told_from_other_errors():
    assert disk.full(OSError(errno.ENOSPC, "no space")) == disk.full(ValueError("[OS error 28: ENOSPC]"))
    assert disk.full(PermissionError(errno.EACCES, "no")) is None
    assert disk.full(ValueError("x")) is None and disk.error_number(OSError("timed out")) is None


def test_a_file_that_does_not_fit_keeps_the_old_one(tmp_path):
    """The system's message has no name: the file's is added."""
    path = tmp_path / "run.json"
    disk.write_text(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError) as found:
            disk.write_text(path, "x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found.value.filename == str(path) and disk.full(found.value) == "File too large"
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "a.txt"
    disk.write_text(path, "old")
    with pytest.raises(ValueError, match="half"), disk.whole_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old", "until the end of the block"
        raise ValueError("half")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with disk.whole_file(path) as file:
        file.write(b"new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_directory_has_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "runs" / "a[1]"
    with pytest.raises(ValueError, match="half"), disk.whole_directory(path) as partial:
        (partial / "file").write_text("half")
        raise ValueError("half")
    assert not list(path.parent.iterdir())
    path.mkdir()
    old, new = (path.with_name(f".{path.name}.{name}.partial") for name in ("old", "new"))
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    with disk.whole_directory(path) as partial:
        (partial / "file").write_text("whole")
        assert not list(path.iterdir()), "until the end of the block"
    assert (path / "file").read_text() == "whole" and sorted(path.parent.iterdir()) == [new, path]
    with pytest.raises(FileExistsError, match=r"a\[1\]"), disk.whole_directory(path) as partial:
        (partial / "file").write_text("another")
    assert (path / "file").read_text() == "whole" and sorted(path.parent.iterdir()) == [new, path]


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path):
    disk.check_writable(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(OSError, match="Not a directory"):
        disk.check_writable(tmp_path / "file" / "c")


def test_a_directory_of_the_kernel_is_an_error():
    """Root has the permissions there."""
    with pytest.raises(OSError, match=r"(nothing can be made there|Permission denied): '/proc'"):
        disk.check_writable(Path("/proc/nope/.cache"))


def test_homes(monkeypatch):
    monkeypatch.setenv("HOME", "/a/home")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert disk.cache_home() == Path("/a/home/.cache")
    monkeypatch.setenv("XDG_CACHE_HOME", "/a/cache")
    assert disk.cache_home() == Path("/a/cache")
    with pytest.raises(UserError, match=r"data.cache_dir: ~nobody-here/x: no such home; set HOME, XDG_CACHE_HOME or"):
        disk.expanded(Path("~nobody-here/x"), "data.cache_dir")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_of_someone_else_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="Permission denied"):
        disk.check_writable(tmp_path / "a")
    assert not list(tmp_path.iterdir())
