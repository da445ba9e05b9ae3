"""The script that completes commands in a shell."""

import subprocess
import sys

import pytest

from jaxpt import cli
from jaxpt.cli.table import COMMANDS


def _completed(script, *words):
    """What bash offers for the last of some words."""
    line = " ".join(words)
    code = (
        f"source {script}; COMP_WORDS=({line} ''); COMP_CWORD={len(words)}; COMP_LINE='{line} '; "
        'eval "$(complete -p jaxpt | sed -E \'s/.*-F ([^ ]+).*/\\1/\')"; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    return done.stdout.split()


def test_bash_offers_commands(tmp_path, capsys):
    pytest.importorskip("shtab")
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "jaxpt.sh"
    script.write_text(capsys.readouterr().out)
    assert {name.partition(" ")[0] for name in COMMANDS} <= set(_completed(script, "jaxpt"))
    assert {"recipe", "study", "model"} <= set(_completed(script, "jaxpt", "schema"))


def test_without_the_package_it_says_which(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "zsh"]) == 2
    assert "completion: shtab is not installed: pip install" in capsys.readouterr().err
