"""Compares the outputs of Hugging Face's class and jaxpt on the same random tokens.

All layers are compared: `states` are the embeddings and each layer's output except the last, `hidden` is the last
layer's output after the final norm, if any. This follows `hidden_states` of `transformers`.

Shapes: B batch · L length · N layers, labels · D embedding width · V vocabulary
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from jaxpt.errors import UserError, printable
from jaxpt.hf import model_types
from jaxpt.hf.directory import family_of, load, read_config
from jaxpt.hf.files import read_object
from jaxpt.models.base import Bound
from jaxpt.models.heads import classes, sentence_pair
from jaxpt.models.network import Network
from jaxpt.models.stored import finite
from jaxpt.parallel import compiler
from jaxpt.runtime import packages

TOLERANCE = 1e-4
"""Tolerance relative to the largest value of an output."""
PADDING, EOS = 0, 1
"""Ids in `task_batch` by default; the other tokens have larger ones."""


class Difference(NamedTuple):
    """Difference of two arrays."""

    largest: float
    """max |ours − theirs|"""
    scale: float
    """max |theirs|"""

    @property
    def equal(self) -> bool:
        """True if the difference is within rounding."""
        return self.largest <= TOLERANCE * self.scale

    @property
    def relative(self) -> float:
        """largest / scale; infinite if ours is not finite."""
        relative = self.largest / self.scale if self.scale else self.largest
        return relative if math.isfinite(relative) else math.inf


def random_tokens(
    rng: np.random.Generator, config: Any, shape: tuple[int, ...], avoid: Collection[int] = ()
) -> np.ndarray:
    """Random ids without those that some of Hugging Face's classes read as the end of a text.

    Args:
      rng: draws them.
      config: configuration of the model; RoBERTa's classes count positions without its `padding_id`.
      shape: of the result.
      avoid: more ids that are left out.

    Returns:
      int32 ids from 3 on, none of them `padding_id` or one of `avoid` if there are others.
    """
    ids = np.arange(min(3, config.vocab_size - 1), config.vocab_size, dtype=np.int32)
    others = ids[~np.isin(ids, [*avoid, getattr(config, "padding_id", -1)])]
    ids = others if len(others) else ids
    return ids[rng.integers(0, len(ids), shape)]


def batch(config: Any, length: int = 24, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of three rows with 0, 4 and 8 tokens of padding; token types if the model has them.

    Args:
      config: configuration of the model.
      length: tokens of a row, at most the model's maximum.
      seed: random seed.

    Returns:
      tokens, segments, and types or targets and target_segments, all int32 [3, length].
    """
    rng = np.random.default_rng(seed)
    length = min(length, config.position_limit or length)

    def rows(length: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = random_tokens(rng, config, (3, length))
        return tokens, (np.arange(length) < length - length // 6 * np.arange(3)[:, None]).astype(np.int32)

    tokens, segments = rows(length)
    out = {"tokens": tokens, "segments": segments}
    if getattr(config, "token_types", 0) > 1:
        out["types"] = rng.integers(0, config.token_types, tokens.shape).astype(np.int32)
    if config.kind == "xlnet":  # the last six tokens of each row are targets, in random order
        out["ranks"] = np.where(
            segments.cumsum(1) > segments.sum(1)[:, None] - 6,
            rng.permuted(np.tile(np.arange(length), (3, 1)), axis=1),
            -1,
        ).astype(np.int32)
        out["queries"] = (segments.sum(1)[:, None] - 6 + np.arange(6)).astype(np.int32)
        out["types"] = rng.integers(0, 2, tokens.shape).astype(np.int32)
    if config.family == "encoder_decoder":
        out["targets"], out["target_segments"] = rows(max(length // 2, 1))
    return out


def ours(network: Network, params: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """All outputs of our model.

    Args:
      network: the backbone with its heads.
      params: its parameters.
      inputs: result of `batch`.

    Returns:
      {"states": [B, L, N, D], "hidden": [B, L, D], "logits": [B, L, V], …}.
    """

    bound, segments = network.bind(params), inputs["segments"]

    def states(layers: jax.Array) -> jax.Array:
        return jnp.moveaxis(layers[:-1], 0, 2)

    family, heads = network.config.family, bound.heads
    if family == "encoder_decoder":
        encoded = bound.encode(inputs["tokens"], segment_ids=segments, layers=True)
        decoded = bound.decode(
            inputs["targets"], encoded.hidden, segment_ids=inputs["target_segments"], encoder_segment_ids=segments,
            layers=True,
        )  # fmt: skip
        out = {"encoder_states": states(encoded.layers), "encoded": encoded.hidden}
        out |= {"states": states(decoded.layers), "hidden": decoded.hidden}
        return out | {"logits": bound.logits(decoded.hidden)}
    if "ranks" in inputs:
        output = bound.streams(
            inputs["tokens"], segment_ids=segments, token_types=inputs["types"], ranks=inputs["ranks"],
            targets=inputs["queries"], layers=True,
        )  # fmt: skip
        (hidden, query), (content, queries) = output.hidden, map(states, output.layers)
        out = {"states": content, "hidden": hidden, "query_states": queries, "query": query}
        return out | {"logits": bound.logits(query)}
    types = {"token_types": inputs["types"]} if "types" in inputs else {}
    run = bound.encode if family == "encoder" else bound.decode
    output = run(inputs["tokens"], segment_ids=segments, layers=True, **types)
    out = {"states": states(output.layers), "hidden": output.hidden}
    if family == "decoder" or "masked_lm" in heads:
        out["logits"] = bound.logits(output.hidden)
    if "replaced_token" in heads:
        out["logits"] = heads["replaced_token"](output.hidden)
    if "sentence_pair" in heads:
        out["sentence_pair"] = sentence_pair.logits(bound, output.hidden)
    return out


def theirs(model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """All outputs of a class of `transformers`, under the names of `ours`.

    Args:
      model: a torch module.
      inputs: result of `batch`.

    Returns:
      {name: torch tensor}.
    """
    import torch

    names = {
        "tokens": "input_ids", "segments": "attention_mask", "types": "token_type_ids", "targets": "decoder_input_ids",
    }  # fmt: skip
    model_inputs = {names[name]: torch.from_numpy(x).long() for name, x in inputs.items() if name in names}
    if "ranks" in inputs:
        ranks = torch.from_numpy(inputs["ranks"])
        model_inputs["perm_mask"] = (ranks[:, :, None] <= ranks[:, None, :]).float() * (ranks[:, None, :] >= 0)
        model_inputs["target_mapping"] = torch.nn.functional.one_hot(
            torch.from_numpy(inputs["queries"]).long(), ranks.shape[1]
        ).float()
    got = model(**model_inputs, output_hidden_states=True)
    scores = [got[name] for name in ("prediction_logits", "logits") if name in got]
    out = {"logits": scores[0]} if scores else {}

    def cut(states: Sequence[Any], name: str, last: str) -> dict[str, Any]:
        return {name: torch.stack(tuple(states[:-1]), dim=2), last: states[-1]}

    if "ranks" in inputs:  # both streams, alternating
        out |= cut(got.hidden_states[::2], "states", "hidden") | cut(got.hidden_states[1::2], "query_states", "query")
    elif "decoder_hidden_states" in got:
        out |= cut(got.encoder_hidden_states, "encoder_states", "encoded")
        out |= cut(got.decoder_hidden_states, "states", "hidden")
    else:
        out |= cut(got.hidden_states, "states", "hidden")
    for name in ("seq_relationship_logits", "sop_logits"):
        if name in got:
            out["sentence_pair"] = got[name]
    return out


def real(name: str, x: np.ndarray, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Zeroes an output at padding; outputs without a length axis are unchanged."""
    segments = inputs[
        "target_segments" if "target_segments" in inputs and not name.startswith("encode") else "segments"
    ]
    if x.shape[:2] != segments.shape:
        return x
    return np.where(segments.reshape(*segments.shape, *[1] * (x.ndim - 2)) > 0, x, 0)


def differences(
    mine: Mapping[str, Any], other: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> dict[str, Difference]:
    """Differences of the outputs without padding; for `states`, of the layer with the largest difference.

    Args:
      mine: result of `ours`.
      other: result of `theirs`.
      inputs: result of `batch`.

    Returns:
      {output: difference}.
    """
    out = {}
    for name, x in mine.items():
        got = real(name, np.asarray(x, np.float32), inputs)
        want = real(name, other[name].detach().float().numpy(), inputs)
        layers = zip(*(np.moveaxis(x, 2, 0) if name.endswith("states") else x[None] for x in (got, want)), strict=True)
        layer_differences = [Difference(float(np.abs(a - b).max()), float(np.abs(b).max())) for a, b in layers]
        out[name] = max(layer_differences, key=lambda difference: difference.relative)
    return out


def verify(
    directory: str | Path, network: Network | None = None, params: Any = None, ignore: Sequence[str] = ()
) -> dict[str, Difference]:
    """Loads a directory with `transformers` and jaxpt, and compares the outputs on random tokens in float32.

    Args:
      directory: a Hugging Face directory.
      network: the jaxpt network; by default loaded from the directory.
      params: its parameters.
      ignore: keys of config.json to ignore where the network is loaded.

    Returns:
      {output: difference}.

    Raises:
      UserError: torch or transformers is not installed, a parameter is not finite, or transformers does not load the
        directory.
    """
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise UserError(f"--verify requires {error.name}: {packages.install_command('parity')}") from None
    if network is None:
        network, params = load(directory, ignore=ignore)
    family = family_of(network.config, read_config(Path(directory))[0]["model_type"])
    network = family.network(network.config.model_copy(update={"dtype": "float32"}), network.heads)
    params = jax.tree.map(lambda x: np.asarray(x, np.float32), params)
    for path, x in traverse_util.flatten_dict(params, sep="/").items():
        finite(path, x)
    keys = read_object(Path(directory) / "config.json")
    their_class = getattr(transformers, model_types.class_of_file(family.class_of(network), keys.get("model_type")))
    where, called = f"{directory}: transformers {transformers.__version__}", their_class.__name__
    with _refusals(f"{where} does not load it as {called}"):
        torch_model = their_class.from_pretrained(directory, dtype=torch.float32).eval()
    name = classes.name_of(network.heads)
    if name is None:
        inputs = batch(network.config)
        run, compare = functools.partial(ours, network), theirs
    else:
        inputs = task_batch(network.config, **_task_ids(network.config, torch_model.config.get_text_config()))
        run, compare = functools.partial(task_ours, network), functools.partial(task_theirs, name)
    with _refusals(f"{where} does not run {called} on it"), torch.no_grad():
        other = compare(torch_model, inputs)
    return differences(compiler.jit(lambda params: run(params, inputs))(params), other, inputs)


@contextlib.contextmanager
def _refusals(words: str) -> Iterator[None]:
    """Makes a UserError of whatever a class of transformers raises: each refuses in its way."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{words}: {printable(reason, 300)}") from error


def report_differences(differences: Mapping[str, Difference], report: Callable[[str], None]) -> None:
    """Says how far the outputs are apart.

    Args:
      differences: result of `verify`.
      report: called with lines for the user.

    Raises:
      UserError: one of them is more than rounding.
    """
    for name, difference in differences.items():
        report(
            f"  {name:14} max difference {difference.largest:.2e}, max value {difference.scale:.3g} (relative "
            f"{difference.relative:.1e})"
        )
    wrong = [name for name, difference in differences.items() if not difference.equal]
    if wrong:
        raise UserError(f"the outputs differ from Hugging Face's: {', '.join(wrong)}")
    report("outputs equal Hugging Face's within rounding")


# ---- fine-tuned classes ---------------------------------------------------------------------------------------------


def padding_advice(directory: Path, network: Network) -> list[str]:
    """A line for the user where a decoder's class for whole texts has no padding by which it finds their ends.

    Args:
      directory: a Hugging Face directory.
      network: of its model.
    """
    is_decoder = network.config.family == "decoder" and classes.name_of(network.heads) == "classes"
    if not is_decoder or read_object(directory / "config.json").get("pad_token_id") is not None:
        return []
    return [
        "config.json has no pad_token_id, as the vocabulary has no padding: Hugging Face's class takes one text at a "
        "time; for several, set model.config.pad_token_id to an id that no text ends with"
    ]


def _task_ids(config: Any, their_config: Any) -> dict[str, int]:
    """Arguments of `task_batch`: the special ids with which a class of `transformers` reads texts."""
    ids = {"pad": getattr(their_config, "pad_token_id", None)}
    if config.family == "encoder_decoder":
        ids["eos"] = getattr(their_config, "eos_token_id", None)
        if their_config.model_type != "mbart":  # whose decoder starts from the text's last token
            ids["start"] = getattr(their_config, "decoder_start_token_id", None)
    return {name: i for name, i in ids.items() if isinstance(i, int) and 0 <= i < config.vocab_size}


def task_batch(
    config: Any, length: int = 24, seed: int = 0, pad: int = PADDING, eos: int = EOS, start: int | None = None
) -> dict[str, np.ndarray]:
    """Random texts of three lengths, padded on the right (XLNet: on the left), and token types if the model has them.

    Args:
      config: configuration of the model.
      length: tokens of a row, at most the model's maximum.
      seed: random seed.
      pad: id behind a text.
      eos: last id of a text of an encoder-decoder.
      start: first id that the decoder of an encoder-decoder reads; by default `pad` for T5, else `eos`.

    Returns:
      tokens, segments and types; for an encoder-decoder also shifted, the decoder's input: all int32 [3, length].
    """
    rng = np.random.default_rng(seed)
    length = min(length, config.position_limit or length)
    padding = length // 6 * np.arange(3)[:, None]
    segments = (np.arange(length) < length - padding).astype(np.int32)
    tokens = random_tokens(rng, config, segments.shape, (pad, eos))
    out = {"tokens": np.where(segments, tokens, pad).astype(np.int32), "segments": segments}
    if config.family == "encoder_decoder":
        out["tokens"][np.arange(3), segments.sum(1) - 1] = eos
        if start is None:
            start = pad if config.kind == "t5" else eos  # mBART's is the last token of the text: here EOS, too
        out["shifted"] = np.pad(out["tokens"], ((0, 0), (1, 0)), constant_values=start)[:, :-1]
    if config.kind == "xlnet":
        out = {name: np.stack([np.roll(row, int(n)) for row, n in zip(x, padding[:, 0])]) for name, x in out.items()}
    if config.kind == "xlnet" or getattr(config, "token_types", 0) > 1:
        out["types"] = rng.integers(0, getattr(config, "token_types", 2), tokens.shape).astype(np.int32)
    return out


def task_states(bound: Bound, inputs: Mapping[str, jax.Array], stack: str) -> jax.Array:
    """Hidden states of the encoder or decoder: [B, L, D].

    Args:
      bound: the backbone.
      inputs: result of `task_batch`.
      stack: "encoder" or "decoder".
    """
    tokens, segments = inputs["tokens"], inputs["segments"]
    types = {"token_types": inputs["types"]} if "types" in inputs else {}
    if bound.config.family == "decoder":
        return bound.decode(tokens, segment_ids=segments, **types).hidden
    encoded = bound.encode(tokens, segment_ids=segments, **types).hidden
    if stack == "encoder":
        return encoded
    decoded = bound.decode(inputs["shifted"], encoded, segment_ids=segments, encoder_segment_ids=segments)
    return decoded.hidden


def task_logits(bound: Bound, states_BxLxD: jax.Array, inputs: Mapping[str, jax.Array]) -> jax.Array:
    """Logits of the head for fine-tuning.

    Args:
      bound: the network.
      states_BxLxD: result of `task_states`, of the stack that the head reads.
      inputs: result of `task_batch`.

    Returns:
      float32 [B, N] of texts, [B, L, N] of tokens, [1, B] of the texts as choices.
    """
    name, segments = classes.name_of(bound.heads), inputs["segments"]
    position, x = bound.config.task_head(name).position, states_BxLxD
    x = bound.heads["pooler"](x) if position == "late" else x
    if position in ("mean", "late"):
        x = (x * segments[..., None]).sum(1) / segments.sum(1, keepdims=True)
    elif position != "each":
        places = jnp.arange(segments.shape[1]) * (segments > 0)
        at = jnp.zeros(len(segments), int) if position == "first" else places.argmax(1)  # the last token is EOS
        x = jnp.take_along_axis(x, at[:, None, None], axis=1)[:, 0]
    y = classes.apply(bound, name, x)
    return y.T if name == "choice" else y


def task_ours(network: Network, params: Mapping[str, Any], inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """{"logits": …} of our network."""
    bound = network.bind(params)
    stack = bound.config.task_head(classes.name_of(bound.heads)).stack
    return {"logits": task_logits(bound, task_states(bound, inputs, stack), inputs)}


def task_theirs(name: str, model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The same of a class of `transformers`, which makes the decoder's input itself.

    Args:
      name: of our head.
      model: a torch module; its configuration has the special ids of the batch.
      inputs: result of `task_batch`.
    """
    import torch

    names = {"tokens": "input_ids", "segments": "attention_mask", "types": "token_type_ids"}
    model_inputs = {names[key]: torch.from_numpy(x).long() for key, x in inputs.items() if key in names}
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    if name == "classes" and padding is None:  # many then take one text at a time
        of_text = [row > 0 for row in model_inputs["attention_mask"]]
        rows = [{key: x[n : n + 1, mask] for key, x in model_inputs.items()} for n, mask in enumerate(of_text)]
        return {"logits": torch.cat([model(**row).logits for row in rows])}
    got = model(**{key: x[None] for key, x in model_inputs.items()} if name == "choice" else model_inputs)
    return {"logits": torch.stack((got.start_logits, got.end_logits), -1) if name == "span" else got.logits}
