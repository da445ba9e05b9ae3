"""The README pages: short where they must be, nothing in them that does not exist; what they say is accepted.

Parts of `configs/README.md` are made from the code and the recipes: `python -m tests.test_readmes` writes them again.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import math
import pkgutil
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
import yaml

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.config import Config, Frozen, kinds, resolve
from jaxpt.config.plain import leaves
from jaxpt.config.schema import open_parts
from jaxpt.config.studies import load_probe, load_study
from jaxpt.evals.few_shot import task as harness
from tests.config import settings

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted(p for top in ("configs", "jaxpt", "tests", "tools") for p in (ROOT / top).rglob("README.md")),
]
FRONT, KEYS, ARCHITECTURE = (ROOT / name for name in ("README.md", "configs/README.md", "jaxpt/README.md"))
PARTS = {part.key: (part.package, part.base) for part in open_parts(Config)}
DEFAULT_KINDS = {f"{part.key}.": part.default for part in open_parts(Config) if part.default}


# ---- what is made from the code ------------------------------------------------------------------------------------


@functools.cache
def generated() -> dict[str, str]:
    """{name of a part of configs/README.md: its text}."""
    sections = [_section(name, _part(field)) for name, field in Config.model_fields.items() if _part(field)]
    own = [name for name, field in Config.model_fields.items() if not _part(field)]
    top = _table([_row(Config, name, "") for name in own])
    return {"recipes": _recipes(), "finetune": _fine_tuning(), "keys": "\n".join([top, *sections])}


def _recipes() -> str:
    """A row for each objective: its module's first line, its recipes, and what the smoke recipes reach."""
    found: dict[str, dict[str, list[str]]] = {}
    for folder in ("pretrain", "smoke"):
        for path in sorted((ROOT / "configs" / folder).glob("*.yaml")):
            kind = configs.load(path).objective.kind
            found.setdefault(kind, {"pretrain": [], "smoke": []})[folder].append(f"`{path.stem}`{_margin(path)}")
    lines = ["| `objective.kind` | what it is | `configs/pretrain` | `configs/smoke` |", "|---|---|---|---|"]
    for kind in kinds(*PARTS["objective"]):
        recipes = " | ".join(" ".join(names) for names in found.get(kind, {"pretrain": [], "smoke": []}).values())
        lines.append(f"| `{kind}` | {_about(kind, 'objective')} | {recipes} |")
    return "\n".join(lines)


def _fine_tuning() -> str:
    """A row for each folder of recipes in the table of settings."""
    lines = ["| `configs/finetune` | recipes |", "|---|---|"]
    names = [row["recipe"].split("/") for row in settings.read(ROOT / "configs/finetune/settings.csv")]
    for folder, group in itertools.groupby(names, key=lambda name: name[0]):
        lines.append(f"| `{folder}` | {' '.join(f'`{stem}`' for _, stem in group)} |")
    return "\n".join(lines)


def _margin(path: Path) -> str:
    """By how many nats the recipe's header says that it beats its baseline: " 1.95"."""
    header = path.read_text("utf-8").partition("\n# Expected: ")[2].splitlines()[:1]
    figures = re.findall(r"\d+\.\d+(?! *\))", header[0].partition(" (Python")[0]) if header else []
    return f" {float(figures[-1]) - float(figures[0]):.2f}" if path.parent.name == "smoke" and len(figures) == 2 else ""


def _section(name: str, part: type[Frozen]) -> str:
    """A section of keys; that of `model` has the names of each kind's keys besides, the others have the keys."""
    text = [f"\n### {name}\n", _summary(part), "", _table(_rows(part, _under(name)))]
    for key in [key for key in PARTS if f"{key}.".startswith(f"{name}.")]:
        base, classes = PARTS[key][1], {kind: resolve(kind, *PARTS[key]) for kind in kinds(*PARTS[key])}
        if key == "model":
            text += ["", f"| `{key}.kind` | what it is | its own keys |", "|---|---|---|"]
            text += [f"| `{k}` | {_about(k, key)} | {_names(cls, base)} |" for k, cls in classes.items()]
        else:
            text += [_kind(cls, _under(key), classes, base) for cls in classes.values()]
    return "\n".join(text)


def _under(key: str) -> str:
    """How the keys under a key begin: "evals.N." in a list."""
    field = Config.model_fields.get(key)
    return f"{key}.N." if field and get_origin(field.annotation) is tuple else f"{key}."


def _names(cls: type[Frozen], base: type[Frozen]) -> str:
    return " ".join(f"`{name}`" for name in cls.model_fields if name not in base.model_fields)


def _kind(cls: type[Frozen], prefix: str, classes: dict[str, type[Frozen]], base: type[Frozen]) -> str:
    """The keys of one kind; of one that derives from another kind those that are new or have another default."""
    kind = next(kind for kind, other in classes.items() if other is cls)
    parent = next((other for other in cls.__mro__[1:] if other in classes.values()), base)
    shared = {row for name in parent.model_fields for row in _field(parent, name, prefix)}
    rows = [
        row for name in cls.model_fields if name != "kind" for row in _field(cls, name, prefix) if row not in shared
    ]
    text = [f"\n#### {prefix}kind: {kind}\n", _summary(cls)]
    if parent is not base:
        these = "; these are new or have another default:" if rows else "."
        text[-1] += f" The keys are those of `{parent.model_fields['kind'].default}`{these}"
    return "\n".join([*text, "", _table(rows)] if rows else text)


def _about(kind: str, part: str) -> str:
    """The first line of the module of a kind."""
    return _cell((inspect.getdoc(sys.modules[resolve(kind, *PARTS[part]).__module__]) or "").splitlines()[0])


def _summary(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").split())


def _rows(part: type[Frozen], prefix: str) -> list[str]:
    return [row for name in part.model_fields for row in _field(part, name, prefix)]


def _field(part: type[Frozen], name: str, prefix: str) -> list[str]:
    """The rows of a field: of a part of the tree those of its keys, under it."""
    inner = _part(part.model_fields[name])
    if inner in (None, Frozen) or inner.__name__ in ("ObjectiveConfig", "MixtureTask"):
        return [_row(part, name, prefix)]
    many = "N." if get_origin(part.model_fields[name].annotation) is tuple else ""
    return [_row(part, name, prefix), *_rows(inner, f"{prefix}{name}.{many}")]


def _row(part: type[Frozen], name: str, prefix: str) -> str:
    field = part.model_fields[name]
    whole = Config.model_fields.get(prefix.removesuffix(".N."))  # a list has one role, whatever is in it
    role = ((whole or field).json_schema_extra or {}).get("role", "identity")
    default = "required" if field.is_required() else _default(field.default)
    if name == "kind" and prefix in DEFAULT_KINDS:
        default = _default(DEFAULT_KINDS[prefix])
    meaning = _cell(field.description or "")
    return f"| `{prefix}{name}` | {_cell(_type(field.annotation))} | {default} | {role} | {meaning} |"


def _table(rows: list[str]) -> str:
    return "\n".join(["| key | value | default | role | meaning |", "|---|---|---|---|---|", *rows])


def _default(value: object) -> str:
    """A default as YAML would have it; none of a part, whose keys have their own."""
    if isinstance(value, Frozen) or (isinstance(value, tuple) and value and isinstance(value[0], Frozen)):
        return ""
    return f"`{value}`" if isinstance(value, str) and value else f"`{json.dumps(value)}`"


def _type(annotation: object) -> str:
    """A field's type in words: "integer or null"."""
    words = {int: "integer", float: "number", str: "string", bool: "true, false", type(None): "null"}
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _type(inner[0])
    if get_origin(annotation) is Literal:
        return ", ".join(_default(value) for value in inner)
    if get_origin(annotation) is tuple:
        return "list"
    return " or ".join(map(_type, inner)) if inner else words.get(annotation, "mapping")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _part(field: object) -> type[Frozen] | None:
    """The part of the tree that a field holds, also within `tuple[Part, ...]` and `Part | None`."""
    waiting = [field.annotation]
    while waiting:
        each = waiting.pop()
        if isinstance(each, type) and issubclass(each, Frozen):
            return each
        waiting += get_args(each)
    return None


def with_generated(page: str) -> str:
    """The page with its generated parts as the code would make them."""
    for name, text in generated().items():
        begin, end = f"<!-- {name}: made by tests/test_readmes.py -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        assert rest and end in rest, f"configs/README.md has no part {name!r}"
        page = f"{before}{begin}\n{text}\n\n{end}{rest.partition(end)[2]}"
    return page


# ---- what the pages say --------------------------------------------------------------------------------------------

FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
PLACEHOLDERS = ("CONFIG", "RECIPE", "RUN_DIR", "HF_DIR", "NAME")
SMOKE = ROOT / "configs/smoke/bert_tiny.yaml"
MODEL = ("model={kind: bert, vocab_size: 64, layers: 1, embed_dim: 8, heads: 1, mlp_dim: 8}", "data.tokenizer.kind=bpe")
LSTM = ("model={kind: awd_lstm, vocab_size: 64, layers: 1, embed_dim: 8, hidden_dim: 8}", "data.tokenizer.kind=words")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks in a language."""
    return [text for kind, text in FENCED.findall(page.read_text("utf-8")) if kind == language]


def spans(page: Path) -> list[str]:
    """The code inside of lines, each on one line."""
    text = FENCED.sub("", page.read_text("utf-8"))
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def commands(page: Path) -> list[str]:
    """The commands of a page, those inside of lines included."""
    inside = [code for code in spans(page) if re.match(r"(jaxpt|python|pytest|pip|sbatch|bash|tools/\w+\.sh) ", code)]
    return [line for block in blocks(page, "sh") for line in block.splitlines()] + inside


def words_of(page: Path) -> list[str]:
    """The words of all code of a page but of its programs."""
    found = [code for code in spans(page) + commands(page) if not code.startswith("tensorboard ")]
    return [word for code in found for word in code.split()]


@functools.cache
def known_keys() -> frozenset[str]:
    """All keys of recipes, of every kind; N in place of an index."""
    rows = [row for field in Config.model_fields for row in _field(Config, field, "")]
    for part, (package, base) in PARTS.items():
        classes = [resolve(kind, package, base) for kind in kinds(package, base)]
        rows += [row for cls in classes for field in cls.model_fields for row in _field(cls, field, _under(part))]
    return frozenset(row.split("`")[1] for row in rows)


def test_the_front_page_is_short():
    assert len(FRONT.read_bytes()) <= 7_000


def test_generated_parts_are_those_of_the_code():
    page = KEYS.read_text("utf-8")
    assert page == with_generated(page), "run `python -m tests.test_readmes`, it writes them again"


def test_every_recipe_and_objective_is_in_the_table():
    table = generated()["recipes"]
    for path in (ROOT / "configs").glob("*/*.yaml"):
        if path.parent.name in ("pretrain", "smoke"):
            assert f"`{path.stem}`" in table
            assert path.parent.name == "pretrain" or _margin(path), f"{path}: wants `# Expected: … nats …; … has …`"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_paths_and_names_exist(page):
    for target in re.findall(r"\]\(([^)#]+)\)", FENCED.sub("", page.read_text("utf-8"))):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    programs = "".join(
        path.read_text("utf-8") for path in (*(ROOT / "jaxpt" / "cli").glob("*.py"), *(ROOT / "tools").glob("*.*"))
    )
    for word in words_of(page):
        assert not re.match(r"--[a-z]", word) or word.partition("=")[0].rstrip(",") in programs, f"no option {word}"
        if re.match(r"(configs|jaxpt|tests|tools|\.ci)/", word) and not any(p in word for p in PLACEHOLDERS):
            assert list(ROOT.glob(word)), f"{name(page)}: there is no {word}"
        elif re.fullmatch(r"(jaxpt\.)+[\w.]+", word):
            pkgutil.resolve_name(word)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_keys_exist(page):
    sections = "|".join(Config.model_fields)
    for word in words_of(page):
        if found := re.match(rf"((?:{sections})(?:\.\w+)*)(?:=.*|:)?$", word):
            key = re.sub(r"\.\d+\b", ".N", found[1]).removeprefix("train.phases.N.set.")
            assert key in known_keys() or key in Config.model_fields, f"{name(page)}: there is no key {found[1]}"


def assert_holds(found: Any, given: Any, key: str = "") -> None:
    """What is given stands in what was loaded, key by key; of a list each part."""
    if isinstance(given, dict) and given:
        known = dict(leaves(found))
        for name, value in leaves(given):
            assert name in known, f"{key}.{name}"
            assert_holds(known[name], value, f"{key}.{name}")
    elif isinstance(given, list) and given:
        for part, value in zip(found, given, strict=True):
            assert_holds(part, value, key)
    else:
        assert found == given, key


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_recipes_inside_of_pages_are_valid(page, tmp_path):
    """They load, and every key has the value that stands there."""
    for text in blocks(page, "yaml"):
        given = yaml.safe_load(text)
        if "\nform: " in text:  # a task of the harness
            (tmp_path / "mine.yaml").write_text(text)
            assert_holds(harness.load(str(tmp_path / "mine.yaml")).model_dump(mode="json"), given)
        elif text.startswith("evaluate:"):  # a part of a study
            (tmp_path / "study.yaml").write_text(f"question: why?\nrows: [{{name: one, model: runs/one}}]\n{text}")
            found, given = load_study(tmp_path / "study.yaml").evaluate.finetune, given["evaluate"]["finetune"]
            assert (list(found.starts), list(found.seeds)) == (given["starts"], given["seeds"])
            for key in ("tasks", "strategies"):
                for one, of in zip(getattr(found, key), given[key], strict=True):
                    assert (one.name, len(one.set)) == (of["name"], len(of.get("set", {})))
            assert len(found.points) == math.prod(map(len, given["grid"].values()))
        elif text.startswith("rows:"):  # likewise
            task = "evaluate: {finetune: {tasks: [{name: sst2, recipe: x.yaml}]}}"
            (tmp_path / "study.yaml").write_text(f"question: why?\n{task}\n{text}")
            rows = load_study(tmp_path / "study.yaml").rows
            assert [row.name for row in rows] == [row["name"] for row in given["rows"]]
        elif not text.startswith("# "):  # a file of a worked example, which is trained in test_page_commands.py
            base = yaml.safe_load(SMOKE.read_text("utf-8"))
            if "task:" in text:  # the head is the task's own
                base = {key: value for key, value in base.items() if key not in ("objective", "train")}
            (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
            (tmp_path / "recipe.yaml").write_text(f"base: base.yaml\n{text}")
            assert_holds(configs.dump(configs.load(tmp_path / "recipe.yaml")), given)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_are_accepted(page):
    for command in commands(page):
        words = shlex.split(command.partition(" # ")[0])
        if "jaxpt" in words:
            accepted(words[words.index("jaxpt") + 1 :])
        elif words[:2] == ["pip", "install"]:
            extras = re.findall(r"\[(\w+)\]", command)
            known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert set(extras) <= set(known), command
        elif words[0] in ("python", "bash"):
            path = f"{words[2].replace('.', '/')}.py" if words[1] == "-m" else words[1]
            file = ROOT / path / "__main__.py" if (ROOT / path).is_dir() else ROOT / path
            source = file.read_text("utf-8")
            assert all(word in source for word in words[2:] if word.startswith("--")), command


def accepted(argv: list[str]) -> None:
    """The command line takes these arguments, and the recipe these overrides."""
    if len(argv) == 1 or argv[-1].startswith("--"):  # only named
        with pytest.raises(SystemExit) as stop:
            cli.parser().parse([argv[0], "--help"])
        assert stop.value.code == 0
        return
    given = cli.parser().parse(argv)
    if given.command == "study":
        study = load_study(ROOT / given.path, given.overrides)
        for row in (row for row in study.rows if row.is_trained):
            configs.load(row.recipe, study.overrides(row))
    elif given.command == "probe":
        load_probe(given.overrides)
    elif "overrides" in given and given.command != "import":  # which needs the imported directory
        path = ROOT / (given.config if "config" in given else given.path)
        if path.suffix != ".yaml" or path.stem in PLACEHOLDERS:  # a run, or any recipe
            path = SMOKE
        if path.parent.parent.name == "finetune":  # its model is that of `init_from.path`
            given.overrides = [*given.overrides, *(LSTM if path.parent.name == "ulmfit" else MODEL)]
        if path.parent != ROOT:  # a recipe of a worked example is trained in test_page_commands.py
            configs.load(path, given.overrides)


if __name__ == "__main__":
    KEYS.write_text(with_generated(KEYS.read_text("utf-8")), "utf-8")
