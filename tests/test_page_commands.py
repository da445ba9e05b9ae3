"""The commands of the README pages and of the recipes' headers run, on a small corpus; the worked examples train."""

import gzip
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.train import preflight
from tests import grids
from tests.test_headers import HEADERS, header_commands
from tests.test_readmes import ARCHITECTURE, FRONT, ROOT, blocks

SMALL = [
    "model.layers=1", "model.embed_dim=32", "model.heads=2", "model.unroll=1", "data.length=16", "data.batch_size=8",
    "data.tokenizer.vocab_size=300", "data.tokenizer.characters=20000", "optimizer={kind: adamw}",
    "train.steps=2", "train.phases=[]", "train.eval_every=2", "train.eval_examples=8", "log.tensorboard=false",
]  # fmt: skip
SCALE = 2500
"""Of so many steps in a command, and intervals of 1,000 and more, one is made: in proportion, so that a checkpoint that
a command names has to be one that another one keeps."""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty directory with the recipes and a small corpus."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # commands append the current directory
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "corpus").mkdir()
    texts = (f"Number {n} says that the cat sat. The dog ran to house {n * n}." for n in range(200))
    text = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "corpus/text.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))  # the same bytes each time
    yield tmp_path
    for module in [module for module in sys.modules if module.partition(".")[0] == "my_lab"]:
        del sys.modules[module]


def ran(command: str, *overrides: str) -> str:
    """Runs a command of ours, and gives its first word."""
    words = [re.sub(r"(?<==)\d{4,}$", lambda n: str(int(n[0]) // SCALE), word) for word in shlex.split(command)[1:]]
    recipe = words[1].endswith(".yaml")
    assert cli.main([*words[:2], *(overrides if recipe else ()), *words[2:]]) == 0, command
    return words[0]


@pytest.mark.slow
def test_the_commands_of_the_front_page(workplace, capsys):
    """All but those that want a TPU's compiler, several devices or much time; the first runs below."""
    done = []
    ours = r"jaxpt (inspect|train|eval|generate|predict|export|import) (configs/(smoke/bert|finetune)|runs|out)"
    for command in (line for block in blocks(FRONT, "sh") for line in block.splitlines()):
        if re.match(ours, command):
            of_task = ("train.steps=2", "data.length=16", "data.batch_size=8", "optimizer.schedule.warmup_steps=0")
            # The built-in corpus and samples are those of the first result, below.
            here = ("data.path=corpus/text.jsonl.gz", "evals=[{kind: heldout}]")
            of_bert = (*SMALL, *here, "model.mlp_dim=32", "model.max_positions=16")
            small = of_task if "finetune" in command else of_bert
            done.append(ran(command, *small))
    assert done == ["inspect", *["train"] * 6, "predict", "eval", "generate", "export", "import"]
    assert '"probability"' in capsys.readouterr().out
    assert (workplace / "out/mine/model.safetensors").exists()
    assert configs.load("runs/branch").init_from.step == 2 and configs.load("runs/imported").model.kind == "bert"


@pytest.mark.slow
def test_the_first_result(workplace, capsys):
    """The first recipe, on the corpus that it has by default, and the fine-tuning that begins from it."""
    (command,) = (line for line in blocks(FRONT, "sh")[0].splitlines() if line.startswith("jaxpt"))
    ran(command, *SMALL, "model.mlp_dim=32", "model.head_dim=16")
    shown = capsys.readouterr().out
    assert "unigram baseline" in shown and "target:" in shown
    first, then = header_commands(ROOT / "configs/finetune/smoke/summarize_tiny.yaml")
    assert first == shlex.split(command)
    ran(shlex.join(then), *FEW, *FEW_ROWS)
    assert configs.load("runs/summarize_tiny").model.embed_dim == 32
    assert "rouge" in capsys.readouterr().out


FEW = [
    "train.steps=2", "train.phases=[]", "train.eval_every=2", "train.eval_examples=8", "optimizer={kind: adamw}",
    "optimizer.schedule={kind: constant}", "data.batch_size=8", "log.tensorboard=false",
]  # fmt: skip
FEW_ROWS = ("data.validation_fraction=0.02", "data.test_path=null")
LIKE_OTHERS = (
    "albert", "bart", "deberta", "gpt2_fim", "gpt2_prefix", "mass", "mbart", "roberta", "spanbert", "t5_denoising",
    "t5_salient", "ul2", "unilm", "xlm_tlm",
)  # fmt: skip
"""Smoke recipes with the command of another one: their steps are those of `tests/objectives` and `tests/models`."""
SUITE = ("skip_gram", "ul2", "xlm_tlm")
"""Those that run in the suite: what others take its tokens and vectors from, one of a mixture, and one of translations.
BERT, GPT-2 and T5 train above and below, a fine-tuning begins from another recipe's run above; students of teachers
train in `tests/train/test_teachers.py`."""
RECIPES = {path.stem.removesuffix("_tiny"): path for path in HEADERS if path.parent.name == "smoke"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Vocabularies and text that recipes share, as in a user's cache."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", grids.cases(RECIPES, *SUITE))
def test_the_commands_of_smoke_recipes(workplace, prepared, monkeypatch, recipe):
    """Two steps of each on a small corpus, of some the first batch; those of other recipes need what is not here."""
    path = RECIPES[recipe]
    monkeypatch.setenv("XDG_CACHE_HOME", str(prepared))
    (prepared / "runs").mkdir(exist_ok=True)
    (workplace / "runs").symlink_to(prepared / "runs")  # what several begin from is trained once
    has_own = recipe in ("t5_salient", "xlm_tlm")  # names and dates; translations
    size = 600 if recipe == "elmo" else 300  # its bytes take 512 ids
    corpus = () if has_own else ("data.path=corpus/text.jsonl.gz", f"data.tokenizer.vocab_size={size}")
    if recipe in LIKE_OTHERS:
        ran(f"jaxpt inspect {path.relative_to(ROOT)} -n 2", *FEW, *corpus)
        return
    for words in header_commands(path):
        of_task = FEW_ROWS if recipe != "classify" else ()  # one of them is tested on all
        of_smoke = ("model.unroll=1", *corpus)
        ran(shlex.join(words), *FEW, *(of_smoke if words[2].startswith("configs/smoke") else of_task))
    assert (workplace / f"runs/{path.stem}/checkpoints/2").is_dir()


EXAMPLES = {
    "decoder": ("reverse.yaml", "nope.yaml", "signum.yaml"),
    "encoder": ("bag.yaml", "spread.yaml", "posts.yaml", "rule.yaml"),
}
"""By the model that is trained. No two of them set the same section, so one run has what all of them set."""


@pytest.mark.slow
@pytest.mark.parametrize("model", EXAMPLES)
def test_the_worked_examples(workplace, model):
    """The files of jaxpt/README.md, as they stand there: each is accepted; two steps of all of a model."""
    for text in blocks(ARCHITECTURE, "python") + blocks(ARCHITECTURE, "yaml"):
        path = workplace / text.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    lines = [line.split() for block in blocks(ARCHITECTURE, "sh") for line in block.splitlines()]
    assert {words[2] for words in lines} == {recipe for of in EXAMPLES.values() for recipe in of}
    sys.path.append(str(workplace))  # as commands do
    whole, corpus = {}, "data.path=corpus/text.jsonl.gz"

    def small(tree):
        """Leaves an optimizer and evaluations of one's own alone; samples are compiled elsewhere."""
        evals = "evals=[{kind: heldout}, {kind: baseline}]"
        return [word for word in (*SMALL, evals, corpus) if word.partition("=")[0] not in tree]

    for recipe in EXAMPLES[model]:
        tree = yaml.safe_load(Path(recipe).read_text("utf-8"))
        assert tree.keys() & whole.keys() <= {"base"}
        whole = tree | whole  # the first one's base
        for words in (words for words in lines if words[2] == recipe):
            if words[1] == "train":
                preflight.check_recipe(configs.load(recipe, [*small(tree), *words[3:]]))
            else:
                ran(shlex.join(words), *small(tree))
    Path("whole.yaml").write_text(yaml.safe_dump(whole))
    ran("jaxpt train whole.yaml", *small(whole))
    config = configs.load("runs/whole")
    parts = (config.objective, config.model, config.optimizer, config.optimizer.schedule, *config.evals)
    own = {name.removeprefix("my_lab.") for name in (*(part.kind for part in parts), config.data.source) if "." in name}
    if model == "decoder":
        assert own == {"reverse_lm", "nope", "signum", "restarts"}
    else:
        assert own == {"bag_of_words", "spread", "posts"} and config.mesh.rules.mlp == ("fsdp",)
    assert (workplace / config.run_dir / "checkpoints" / "2").is_dir()
