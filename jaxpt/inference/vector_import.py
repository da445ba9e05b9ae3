"""`jaxpt import` of a file of word vectors: a run whose model is the table and whose vocabulary the words."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt import config as configs
from jaxpt.data.tokenizers import words as tokenizers
from jaxpt.errors import UserError
from jaxpt.inference import vector_files
from jaxpt.models.layers import stored_rows
from jaxpt.objectives.rows import TOKENS
from jaxpt.runtime import disk
from jaxpt.train import weights


def import_vectors(source: str | Path, out: str | Path) -> None:
    """Converts a file of word vectors to a run directory.

    Text is cut into words at white space and around punctuation. Case is folded where no word of the file has a capital
    letter. The unknown word has the file's vector of <UNK> or <unk>, or zeros.

    Args:
      source: as `vector_files.read` takes it.
      out: the directory to create.

    Raises:
      UserError: `out` exists, or the file is not as it must be. `out` is then not created.
    """
    out = Path(out)
    if out.exists():
        raise UserError(f"{out}: already exists; choose a new directory")
    disk.check_path(out)
    words, vectors_VxD = vector_files.read(source)
    names, zeros = (*tokenizers.SPECIAL.values(),), np.zeros(vectors_VxD.shape[1], np.float32)
    rows = {word: vector for word, vector in zip(words, vectors_VxD) if word not in names}
    known = dict(zip(words, vectors_VxD))
    special = [known.get(name, known.get(name.lower(), zeros) if name == names[-1] else zeros) for name in names]
    table_VxD = np.stack([*special, *rows.values()])
    lowercase = all(word == word.lower() for word in rows)
    config = configs.build(_recipe(str(out), table_VxD.shape, lowercase), lambda key: f"{source}: {key}")
    network = config.objective.network(config.model)
    padded = np.pad(table_VxD, ((0, stored_rows(len(table_VxD)) - len(table_VxD)), (0, 0)))
    with disk.whole_directory(out) as temporary:
        tokenizers.Words([*names, *rows], lowercase).save(temporary / "tokenizer")
        disk.write_text(temporary / "config.yaml", configs.with_checksum(configs.to_yaml(config)))
        weights.write(temporary, network, {TOKENS: np.dtype(np.float32)}, iter([(TOKENS, None, padded)]))
    run = shlex.quote(str(out))
    print(f"{out}: word_vectors, {len(rows):,} words, {vectors_VxD.shape[1]} numbers each, from {source}")
    print(f"to look at it: jaxpt neighbours {run} WORD")
    print(f"to train from it: jaxpt train RECIPE init_from.path={run}")


def _recipe(run_dir: str, shape: tuple[int, ...], lowercase: bool) -> dict[str, Any]:
    rows, width = shape
    return {
        "run_dir": run_dir,
        "model": {"kind": "word_vectors", "vocab_size": rows, "embed_dim": width},
        "objective": {"kind": "skip_gram"},
        "data": {"tokenizer": {"kind": "words", "lowercase": lowercase}, "length": 256, "batch_size": 16},
        "optimizer": {"kind": "sparse_sgd", "learning_rate": 0.025, "updates": 128},
    }
