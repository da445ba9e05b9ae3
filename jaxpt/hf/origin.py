"""The configuration files of the directory that a run came from, kept with the run and written back by an export.

    HF_DIR/config.json, generation_config.json → RUN_DIR/hf/… → HF_DIR of the export

A run that starts from an imported one, or from a directory in Hugging Face's form, takes the files over.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config.plain import leaves
from jaxpt.errors import UserError
from jaxpt.hf import files, options, tasks
from jaxpt.models.heads import classes
from jaxpt.models.network import Network
from jaxpt.runtime.disk import write_text

FOLDER = "hf"
CONFIG, GENERATION = "config.json", "generation_config.json"
NOT_CARRIED = ("architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path")
"""Keys that say how a directory was written: an export writes its own class and dtype."""
LABELS = ("num_labels", "id2label", "label2id", "problem_type")


def keep(source: Path, run_dir: Path) -> None:
    """Copies the files to a run, with checksums.

    Args:
      source: a directory in Hugging Face's form.
      run_dir: of the run.
    """
    (run_dir / FOLDER).mkdir(parents=True, exist_ok=True)
    for name in (CONFIG, GENERATION):
        if (source / name).is_file():
            shutil.copyfile(source / name, run_dir / FOLDER / name)
    files.write_checksums(run_dir / FOLDER)


def run_dir_of(path: str | Path) -> Path | None:
    """The run of RUN_DIR or RUN_DIR/checkpoints/STEP; None of a directory in Hugging Face's form, wherever it is."""
    path = Path(path)
    has_checkpoints = (path / "checkpoints").is_dir()
    if (path / CONFIG).is_file() and not has_checkpoints:
        return None
    if (run_dir := configs.run_dir_of(path)) != path:
        return run_dir
    return path if has_checkpoints or (path / "config.yaml").is_file() else None


def folder_of(path: str | Path) -> Path:
    """Where the files of a model are: the directory itself, or the folder of the run.

    Args:
      path: RUN_DIR, RUN_DIR/checkpoints/STEP, or a directory in Hugging Face's form.
    """
    run_dir = run_dir_of(path)
    return Path(path) if run_dir is None else run_dir / FOLDER


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """The keys of one of the files; None where there is none.

    Args:
      folder: result of `folder_of`.
      name: CONFIG or GENERATION.

    Raises:
      UserError: it is no JSON object.
    """
    return files.read_object(folder / name) if (folder / name).is_file() else None


def carry(source: str | Path, run_dir: Path, *, eos: int | None, start: Sequence[int], same_tokenizer: bool) -> None:
    """Takes the files of a run's origin over, as far as they hold for a model that is trained further.

    Training writes EOS and the decoder's first tokens itself. So its EOS is added to those that end a text, and another
    start is replaced; a forced first token that would follow another start is dropped.

    Args:
      source: RUN_DIR, RUN_DIR/checkpoints/STEP, or a directory in Hugging Face's form.
      run_dir: of the new run.
      eos: the id that ends a text of the training.
      start: what the decoder reads first in training; () for a decoder.
      same_tokenizer: whether the run has the origin's vocabulary; else no id is taken over.
    """
    folder = folder_of(source)
    config, generation = read(folder, CONFIG), read(folder, GENERATION)
    if config is None or (run_dir / FOLDER).exists():
        return
    contents = {CONFIG: config} | ({} if generation is None else {GENERATION: generation})
    if not same_tokenizer:
        contents = {CONFIG: {key: value for key, value in config.items() if not _is_of_ids(key)}}
    (run_dir / FOLDER).mkdir(parents=True)
    for name, keys in contents.items():
        trained = _as_trained(keys, eos, start)
        write_text(run_dir / FOLDER / name, json.dumps(trained, indent=2, ensure_ascii=False) + "\n")
    files.write_checksums(run_dir / FOLDER)


def _is_of_ids(key: str) -> bool:
    return key.endswith(("_token_id", "_tokens", "_words_ids", "_decoder_ids")) or key == "sequence_bias"


def _as_trained(keys: Mapping[str, Any], eos: int | None, start: Sequence[int]) -> dict[str, Any]:
    keys = dict(keys)
    ends = origin_eos if isinstance(origin_eos := keys.get("eos_token_id"), list) else [origin_eos]
    if origin_eos is not None and eos is not None and eos not in ends:
        keys["eos_token_id"] = [eos, *ends]
    if start and keys.get("decoder_start_token_id") not in (None, start[0]):
        keys["decoder_start_token_id"] = start[0]
    if start and keys.get("forced_bos_token_id") not in (None, *start[1:2]):
        keys["forced_bos_token_id"] = None
    return keys


def written_back(
    keys: Mapping[str, Any], origin: Mapping[str, Any], family: options.Family, network: Network,
    padding: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The keys of config.json of a model that was read from another one.

    Args:
      keys: result of `to_json`, with the ids of special tokens.
      origin: the content of the config.json that it was read from.
      family: of both.
      network: the backbone with its heads, as exported.
      padding: the id of the tokenizer's padding, which counts where the origin names none: a decoder's classifier finds
        the end of each text by it. Other ids that are null may be meant so.

    Returns:
      The origin's keys where the model is unchanged: in its spelling, with its rates of dropout and its ids. Where it
      is changed, `keys` with what else the origin has. The class, the dtype and the labels are in either case ours.
    """
    ours = {key: keys[key] for key in ("architectures", "dtype", *family.decided) if key in keys}
    if not any(key.endswith("_token_id") and x is not None for key, x in origin.items()):
        ours |= {key: x for key, x in keys.items() if key.endswith("_token_id") and x is not None}
    elif padding is not None and origin.get("pad_token_id") is None:
        ours["pad_token_id"] = padding
    carried = {key: x for key, x in origin.items() if key not in NOT_CARRIED}
    if not _has_labels_of(keys, origin, network):
        carried = {key: x for key, x in carried.items() if key not in LABELS}
        ours |= {key: x for key, x in keys.items() if key in LABELS}
    read = dict(leaves(family.read(dict(carried))))
    theirs = options.fields_of(family, read)
    changed = {name for name, value in theirs.items() if value != getattr(network.config, name)}
    if not changed:
        return carried | ours
    known = {option.theirs.partition(".")[0] for option in family.options} | set(family.fixed)
    lost = {*known, *(family.dropouts if "dropout" in changed else ())}
    others = {
        key: x for key, x in carried.items() if key in {*options.HARMLESS, *family.harmless} or options.is_rate(key)
    }
    return dict(keys) | {key: x for key, x in others.items() if key not in lost} | ours


def _has_labels_of(keys: Mapping[str, Any], origin: Mapping[str, Any], network: Network) -> bool:
    """Whether the origin's labels are those of the model: the names, and the loss."""
    head, outputs = classes.name_of(network.heads), classes.outputs_of(network.heads)
    if head not in ("classes", "tags"):
        return origin.get("architectures") == keys["architectures"]
    try:
        labels, problem = tasks.labels_from_json(head, outputs, origin), tasks.problem_from_json(head, outputs, origin)
        theirs = tasks.labels_to_json(head, outputs, labels, problem)
    except UserError:
        return False
    names = labels is not None or outputs == 2  # by default there are two
    return names and theirs == {key: x for key, x in keys.items() if key in LABELS}
