"""Low-rank adapters beside peft, which computes and trains the same."""

import functools
import itertools
import shutil

import jax
import numpy as np
import pytest

from jaxpt import hf
from jaxpt.config import LoraConfig
from jaxpt.errors import UserError
from jaxpt.hf import files, imported, peft, verify
from jaxpt.models import stored
from jaxpt.models.network import Network
from jaxpt.train import lora, state, step
from tests import families, grids
from tests.hf import test_mixtures_parity as mixtures
from tests.hf.parity import randomise, with_ids_of
from tests.hf.test_directory import fresh
from tests.hf.test_peft import NAMED, adapter_of, config, fine_tuned, flat, made, merged, tree_of, written
from tests.models.helpers import EVERY


def theirs(directory, network, model_type=None, **options):
    """Their base model, and peft; a head that the base does not have is random."""
    library = pytest.importorskip("peft")
    import transformers

    name = hf.directory.family_of(network.config, model_type).class_of(network)
    base = getattr(transformers, name).from_pretrained(directory / "base", attn_implementation="eager", **options)
    return base, library


def assert_equal_outputs(network, params, model):
    inputs = verify.batch(network.config)
    ours = jax.jit(lambda params: verify.ours(network, params, inputs))
    found = verify.differences(ours(params), verify.theirs(model.eval(), inputs), inputs)
    assert all(difference.equal for difference in found.values()), found


@pytest.mark.parity
@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "neox", "phi"])
def test_peft_loads_ours_with_equal_outputs(family, tmp_path):
    network, params, adapter = made(family, tmp_path)
    base, library = theirs(tmp_path, network)
    model = library.PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert_equal_outputs(network, merged(config(family).train.lora, params, adapter), model.base_model.model)


@pytest.mark.parity
@pytest.mark.parametrize("model_type", NAMED)
def test_peft_finds_the_modules_of_the_architecture_of_the_base(model_type, tmp_path):
    family, _ = NAMED[model_type]
    network, params, adapter = made(family, tmp_path, model_type=model_type)
    base, library = theirs(tmp_path, network, model_type)
    assert base.config.model_type == model_type
    model = library.PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert_equal_outputs(network, merged(config(family).train.lora, params, adapter), model.base_model.model)


@pytest.mark.parity
def test_peft_finds_the_modules_of_a_backbone_alone(tmp_path):
    network, params = fresh(Network(EVERY["bert"]().build()))
    hf.save(tmp_path / "base", network, params)
    settings = LoraConfig(rank=2)
    adapter = adapter_of(network, settings)
    written(tmp_path / "adapter", network, settings, adapter)
    base, library = theirs(tmp_path, network)
    model = library.PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert_equal_outputs(network, merged(settings, params, adapter), model.base_model.model)


CLASSES = [(name, "classes") for name in ("roberta", "distilbert", "electra", "bert", "albert", "modernbert", "gpt2",
                                          "t5", "bart")]  # fmt: skip
CLASSES += [("bert", "span"), ("bert", "tags"), ("roberta", "choice")]


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "head"), grids.cases(CLASSES, ("roberta", "classes"), ("distilbert", "classes"), ("bert", "span"))
)
def test_peft_loads_the_head_of_a_class_beside_a_base_without_it(name, head, tmp_path):
    network, params = fine_tuned(name, head)
    params = jax.tree.map(lambda x: 0.2 * x, params)
    backbone = Network(network.config.build())
    hf.save(tmp_path / "base", backbone, {"model": params["model"]})
    settings = LoraConfig(rank=2)
    adapter = adapter_of(network, settings)
    written(tmp_path / "adapter", network, settings, adapter, params=flat(params))
    base, library = theirs(tmp_path, network, num_labels=2)
    model = library.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    inputs = verify.task_batch(network.config)
    ours = jax.jit(functools.partial(verify.task_ours, network))(merged(settings, params, adapter), inputs)
    with_adapter = verify.task_theirs(head, with_ids_of(model.base_model.model, inputs), inputs)
    found = verify.differences(ours, with_adapter, inputs)["logits"]
    assert found.equal, found


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "head", "task"), [("bert", "classes", "SEQ_CLS"), ("bert", "tags", "TOKEN_CLS"),
                               ("roberta", "classes", "SEQ_CLS"), ("gpt2", "classes", "SEQ_CLS")]
)  # fmt: skip
def test_an_adapter_of_theirs_brings_its_head_to_a_base_without_it(name, head, task, tmp_path):
    import torch

    network, params = fine_tuned(name, head, 3)
    family = hf.directory.family_of(network.config)
    pooler = {"pooler": params["heads"]["pooler"]} if (name, head) == ("bert", "classes") else {}
    backbone = family.network(network.config, tuple(pooler))  # peft saves RoBERTa's pooler, and not BERT's
    hf.save(tmp_path / "base", backbone, {"model": params["model"]} | ({"heads": pooler} if pooler else {}))
    base, library = theirs(tmp_path, network, num_labels=3)
    targets = ["c_attn"] if name == "gpt2" else ["query", "value"]
    model = library.get_peft_model(base, library.LoraConfig(task_type=task, r=2, target_modules=targets)).eval()
    generator = torch.Generator().manual_seed(0)
    for x in (x for x in model.parameters() if x.requires_grad):
        x.data.normal_(0, 0.2, generator=generator)
    model.save_pretrained(tmp_path / "adapter")
    opened = imported.open_source(tmp_path / "base", False, (), tmp_path / "adapter")
    assert opened.network.count_params() == network.count_params()
    found = peft.read(tmp_path / "adapter", opened.network)
    whole = stored.gather(itertools.chain(opened.pieces(), found.saved), stored.stored_params(opened.network))
    inputs = verify.task_batch(network.config)
    ours = jax.jit(functools.partial(verify.task_ours, network))(merged(found.config, whole, found.factors), inputs)
    with_adapter = verify.task_theirs(head, with_ids_of(model.base_model.model, inputs), inputs)
    logits = verify.differences(ours, with_adapter, inputs)["logits"]
    assert logits.equal, logits


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("bert", ["query", "value"]),
        ("llama", ["q_proj", "v_proj"]),
        ("gpt2", ["c_attn", "c_fc"]),
        ("neox", ["query_key_value", "dense_h_to_4h"]),
        ("phi", ["qkv_proj", "gate_up_proj"]),
    ],
)
def test_theirs_is_read_with_equal_outputs(family, targets, tmp_path):
    import torch

    network, params, _ = made(family, tmp_path)
    base, library = theirs(tmp_path, network)
    settings = library.LoraConfig(
        r=4, lora_alpha=10, target_modules=targets, fan_in_fan_out=family == "gpt2", rank_pattern={targets[1]: 2},
        use_rslora=family == "llama",
    )  # fmt: skip
    model = library.get_peft_model(base, settings)
    for name, x in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(x, 0, 0.3)
    shutil.rmtree(tmp_path / "adapter")
    model.save_pretrained(tmp_path / "adapter")
    found = peft.read(tmp_path / "adapter", network)
    assert_equal_outputs(network, merged(found.config, params, found.factors), model.base_model.model)


@pytest.mark.parity
@pytest.mark.slow
def test_experts_that_are_modules_have_adapters(tmp_path):
    """Switch, there and back. Mixtral's experts are one tensor: adapters of it (`target_parameters`) are refused."""
    import torch

    library = pytest.importorskip("peft")
    model = randomise(mixtures.switch(), 0)
    model.save_pretrained(tmp_path / "base")
    network, params = hf.load(tmp_path / "base")
    settings = library.LoraConfig(r=2, lora_alpha=6, target_modules=["wi", "wo", "classifier", "q"])
    adapted = library.get_peft_model(model, settings)
    for name, x in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(x, 0, 0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    found = peft.read(tmp_path / "adapter", network)
    assert_equal_outputs(network, merged(found.config, params, found.factors), adapted.base_model.model)
    written(tmp_path / "out", network, found.config, found.factors)
    base, _ = theirs(tmp_path, network)
    again = library.PeftModel.from_pretrained(base, tmp_path / "out")
    assert_equal_outputs(network, merged(found.config, params, found.factors), again.base_model.model)

    model = randomise(mixtures.their("mixtral"), 0)
    model.save_pretrained(tmp_path / "mixtral")
    network, _ = hf.load(tmp_path / "mixtral")
    settings = library.LoraConfig(r=2, target_modules=["q_proj"], target_parameters=["mlp.experts.down_proj"])
    library.get_peft_model(model, settings).save_pretrained(tmp_path / "of_mixtral")
    with pytest.raises(UserError, match=r"target_parameters: .* is not supported"):
        peft.read(tmp_path / "of_mixtral", network)


@pytest.mark.parity
@pytest.mark.parametrize("start", [
    True, False, "gaussian", "orthogonal", "mica", "eva", "pissa", "pissa_niter_4", "olora", "lora_ga",
])  # fmt: skip
def test_each_initialisation_is_what_peft_makes_of_it_or_refused(start, tmp_path):
    """Refused are those whose factors peft learns beside another base weight than that of the files."""
    import torch

    network, params, _ = made("gpt2", tmp_path)
    base, library = theirs(tmp_path, network)
    weight = base.transformer.h[0].attn.c_attn.weight.detach().clone()
    more = {"lora_ga_config": {}} if start == "lora_ga" else {}
    settings = library.LoraConfig(
        r=4, lora_alpha=10, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=start, **more
    )
    model = library.get_peft_model(base, settings)
    layer = model.base_model.model.transformer.h[0].attn.c_attn
    moves = not torch.equal(layer.base_layer.weight, weight)
    generator = torch.Generator().manual_seed(0)
    for name, x in model.named_parameters():
        if "lora_" in name:
            x.data += 0.1 * torch.randn(x.shape, generator=generator)
    shutil.rmtree(tmp_path / "adapter")
    model.save_pretrained(tmp_path / "adapter")
    if moves or start == "lora_ga":  # which moves it where it has seen gradients
        with pytest.raises(UserError, match=f"init_lora_weights: '{start}' is not supported"):
            peft.read(tmp_path / "adapter", network)
        return
    found = peft.read(tmp_path / "adapter", network)
    assert_equal_outputs(network, merged(found.config, params, found.factors), model.base_model.model)


@pytest.mark.parity
def test_every_field_of_their_configuration_is_known_or_off():
    """An adapter that sets nothing is read; a field that is new in peft is refused where it is set."""
    library = pytest.importorskip("peft")
    given = library.LoraConfig(target_modules=["query"]).to_dict()
    known = peft._READ | peft._HARMLESS
    assert not {key for key, x in given.items() if key not in known and x not in (None, False, [], {})}


@pytest.mark.parity
def test_a_tied_table_that_is_saved(tmp_path):
    """peft leaves the projection as it was: other logits than with one table."""
    network, _, _ = made("gpt2", tmp_path)
    base, library = theirs(tmp_path, network)
    settings = library.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["wte"])
    model = library.get_peft_model(base, settings)
    shutil.rmtree(tmp_path / "adapter")
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(UserError, match="modules_to_save: 'wte' is tied to the projection to the vocabulary"):
        peft.read(tmp_path / "adapter", network)


OPTIMIZERS = {
    "sgd": {"kind": "sgd", "learning_rate": 10.0},  # moves that are far above the rounding of the weights
    "adamw": {"kind": "adamw", "learning_rate": 0.01, "weight_decay": 0.1, "b1": 0.9, "b2": 0.99, "eps": 1e-8},
}


STEPS = list(itertools.product(("bert", "llama", "gpt2", "neox", "phi"), OPTIMIZERS))


@pytest.mark.parity
@pytest.mark.parametrize(("family", "kind"), grids.cases(STEPS, ("bert", "adamw"), ("gpt2", "sgd")))
def test_a_step_is_that_of_peft(family, kind, tmp_path):
    """One training step of ours, and loss.backward() with torch's optimizer. Of a joined matrix the blocks are looked
    at: beside them peft trains what is zero here."""
    network, params, adapter = made(family, tmp_path)
    base, library = theirs(tmp_path, network)
    model = library.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True).eval()
    given = config(family, optimizer=OPTIMIZERS[kind])
    batch = families.batch(given)
    batch |= {name: np.ones_like(x) for name, x in batch.items() if name.endswith("segment_ids")}
    their_loss = torch_step(model, batch, OPTIMIZERS[kind])

    setup = state.setup(given, jax.devices()[:1])
    with setup.use():
        start = setup.init().replace(params=jax.tree.map(jax.numpy.asarray, {**params, lora.ADAPTER: tree_of(adapter)}))
        after, metrics = step.make_train_step(setup, given.objective)(start, step.put(batch, setup))
    np.testing.assert_allclose(float(metrics["loss"]), their_loss, rtol=1e-5)
    new = flat(jax.device_get(after.params)[lora.ADAPTER])
    stepped = {path: peft.Factors(x.held, new[f"{path}/a"], new[f"{path}/b"]) for path, x in adapter.items()}
    written(tmp_path / "stepped", network, given.train.lora, stepped)
    before, ours = (files.Tensors(tmp_path / name, (peft.WEIGHTS,)) for name in ("adapter", "stepped"))
    state_dict = library.get_peft_model_state_dict(model)
    assert set(state_dict) == set(ours)
    for name, x in state_dict.items():
        there = before[name] != 0
        moved, wanted = ours[name] - before[name], x.numpy() - before[name]
        assert np.abs(wanted).max() > 0
        np.testing.assert_allclose(ours[name][there], x.numpy()[there], rtol=0, atol=1e-4 * np.abs(ours[name]).max())
        largest = np.abs(wanted[there]).max()
        np.testing.assert_allclose(moved[there], wanted[there], rtol=0, atol=2e-3 * largest, err_msg=name)


def torch_step(model, batch, settings):
    """Cross-entropy as the objective weighs it, and one step of torch's optimizer; returns the loss."""
    import torch

    batch = {name: torch.from_numpy(np.asarray(x)) for name, x in batch.items()}
    if "masked_targets" in batch:
        types = {"token_type_ids": batch["encoder_token_types"].long()} if "encoder_token_types" in batch else {}
        logits = model(input_ids=batch["encoder_input_tokens"].long(), **types).logits
        rows = torch.arange(len(logits))[:, None]
        logits = logits[rows, batch["masked_positions"].long()]
        targets, w = batch["masked_targets"], batch["masked_weights"]
    else:
        logits = model(input_ids=batch["decoder_input_tokens"].long()).logits
        targets, w = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets.long(), reduction="none")
    loss = (each * w).sum() / w.sum()
    trained = [x for x in model.parameters() if x.requires_grad]
    if settings["kind"] == "sgd":
        optimizer = torch.optim.SGD(trained, settings["learning_rate"])
    else:
        optimizer = torch.optim.AdamW(
            trained, settings["learning_rate"], (settings["b1"], settings["b2"]), settings["eps"],
            settings["weight_decay"],
        )  # fmt: skip
    loss.backward()
    optimizer.step()
    return loss.item()
