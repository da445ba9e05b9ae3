"""Modules of one's own: what they raise is told in a line, and an edit between a run and its resume is noticed."""

import sys

import pytest

from jaxpt.errors import UserError
from jaxpt.runtime import plugins
from jaxpt.train.run_dir import edited_modules

HELPER = "def share(x):\n    return 1 / x\n"
MINE = "from {lab}.helper import share\n\n\ndef use(x):\n    return share(x)\n"


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A package `lab…` with `mine`, which uses `helper`; returns (its directory, the module `mine`)."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "imported", {})
    name = f"lab_{tmp_path.name}"
    folder = tmp_path / name
    folder.mkdir()
    for file, text in (("__init__", ""), ("helper", HELPER), ("mine", MINE.replace("{lab}", name))):
        (folder / f"{file}.py").write_text(text)
    yield folder, plugins.import_module(f"{name}.mine", "objective.kind")
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def test_an_exception_names_its_line(lab):
    folder, mine = lab
    with pytest.raises(UserError) as error, plugins.explained():
        mine.use(0)
    place = f"{folder / 'helper.py'}:2: in share: ZeroDivisionError: division by zero"
    assert str(error.value) == f"{place}; --debug shows the traceback"
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_what_jaxpt_makes_of_it_is_named_too(lab):
    with pytest.raises(UserError, match=r"NoneType.*, with what lab_\w+\.mine gave; --debug"), plugins.explained():
        edited_modules(None, {"code": {}})


def test_without_a_module_of_ones_own_exceptions_pass(monkeypatch):
    monkeypatch.setattr(plugins, "imported", {})
    with pytest.raises(ZeroDivisionError), plugins.explained():
        1 / 0  # noqa: B018


def test_an_edit_is_noticed_in_what_a_module_uses_too(lab):
    """At once, since this process goes on with the old code, which is what its digests are of."""
    folder, mine = lab
    helper, name = f"{folder.name}.helper", mine.__name__
    plugins.check_unedited([name])
    (folder / "helper.py").write_text(HELPER.replace("1 / x", "20 / x"))
    saved = {"code": plugins.digests([name])}
    assert list(saved["code"]) == [helper, name]
    with pytest.raises(UserError, match=rf"^{helper} was edited since it was imported: restart Python$"):
        plugins.check_unedited({"uses": f"{name}.use"})
    (folder / "mine.py").write_text("")
    with pytest.raises(UserError, match=rf"^{helper} and {name} were edited since they were imported: restart Python$"):
        plugins.check_unedited({name: 1})
    plugins.check_unedited(["another", f"{name}s.use"])  # which others use
    (folder / "mine.py").write_text(MINE.replace("{lab}", folder.name))
    assert mine.use(1) == 1 and plugins.digests([name]) == saved["code"]
    assert edited_modules(saved["code"], saved) == edited_modules(saved["code"], {}) == ""
    for module in (helper, name):  # as a restart does
        del sys.modules[module]
    assert plugins.import_module(name, "objective.kind").use(1) == 20
    plugins.check_unedited([name])
    assert edited_modules(plugins.digests([name]), saved) == helper
    assert edited_modules({"other": "new"}, saved) == ""
