import importlib.metadata

import pytest

from jaxpt.runtime import packages

GIT = '{"url": "https://git.example/jaxpt", "vcs_info": {"vcs": "git", "commit_id": "abc"}}'


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        ('{"url": "file:///my%20code/jaxpt", "dir_info": {}}', "pip install '/my code/jaxpt[plan]'"),
        (GIT, "pip install 'jaxpt[plan] @ git+https://git.example/jaxpt@abc'"),
        (None, "pip install 'libtpu>=0.0.40'"),
    ],
)
def test_the_command_fits_the_installation(direct_url, command, monkeypatch, tmp_path):
    class Installed:
        def read_text(self, name):
            return direct_url

    monkeypatch.setattr(packages, "_PACKAGE", tmp_path / "jaxpt")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed())
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["jax>=0.10", 'libtpu>=0.0.40; extra == "plan"'])
    assert packages.install_command("plan") == command


def test_in_a_checkout_it_is_that_of_the_readme(monkeypatch, tmp_path):
    checkout = packages._PACKAGE.parent
    monkeypatch.chdir(checkout)
    assert packages.install_command("plan") == "pip install -e '.[plan]'"
    monkeypatch.chdir(tmp_path)
    assert packages.install_command("plan") == f"pip install -e '{checkout}[plan]'"
