"""Models by their names on the hub, against a server on loopback."""

import importlib.util

import pytest

from jaxpt import errors
from jaxpt.errors import UserError
from jaxpt.runtime import hub
from tests.runtime import hub_server

pytest.importorskip("huggingface_hub")
MAIN, OLDER = hub_server.COMMITS["main"], hub_server.COMMITS["older"]


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The URL's requests; the library is told of the URL and of an empty cache."""
    model, older = tmp_path / "files", tmp_path / "older"
    for directory in (model, older):
        directory.mkdir()
        for name in ("config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5"):
            (directory / name).write_text(f"{name} of {directory.name}")
    with hub_server.serve({"lab/tiny": {"main": model, "older": older}}) as (url, requests):
        use(monkeypatch, url, tmp_path / "cache")
        monkeypatch.chdir(tmp_path)
        yield requests


def use(monkeypatch, url, cache):
    """What HF_ENDPOINT and HF_HOME do where they are set before the process starts."""
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # tests/conftest.py: no test downloads
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(hf_api.constants, "ENDPOINT", url)
    hub._snapshot.cache_clear()


def test_a_name_is_a_directory_of_the_cache(server, monkeypatch):
    notes = []
    monkeypatch.setattr(errors, "note", notes.append)
    directory = hub.local("lab/tiny")
    assert directory.name == MAIN and (directory / "config.json").read_text() == "config.json of files"
    assert sorted(file.name for file in directory.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert notes == [f"lab/tiny: revision {MAIN}; to stay with it: lab/tiny@{MAIN}"]
    count = len(server)
    assert hub.local("lab/tiny") == directory and len(server) == count, "asked once in a process"


@pytest.mark.parametrize("revision", ["older", OLDER])
def test_a_revision_is_that_one(server, revision):
    assert (hub.local(f"lab/tiny@{revision}") / "config.json").read_text() == "config.json of older"


def test_a_vocabulary_needs_no_weights(server):
    assert sorted(file.name for file in hub.local("lab/tiny", weights=False).iterdir()) == [
        "config.json", "tokenizer.json",
    ]  # fmt: skip


def test_of_the_folders_that_of_named_chat_templates_alone(server, monkeypatch, tmp_path):
    """A hub that is read without a network does not miss those that an earlier download left out."""
    served = tmp_path / "files"
    for name in ("additional_chat_templates/tool_use.jinja", "onnx/config.json", "onnx/chat_template.jinja"):
        (served / name).parent.mkdir(exist_ok=True)
        (served / name).write_text(name)
    (served / "chat_template.jinja").write_text("plain")
    (served / "model.safetensors").rename(served / "onnx" / "model.safetensors")
    directory = hub.local("lab/tiny")
    wanted = [
        "additional_chat_templates/tool_use.jinja", "chat_template.jinja", "config.json", "pytorch_model.bin",
        "tokenizer.json",
    ]  # fmt: skip
    assert sorted(str(file.relative_to(directory)) for file in directory.rglob("*.*")) == wanted
    (directory / wanted[0]).unlink()
    use(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    assert hub.local("lab/tiny") == directory


def test_the_cache_serves_where_the_hub_cannot_be_reached(server, monkeypatch, tmp_path):
    directory = hub.local("lab/tiny")
    use(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    assert hub.local("lab/tiny") == directory


def test_what_cannot_be_had_has_one_hint(server, monkeypatch, tmp_path):
    hint = r"a model of the hub: hf download {} --local-dir DIR"
    for name, reason in (
        ("lab/none", "the hub has no such model"),
        ("lab/tiny@v9", "the hub has no revision 'v9'"),
        ("lab/a--b", "it is no name of the hub"),
    ):
        with pytest.raises(UserError, match=f"{name}: no such directory, and {reason}.*{hint.format(name[:8])}"):
            hub.local(name)
    use(monkeypatch, "http://127.0.0.1:9", tmp_path / "other")
    with pytest.raises(UserError, match=f"the hub cannot be reached.*{hint.format('lab/tiny')}"):
        hub.local("lab/tiny")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"init_from.path: .*not installed: .*\[hub\]'; {hint.format('lab/tiny')}"):
        hub.local("lab/tiny", key="init_from.path")


def test_paths_are_no_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab" / "tiny").mkdir(parents=True)
    for path in ("lab/tiny", "lab/other", "runs/bert_base", "./a/b", "/a/b", "a/b/c", "model", tmp_path):
        assert hub.parse(path) is None
    assert hub.parse("google-t5/t5-small@refs/pr/1") == ("google-t5/t5-small", "refs/pr/1")
