"""Every mistake in a recipe is answered in one line that says how to mend it."""

import re

import pytest

from jaxpt.config import load
from tests.config.helpers import RECIPE, mistake, write


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        # unknown keys
        ("modle.x=1", "unknown key modle; did you mean model or profile?"),
        ("train.stepz=3", "unknown key train.stepz; did you mean train.steps?"),
        ("train.learning_rate=3", "unknown key train.learning_rate; did you mean optimizer.learning_rate?"),
        ("zzz=3", "unknown key zzz; known here: run_dir, seed, model, *"),
        ("model.head=3", "unknown key model.head of kind bert; did you mean model.heads?"),
        ("objective.zzz=.3", "unknown key objective.zzz of kind masked_lm; known here: *mask_rate*"),
        ("optimizer.beta1=0.9", "unknown key optimizer.beta1 of kind adamw; did you mean optimizer.b1?"),
        ("optimizer={kind: sgd, b2: 0.9}", "unknown key optimizer.b2 of kind sgd, only of adafactor, *; known here: *"),
        ("optimizer.adam_learning_rate=0.1", "unknown key optimizer.adam_learning_rate of kind adamw, only of muon; *"),
        (
            "optimizer.schedule.decay_steps=5",
            "unknown key optimizer.schedule.decay_steps of kind constant, only of wsd; "
            "known here: kind, warmup_steps, warmup_limit",
        ),
        (
            "optimizer.schedule={kind: bert, end_fraction: 0.1}",
            "*schedule.end_fraction of kind bert, only of cosine, *",
        ),
        ("optimizer.schedule={kind: t5}", "key optimizer.schedule.warmup_steps is missing"),
        ("data.tokenizer.x.y=3", "unknown key data.tokenizer.x; known here: kind, path, *"),
        (
            "train.phases=[{stepz: 1}, {}]",
            "unknown key train.phases.0.stepz; did you mean train.phases.0.steps or train.phases.0.set?",
        ),
        # types
        ("train.steps='32'", 'train.steps: wants a whole number, got "32"; write 32 without quotes'),
        ("train.steps=1e3", "train.steps: wants a whole number, got 1000.0; write 1000"),
        ("optimizer.learning_rate=0.0", "optimizer.learning_rate: wants a number above 0.0, got 0.0"),
        (
            "data={mixture: [{name: a, path: a.txt, rate: 1}], mixture_cap: 7, tokenizer: {kind: bpe}}",
            "data: mixture_cap: does nothing where the tasks of mixture have a rate; leave out either",
        ),
        ("train.steps=1.5", "train.steps: wants a whole number, got 1.5"),
        ("train.steps=many", 'train.steps: wants a whole number, got "many"'),
        ("train.grad_accum_steps=true", "train.grad_accum_steps: wants a whole number, got true"),
        ("seed=null", "seed: wants a whole number, got null"),
        ("log.tensorboard=1", "log.tensorboard: wants true or false, got 1"),
        ("optimizer.learning_rate='1e-4'", 'optimizer.learning_rate: wants a number, got "1e-4"; write 1e-4 *'),
        ("data.path=3", "data.path: wants a string or a list, got 3"),
        (
            "evals.0.every=100",
            "evals is not in the recipe, so it has no element 0; write evals='[{kind: heldout, every: 100}]'",
        ),
        ("data.path.0=a", "data.path is not in the recipe, so it has no element 0; write data.path='[a]'"),
        ("data.path=[a, 3]", "data.path.1: wants a string, got 3"),
        ("data.path.x=3", 'data.path: wants a string or a list, got {"x": 3}'),
        ("data.modules=a", 'data.modules: wants a list, got "a"'),
        ("data.tokenizer=3", "data.tokenizer: wants a mapping of keys to values, got 3"),
        ("train=3", "train: wants a mapping of keys to values, got 3"),
        ("train.phases=[3]", "train.phases.0: wants a mapping of keys to values, got 3"),
        # ranges and choices
        ("train.steps=0", "train.steps: wants a number above 0, got 0"),
        ("optimizer.b1=1.5", "optimizer.b1: wants a number below 1.0, got 1.5"),
        ("data.tokenizer.kind=wordpice", "data.tokenizer.kind: 'wordpice' is none of *; did you mean wordpiece*?"),
        ("data.source=jsnol", "data.source: wants one of 'auto', *, or a dotted path, got *; did you mean jsonl?"),
        ("data.source=3", "data.source: wants a string, got 3"),
        ("train.accumulation=2", "unknown key train.accumulation; it is called train.grad_accum_steps now"),
        ("mesh.stage=2", "unknown key mesh.stage; it is called mesh.pipeline now"),
        ("mesh.data=0", "mesh.data: wants a number of devices above 0, or -1 for the remaining ones, got 0"),
        ("mesh.tensor=-1", "mesh: -1 (the remaining devices) may stand on one axis only"),
        # kinds
        ("model.kind=brt", "model.kind: 'brt' is none of *bert*; did you mean bert or bart?"),
        ("model.kind=layers", "model.kind: 'layers' is none of *bert*"),
        ("model.kind=zz", "model.kind: 'zz' is none of *bert*; a dotted path names a module of yours"),
        ("model.kind=../x", "model.kind: *"),
        ("model.kind=.x", "model.kind: *"),
        ("optimizer.kind=adm", "optimizer.kind: 'adm' is none of adafactor, adagrad, adamax, *; did you mean adamw*?"),
        ("optimizer.kind=base", "optimizer.kind: 'base' is none of *"),
        ("optimizer.schedule.kind=cos", "optimizer.schedule.kind: 'cos' is none of *; did you mean cosine*?"),
        ("optimizer.schedule=3", "optimizer.schedule: wants a mapping with a `kind`, one of: bert, constant, *"),
        ("optimizer.schedule.kind=lab.x", "optimizer.schedule.kind: importing lab.x failed: ModuleNotFoundError: *"),
        ("objective.kind=maskedlm", "objective.kind: 'maskedlm' is none of *; did you mean masked_lm*"),
        (
            "model.kind=no_such_lab.mine",
            "model.kind: importing no_such_lab.mine failed: *No module named 'no_such_lab'; start jaxpt in the "
            "directory that no_such_lab is in, or put that directory on PYTHONPATH",
        ),
        ("model.kind=3", "model: wants a mapping with a `kind`, one of: *bert*"),
        ("model=null", "model: wants a mapping with a `kind`, one of: *bert*"),
        # phases
        ("train.phases=[{set: {model.x: 3}}]", "train.phases.0.set: model.x: a phase may set keys of data and *"),
        ("train.phases=[{steps: 1}, {set: {data.lenght: 3}}]", "train.phases.1.set: unknown key data.lenght; did *"),
        ("train.phases=[{steps: 1}, {set: {data.length: no}}]", "train.phases.1.set: data.length: wants a whole *"),
        ("train.phases=[{steps: 1}, {set: [a]}]", "train.phases.1.set: wants a mapping of keys to values, such as *"),
        ("train.phases=[{steps: 10}]", "train.phases take 10 steps, train.steps is 1000; leave the last *"),
        ("train.phases=[{}, {}]", "train.phases.0: key steps is missing; only the last phase may leave it out"),
        # overrides
        ("train.steps.x=3", "train.steps: wants a whole number, got *"),
        ("train.phases=[a=", "train.phases=[a= line 1: not valid YAML: *"),
        ("word", "'word': wants key=value, such as train.steps=100"),
        ("=3", "'=3': wants key=value, such as train.steps=100"),
    ],
)
def test_mistakes_on_the_command_line(recipe, override, answer):
    pattern = "command line: " + ".*".join(map(re.escape, answer.split("*")))
    assert re.fullmatch(pattern, mistake(recipe, override))


def test_an_override_below_a_value(recipe):
    assert "model.layers is a value, not a mapping" in mistake(recipe, "model.layers.x=3")
    assert "train.phases is a list of 1, it has no 1" in mistake(recipe, "train.phases=[{}]", "train.phases.1.steps=3")


def test_an_override_reaches_into_a_list(recipe):
    config = load(recipe, ["train.phases=[{steps: 10}, {set: {data.length: 9}}]", "train.phases.0.steps=20"])
    assert config.train.phases[0].steps == 20


def test_a_dotted_key_of_a_file_is_shown_as_it_is_written_there(tmp_path):
    path = write(tmp_path / "m.yaml", f"{RECIPE}train.steps: 30")
    dotted = "dotted keys are for the command line and `set`; write train: {steps: 30}"
    assert mistake(path) == f"{path}: unknown key train.steps; {dotted}"


def test_missing_keys_name_the_file(tmp_path, recipe):
    path = write(tmp_path / "m.yaml", RECIPE.replace("data: {tokenizer: {kind: wordpiece}}", "data: {length: 3}"))
    assert mistake(path) == f"{path}: key data.tokenizer is missing"
    path = write(tmp_path / "n.yaml", RECIPE.replace("heads: 2, ", ""))
    assert mistake(path) == f"{path}: key model.heads is missing"
    path = write(tmp_path / "o.yaml", "seed: 3")
    assert mistake(path) == f"{path}: key model is missing"


def test_an_unknown_key_comes_before_the_key_that_it_should_have_been(tmp_path):
    path = write(tmp_path / "m.yaml", RECIPE.replace("objective:", "objectiv:"))
    assert mistake(path) == f"{path}: unknown key objectiv; did you mean objective?"
