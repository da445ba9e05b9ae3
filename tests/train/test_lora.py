"""Low-rank adapters: a fresh one changes nothing, the merged tree computes what the adapted one does, W is frozen."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from flax import traverse_util

from jaxpt import cli, hf
from jaxpt import config as configs
from jaxpt.cli import evaluate
from jaxpt.hf import convert
from jaxpt.models import parts
from jaxpt.train import checkpoint, lora, state, step, weights
from tests import families, grids
from tests.runs import final
from tests.train.test_trainable import TEXT, flat, steps

TARGETS = {"targets": ["*/attention/query", "*/attention/value"], "rank": 3, "alpha": 6.0}


def config(family="gpt2", trainable=None, devices=None, lora=TARGETS, **sections):
    train = {"lora": lora, "trainable": trainable}
    return families.config(family, model={"layers": 3}, train=train, **sections)


@pytest.mark.slow
@pytest.mark.parametrize("family", grids.cases(["gpt2", "t5", "bert"], "gpt2"))
def test_a_fresh_adapter_changes_nothing(family):
    given = config(family)
    setup = state.setup(given, jax.devices()[:1])

    @jax.jit
    def merged_and_fresh(params, key):
        merged = [lora.merged(given.train.lora, params, one) for one in (None, key)]
        return merged, setup.network.init(state.purpose_key(jax.random.key(given.seed), "init"))

    with setup.use():
        params = setup.init().params
        assert not any(x.any() for path, x in flat(params).items() if path.endswith("/b"))
        assert all(x.any() for path, x in flat(params).items() if path.endswith("/a"))
        plain = {name: part for name, part in params.items() if name != lora.ADAPTER}
        merged, fresh = merged_and_fresh(params, jax.random.key(0))
    for found in (*merged, fresh):
        jax.tree.map(np.testing.assert_array_equal, found, plain)


def test_only_the_adapter_moves():
    setup, before, after, metrics = steps(config(optimizer={"clip_norm": 1.0}))
    old, new = flat(before.params), flat(after.params)
    adapters = {path for path in old if path.startswith("adapter/")}
    assert len(adapters) == 4 and set(setup.trained) == adapters and metrics["gradient_norm"] > 0
    for path in old:
        assert (old[path] != new[path]).any() == (path in adapters), path
    a, b = (new[f"adapter/model/decoder/segment_0/block_0/attention/query/kernel/{name}"] for name in ("a", "b"))
    assert (a.shape, b.shape) == ((3, 32, 3), (3, 3, 32))
    moments = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(after.opt_state)]
    assert sum("mu" in name for name in moments) == 4


@pytest.mark.slow
def test_gradients_are_those_of_the_factors_by_hand():
    """d loss / d A = s · dW · Bᵀ and d loss / d B = s · Aᵀ · dW, with dW the gradient of the merged matrix."""
    given = config()
    setup = state.setup(given, jax.devices()[:1])
    rng = np.random.default_rng(0)
    with setup.use():
        params = jax.tree.map(lambda x: rng.normal(0, 0.1, x.shape).astype(np.float32), setup.shapes.params)
        batch = families.batch(given)
        adapters, frozen = {lora.ADAPTER: params[lora.ADAPTER]}, {k: v for k, v in params.items() if k != lora.ADAPTER}

        @jax.jit
        def both(params, adapters, frozen, batch):
            merged = lora.merged(given.train.lora, params)
            of_matrix, _, _ = step.gradients(given.objective, setup.network, merged, batch, None)
            found, _, _ = step.gradients(
                given.objective, setup.network, adapters, batch, None,
                assemble=lambda trained, key: setup.assemble(trained, frozen, key),
            )  # fmt: skip
            return of_matrix, found

        of_matrix, found = both(params, adapters, frozen, batch)
    path = "model/decoder/segment_0/block_0/attention/query/kernel"
    a, b = (flat(params)[f"adapter/{path}/{name}"] for name in ("a", "b"))
    dw = np.asarray(flat(of_matrix)[path])
    for name, wanted in (("a", 2 * dw @ b.swapaxes(-1, -2)), ("b", 2 * a.swapaxes(-1, -2) @ dw)):
        np.testing.assert_allclose(flat(found)[f"adapter/{path}/{name}"], wanted, rtol=1e-4, atol=1e-6)


def test_dropout_is_that_of_the_adapters_input():
    """x · W + s · (x ∘ m) · A · B, with one mask m for all tokens."""
    settings = config(lora={**TARGETS, "dropout": 0.5}).train.lora
    rng = np.random.default_rng(0)
    w, a, b, x = (jnp.asarray(rng.normal(size=s)) for s in ((2, 64, 6), (2, 64, 3), (2, 3, 6), (5, 64)))
    found = lora.added(settings, "p", w, a, b, jax.random.key(1))
    for layer in range(2):
        delta = (found[layer] - w[layer]) / 2
        whole = 2 * np.asarray(a[layer] @ b[layer])
        rows = [0 if np.abs(row).max() < 1e-6 else 1 for row in np.asarray(delta)]
        np.testing.assert_allclose(delta, np.array(rows)[:, None] * whole, rtol=1e-4, atol=1e-5)
        assert 10 < sum(rows) < 54
        mask = np.array(rows) * 2
        by_hand = x @ w[layer] + 2 * (x * mask) @ a[layer] @ b[layer]
        np.testing.assert_allclose(x @ found[layer], by_hand, rtol=1e-3, atol=1e-4)
    other = lora.added(settings, "p", w, a, b, jax.random.key(2))
    assert (other != found).any()


@pytest.mark.parametrize(("layer", "layers"), [(0, (0, 2)), (3, (1, 3))])
def test_an_adapter_has_the_layers_of_its_matrix(layer, layers):
    """For rates and unfreezing, though the tree of adapters alone lacks the other block of the pattern."""
    path = f"adapter/model/decoder/segment_0/block_{layer % 2}/attention/query/kernel/b"
    train = {"lora": {"targets": [f"model/decoder[{layer}]/attention/query"]}}
    layout = families.layout(families.config("gemma", train=train, optimizer={"layer_decay": 0.5}))
    leaf = layout.tree[path]
    assert (leaf.layers, leaf.depth) == (layers, 4)
    rates = {place: x for place, x in layout.rates.items() if place.startswith("adapter/") and place.endswith("/b")}
    assert sorted(float(x[0]) for x in rates.values()) == [0.5 ** (3 - n) for n in layers]

    opened = families.layout(
        families.config("gemma", train={**train, "trainable": ["*"], "unfreeze": {"every": 1}})
    ).masks
    first = next(stage for stage, masks in enumerate(opened) if masks[path].any())
    assert first == 4 - layer  # after the heads, from the top


def test_biases_of_heads_have_no_adapter():
    tree = families.tree("bert", objective={"kind": "permutation_lm"}, train={"lora": {"targets": ["*/attention/*"]}})
    sizes = {"vocab_size": 200, "layers": 1, "embed_dim": 32, "heads": 4, "mlp_dim": 64}
    adapted = families.layout(configs.build(tree | {"model": {"kind": "xlnet", **sizes}})).adapted
    names = {path.partition("/attention/")[2] for path in adapted}
    assert names == {*(f"{name}/kernel" for name in ("query", "key", "value", "position", "output")), "types"}


def test_parts_keep_the_names_that_earlier_versions_saved():
    train = {"lora": {"targets": ["model/decoder[0]/attention/query"]}}
    split = families.layout(families.config("gemma", train=train)).parts
    assert set(split) == {"model/decoder/segment_0", "adapter/model/decoder/segment_0"}
    assert {tuple(part.name for part in segment) for segment in split.values()} == {("layers_0-1", "layers_1-3")}


@pytest.mark.slow
def test_some_layers_alone_have_one():
    given = config(lora={**TARGETS, "targets": ["model/decoder[1:]/attention/query", "model/decoder[2]/*"]})
    setup = state.setup(given, jax.devices()[:1])
    after, _ = step.traced(setup, given.objective).out_info
    adapters = {path: x.shape[0] for path, x in flat(after.params).items() if path.startswith("adapter/")}
    path = "adapter/model/decoder/segment_0/layers_{}/block_0/attention/{}/kernel/a"
    assert adapters[path.format("1-1", "query")] == adapters[path.format("2-2", "query")] == 1
    assert path.format("2-2", "key") in adapters and path.format("1-1", "key") not in adapters
    assert not any("layers_0-0" in path for path in adapters)


@pytest.mark.slow
def test_meshes_compute_the_same():
    """Adapters are sharded as their matrices are."""
    mesh = {"data": 2, "fsdp": 2, "tensor": 2}
    found = [steps(config(**given), 2, devices)[1:] for given, devices in (({}, None), ({"mesh": mesh}, jax.devices()))]
    for path, x in flat(found[0][1].params).items():
        np.testing.assert_allclose(flat(found[1][1].params)[path], x, rtol=2e-4, atol=2e-5, err_msg=path)
    setup = state.setup(config(mesh=mesh))
    sharding = flat(setup.shardings.params)["adapter/model/decoder/segment_0/block_0/attention/query/kernel/a"]
    assert "fsdp" in str(sharding.spec)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that trains an adapter and the last norm."""
    folder = tmp_path_factory.mktemp("lora")
    (folder / "text.txt").write_text(TEXT)
    tree = families.tree(
        "gpt2",
        model={"vocab_size": 300, "layers": 3, "dropout": 0.1},
        data={"path": str(folder / "text.txt"), "cache_dir": str(folder / "cache"), "validation_fraction": 0.2,
              "length": 16},
        mesh={"data": 8},
        optimizer={"kind": "adamw", "learning_rate": 1e-1, "ema_decay": 0.5},
        train={"steps": 4, "log_every": 1, "eval_every": 2, "trainable": ["adapter", "model/final_norm"],
               "lora": {"targets": ["*[1:]/attention", "*[1:]/feed_forward/up"], "dropout": 0.2}},
        log={"tensorboard": False},
    )  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    assert cli.main(["train", str(folder / "recipe.yaml"), f"run_dir={folder / 'run'}"]) == 0
    return folder


@pytest.mark.slow
def test_the_merged_tree_computes_what_the_adapted_one_does(folder):
    """In an evaluation, an export and a start from these weights; the adapted pass multiplies by A and by B."""
    run = folder / "run"
    read = dict(weights.Saved(run, 4))
    last = final(run, 4)
    assert not any(path.startswith("adapter/") or "layers_" in path for path in read)
    given = configs.load(run)
    adapted = flat(last.averaged)
    whole = "model/decoder/segment_0/block_0/attention/query/kernel"
    stored = "model/decoder/segment_0/layers_1-2/block_0/attention/query/kernel"
    a, b = (adapted[f"adapter/{stored}/{name}"] for name in ("a", "b"))
    assert np.abs(a @ b).max() > 1e-3
    x = np.random.default_rng(0).normal(size=(2, 5, 32))
    scale = given.train.lora.alpha / given.train.lora.rank
    by_factors = x @ adapted[stored] + scale * (x @ a) @ b
    np.testing.assert_allclose(x @ read[whole][1:], by_factors, rtol=1e-6, atol=1e-6)

    measured = [r["validation/loss"] for r in map(json.loads, (run / "metrics.jsonl").open()) if "validation/loss" in r]
    np.testing.assert_allclose(evaluate.evaluate(str(run))["validation/loss"], measured[-1], rtol=1e-6)
    convert.export(run, folder / "hf", report=lambda line: None)
    parameters, network, _ = weights.open_weights(folder / "hf")
    for path, x in parameters:
        rows = slice(300) if path == "model/token_embed/table" else slice(None)  # the others only pad the vocabulary
        np.testing.assert_array_equal(x[rows], read[path][rows])
    setup = state.setup(families.config("gpt2", model=network.config.model_dump(mode="json")), jax.devices()[:1])
    reader = checkpoint.Checkpoints(run, given.checkpoint, read_only=True)
    found = flat(jax.device_get(reader.restore_params(setup, 4)))
    reader.close()
    for path, x in read.items():
        np.testing.assert_allclose(found[path], x, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_start_from_other_weights_gets_a_fresh_adapter(folder):
    arguments = [f"run_dir={folder / 'next'}", f"init_from.path={folder / 'run'}", "train.steps=1"]
    assert cli.main(["train", str(folder / "recipe.yaml"), *arguments, "optimizer.learning_rate=1e-30"]) == 0
    read = [dict(weights.Saved(folder / name, at)) for name, at in (("run", 4), ("next", 1))]
    for path, x in read[0].items():
        np.testing.assert_allclose(read[1][path], x, rtol=1e-6, atol=1e-6, err_msg=path)
    adapters = traverse_util.flatten_dict(final(folder / "next", 1).params["adapter"], sep="/")
    assert not any(np.abs(x).max() > 1e-20 for path, x in adapters.items() if path.endswith("/b"))


@pytest.mark.slow
def test_an_adapter_leaves_in_pefts_layout_and_comes_back(folder):
    """Averages, of some layers, beside a norm that was trained: on the frozen weights the import is the run."""
    run, last = folder / "run", final(folder / "run", 4)
    network = configs.load(run).objective.network(configs.load(run).model)
    base = parts.join({p: x for p, x in flat(last.params).items() if not p.startswith("adapter/")}, np.concatenate)
    hf.save(folder / "base", network, traverse_util.unflatten_dict(base, sep="/"))
    assert cli.main(["export", str(run), str(folder / "peft"), "--adapter"]) == 0
    keys = json.loads((folder / "peft" / "adapter_config.json").read_text())
    joined = [f"transformer.h.{n}.attn.{name}" for n in (1, 2) for name in ("c_attn", "c_proj")]
    assert keys["target_modules"] == sorted([*joined, "transformer.h.1.mlp.c_fc", "transformer.h.2.mlp.c_fc"])
    assert keys["r"] == 24 and keys["rank_pattern"]["transformer.h.1.attn.c_proj"] == 8
    assert keys["modules_to_save"] == ["transformer.ln_f"] and (folder / "peft" / "tokenizer.json").exists()
    base = ["--base", str(folder / "base")]
    assert cli.main(["import", str(folder / "peft"), str(folder / "imported"), *base]) == 0
    one, two = weights.Saved(run, 4), weights.Saved(folder / "imported", 0)
    assert set(one) == set(two) and configs.load(folder / "imported").train.lora.rank == 8
    for path in one:
        rows = slice(300) if path == "model/token_embed/table" else slice(None)  # the others only pad the vocabulary
        np.testing.assert_allclose(two[path][rows], one[path][rows], rtol=1e-6, atol=1e-7, err_msg=path)
    assert cli.main(["export", str(folder / "imported"), str(folder / "again"), "--adapter"]) == 0
    assert cli.main(["export", str(run), str(folder / "bad"), "--adapter", "--dtype", "bfloat16"]) == 2
