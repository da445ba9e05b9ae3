"""Checksums of a directory that several processes have written into."""

import json

from jaxpt.train import checksums


def test_what_each_process_hashed_is_put_together_and_not_hashed_again(tmp_path, monkeypatch):
    for name in ("process_0/d/a", "process_1/d/b", "manifest"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    hashed, digest = [], checksums.digest
    monkeypatch.setattr(checksums, "digest", lambda path: hashed.append(path.name) or digest(path))
    for part in ("process_0", "process_1"):
        checksums.write(tmp_path / part)
    assert hashed == ["a", "b"]
    checksums.write(tmp_path, of={"step": 3})
    assert hashed == ["a", "b", "manifest"] and checksums.owner(tmp_path) == {"step": 3}
    wanted = json.loads((tmp_path / checksums.NAME).read_text())["files"]
    assert list(wanted) == ["manifest", "process_0/d/a", "process_1/d/b"]
    assert checksums.damage(tmp_path) is None and len(list(tmp_path.rglob(checksums.NAME))) == 1
    (tmp_path / "process_1/d/b").write_text("PROCESS_1/d/b")
    assert checksums.damage(tmp_path).startswith(f"{tmp_path / 'process_1/d/b'} is altered")
