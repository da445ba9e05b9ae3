"""Gradual unfreezing: what opens when, in which order, and that a run keeps to it through a kill."""

import json
import zlib

import jax
import pytest
import yaml
from flax import traverse_util

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.data import datasets
from jaxpt.errors import UserError
from jaxpt.train import state, step, trainable
from tests import families
from tests.runs import assert_bit_equal, final

TEXT = "\n".join(f"document number {i} says that the cat sat on the mat and the dog ran home" for i in range(60))

PHASES = "train.phases=[{steps: 2, set: {data.length: 8}}, {}]"


def config(family="bert", layers=3, **train):
    return families.config(family, model={"layers": layers}, train=train)


def flat(tree):
    return traverse_util.flatten_dict(tree, sep="/")


def opens(given):
    """[(first step, what opens)] as a run shows it."""
    shown = trainable.lines(given, families.layout(given))
    assert shown[0] == "gradual unfreezing, from step:"
    return [(int(line.split()[0]), line.split(maxsplit=1)[1]) for line in shown[1:]]


BERT = [
    "heads", "model/encoder[2]", "model/encoder[1]", "model/encoder[0]",
    "model/embed_norm, model/position_embed, model/token_embed, model/type_embed",
]  # fmt: skip


def test_one_layer_more_from_the_top_at_a_time():
    assert opens(config(unfreeze={"every": 3}, steps=20)) == list(zip((1, 4, 7, 10, 13), BERT))
    assert opens(config(unfreeze={"steps": [0, 1, 2, 5, 6]}, steps=20)) == list(zip((1, 2, 3, 6, 7), BERT))
    early = opens(config(unfreeze={"every": 3}, steps=9))
    assert early[2] == (7, BERT[2]) and early[3] == (10, f"{BERT[3]} (the run ends before)")


def test_the_last_opening_is_of_everything():
    """Heads, top layer, all: as in the released script."""
    found = opens(config(unfreeze={"steps": [0, 4, 8]}, steps=20))
    assert [step for step, _ in found] == [1, 5, 9] and [x for _, x in found[:2]] == BERT[:2]
    assert found[2][1] == f"{BERT[4].replace('embed_norm,', 'embed_norm, model/encoder[:2],')}"


def test_a_decoder_opens_before_its_encoder():
    found = [what for _, what in opens(config("t5", 2, unfreeze={"every": 1}))]
    assert found[0] == "model/decoder_norm, model/encoder_norm, model/head"
    assert found[1:5] == ["model/decoder[1]", "model/decoder[0]", "model/encoder[1]", "model/encoder[0]"]
    assert found[5] == "model/decoder_bias, model/encoder_bias, model/token_embed"


def test_elmos_characters_open_last():
    found = [what for _, what in opens(families.config("elmo", train={"unfreeze": {"every": 1}}))]
    assert found[:3] == ["heads", "model/encoder[1]", "model/encoder[0]"] and len(found) == 4
    assert all(path.startswith("model/words/") for path in found[3].split(", "))


def test_what_is_named_as_trainable_opens_alone():
    found = opens(config(unfreeze={"every": 1}, trainable=["!model/*embed*", "!model/encoder[0]"]))
    assert [what for _, what in found] == BERT[:3]
    lora = opens(config(unfreeze={"every": 2}, trainable=["heads", "adapter"], lora={"rank": 2}))
    assert lora[1] == (3, "adapter/model/encoder[2]") and len(lora) == 4


def test_phases_are_cut_where_more_opens():
    """Data of a phase go on where only the trained part changes."""
    phases = [{"steps": 5, "set": {"data.length": 16}}, {}]
    given = config(unfreeze={"steps": [0, 3, 5, 7]}, steps=10, phases=phases)
    assert configs.phase_starts(given) == (0, 3, 5, 7)
    assert [(s.phase, s.phase_start, s.unfrozen) for s in configs.train_stages(given)] == [
        (0, 0, 0), (0, 0, 1), (1, 5, 2), (1, 5, 3)
    ]  # fmt: skip
    assert [configs.at_phase(given, n).data.length for n in range(4)] == [16, 16, 32, 32]
    assert len(configs.phase_lines(given)) == 2
    shorter = given.model_copy(update={"train": given.train.model_copy(update={"steps": 6})})
    assert [configs.phase_of(shorter, n) for n in (1, 3, 4, 6, 8)] == [0, 0, 1, 2, 3], "also of a step beyond its end"
    assert configs.build(configs.dump(given)) == given


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"unfreeze": {}}, "set either every or steps"),
        ({"unfreeze": {"every": 2, "steps": [0]}}, "set either every or steps"),
        ({"unfreeze": {"steps": [1, 2]}}, r"steps: \[1, 2\] must begin with 0 and rise"),
        ({"unfreeze": {"steps": [0, 2, 2]}}, "must begin with 0 and rise"),
        ({"unfreeze": {"steps": list(range(6))}}, "6 steps, but the model opens in 5: heads, 3 layers, embeddings"),
        ({"unfreeze": {"every": 2}, "trainable": ["model/encoder"]}, "nothing that train.trainable names is open at"),
        ({"unfreeze": {"every": 2}, "lora": {}}, "nothing that train.trainable names is open at step 0"),
    ],
)
def test_refused(train, said):
    with pytest.raises(UserError, match=said):
        state.setup(config(**train))


def test_shared_layers_cannot_open_one_by_one():
    model = {"kind": "albert", "vocab_size": 200, "layers": 2, "embed_dim": 32, "heads": 4, "mlp_dim": 64,
             "max_positions": 32}  # fmt: skip
    tree = families.tree("bert", train={"unfreeze": {"every": 2}}) | {"model": model}
    with pytest.raises(UserError, match=r"train\.unfreeze: the layers of model/encoder share their parameters"):
        state.setup(configs.build(tree))


def test_an_encoder_of_several_stacks_does_not_begin():
    """They would open in the order of their names, the top layer of a mask decoder last."""
    model = {"kind": "deberta", "layers": 2, "mask_decoder": True}
    given = families.config("bert", model=model, train={"unfreeze": {"every": 2}})
    (problem,) = trainable.problems(given, families.layout(given))
    assert problem.startswith("train.unfreeze: opens model/encoder, model/last out of order; leave it out, and name")


# ---- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that opens a model of two layers at the steps 0, 2 and 3, with a checkpoint of each step: FOLDER/whole."""
    folder = tmp_path_factory.mktemp("unfreeze")
    (folder / "text.txt").write_text(TEXT)
    tree = families.tree(
        "bert",
        model={"vocab_size": 300, "dropout": 0.1},
        data={"path": str(folder / "text.txt"), "cache_dir": str(folder / "cache"), "validation_fraction": 0.2,
              "length": 16},
        mesh={"data": 4, "fsdp": 2},
        optimizer={"kind": "adamw", "learning_rate": 1e-2},
        train={"steps": 5, "log_every": 1, "eval_every": 3, "unfreeze": {"steps": [0, 2, 3]}},
        checkpoint={"keep_last": 9, "every": 1},
        log={"tensorboard": False},
    )  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    (folder / "batches").write_text(json.dumps(run(folder, "whole")))
    return folder


def checksum(batch):
    return zlib.crc32(b"".join(batch[name].tobytes() for name in sorted(batch)))


def run(folder, name, *overrides):
    """Trains; returns a checksum of the batch of each step."""
    put, seen = step.put, []

    def recorded(batch, setup):
        if "eval_mask" not in batch:  # validation has it
            seen.append(checksum(batch))
        return put(batch, setup)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "put", recorded)
        assert cli.main(["train", str(folder / "recipe.yaml"), f"run_dir={folder / name}", *overrides]) == 0
    return seen


def losses(folder):
    return {x["step"]: x["train/loss"] for x in map(json.loads, (folder / "metrics.jsonl").open()) if "train/loss" in x}


@pytest.mark.slow
def test_layers_are_bit_equal_and_without_state_before_they_open(folder):
    states = {at: final(folder / "whole", at) for at in range(1, 6)}
    first = state.setup(configs.load(folder / "whole")).init()
    params = {0: flat(jax.device_get(first.params)), **{at: flat(x.params) for at, x in states.items()}}
    opening = {"heads/": 0, "layers_1-1": 2, "layers_0-0": 3, "embed": 3}
    assert set(params[0]) == set(params[5])
    for path in params[0]:
        when = next(step for name, step in opening.items() if name in path)
        for at in range(1, 6):
            moved = params[at][path].tobytes() != params[at - 1][path].tobytes()
            assert moved == (at > when), (path, at)
            moments = {jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(states[at].opt_state)}
            has_state = any(".mu" in m and all(f"'{name}'" in m for name in path.split("/")) for m in moments)
            assert has_state == (at > when), (path, at)


@pytest.mark.slow
def test_batches_are_those_of_a_run_without_unfreezing(folder):
    plain = datasets.prepare(configs.load(folder / "recipe.yaml", ["train.unfreeze=null"]), save=False)
    wanted = [checksum(batch) for batch, _ in zip(plain.train.batches(), range(5))]
    assert json.loads((folder / "batches").read_text()) == wanted and len(set(wanted)) == 5


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_as_the_whole_one(folder, capsys):
    """Stopped where more opens, as a shorter run: layers that it does not come to are stored as they will be needed."""
    batches = json.loads((folder / "batches").read_text())
    assert run(folder, "short", "train.steps=2") == batches[:2]
    assert "  3      model/encoder[1]" in capsys.readouterr().out
    assert run(folder, "short", "train.steps=5") == batches[2:]
    assert "resuming from step 2" in capsys.readouterr().out
    assert_bit_equal(final(folder / "whole", 5), final(folder / "short", 5))
    assert losses(folder / "whole") == losses(folder / "short") and len(losses(folder / "short")) == 5


@pytest.mark.slow
@pytest.mark.parametrize("stages", ["train.unfreeze={steps: [0, 2, 3]}", PHASES], ids=["unfreezing", "phases"])
def test_a_resume_between_stages_needs_the_same_data(folder, stages, tmp_path, capsys):
    """The checkpoint there is of the stage before."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    unfreeze = "train.unfreeze=null" if stages == PHASES else stages
    options = [str(folder / "recipe.yaml"), f"run_dir={tmp_path / 'run'}", f"data.path={text}", unfreeze, stages]
    assert cli.main(["train", *options, "train.steps=2"]) == 0
    text.write_text(TEXT.replace("cat", "cow"))
    capsys.readouterr()
    assert cli.main(["train", *options, "train.steps=5"]) == 2
    assert f"{tmp_path / 'run'}: was trained on other data: source.files." in capsys.readouterr().err
    text.write_text(TEXT)
    assert cli.main(["train", *options, "train.steps=5"]) == 0
