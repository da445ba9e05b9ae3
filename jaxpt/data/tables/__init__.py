"""Files as rows, labelled or not: text, TSV, CSV, JSON, Parquet, CoNLL(-U), ArrayRecord, TFDS, data sets of the hub.

  reading     the formats; path → rows                  rows      a row, its columns, their labels
  files       which files there are, their lines        splits    a stratified held-out split by hashes of texts
  dialect     the delimiter and the encoding of CSV and TSV
  plain_text, delimited, json_files, parquet, conll, array_record, tfds, hf_datasets: formats
  super_glue  SuperGLUE's nested JSON as flat rows
  built_in    tables made of the built-in corpus
  quiet_tensorflow: the one import of TensorFlow, without its messages

Importing this package imports neither JAX nor TensorFlow.
A mistake in a file ends in one line: the file, the line or row, what is wrong, what would be right.
"""

from jaxpt.data.tables.files import expand
from jaxpt.data.tables.json_files import answers
from jaxpt.data.tables.reading import FORMATS, SUFFIXES, file_format, read, where
from jaxpt.data.tables.rows import Offset, Row, chunks, column, flag, in_order, label, parse_list, row_id, text
from jaxpt.data.tables.splits import HeldOut, Text, digest, held_out, overlap
