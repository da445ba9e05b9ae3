"""The headers of recipes: their commands are accepted, and need what they say."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.config.studies import load_study
from jaxpt.data import tables
from jaxpt.errors import UserError
from jaxpt.train import preflight
from tests.test_readmes import ROOT, accepted, name

HEADERS = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if "# Command:" in path.read_text("utf-8"))
NOT_HERE = {
    "HF_DIR": "a model in Hugging Face's form",
    "RUN_DIR": "a run",
    "runs/": "the run of another command",
}
"""Words of commands that stand for what is not here, and what that is."""


def header(path: Path) -> dict[str, str]:
    """The fields of a recipe's header: {"Command": "jaxpt train …", …}; lines of a field are kept."""
    fields: dict[str, str] = {}
    name = ""
    for line in itertools.takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").splitlines()):
        if found := re.match(r"# ([A-Z]\w*): +(.*)", line):
            name, line = found[1], f"#{found[2]}"
        fields[name] = f"{fields[name]}\n{line[1:].strip()}" if name in fields else line[1:].strip()
    return fields


def header_commands(path: Path) -> list[list[str]]:
    """The words of each command in a recipe's header: it begins a line, and goes on in the next ones."""
    lines = re.split(r"\n(?=jaxpt )", header(path)["Command"])
    return [shlex.split(line.replace("\\\n", " ").replace("\n", " "), comments=True) for line in lines]


def missing(argv: list[str], fields: dict[str, str]) -> str | None:
    """Why a command cannot run here; None if nothing is missing.

    Raises:
      UserError: the recipe is wrong in another way.
    """
    if word := next((word for word in NOT_HERE if any(word in given for given in argv[2:])), None):
        return NOT_HERE[word]
    given = cli.parser().parse(argv)
    study = load_study(given.path, given.overrides) if given.command == "study" else None
    of_study = [r for r in study.rows if r.is_trained and "{study}" not in str(r.set)] if study else []
    if study and not of_study:
        return fields["Needs"]
    rows = [(r.recipe, study.overrides(r)) for r in of_study]
    try:
        for recipe, overrides in rows or [(given.config if "config" in given else given.path, given.overrides)]:
            preflight.check_recipe(configs.load(recipe, overrides))
    except UserError as error:
        named = [word.partition("=")[2] for word in argv if "path=" in word]
        if any(path and path in str(error) for path in named):
            return f"a file that the command names: {error}"
        if word := next((word for word in NOT_HERE if word in str(error)), None):
            return NOT_HERE[word]
        if "Needs" in fields:
            return fields["Needs"]
        raise
    return fields.get("Needs")


def checked_headers(folder: str) -> dict[str, list[str | None]]:
    """{recipe: what each of its commands needs that is not here}, after all were parsed and their overrides checked."""
    found: dict[str, list[str | None]] = {}
    for path in [path for path in HEADERS if path.relative_to(ROOT / "configs").parts[0] == folder]:
        given = header_commands(path)
        assert name(path) in given[-1], f"{name(path)}: its last command is another recipe's"
        for program, *argv in given:
            assert program == "jaxpt"
            accepted(argv)
            found.setdefault(name(path), []).append(missing(argv, header(path)))
    return found


def test_a_command_that_goes_on_in_the_next_line_can_be_pasted():
    for path in HEADERS:
        for command in re.split(r"\n(?=jaxpt )", header(path)["Command"]):
            assert not re.search(r"(?<! \\)\n", command), f"{name(path)}: a line without a backslash at its end"


def test_commands_of_pretraining_headers_need_what_they_say(monkeypatch):
    monkeypatch.chdir(ROOT)
    needs = checked_headers("pretrain")
    assert len(needs) == len(list((ROOT / "configs/pretrain").glob("*.yaml")))
    for path in (ROOT / "configs/pretrain").glob("*.yaml"):
        assert configs.load(path).data.source != "tfds" or "pip install -e '.[beam]'" in header(path)["Needs"]


def test_files_of_pretraining_commands_are_read():
    """Their names say the format, or the recipe does."""
    for path in (path for path in HEADERS if path.parent.name == "pretrain"):
        for words in (words for words in header_commands(path) if words[1] == "train"):
            data = configs.load(ROOT / words[2], words[3:]).data
            for file in [data.path] if isinstance(data.path, str) else data.path or ():
                assert tables.file_format(file, data.source)


def test_a_branch_begins_at_a_step_that_is_kept():
    """Of the first run of a header: its last step, or one of `checkpoint.keep_every`; and steps are left."""
    branches = [(header_commands(path)[0], words) for path in HEADERS for words in header_commands(path)[1:]]
    branches = [(first, words) for first, words in branches if "init_from.state=true" in words]
    assert branches
    for pair in branches:
        source, branch = (configs.load(ROOT / words[2], words[3:]) for words in pair)
        assert branch.init_from.path == source.run_dir != branch.run_dir
        assert (branch.init_from.step or source.train.steps) < branch.train.steps, branch.run_dir
        if (step := branch.init_from.step) is not None:
            saved = source.checkpoint.every or source.train.eval_every
            assert step % saved == step % (source.checkpoint.keep_every or step + 1) == 0, branch.run_dir


@pytest.mark.parametrize("folder", ["smoke", "studies"])
def test_commands_of_other_headers_need_what_they_say(monkeypatch, folder):
    monkeypatch.chdir(ROOT)
    for recipe, needs in checked_headers(folder).items():
        assert folder == "studies" or needs[-1] in (None, *NOT_HERE.values()), f"{recipe}: data that are not here"


@pytest.mark.slow
def test_commands_of_fine_tuning_headers_are_accepted(monkeypatch):
    monkeypatch.chdir(ROOT)
    for recipe, needs in checked_headers("finetune").items():
        assert needs[-1] in NOT_HERE.values(), recipe
