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

from jaxpt.errors import UserError, shown
from jaxpt.hf import files
from jaxpt.runtime.disk import read_json, write_text

FOLDER = "hf"
CONFIG, GENERATION = "config.json", "generation_config.json"


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


def folder_of(path: str | Path) -> Path:
    """Where the files of a model are: the directory itself, or the folder of the run.

    Args:
      path: RUN_DIR, RUN_DIR/checkpoints/STEP, or a directory in Hugging Face's form.
    """
    path = Path(path)
    run_dir = path.parents[1] if path.parent.name == "checkpoints" else path
    is_run = run_dir != path or (path / "checkpoints").is_dir() or (path / "config.yaml").is_file()
    return run_dir / FOLDER if is_run else path


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """The keys of one of the files; None where there is none.

    Args:
      folder: result of `folder_of`.
      name: CONFIG or GENERATION.

    Raises:
      UserError: it is no JSON object.
    """
    path = folder / name
    if not path.is_file():
        return None
    keys = read_json(path)
    if not isinstance(keys, dict):
        raise UserError(f"{path}: expected a JSON object, got {shown(keys)}")
    return keys


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
