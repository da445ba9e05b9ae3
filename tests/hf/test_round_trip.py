"""Import and export of an untouched model: config.json, generation_config.json and what `generate` writes are the same.

Quick: the keys of each class. The grid, with transformers: directories of every class, and every class that generates.
"""

import json
import warnings

import pytest

import jaxpt
from jaxpt.hf import convert, origin
from jaxpt.hf.directory import families, family_of
from jaxpt.hf.options import from_json, to_json
from jaxpt.hf.origin import NOT_CARRIED, written_back
from jaxpt.hf.tasks import labels_from_json, problem_from_json
from jaxpt.models.heads import classes
from tests import grids
from tests.hf import test_mixtures_parity as mixtures
from tests.hf import test_parity as parity
from tests.hf import test_tasks_parity as fine_tuned
from tests.hf.families import test_decoder_only as decoders
from tests.hf.families import test_encoders as encoders
from tests.hf.parity import V, randomise

RATES = {
    name: rate
    for rate, names in {
        0.0: ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"),
        0.2: ("hidden_dropout_prob", "dropout", "dropout_rate", "resid_pdrop", "embedding_dropout"),
        0.3: ("embd_pdrop", "activation_dropout", "mlp_dropout", "qa_dropout", "classifier_dropout", "layerdrop"),
        0.4: ("classifier_dropout_prob", "seq_classif_dropout", "summary_last_dropout", "summary_first_dropout",
              "pooler_dropout", "encoder_layerdrop", "decoder_layerdrop"),
    }.items()
    for name in names
}  # fmt: skip
"""Other rates than those of any class by default."""
LABELS = {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
IDS = {"pad_token_id": 3, "bos_token_id": 5, "eos_token_id": 7}


def ids_of(model_type):
    """Ids of special tokens; XGLM's padding is no position."""
    return IDS | ({"pad_token_id": 1} if model_type == "xglm" else {})


def networks(model_type):
    """(their class, our network of it) with the sizes of the published model; nothing is allocated."""
    family = families()[model_type]
    config = from_json(family, {"model_type": model_type}, {})
    named = {(): family.classes} if isinstance(family.classes, str) else family.classes
    for heads, name in named.items():
        yield name, family.network(config, heads)
    for head, task in family.tasks.items():
        yield task.name, family.network(config, ("pooler", head) if task.pooler else (head,), 3)


def exported(given, network, family, **more):
    """config.json of an export, from that of the import."""
    config = from_json(family, given, {})
    network = family.network(config.model_copy(update=more), network.heads)
    head, outputs = classes.name_of(network.heads), classes.outputs_of(network.heads)
    labels, problem = labels_from_json(head, outputs, given), problem_from_json(head, outputs, given)
    keys = to_json(family, network, labels, problem) | {"dtype": "float32"}
    return written_back(keys, given, family_of(network.config, family.model_type), network)


@pytest.mark.parametrize("model_type", sorted(families()))
def test_an_untouched_config_json_comes_back(model_type):
    """As a published file spells it, and with keys that jaxpt has no field for."""
    family = families()[model_type]
    for name, network in networks(model_type):
        known = {option.theirs for option in family.options}
        spelled = {"hidden_act": "gelu_pytorch_tanh", "activation_function": "gelu_fast"}
        spelled = {key: x for key, x in spelled.items() if key in known} | {"initializer_range": 0.5}
        labels = LABELS if classes.name_of(network.heads) in ("classes", "tags") else {}
        given = {"model_type": model_type, "architectures": [name], "dtype": "float32", **spelled, **RATES}
        given |= ids_of(model_type)
        back = exported(given | labels, network, family)
        decided = {key: back.pop(key) for key in family.decided}
        assert back == given | labels, name
        assert len(decided) == {"t5": 2, "mt5": 2, "umt5": 2, "switch_transformers": 1}.get(model_type, 0)


@pytest.mark.parametrize("model_type", sorted(families()))
def test_a_changed_model_keeps_what_is_not_changed(model_type):
    """More ids: the vocabulary grows. Another rate of dropout here: it is theirs of everything that it stands for."""
    family = families()[model_type]
    name, network = next(networks(model_type))
    given = {"model_type": model_type, "architectures": [name], "dtype": "float32", **RATES, **ids_of(model_type)}
    size = from_json(family, given, {}).vocab_size + 8
    grown = exported(given, network, family, vocab_size=size)
    assert grown.pop("vocab_size") == size
    assert {key: grown[key] for key in given} == given
    dropped = exported(given, network, family, dropout=0.25)
    (rate,) = (option.theirs for option in family.options if option.ours == "dropout")
    assert {dropped[key] for key in (rate, *family.dropouts)} == {0.25}
    assert all(dropped[key] == x for key, x in RATES.items() if key not in (rate, *family.dropouts) and "class" in key)


def test_model_types_that_say_the_same():
    """XLM-R, mT5 and Mistral without a window keep their names; without an origin the older name is written."""
    for model_type, older in (("xlm-roberta", "roberta"), ("mt5", "t5"), ("mistral", "llama")):
        keys = {"sliding_window": None} if model_type == "mistral" else {}
        given = {"model_type": model_type, "dtype": "float32", **IDS, **keys}
        name, network = next(networks(model_type))
        back = exported(given | {"architectures": [name]}, network, families()[model_type])
        assert (back["model_type"], back["architectures"]) == (model_type, [name])
        config = from_json(families()[model_type], given, {})
        if model_type == "mistral":
            config = config.model_copy(update={"window": None})
        assert family_of(config).model_type == older


def test_ids_of_an_origin_that_names_none():
    """They are those of the tokenizer's files, as in an export of a model that was trained here."""
    family = families()["gpt2"]
    name, network = next(networks("gpt2"))
    given = {"model_type": "gpt2", "architectures": [name], "eos_token_id": None}
    keys = to_json(family, network) | {"dtype": "float32", "eos_token_id": 9}
    assert written_back(keys, given, family, network)["eos_token_id"] == 9
    assert written_back(keys, given | {"bos_token_id": 2}, family, network)["eos_token_id"] is None


@pytest.mark.parametrize(("padding", "written"), [({}, 9), ({"pad_token_id": None}, 9), ({"pad_token_id": 4}, 4)])
def test_padding_that_an_origin_does_not_name(padding, written):
    """As Qwen's: the tokenizer has it. Where neither has, none is made up."""
    family = families()["qwen3"]
    network = family.network(from_json(family, {"model_type": "qwen3"}, {}), ("classes",), 3)
    given = {"model_type": "qwen3", "bos_token_id": 2, "eos_token_id": 3, **padding}
    keys = to_json(family, network) | {"dtype": "float32", "pad_token_id": 9, "bos_token_id": 7}
    back = written_back(keys, given, family, network, 9)
    assert (back["pad_token_id"], back["bos_token_id"]) == (written, 2)
    assert written_back(keys, given, family, network).get("pad_token_id") == padding.get("pad_token_id")


def test_no_rate_of_dropout_is_refused():
    for model_type, family in families().items():
        for rate in (0, 0.0, 1.0, 0.999):
            rates = {option.theirs: rate for option in family.options if option.ours == "dropout"}
            given = {"model_type": model_type, **dict.fromkeys(RATES, rate), **rates, "drop_path_rate": rate}
            assert from_json(family, given, {}).dropout == (rate if rate < 1 else 0)


# ---- beside transformers --------------------------------------------------------------------------------------------

OLDEST = {name: (architecture, sizes) for name, (architecture, _, sizes) in parity.CASES.items()}
PRETRAINED = OLDEST | encoders.CASES | {"switch": ("SwitchTransformersForConditionalGeneration", mixtures.SWITCH)}
PRETRAINED |= {
    name: (f"{prefix}ForCausalLM", sizes) for name, (prefix, sizes) in (decoders.MODELS | mixtures.CASES).items()
}
PRETRAINED = {name: case for name, case in PRETRAINED.items() if "without head" not in name}
CLASSES = PRETRAINED | {
    f"{name}, {head}": (f"{families()[model_type].tasks[head].name}", sizes)
    for name, (_, model_type, sizes, heads) in fine_tuned.CASES.items()
    for head in heads
}


def published(path, name):
    """A directory as transformers writes it, with other rates and ids than the class has by default."""
    transformers = pytest.importorskip("transformers")
    architecture, sizes = CLASSES[name]
    cls = getattr(transformers, architecture)
    config = cls.config_class(**sizes | {"vocab_size": V})
    known, ids = config.to_dict(), ids_of(config.model_type)
    for key, value in ({**RATES, **ids, "sep_token_id": 9, "decoder_start_token_id": 11}).items():
        if known.get(key) is not None:
            setattr(config, key, value)
    model = cls(config)
    untied = name.partition(",")[0] in parity.UNTIED and hasattr(model, "lm_head")
    model = randomise(parity.untie(model) if untied else model, 0)
    model.save_pretrained(path)
    return model


def round_trip(path, **more):
    said = []
    convert.import_weights(path / "theirs", path / "run", report=said.append, **more)
    convert.export(path / "run", path / "out", report=said.append)
    return said


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(
    CLASSES, "bert", "xlm-roberta", "t5 1.1", "gpt2", "modernbert", "mistral, classes", "bart, span",
))  # fmt: skip
def test_every_class_keeps_its_configuration(name, tmp_path):
    import transformers

    published(tmp_path / "theirs", name)
    round_trip(tmp_path)
    before, after = (transformers.AutoConfig.from_pretrained(tmp_path / side) for side in ("theirs", "out"))
    assert type(before) is type(after) and before.architectures == after.architectures
    before, after = ({k: x for k, x in one.to_dict().items() if k not in NOT_CARRIED} for one in (before, after))
    different = {key: (before.get(key), after.get(key)) for key in before | after if before.get(key) != after.get(key)}
    allowed = {"tie_word_embeddings", "scale_decoder_outputs"} if "t5" in name else set()
    assert set(different) <= allowed, different
    written, given = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("out", "theirs"))
    assert {k: x for k, x in given.items() if k not in NOT_CARRIED and k not in allowed} == {
        k: x for k, x in written.items() if k not in NOT_CARRIED and k not in allowed
    }


WRITERS = [name for name, (architecture, _) in PRETRAINED.items()
           if architecture.endswith(("LMHeadModel", "ForConditionalGeneration", "ForCausalLM"))]  # fmt: skip
WRITERS = [name for name in WRITERS if not name.startswith("xlnet")]  # it permutes: jaxpt does not continue its texts
FORCED = (17, 23)
SETTINGS = {
    "plain": {},
    "ends": {"eos_token_id": "the last two"},
    "no end": {"eos_token_id": None},
    "forced": {"forced_bos_token_id": FORCED[0], "forced_eos_token_id": [FORCED[1]]},
    "suppressed": {"suppress_tokens": "the first", "begin_suppress_tokens": [40, 41], "bad_words_ids": [[50]]},
    "start": {"decoder_start_token_id": 19, "bos_token_id": 21},
}
SETTINGS["all"] = SETTINGS["ends"] | SETTINGS["suppressed"] | SETTINGS["forced"] | SETTINGS["start"]
"""Keys of generation_config.json; in words, ids of what is written without them."""
PROMPT = "w30 w31 w32 w33"
LANGUAGE = 11


def tokenizer(path):
    """A vocabulary of words, of which an id is a number: <pad> 3, <s> 5, </s> 7, en_XX 11."""
    import tokenizers as rust

    special = {3: "<pad>", 4: "<unk>", 5: "<s>", 7: "</s>", 9: "<mask>", LANGUAGE: "en_XX"}
    words = [special.get(i, f"w{i}") for i in range(V)]
    made = rust.Tokenizer(rust.models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = rust.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([*special.values()])
    made.save(str(path / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    names |= {f"{name}_token": f"<{name}>" for name in ("pad", "unk", "mask")}
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))


def theirs(path, prompt, **more):
    """What transformers writes after the ids of a prompt: without the prompt, with EOS."""
    import torch
    import transformers

    is_pair = transformers.AutoConfig.from_pretrained(path).is_encoder_decoder
    auto = transformers.AutoModelForSeq2SeqLM if is_pair else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(path, attn_implementation="eager").eval()
    ids = torch.tensor([prompt])
    more["use_cache"] = model.config.model_type != "switch_transformers"  # whose class fails with its cache
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, **more)
    return found[0, 1 if is_pair else len(prompt) :].tolist()


def ours(path):
    """(ids of the prompt, what jaxpt writes after it)."""
    model = jaxpt.load(path, dtype="float32")
    prompt = model.prompt_ids(PROMPT)
    ids = prompt.tokens if prompt.encoder is None else prompt.encoder
    return list(ids), model.generate([PROMPT], max_new_tokens=12)[0][0].tokens


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), grids.cases(
    [(name, case) for name in WRITERS for case in (SETTINGS if name in OLDEST else ("no end", "all"))],
    ("gpt2", "all"), ("bart", "all"), ("t5", "no end"),
))  # fmt: skip
def test_generation_is_that_of_transformers_before_and_after(name, case, tmp_path):
    """From the directory, from the imported run, and from the export: both programs write the same ids.

    Where generation_config.json names no EOS, config.json's holds; transformers is told so.
    """
    published(tmp_path / "theirs", name)
    tokenizer(tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    is_pair, file = config.get("is_encoder_decoder", False), tmp_path / "theirs" / origin.GENERATION
    base = {"pad_token_id": 3, "eos_token_id": 7} | ({"decoder_start_token_id": LANGUAGE} if is_pair else {})
    file.write_text(json.dumps(base))
    prompt, plain = ours(tmp_path / "theirs")
    free = [i for i in plain if i not in FORCED]  # transformers refuses to suppress what it is to force
    ids = {"the last two": [*dict.fromkeys(plain)][-2:], "the first": free[:1]}
    settings = {key: ids[x] if isinstance(x, str) else x for key, x in SETTINGS[case].items()}
    if config["model_type"] == "mbart" or not is_pair:
        settings.pop("decoder_start_token_id", None)  # mBART's is the language
    file.write_text(json.dumps(base | settings))
    round_trip(tmp_path)
    more = {"eos_token_id": config["eos_token_id"]} if case == "no end" and config.get("eos_token_id") else {}
    want = theirs(tmp_path / "theirs", prompt, **more)
    for side in ("theirs", "run", "out"):
        assert ours(tmp_path / side)[1] == want, side
    assert theirs(tmp_path / "out", prompt, **more) == want
