"""The file of a study: which recipes are compared, on how much text, and what is asked."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema, model_validator

from jaxpt.config import sweeps
from jaxpt.config.explain import explain
from jaxpt.config.fields import Frozen, NonNegativeInt, PositiveFloat, PositiveInt
from jaxpt.config.files import origin_of, override, parsed, read, recipe_file
from jaxpt.config.kinds import nearest, strictly
from jaxpt.config.plain import get, leaves
from jaxpt.config.sweeps import Grid, Point
from jaxpt.errors import UserError


def _overrides(value: Any) -> Any:
    """A mapping as the words of a command line: {"data.length": 64} is ("data.length=64",)."""
    if isinstance(value, dict):
        return tuple(f"{key}={json.dumps(part, ensure_ascii=False)}" for key, part in value.items())
    if isinstance(value, list):
        raise ValueError("wants a mapping of keys to values, such as {data.length: 64}")
    return value


def _leaves(items: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of what `_overrides` made; of the command line's words that are no JSON the text.

    Example:
      >>> list(_leaves(['model={"layers": 3, "heads": 2}', "data.path=*.txt"]))
      [('model.layers', 3), ('model.heads', 2), ('data.path', '*.txt')]
    """
    for key, _, text in (item.partition("=") for item in items):
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        yield from leaves({key: value})


NAME = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$"
ORIGIN = r"\{study\}/([\w.=+-]+)"
"""The path of another row in the settings of a row."""
WRITTEN = ("checkpoint.copy_to", "checkpoint.local_dir", "data.cache_dir", "data.mirror")
"""Keys of directories that a run writes itself."""
Overrides = Annotated[tuple[str, ...], BeforeValidator(_overrides), WithJsonSchema({"type": "object"})]
Start = Literal["pretrained", "random"]
SimpleModelName = Literal[
    "best", "words_logistic", "words_svm", "chars_logistic", "chars_svm", "both_logistic", "both_svm", "words_ridge",
    "chars_ridge", "both_ridge", "most_frequent_tag", "affixes_logistic", "similarity", "lead_3", "copy", "commonest",
    "nearest", "sentence", "window",
]  # fmt: skip
"""Those of `jaxpt.evals.simple_models`, each for some kinds of tasks."""
_SEEDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}


class Probe(Frozen):
    """A linear probe on labelled texts or words."""

    path: str
    """Texts to train the classifier on: .jsonl, .csv, .tsv, .parquet or .conllu, each also as .gz."""
    test_path: str
    """Texts to count on."""
    unit: Literal["text", "word"] = "text"
    """What has a label: a text, or each of its words (tagging)."""
    text: str | None = None
    """The field that holds the text (`text`), or the list of words (`tokens`)."""
    label: str = "label"
    """The field that holds the label, or the list of labels."""
    layer: int | Literal["all"] = -1
    """Whose states are the features: 0 for the embeddings, 1 … for the layers, negative from the end; all: a probe of
    each."""
    max_words: PositiveInt = 20_000
    """Training words at most, those of the first sentences; there is no limit of texts."""
    l2: Annotated[float, Field(ge=0)] = 1e-3
    """Weight of the classifier's penalty l2/2 · |W|²."""


class StudyTask(Frozen):
    """A task on which the models of all rows are fine-tuned."""

    name: Annotated[str, Field(pattern=NAME)]
    """How the table calls it."""
    recipe: str
    """A fine-tuning recipe without a model, relative to the study's file."""
    set: Overrides = ()
    """Keys of the recipe with their values."""
    metric: str | None = None
    """What is compared on the test set; the task's first metric by default."""


class Strategy(Frozen):
    """A way of fine-tuning."""

    name: Annotated[str, Field(pattern=NAME)]
    set: Overrides = ()
    """Keys with their values, over the task's."""


class Finetuning(Frozen):
    """Each row's model is fine-tuned on each task, from its weights and from random ones, by the same search."""

    tasks: Annotated[tuple[StudyTask, ...], Field(min_length=1)]
    starts: Annotated[tuple[Start, ...], Field(min_length=1)] = ("pretrained", "random")
    """Which weights: the row's, or random ones in the same network with the same vocabulary."""
    strategies: Annotated[tuple[Strategy, ...], Field(min_length=1)] = (Strategy(name="all"),)
    """Ways of fine-tuning; the others are compared with the first."""
    grid: Grid = ()
    """Keys with lists of values: every combination is tried with the first seed, and the one with the best validation
    metric is taken for all seeds."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (0, 1, 2)
    """Seeds of head, random weights, order and dropout. The rows of a task are the same for all."""
    set: Overrides = ()
    """Keys with their values, in the recipes of all tasks, under a task's own."""

    @model_validator(mode="after")
    def _differ(self) -> Self:
        names_by_key = {"tasks": [x.name for x in self.tasks], "strategies": [x.name for x in self.strategies]}
        for key, names in (names_by_key | {"starts": list(self.starts), "seeds": list(self.seeds)}).items():
            if len(set(names)) < len(names):
                raise ValueError(f"{key}: {max(names, key=names.count)!r} stands there twice")
        return self

    @property
    def points(self) -> list[tuple[str, ...]]:
        """The overrides of each combination of the grid.

        Example:
          >>> tasks = [StudyTask(name="sst2", recipe="sst2.yaml")]
          >>> Finetuning(tasks=tasks, grid={"optimizer.learning_rate": [1e-3, 3e-4], "train.steps": [100]}).points
          [('optimizer.learning_rate=0.001', 'train.steps=100'), ('optimizer.learning_rate=0.0003', 'train.steps=100')]
        """
        return [sweeps.overrides(point) for point in sweeps.points(self.grid)]


class Evaluations(Frozen):
    """What is measured of each row alike."""

    probe: Probe | None = None
    finetune: Finetuning | None = None


class StudyRow(Frozen):
    """One run of a study."""

    name: Annotated[str, Field(pattern=NAME)]
    """How the table calls it; its run_dir is that name in the study's."""
    recipe: str | None = None
    """A recipe, relative to the study's file; the study's `recipe` by default."""
    set: Overrides = ()
    """Keys of the recipe with their values, over the study's `set`; `{study}` in them is the study's run_dir, so that a
    row may begin from one before it, and `{row}` the run's name."""
    minutes: PositiveFloat | None = None
    """Minutes of training steps of this row; the study's by default."""
    model: str | None = None
    """A run or a directory in Hugging Face's form, which is there already: nothing is trained, it is fine-tuned."""
    simple_model: SimpleModelName | None = None
    """A simple model of `jaxpt baseline`; `best`: of all that a task has the one that is best on the validation set.
    Nothing is pretrained; it is trained on the tasks of `evaluate.finetune`, with each of their seeds."""
    finetune: Overrides | None = ()
    """Keys with their values in the fine-tuning recipes of this row's model; null: it is not fine-tuned, other rows
    begin from it."""
    finetune_by_task: dict[str, Overrides] = Field(default_factory=dict)
    """{name of a task: keys with their values for this row's model on that task alone}, over `finetune`."""
    paper: str | float | None = None
    """What was published for it, shown beside what was measured."""

    @property
    def is_trained(self) -> bool:
        """True if the study trains it: it is no model that is there, and no simple one."""
        return self.model is None and self.simple_model is None


def paths_in_study(row: StudyRow) -> list[tuple[str, str]]:
    """(key, name) of each path `{study}/NAME` in the settings of a row.

    Example:
      >>> paths_in_study(StudyRow(name="b", set={"init_from": {"path": "{study}/a/checkpoints/3"}, "seed": 1}))
      [('init_from.path', 'a')]
    """
    return [(key, name) for key, value in _leaves(row.set) for name in re.findall(ORIGIN, json.dumps(value))]


class SweptRow(StudyRow):
    """A run of a row in a study with a grid or seeds; no file has it."""

    row: str
    """Name of the row."""
    point: Point = ()
    """Its values of the grid."""
    seed: int | None = None


class Study(Frozen):
    """A list of runs and what they are compared by."""

    name: str = ""
    """Title of the table; the file's name by default."""
    question: str
    """What is asked, in a sentence."""
    run_dir: str = ""
    """Where everything of the study goes; `runs/studies/<name of the file>` by default."""
    recipe: str | None = None
    """The recipe of rows that name none, relative to this file."""
    recipes: str | None = None
    """A glob, relative to this file: each recipe that it matches is a row, after `rows`, unless one has its name."""
    tokens: PositiveInt | None = None
    """Tokens of text that each row sees, which gives its `train.steps`; without it each recipe has its own steps."""
    minutes: PositiveFloat | None = None
    """Minutes of training steps of each row, which give its `train.steps`: seconds of a step are measured once, before
    its first one, and kept. Preparing data, compiling, evaluating and saving are not counted. A recipe with phases
    keeps their proportions."""
    set: Overrides = ()
    """Keys with their values, in the recipes of all rows; `{row}` in them is the run's name."""
    grid: Grid = ()
    """Keys with lists of values: each row is trained with every combination of them."""
    seeds: Annotated[tuple[NonNegativeInt, ...], WithJsonSchema(_SEEDS)] = ()
    """Each row, with each combination of the grid, is trained with each of these seeds (`seed`)."""
    evaluate: Evaluations = Evaluations()
    rows: tuple[StudyRow, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise ValueError(f"rows: two have the name {max(names, key=names.count)!r}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {max(self.seeds, key=self.seeds.count)} stands there twice")
        if self.seeds and any(key == "seed" for key, _ in self.grid):
            raise ValueError("grid: seed: the study has seeds; give the seeds there alone")
        if self.tokens is not None and (self.minutes or any(row.minutes for row in self.rows)):
            raise ValueError("tokens: a study has a budget of tokens or of minutes; leave one of them out")
        return self

    @property
    def is_swept(self) -> bool:
        """True if a row has several runs: the study has a grid or seeds."""
        return bool(self.grid or self.seeds)

    @property
    def tuned_rows(self) -> tuple[StudyRow, ...]:
        """The rows whose models are fine-tuned."""
        return tuple(row for row in self.rows if row.finetune is not None)

    def ancestors(self, row: StudyRow) -> dict[str, int | None]:
        """{row whose training is in a row's weights: the step of the checkpoint that it takes, None for the last one}.

        The row begins from them, or they are its teachers; one whose vocabulary alone it has
        (`{study}/ROW/tokenizer`) is none.

        Example:
          >>> rows = [StudyRow(name="a"), StudyRow(name="b", set={"init_from.path": "{study}/a/checkpoints/9"})]
          >>> rows += [StudyRow(name="c", set={"init_from.path": "{study}/b", "data.path": "{study}/x/tokenizer"})]
          >>> Study(question="?", rows=rows).ancestors(rows[2])
          {'b': None, 'a': 9}
        """
        rows, steps = {row.name: row for row in self.rows}, {}
        settings, step_of_all = dict(_leaves(row.set)), dict(_leaves(self.set)).get("init_from.step")
        for key, value in settings.items():
            given = settings.get("init_from.step", step_of_all) if key == "init_from.path" else None
            for name, place, step in re.findall(rf"{ORIGIN}(/tokenizer|/checkpoints/(\d+))?", json.dumps(value)):
                if name not in rows or name == row.name or place == "/tokenizer":
                    continue
                for origin, at in ({name: int(step) if step else given} | self.ancestors(rows[name])).items():
                    known = steps.get(origin, at)
                    steps[origin] = None if None in (known, at) else max(known, at)
        return steps

    def minutes_of(self, row: StudyRow) -> float | None:
        """Minutes of training steps of a row; None if its steps come from tokens, or from its recipe."""
        return row.minutes or self.minutes

    def overrides(self, row: StudyRow) -> list[str]:
        """What is set over a row's recipe, its run_dir included; with a budget evaluations go by its steps."""
        has_budget = self.tokens is not None or self.minutes_of(row) is not None
        often = ["train.eval_every=null"] if has_budget else []
        run_dir_json, name_json = (json.dumps(text)[1:-1] for text in (self.run_dir, row.name))  # the items are JSON
        row_settings = [item.replace("{study}", run_dir_json) for item in row.set]
        settings = [item.replace("{row}", name_json) for item in (*self.set, *row_settings)]
        return [*often, *settings, f"run_dir={json.dumps(str(Path(self.run_dir) / row.name))}"]

    def copies(self) -> dict[str, str]:
        """{name of a run of a row: its `checkpoint.copy_to`}, of those that have one."""
        places = {}
        for row in (row for row in self.rows if row.is_trained):
            tree, origin, _ = read(recipe_file(Path(row.recipe)))
            for item in self.overrides(row):
                override(tree, origin, item, f"row {row.name}")
            places[row.name] = get(tree, ("checkpoint", "copy_to"))
        return {name: str(place) for name, place in places.items() if place is not None}


def load_study(path: str | Path, overrides: Sequence[str] = ()) -> Study:
    """Reads the file of a study.

    Args:
      path: a YAML file; `base:` names others under it, as in a recipe.
      overrides: `key=value`: `tokens=…`, `minutes=…`, `run_dir=…`, `grid=…`, `seeds=…` and `evaluate.…` are the
        study's, other keys are set in all rows' recipes, over what the file says of all rows or of one. With
        `minutes=…` a row that has minutes of its own keeps its share.

    Returns:
      The study; each row has a recipe, whose path starts at the current directory.

    Raises:
      UserError: names the file (or the override), the key, what was given and what is wanted.

    Example:
      >>> study = load_study("configs/studies/bart_noise.yaml", ["tokens=1000", "seed=3"])
      >>> study.rows[0].name, study.tokens, study.rows[0].set[-1]
      ('masking', 1000, 'seed=3')
    """
    path = Path(path)
    tree, origin, _ = read(path)
    of_study = r"(tokens|minutes|run_dir|evaluate|grid|seeds)[.=]"
    study_overrides = [item for item in overrides if re.match(of_study, item)]
    before = tree.get("minutes")
    for item in study_overrides:
        override(tree, origin, item)
    study = _rescaled(parsed(Study, tree, origin, str(path)), before)
    tuned = study.evaluate.finetune
    if tuned is not None:
        tasks = (task.model_copy(update={"recipe": _beside(path, task.recipe)}) for task in tuned.tasks)
        tuned = tuned.model_copy(update={"tasks": tuple(tasks)})
    row_overrides = tuple(item for item in overrides if item not in study_overrides)
    _check_sweep(study, path, row_overrides, origin)
    _check_tasks(study, path)
    run_dir = study.run_dir or f"runs/studies/{path.stem}"
    rows = _rows(study, path)
    _check_origins(rows, study.is_swept, Path(run_dir), path)
    rows = [row.model_copy(update={"set": (*row.set, *row_overrides)}) if row.is_trained else row for row in rows]
    return study.model_copy(
        update={
            "evaluate": study.evaluate.model_copy(update={"finetune": tuned}),
            "name": study.name or path.stem,
            "run_dir": run_dir,
            "rows": _swept(study, path, rows),
        }
    )


def _rescaled(study: Study, before: Any) -> Study:
    """The study with its rows' own minutes in the same proportion to the study's as they are in its file.

    Args:
      study: with what the command line says.
      before: the study's minutes in the file.
    """
    if not before or study.minutes in (None, before):
        return study
    shares = [None if row.minutes is None else row.minutes / before * study.minutes for row in study.rows]
    rows = (row.model_copy(update={"minutes": share}) for row, share in zip(study.rows, shares))
    return study.model_copy(update={"rows": tuple(rows)})


def load_probe(words: Sequence[str]) -> Probe:
    """A probe's settings from `key=value` words.

    Example:
      >>> load_probe(["path=train.csv", "test_path=test.csv", "label=category"]).label
      'category'
    """
    tree: dict[str, Any] = {}
    for word in words:
        override(tree, {}, word)
    try:
        return strictly(Probe, tree)
    except ValidationError as error:
        raise UserError(f"command line: {explain(error, tree, Probe)[1]}") from None


def _beside(path: Path, name: str) -> str:
    """A file that is named relative to another one, without `..` where that is the same file."""
    joined = path.parent / name
    plain = Path(os.path.normpath(joined))
    is_same = plain.exists() and joined.exists() and plain.samefile(joined)  # a folder may be a link
    return str(plain if is_same else joined)


def _rows(study: Study, path: Path) -> list[StudyRow]:
    """All rows, each with a recipe."""
    rows = []
    for row in study.rows:
        _check_row(row, study, path)
        recipe = row.recipe or study.recipe
        rows.append(row.model_copy(update={"recipe": _beside(path, recipe)}) if row.is_trained else row)
    if study.recipes is not None:
        rows += _matching_rows(study.recipes, path, {row.name for row in rows})
    if not rows:
        raise UserError(f"{path}: wants rows, each with a name and a recipe")
    return rows


def _check_row(row: StudyRow, study: Study, path: Path) -> None:
    """Raises UserError where keys of a row do not fit each other, or it has no recipe."""
    if not row.is_trained and (row.recipe is not None or row.set):
        what = "a simple model" if row.model is None else "a model that is there"
        raise UserError(f"{path}: rows: {row.name}: {what} takes neither recipe nor set")
    if row.model is not None and row.simple_model is not None:
        raise UserError(f"{path}: rows: {row.name}: a row has either model or simple_model; drop one of both keys")
    if row.simple_model is not None and (study.evaluate.finetune is None or row.finetune is None):
        raise UserError(f"{path}: rows: {row.name}: a simple model learns tasks alone: wants evaluate.finetune")
    if row.is_trained and (row.recipe or study.recipe) is None:
        raise UserError(f"{path}: rows: {row.name} has no recipe, and there is no recipe of all rows")


def _matching_rows(pattern: str, path: Path, taken: set[str]) -> list[StudyRow]:
    """A row for each recipe that `Study.recipes` matches, without those whose names are taken."""
    recipes = sorted(path.parent / name for name in glob.glob(pattern, root_dir=path.parent, recursive=True))
    if not recipes:
        raise UserError(f"{path}: recipes: no file matches {path.parent / pattern}")
    rows: dict[str, StudyRow] = {}
    for recipe in (recipe for recipe in recipes if recipe.stem not in taken):
        if not re.match(NAME, recipe.stem):
            raise UserError(f"{path}: recipes: {recipe}: {recipe.stem!r} is no name of a row; name it in rows")
        if recipe.stem in rows:
            raise UserError(f"{path}: recipes: two files are called {recipe.stem}; name them in rows")
        rows[recipe.stem] = StudyRow(name=recipe.stem, recipe=str(recipe))
    return list(rows.values())


def _check_origins(rows: Sequence[StudyRow], is_swept: bool, run_dir: Path, path: Path) -> None:
    """Raises UserError where a row is to begin from one that is not trained before it."""
    before: list[str] = []
    for row in rows:
        for key, name in paths_in_study(row):
            is_before = name in before or (is_swept and any(name.startswith(f"{origin}-") for origin in before))
            is_later = name in [other.name for other in rows] and name not in before
            if is_before or key in WRITTEN or (not is_later and (run_dir / name).exists()):
                continue
            what = f"row {name!r} is not trained before this one" if is_later else f"there is no row {name!r}"
            near = nearest(name, before) if before else "; rows that it may begin from stand above it"
            raise UserError(f"{path}: rows: {row.name}: set: {key}: {what}{near}")
        before += [row.name] * row.is_trained


def _check_sweep(study: Study, path: Path, row_overrides: Sequence[str], origin: dict[str, str]) -> None:
    """Raises UserError where a key is both swept and set; what the command line sweeps is over what a file sets."""
    swept = {key: f"grid.{key}" for key, _ in study.grid} | ({"seed": "seeds"} if study.seeds else {})
    for item in row_overrides:
        if (source := swept.get(item.partition("=")[0])) is not None:
            source = source.replace(".", ": ", 1)
            raise UserError(f"command line: {item}: {path} has {source}; override grid=… or seeds=… instead")
    places = {"set": study.set} | {f"rows: {row.name}: set": row.set for row in study.rows}
    for place, key in ((place, key) for place, items in places.items() for key, _ in _leaves(items)):
        source = swept.get(key)
        if source is not None and origin_of(source, origin, str(path)) != "command line":
            which = "seeds have" if source == "seeds" else "grid has"
            raise UserError(f"{path}: {place}: {key}: the study's {which} it; leave out one")


def _check_tasks(study: Study, path: Path) -> None:
    """Raises UserError where a row has keys for a task that the study has not."""
    tuned = study.evaluate.finetune
    names = [] if tuned is None else [task.name for task in tuned.tasks]
    for row in study.rows:
        for task in (task for task in row.finetune_by_task if task not in names):
            raise UserError(
                f"{path}: rows: {row.name}: finetune_by_task: no task {task!r} in evaluate.finetune"
                f"{nearest(task, names)}"
            )


def _swept(study: Study, path: Path, rows: Sequence[StudyRow]) -> tuple[StudyRow, ...]:
    """The runs of all rows; a row that begins from another one's run begins from that with its values and seed."""
    if not study.is_swept:
        return tuple(rows)
    names, trained = sweeps.labels(study.grid), {row.name for row in rows if row.is_trained}
    runs: list[StudyRow] = [row for row in rows if not row.is_trained]
    for row in (row for row in rows if row.is_trained):
        for point, seed in sweeps.combinations(study.grid, study.seeds):

            def of_run(match: re.Match, point: Point = point, seed: int | None = seed) -> str:
                name = match[2]
                return match[1] + (sweeps.run_name(name, point, seed, names) if name in trained else name)

            settings = tuple(re.sub(r"(\{study\}/)([\w.-]+)", of_run, text) for text in row.set)
            settings += (*sweeps.overrides(point), *([] if seed is None else [f"seed={seed}"]))
            name = sweeps.run_name(row.name, point, seed, names)
            fields = {key: getattr(row, key) for key in StudyRow.model_fields} | {"name": name, "set": settings}
            runs.append(SweptRow.model_construct(**fields, row=row.name, point=point, seed=seed))
    run_names = [run.name for run in runs]
    if len(set(run_names)) < len(run_names):
        raise UserError(f"{path}: grid: two runs are called {max(run_names, key=run_names.count)}; name rows otherwise")
    return tuple(runs)
