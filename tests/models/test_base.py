"""What holds for every model: counts, axes, the loss at the start, rematerialisation, types."""

import functools
import re
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxpt.config import MeshConfig, ModelConfig, resolve
from jaxpt.models.heads import masked_lm
from jaxpt.models.layers import PARAMETER_AXES
from jaxpt.models.network import Network
from jaxpt.parallel import mesh as meshes
from jaxpt.parallel import rules
from tests import grids
from tests.models.helpers import ALL, V, apply, made, tokens, whole

FOLDER = Path(__file__).parents[2] / "configs" / "models"
SIZES = sorted(FOLDER.glob("*.yaml"))
PUBLISHED = {
    "albert_base": 11_813_810, "albert_large": 17_847_474, "albert_xlarge": 59_021_490, "albert_xxlarge": 223_158_450,
    "bart_base": 139_420_416, "bart_large": 406_291_456, "bert_base": 110_106_428, "bert_large": 336_226_108,
    "bert_medium": 41_668_412, "bert_mini": 11_267_900, "bert_small": 29_058_876, "bert_tiny": 4_433_468,
    "deberta_v2_xlarge": 887_085_156, "deberta_v2_xxlarge": 1_567_041_636, "deberta_v3_base": 184_551_780,
    "deberta_v3_large": 435_191_908, "deberta_v3_small": 142_024_548, "deberta_v3_xsmall": 70_958_820,
    "distilbert_base": 66_985_530, "electra_base": 109_483_009, "electra_base_generator": 33_740_602,
    "electra_large": 335_142_913, "electra_large_generator": 51_295_290, "electra_small": 13_549_057,
    "elmo_medium": 28_027_744, "elmo_original": 93_600_864, "elmo_small": 13_593_312,
    "ettin_decoder_17m": 16_913_600, "ettin_decoder_1b": 1_031_314_112, "eurobert_210m": 310_266_624,
    "eurobert_2_1b": 2_403_092_736, "eurobert_610m": 755_625_600, "gemma2_27b": 27_227_128_320,
    "gemma2_2b": 2_614_341_888, "gemma2_9b": 9_241_705_984, "gemma3_12b": 11_765_788_416, "gemma3_1b": 999_885_952,
    "gemma3_27b": 27_009_002_240, "gemma3_4b": 3_880_099_328, "gemma_2b": 2_506_172_416, "gemma_7b": 8_537_680_896,
    "gpt2_124m": 124_439_808, "gpt2_1558m": 1_557_611_200, "gpt2_355m": 354_823_168, "gpt2_774m": 774_030_080,
    "gpt3_125m": 125_226_240, "gpt3_13b": 12_853_386_240, "gpt3_175b": 174_604_259_328, "gpt3_1_3b": 1_315_723_264,
    "gpt3_2_7b": 2_651_553_280, "gpt3_350m": 355_871_744, "gpt3_6_7b": 6_658_404_352, "gpt3_760m": 760_300_032,
    "gpt_117m": 116_534_784, "llama2_70b": 68_976_648_192, "llama3_1_405b": 405_853_388_800,
    "llama3_2_1b": 1_235_814_400, "llama3_2_3b": 3_212_749_824, "llama3_70b": 70_553_706_496,
    "llama3_8b": 8_030_261_248, "llama_13b": 13_015_864_320, "llama_33b": 32_528_943_616, "llama_65b": 65_285_660_672,
    "llama_7b": 6_738_415_616, "mbart_cc25": 610_851_840, "mistral_7b": 7_241_732_096, "mmbert_base": 307_786_240,
    "mmbert_small": 140_897_536, "modernbert_base": 149_655_232, "modernbert_large": 395_881_664,
    "mt5_base": 582_401_280, "mt5_large": 1_229_581_312, "mt5_small": 300_176_768, "mt5_xl": 3_742_619_648,
    "mt5_xxl": 12_921_057_280, "olmo2_13b": 13_716_198_400, "olmo2_1b": 1_484_916_736, "olmo2_7b": 7_298_617_344,
    "olmo3_32b": 32_233_522_176, "olmo3_7b": 7_298_011_136, "opt_125m": 125_239_296, "opt_13b": 12_853_473_280,
    "opt_1_3b": 1_315_758_080, "opt_2_7b": 2_651_596_800, "opt_30b": 29_974_540_288, "opt_66b": 65_719_701_504,
    "opt_6_7b": 6_658_473_984, "phi3_mini": 3_821_079_552, "phi4": 14_659_507_200, "pythia_12b": 11_846_072_320,
    "pythia_14m": 14_067_712, "pythia_160m": 162_322_944, "pythia_1_4b": 1_414_647_808, "pythia_1b": 1_011_781_632,
    "pythia_2_8b": 2_775_208_960, "pythia_31m": 30_494_720, "pythia_410m": 405_334_016, "pythia_6_9b": 6_857_302_016,
    "pythia_70m": 70_426_624, "qwen2_5_0_5b": 494_032_768, "qwen2_5_14b": 14_770_033_664, "qwen2_5_1_5b": 1_543_714_304,
    "qwen2_5_32b": 32_763_876_352, "qwen2_5_3b": 3_085_938_688, "qwen2_5_72b": 72_706_203_648,
    "qwen2_5_7b": 7_615_616_512, "qwen3_0_6b": 596_049_920, "qwen3_14b": 14_768_307_200, "qwen3_1_7b": 1_720_574_976,
    "qwen3_32b": 32_762_123_264, "qwen3_4b": 4_022_468_096, "qwen3_8b": 8_190_735_360, "roberta_base": 124_697_433,
    "roberta_large": 355_412_057, "smollm2_135m": 134_515_008, "smollm2_1_7b": 1_711_376_384,
    "smollm2_360m": 361_821_120, "smollm3_3b": 3_075_098_624, "smollm_135m": 134_515_008, "smollm_1_7b": 1_711_376_384,
    "smollm_360m": 361_821_120, "stablelm_3b": 2_795_443_200, "t5_11b": 11_307_321_344, "t5_1_1_base": 247_577_856,
    "t5_1_1_large": 783_150_080, "t5_1_1_small": 76_961_152, "t5_1_1_xl": 2_849_757_184, "t5_1_1_xxl": 11_135_332_352,
    "t5_3b": 2_851_598_336, "t5_base": 222_903_552, "t5_base_half": 123_790_080, "t5_base_shared": 137_950_464,
    "t5_large": 737_668_096, "t5_lm_base": 109_628_544, "t5_lm_base_half": 67_152_000, "t5_small": 60_506_624,
    "tinyllama_1_1b": 1_100_048_384, "umt5_base": 592_043_520, "umt5_small": 306_601_984, "umt5_xl": 3_768_356_864,
    "umt5_xxl": 12_972_531_712, "xlm_roberta_base": 278_295_186, "xlm_roberta_large": 560_142_482,
    "xlnet_base": 116_750_336, "xlnet_large": 360_300_800,
}  # fmt: skip
WITHOUT_HEADS = {
    "bert_tiny": 4_385_920, "bert_base": 109_482_240, "bert_large": 335_141_888, "albert_base": 11_683_584,
    "albert_large": 17_683_968, "albert_xlarge": 58_724_864, "albert_xxlarge": 222_595_584,
}  # fmt: skip


ONE_OF_EACH = (
    "albert_base", "bart_base", "bert_tiny", "deberta_v2_xlarge", "deberta_v3_small", "distilbert_base",
    "electra_small", "electra_base_generator", "elmo_small", "gemma2_2b", "gemma3_1b", "gpt2_124m", "gpt3_125m",
    "gpt_117m", "llama2_70b", "llama3_2_1b", "mbart_cc25", "mistral_7b", "modernbert_base", "mt5_small", "olmo2_1b",
    "opt_125m", "pythia_70m", "qwen2_5_0_5b", "qwen3_0_6b", "roberta_base", "t5_1_1_small", "t5_base_shared",
    "t5_lm_base", "t5_small", "umt5_small", "xlm_roberta_base", "xlnet_base",
)  # fmt: skip
"""The smallest of each kind, with the larger ones that share or split something else."""
FAMILIES = ("bert", "gpt2", "t5")


def scores(model, variables, ids):
    """Of the vocabulary; an encoder's without a head."""
    out = model.apply(variables, ids)
    return Network(model).bind({"model": variables["params"]}).logits(out) if model.config.family == "encoder" else out


compiled_scores = functools.cache(lambda model: jax.jit(functools.partial(scores, model)))


def test_every_size_is_listed():
    assert {path.stem for path in SIZES} == set(PUBLISHED)


def test_the_header_of_each_size_has_its_number_of_parameters():
    for path in SIZES:
        named = re.search(r"\d{1,3}(?:,\d{3})+", path.read_text())
        assert int(named[0].replace(",", "")) == PUBLISHED[path.stem], path


@pytest.mark.slow
@pytest.mark.parametrize("stem", grids.cases(PUBLISHED, *ONE_OF_EACH))
def test_parameter_counts_are_those_published(stem):
    fields = yaml.safe_load((FOLDER / f"{stem}.yaml").read_text())["model"]
    config = resolve(fields["kind"], "jaxpt.models", ModelConfig)(**fields)
    is_generator = stem.endswith("_generator")
    network = Network(config.build(), masked_lm.declare(config)) if is_generator else whole(config)
    assert network.count_params() == PUBLISHED[stem]
    if stem in WITHOUT_HEADS:
        pooled = Network(network.model, {"pooler": network.heads["pooler"]})
        assert pooled.count_params() == WITHOUT_HEADS[stem]


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_has_known_axes(name):
    model, variables = made(name)
    axes = Network(model).logical_axes()["model"]
    paths = jax.tree_util.tree_leaves_with_path(variables["params"])
    for path, value in paths:
        names = axes
        for key in path:
            names = names[key.key]
        assert len(names) == value.ndim and set(names) <= set(PARAMETER_AXES) and len(set(names)) == len(names), path
        stacked = any(key.key.startswith("segment_") for key in path)
        assert (names[0] == "layers") == stacked, path
        for axis, size in zip(names, value.shape):
            assert axis != "vocab" or size == 256


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(ALL, "bert", "t5"))
def test_init_is_plain_float32_and_as_announced(name):
    model = ALL[name]().build()
    params = jax.jit(lambda key: Network(model).init(key)["model"])(jax.random.key(1))
    assert not any(isinstance(x, nn.meta.AxisMetadata) for x in jax.tree.leaves(params))
    announced = Network(model).shapes()["model"]
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(lambda x: (x.shape, x.dtype), announced)
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(ALL, "bert", "gpt2", "t5"))
def test_loss_at_the_start(name):
    options = {"vocab_size": 1000, "embed_dim": 64, "heads": 4, "mlp_dim": 128} | (
        {"head_dim": 16} if name.startswith("t5") else {"max_positions": 64}
    )
    config = ALL[name](**options)
    network = Network(config.build(), masked_lm.declare(config) if config.family == "encoder" else {})
    params = jax.jit(network.init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, 1000, (8, 64)), rng.integers(0, 1000, (8, 64))

    @jax.jit
    def run(params, ids):
        bound = network.bind(params)
        out = bound(ids)
        return bound.logits(out) if config.family == "encoder" else out

    logits = run(params, ids)
    loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()
    want = np.log(1000) + (0.5 if name.startswith("t5") else 0)
    np.testing.assert_allclose(loss, want, rtol=0.05)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(FAMILIES, "t5"))
def test_remat_changes_nothing(name):
    ids = tokens(2, 8)

    _, variables = made(name)

    def of(remat):
        model = ALL[name](remat=remat).build()
        return jax.value_and_grad(lambda v: jnp.square(scores(model, v, ids)).mean())

    every = jax.jit(lambda v: [of(remat)(v) for remat in ("none", "full", "dots", "names")])
    plain, *others = every(variables)
    for found in others:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), plain, found)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(ALL, "bert", "gpt2", "t5"))
def test_bfloat16_computation_keeps_float32_parameters(name):
    model, variables = made(name)
    ids = tokens(2, 8)
    low = ALL[name](dtype="bfloat16").build()
    method = "decode" if name == "gpt2" else "encode"
    assert jax.eval_shape(lambda v: low.apply(v, ids, method=method).hidden, variables).dtype == jnp.bfloat16

    def loss(v):
        logits = scores(low, v, ids)
        return jnp.square(logits).mean(), logits

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables)
    assert {x.dtype for x in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    assert logits.dtype == jnp.float32 and np.isfinite(value)
    exact = np.asarray(compiled_scores(model)(variables, ids))
    assert np.abs(logits - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(ALL, "bert", "gpt2", "t5"))
def test_every_parameter_has_a_gradient(name):
    """Nothing is left out of the computation. A key's bias shifts all scores of a query alike: no gradient."""
    model, variables = made(name)

    def total(v):
        return sum(jnp.square(x).mean() for x in jax.tree.leaves(model.apply(v, tokens(2, 8))))

    gradient = jax.jit(jax.grad(total))(variables)["params"]
    for path, g in jax.tree_util.tree_leaves_with_path(gradient):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert name.endswith("key/bias") or float(jnp.abs(g).max()) > 0, name


def test_modernberts_attention_outputs_have_a_dropout_of_their_own():
    """All of them dropped: what is left does not see the other tokens."""
    model, variables = made("modernbert", layers=1, attention_output_dropout=1.0)
    ids, key = np.arange(8)[None], jax.random.key(0)
    changed = np.where(ids > 0, ids + 3, ids)

    @jax.jit
    def both(ids):
        run = functools.partial(model.apply, variables, ids, method="encode")
        return run(rngs={"dropout": key}).hidden[0, 0], run().hidden[0, 0]

    (dropped, whole), (dropped_too, other) = both(ids), both(changed)
    np.testing.assert_array_equal(dropped, dropped_too)
    assert (whole != other).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(ALL, "bert", "gpt2", "t5"))
def test_dropout_is_off_without_keys_and_on_with_them(name):
    model, variables = made(name, dropout=0.5)
    plain, _ = made(name)
    ids, method = tokens(1, 8), "decode" if name == "gpt2" else "encode"

    @jax.jit
    def noisy(key):
        return model.apply(variables, ids, method=method, rngs={"dropout": key}).hidden

    np.testing.assert_array_equal(apply(model, variables, method, ids), apply(plain, variables, method, ids))
    first, again, other = (np.asarray(noisy(jax.random.key(k))) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01


@pytest.mark.slow
def test_a_bound_model_s_calls_do_not_know_of_one_another():
    """Dropout where there is a key for it, whatever the method is called; the same at every call."""
    model, variables = made("bert", dropout=0.5)
    ids, key = tokens(1, 8), jax.random.key(0)
    plain, other, noisy = (
        Network(model).bind({"model": variables["params"]}, keys) for keys in (None, {"sample": key}, {"dropout": key})
    )
    assert noisy.config is model.config and noisy.rngs == {"dropout": key}
    run = jax.jit(lambda ids: [bound.encode(ids).hidden for bound in (noisy, noisy, plain, other)])
    first, again, quiet, without = run(ids)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(quiet, without)
    assert np.abs(first - quiet).max() > 0.01
    with pytest.raises(AttributeError, match="Bert has no method 'embedd'"):
        _ = plain.embedd


@pytest.mark.gpu
def test_padded_vocabulary_never_shows():
    model, variables = made("t5")
    assert jax.eval_shape(lambda v: scores(model, v, tokens(1, 4)), variables).shape[-1] == V
    hidden = np.ones((2, 3, 24), np.float32)
    padded = np.asarray(
        jax.jit(lambda p: Network(model).bind({"model": p}).logits(hidden, padded=True))(variables["params"])
    )
    assert padded.shape == (2, 3, 256) and padded[..., V:].max() < -1e8
    np.testing.assert_array_equal(padded[..., :V], apply(model, variables, "logits", hidden))


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(FAMILIES, "t5"))
def test_a_mesh_changes_nothing_and_embeddings_are_not_gathered_whole(name):
    model = ALL[name](heads=2).build()
    ids = tokens(8, 8)
    mesh = meshes.make(MeshConfig(data=2, fsdp=2, tensor=2))
    params = jax.jit(lambda key: Network(model).init(key)["model"])(jax.random.key(0))

    def run(params, ids):
        return jnp.square(scores(model, {"params": params}, ids)).mean()

    want = jax.jit(run)(params, ids)
    placed = jax.device_put(
        params, rules.shardings(Network(model).logical_axes()["model"], Network(model).shapes()["model"], mesh)
    )
    with meshes.use(mesh):
        again = jax.jit(lambda key: Network(model).init(key)["model"])(jax.random.key(0))
        rows = jax.device_put(ids, rules.batch_sharding(mesh))
        compiled = jax.jit(run).lower(placed, rows).compile()
        got = compiled(placed, rows)
    jax.tree.map(np.testing.assert_array_equal, params, again)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    # No device ever holds the hidden states of the whole batch of 8 × 8 tokens.
    assert not re.findall(r"= f32\[8,8,\d+\]\S* all-gather", compiled.as_text())
