"""Labelled files as rows: TSV, CSV, JSON, JSONL, SQuAD, Parquet, CoNLL, CoNLL-U and TFDS; no JAX, no TensorFlow.

  reading     path → rows, the format by the suffix     rows      a row, its columns, their labels
  files       which files there are, their lines        splits    a stratified held-out split by hashes of texts
  delimited, json_files, parquet, conll, tfds: formats  overlap   texts that stand in two splits
  built_in    tables made of the built-in corpus

A mistake in a file ends in one line: the file, the line or row, what is wrong, what would be right.
"""

from jaxpt.data.tables.files import expand
from jaxpt.data.tables.json_files import answers
from jaxpt.data.tables.overlap import Text, digest, overlap
from jaxpt.data.tables.reading import FORMATS, SUFFIXES, file_format, read
from jaxpt.data.tables.rows import Row, column, in_order, label, labels, text, where
from jaxpt.data.tables.splits import HeldOut, held_out

__all__ = [
    "FORMATS",
    "SUFFIXES",
    "HeldOut",
    "Row",
    "Text",
    "answers",
    "column",
    "digest",
    "expand",
    "file_format",
    "held_out",
    "in_order",
    "label",
    "labels",
    "overlap",
    "read",
    "text",
    "where",
]
