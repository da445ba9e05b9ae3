"""Updates of a fixed number of examples: the loss is that of the same examples one per row, in any microbatches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.data import checks, datasets
from jaxpt.errors import UserError
from jaxpt.train import step
from tests import families, grids
from tests.models.helpers import drawn

LENGTH, EXAMPLES = 32, 12
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
EXTRA = {"bart": {"layers": 1, "embed_dim": 32, "heads": 4, "mlp_dim": 64, "vocab_size": 200, "max_positions": 64}}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labelled")
    rng = np.random.default_rng(0)
    words = np.minimum(rng.geometric(1 / 4, 150), 20)
    lines = (f"{' '.join(f'w{w}' for w in rng.integers(0, 50, n))}\t{'ab'[n % 2]}\n" for n in words)
    (folder / "train.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *(f"w{n}" for n in range(50))]))
    return folder


def config_of(files, family, **data):
    model = families.MODELS.get(family, EXTRA.get(family))
    return configs.build(
        {
            "model": {"kind": family, **model, "dtype": "float32", "layers": 1, "vocab_size": 320},
            "task": {"kind": "classification", "text": "sentence", "labels": ["a", "b"]},
            "objective": {"kind": "classification", "examples": 8},
            "data": {"path": str(files / "train.tsv"), "cache_dir": str(files / "cache"), "length": LENGTH,
                     "batch_size": 8, "packing": True, "batch_examples": EXAMPLES,
                     "tokenizer": tokenizer(files, family), **data},
        }
    )  # fmt: skip


def tokenizer(files, family):
    if family == "bert":
        return {"kind": "wordpiece", "path": str(files / "vocab.txt"), "lowercase": True}
    return {"kind": {"gpt2": "bpe", "t5": "sentencepiece", "bart": "bpe"}[family], "vocab_size": 290}


def prepared(config):
    lines = []
    return datasets.prepare(config, report=lines.append, save=False, workers=1), lines


def one_per_row(data, number):
    """The examples of a step in rows of their own."""
    task = data.train.tasks[0]
    rows = np.arange(8)
    records, _ = task.packs.of(*np.divmod(number * 8 + rows, len(task)))  # in the order of their epoch
    stored = task.store.fetch(records)
    return task.online(stored, np.zeros(len(records), np.uint64), np.arange(len(records) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("family", grids.cases(["bert", "gpt2", "t5", "bart"], "bert", "gpt2", "t5"))
def test_the_loss_is_that_of_the_examples_in_rows_of_their_own_and_in_microbatches(files, family):
    config = config_of(files, family)
    data, lines = prepared(config)
    assert any(f"{EXAMPLES} examples in each of" in line for line in lines)
    objective = config.objective
    network = objective.network(config.model)
    params = drawn(network)
    gradients = functools.partial(step.gradients, objective, network, params, key=None)
    both = jax.jit(lambda batch, parts: gradients(batch=batch, accumulation=parts)[:2], static_argnums=1)
    batches = data.train.batches()
    packed = next(batches)
    assert packed["label_weights"].sum() == EXAMPLES == next(batches)["label_weights"].sum()
    alone = one_per_row(data, 0)
    assert len(alone["labels"]) == EXAMPLES
    grads, metrics = both(packed, 1)
    for other, parts in ((alone, 1), (packed, 4)):
        of_other, said = both(other, parts)
        np.testing.assert_allclose(said["loss"], metrics["loss"], rtol=1e-5)
        largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads))
        for x, y in zip(jax.tree.leaves(of_other), jax.tree.leaves(grads)):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * largest)


def test_a_stream_is_addressed_by_its_step_and_shared_by_processes(files):
    train = prepared(config_of(files, "bert"))[0].train
    steps = train.tasks[0].packs.steps
    batches = train.batches()
    whole = [next(batches) for _ in range(2 * steps + 1)]
    sizes = [int(batch["label_weights"].sum()) for batch in whole]
    last = len(train.tasks[0].store) - EXAMPLES * (steps - 1)
    assert sizes == [*[EXAMPLES] * (steps - 1), last] * 2 + [EXAMPLES]
    for start in (1, steps - 1, steps + 3):
        again = next(train.batches(start))
        assert all((again[name] == whole[start][name]).all() for name in again)
    parts = [next(train.batches(steps, slice(a, a + 2))) for a in range(0, 8, 2)]
    assert all((np.concatenate([p[name] for p in parts]) == whole[steps][name]).all() for name in parts[0])


def test_what_cannot_be_is_said(files):
    with pytest.raises(UserError, match=r"batch_examples wants packing: true"):
        config_of(files, "bert", packing=False)
    with pytest.raises(UserError, match=r"data.batch_size: 1 rows of .* do not hold 12 examples"):
        prepared(config_of(files, "bert", batch_size=1))
    mixture = [{"name": "one", "path": "a"}, {"name": "two", "path": "b"}]
    with pytest.raises(UserError, match="batch_examples is for one task"):
        tree = families.tree("bert", objective={"next_sentence": False})
        tree["data"] |= {"packing": True, "batch_examples": 4, "mixture": mixture}
        checks.check(configs.build(tree))
