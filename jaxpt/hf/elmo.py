"""ELMo as published: options.json and weights in HDF5, with bilm-tf's names.

    char_embed                                              [261, E]: without the row of "no word"
    CNN/W_cnn_i  CNN/b_cnn_i                                [1, width, E, filters]
    CNN_high_i/{W,b}_carry  CNN_high_i/{W,b}_transform      highway layers
    CNN_proj/W_proj  CNN_proj/b_proj
    RNN_d/RNN/MultiRNNCell/Cell{k}/LSTMCell/W_0  B  W_P_0   direction d, layer k: [inputs + outputs, 4 · cells], gates
                                                            input, cell, forget, output; the projection

The softmax is in no such file, nor whether case is folded. Format: https://github.com/allenai/bilm-tf
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from pydantic import ValidationError

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers import words
from jaxpt.data.tokenizers.spelled_words import SpelledWords
from jaxpt.errors import UserError, shown
from jaxpt.models.characters import CODES
from jaxpt.models.elmo import ELMoConfig
from jaxpt.models.network import Network
from jaxpt.models.stored import Piece, finite, stored_params
from jaxpt.runtime import disk, packages
from jaxpt.train import weights

OPTIONS, WEIGHTS = "options.json", "weights.hdf5"
"""How the names of the two files end."""
VOCABULARY = "vocab.txt"
LOWERCASE = "data.tokenizer.lowercase=true"
"""The one override of an import: its files do not say whether case is folded."""


def reads(path: Path) -> bool:
    """True for a directory with weights in HDF5, and no model of Hugging Face's."""
    return path.is_dir() and any(path.glob("*.hdf5")) and not (path / "config.json").exists()


def config_of(path: Path, vocab_size: int) -> ELMoConfig:
    """The model that an options.json describes.

    Raises:
      UserError: an option is missing, or another than the published models have.
    """
    options = disk.read_json(path)
    lstm, cnn = (_object(path, options, name) for name in ("lstm", "char_cnn"))
    embedding = _object(path, cnn, "embedding")
    try:
        fields = {
            "vocab_size": vocab_size, "layers": lstm.get("n_layers", 1), "embed_dim": lstm["projection_dim"],
            "cells": lstm["dim"], "skip": lstm["use_skip_connections"], "cell_clip": lstm.get("cell_clip"),
            "projection_clip": lstm.get("proj_clip"), "char_dim": embedding["dim"], "filters": cnn["filters"],
            "highways": cnn.get("n_highway") or 0, "longest_word": cnn["max_characters_per_token"],
        }  # fmt: skip
        characters, activation = cnn["n_characters"], cnn["activation"]
    except KeyError as error:
        raise UserError(f"{path}: no options of ELMo with a character CNN: {error} is missing") from None
    if characters not in (CODES - 1, CODES) or activation != "relu":
        raise UserError(
            f"{path}: char_cnn: n_characters {shown(characters)}, activation {shown(activation)}; published models "
            f"have {CODES} (261 in training) and relu"
        )
    if isinstance(fields["embed_dim"], int):
        fields["embed_dim"] *= 2
    try:
        return ELMoConfig(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        option = _OPTIONS.get(str(first["loc"][0]), first["loc"][0]) if first["loc"] else "sizes"
        raise UserError(f"{path}: {option}: {first['msg'].removeprefix('Value error, ')}") from None


_OPTIONS = {
    "layers": "n_layers", "embed_dim": "projection_dim", "cells": "dim", "skip": "use_skip_connections",
    "projection_clip": "proj_clip", "char_dim": "embedding: dim", "highways": "n_highway",
    "longest_word": "max_characters_per_token",
}  # fmt: skip
"""{field of ELMoConfig: its name in options.json}, where it is another."""


def _object(path: Path, options: Any, name: str) -> Mapping[str, Any]:
    """An object of options.json."""
    value = options.get(name) if isinstance(options, Mapping) else None
    if not isinstance(value, Mapping):
        raise UserError(f"{path}: no options of ELMo with a character CNN: {name}: wants an object, got {shown(value)}")
    return value


def arrays_of(config: ELMoConfig) -> Iterator[tuple[str, int | None, str, tuple[int, ...]]]:
    """(path of a parameter, layer or None, its name in the file, shape there) of all arrays.

    The two matrices of a gate are one array: the recurrent one's path stands for both.
    """
    yield "model/words/characters", None, "char_embed", (CODES - 1, config.char_dim)
    for i, (width, number) in enumerate(config.filters):
        yield f"model/words/filter_{i}_kernel", None, f"CNN/W_cnn_{i}", (1, width, config.char_dim, number)
        yield f"model/words/filter_{i}_bias", None, f"CNN/b_cnn_{i}", (number,)
    total = sum(number for _, number in config.filters)
    for i in range(config.highways):
        for ours, theirs in (("gate", "carry"), ("transform", "transform")):
            bias = "gate_bias" if ours == "gate" else "transform/bias"
            yield f"model/words/highway_{i}/{ours}/kernel", None, f"CNN_high_{i}/W_{theirs}", (total, total)
            yield f"model/words/highway_{i}/{bias}", None, f"CNN_high_{i}/b_{theirs}", (total,)
    if total != config.width:
        yield "model/words/projection/kernel", None, "CNN_proj/W_proj", (total, config.width)
        yield "model/words/projection/bias", None, "CNN_proj/b_proj", (config.width,)
    for d, direction in enumerate(("forward", "backward")):
        for layer in range(config.layers):
            path = f"model/encoder/segment_{min(layer, 1)}/block_0/{direction}"
            name, place = f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell", max(layer - 1, 0)
            yield f"{path}/recurrent_kernel", place, f"{name}/W_0", (2 * config.width, 4 * config.cells)
            yield f"{path}/input/bias", place, f"{name}/B", (4 * config.cells,)
            if config.width < config.cells:
                yield f"{path}/projection_kernel", place, f"{name}/W_P_0", (config.cells, config.width)


def pieces(arrays: Path, options: Path, config: ELMoConfig) -> Iterator[Piece]:
    """(path, layer or None, array in the shape of storage) of all parameters but the words' spelling.

    Raises:
      UserError: an array is missing, has another shape than the options say, is not finite or left over.
    """
    h5py = _h5py()
    try:
        file = h5py.File(disk.check_file(arrays), "r")
    except OSError as error:
        raise UserError(f"{arrays}: damaged, or no HDF5 file ({str(error).splitlines()[0]})") from None
    with file:
        found: dict[str, tuple[int, ...]] = {}
        file.visititems(lambda name, x: found.update({name: x.shape}) if isinstance(x, h5py.Dataset) else None)
        expected = {name: shape for _, _, name, shape in arrays_of(config)}
        for name, shape in expected.items():
            if found.get(name) != shape:
                has = f"has the shape {list(found[name])}" if name in found else "is missing"
                raise UserError(f"{arrays}: {name} {has}; {options.name} makes it {list(shape)}")
        if more := sorted(found.keys() - expected.keys()):
            raise UserError(f"{arrays}: has {more[0]}, which a model of {options.name} has not")
        for path, layer, name, _ in arrays_of(config):
            try:
                x = finite(name, file[name][...].astype(np.float32))
            except (OSError, TypeError, ValueError) as error:
                raise UserError(f"{arrays}: {name}: damaged, or no numbers ({str(error).splitlines()[0]})") from None
            yield from _stored(path, layer, name, x, config)


def _stored(path: str, layer: int | None, name: str, x: np.ndarray, config: ELMoConfig) -> Iterator[Piece]:
    """An array of the file as parameters."""
    if name == "char_embed":
        x = np.pad(x, ((1, 0), (0, 0)))
    elif name.startswith("CNN/W_cnn"):
        x = x[0]
    elif name.endswith(("/W_0", "/B")):
        x = _swapped(x)
    if name.endswith("/W_0"):
        yield path.replace("recurrent_kernel", "input/kernel"), layer, x[: config.width]
        x = x[config.width :]
    yield path, layer, x


def _swapped(x: np.ndarray) -> np.ndarray:
    """Gates input, cell, forget, output ⇄ input, forget, cell, output."""
    i, one, other, o = np.split(x, 4, axis=-1)
    return np.concatenate([i, other, one, o], axis=-1)


def read(
    source: Path, vocabulary: Path | None, lowercase: bool = False
) -> tuple[Network, Iterator[Piece], SpelledWords]:
    """Opens a published model.

    Args:
      source: a directory with one `*options.json`, one `*.hdf5`, and possibly a `vocab*.txt`.
      vocabulary: a file with a word a line; by default that of `source`. Without one all words are spelled.
      lowercase: whether case is folded and accents are left out.

    Returns:
      (the network without a softmax, its parameters, the vocabulary).

    Raises:
      UserError: the files are not one of each, or do not fit each other.
    """
    options, arrays = (_only(source, pattern) for pattern in (f"*{OPTIONS}", "*.hdf5"))
    named = [vocabulary] if vocabulary is not None else sorted(source.glob("vocab*.txt"))
    if named:
        tokenizer = tokenizers.load(named[0], SpelledWords.kind, lowercase=lowercase or None)
    else:
        tokenizer = SpelledWords(list(words.SPECIAL.values()), lowercase)
    config = config_of(options, tokenizer.vocabulary.size)
    constants = ((path, None, table) for path, table in config.constants(tokenizer).items())
    return Network(config.build()), itertools.chain(constants, pieces(arrays, options, config)), tokenizer


def _only(source: Path, pattern: str) -> Path:
    files = sorted(source.glob(pattern))
    if len(files) != 1:
        raise UserError(f"{source}: has {len(files)} files {pattern}; wants one")
    return files[0]


def write(directory: Path, config: Config, saved: Mapping[str, Any], tokenizer: Any) -> None:
    """Writes options.json, weights.hdf5 and vocab.txt.

    Args:
      directory: an existing one.
      config: of the run.
      saved: {path: parameter}.
      tokenizer: of the run; its words are the vocabulary.
    """
    model: ELMoConfig = config.model
    disk.write_text(directory / OPTIONS, json.dumps(options_of(model), indent=1) + "\n")
    with _h5py().File(directory / WEIGHTS, "w") as file:
        for path, layer, name, shape in arrays_of(model):
            x = _of_layer(saved[path], layer)
            if name == "char_embed":
                x = x[1:]
            elif name.endswith("/W_0"):
                x = np.concatenate([_of_layer(saved[path.replace("recurrent_kernel", "input/kernel")], layer), x])
            x = _swapped(x) if name.endswith(("/W_0", "/B")) else x
            file.create_dataset(name, data=x.astype(np.float32).reshape(shape))
    if isinstance(tokenizer, words.Words):
        disk.write_text(directory / VOCABULARY, "".join(f"{word}\n" for word in tokenizer.words))


def options_of(config: ELMoConfig) -> dict[str, Any]:
    """options.json of a model.

    Example:
      >>> options_of(ELMoConfig(vocab_size=9, embed_dim=4, cells=3))["lstm"]["projection_dim"]
      2
    """
    return {
        "lstm": {
            "use_skip_connections": config.skip, "projection_dim": config.width, "cell_clip": config.cell_clip,
            "proj_clip": config.projection_clip, "dim": config.cells, "n_layers": config.layers,
        },
        "char_cnn": {
            "activation": "relu", "filters": [list(pair) for pair in config.filters], "n_highway": config.highways,
            "embedding": {"dim": config.char_dim}, "n_characters": CODES,
            "max_characters_per_token": config.longest_word,
        },
    }  # fmt: skip


def _of_layer(x: Any, layer: int | None) -> np.ndarray:
    return np.asarray(x, np.float32) if layer is None else np.asarray(x, np.float32)[layer]


def import_run(source: Path, out: Path, temporary: Path, vocabulary: Path | None, lowercase: bool = False) -> Network:
    """Makes the run directory of a published model.

    Args:
      source: as of `read`.
      out: where the run will be.
      temporary: where its files are written.
      vocabulary, lowercase: as of `read`.
    """
    network, pieces, tokenizer = read(source, vocabulary, lowercase)
    tokenizer.save(temporary / "tokenizer")
    recipe = {
        "run_dir": str(out),
        "model": network.config.model_dump(mode="json"),
        "objective": {"kind": "bidirectional_lm", "has_softmax": False},
        "data": {
            "tokenizer": {"kind": SpelledWords.kind, "lowercase": tokenizer.lowercase},
            "length": 128,
            "batch_size": 8,
        },
    }
    disk.write_text(temporary / "config.yaml", configs.with_checksum(configs.to_yaml(configs.build(recipe))))
    weights.write(temporary, network, dict.fromkeys(stored_params(network), np.dtype(np.float32)), pieces)
    return network


def _h5py() -> ModuleType:
    try:
        import h5py
    except ImportError:
        raise UserError(f"ELMo's weights need h5py: {packages.install_command('elmo')}") from None
    return h5py
