"""Running text: a document a line, documents parted by blank lines, or a file that is one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

from jaxpt.data.tables.files import raw_lines, read_lines, size
from jaxpt.data.tables.rows import START, Offset, Row

Documents = Literal["line", "blank_line", "file"]

_GZIP_PIECES = 16  # a piece of a .gz is reached by unpacking all before it


def text(path: str, start: Offset = START, documents: Documents = "line") -> Iterator[Row]:
    """Reads a text file.

    Args:
      path: the file, also as `.gz`.
      start: where to begin, as `cuts` gives it.
      documents: what a document is: a line, the lines between blank ones, or the whole file.

    Yields:
      Rows with the column `text`: its lines without their ends, blank ones too. They are numbered by line, or else from
      1.

    Raises:
      UserError: names the line that is not as it should be.
    """
    lines = ((number, line.rstrip("\r\n")) for number, line in read_lines(path, start.offset, start.line))
    if documents == "line":
        yield from (Row(number, {"text": line}) for number, line in lines)
    elif documents == "file":
        yield Row(1, {"text": "\n".join(line for _, line in lines)})
    else:
        blocks = itertools.groupby((line for _, line in lines), lambda line: not line.strip())
        texts = ("\n".join(block) for is_blank, block in blocks if not is_blank)
        yield from (Row(number, {"text": text}) for number, text in enumerate(texts, start.number + 1))


def cuts(
    path: str, every: int, documents: Documents = "line", columns: object = None, ascii_blanks: bool = False
) -> Iterator[tuple[Offset, int]]:
    """Cuts a file of lines into pieces of whole documents.

    Args:
      path: the file.
      every: bytes of text that a piece has at least, but for the last.
      documents: as in `text`.
      columns: without effect; of JSONL.
      ascii_blanks: only ASCII's white space makes a blank line, as in versions 1 to 3 of the order of records. `text`
        sees blank lines of U+3000, too: the numbers of such pieces are too small, and documents are lost between them.

    Yields:
      (where a piece begins, its bytes).
    """
    total = size(path)
    if total <= every or documents == "file":
        yield Offset(), total
        return
    if path.endswith(".gz"):
        every = max(every, total // _GZIP_PIECES)
    start, offset, num_documents, is_inside = Offset(), 0, 0, False
    for number, line in enumerate(raw_lines(path), 1):
        offset += len(line)
        if documents == "blank_line":
            # As `text` sees it: U+3000 is white space, a byte order mark is no text.
            content = line if ascii_blanks else line.decode("utf-8-sig" if number == 1 else "utf-8", "replace")
            is_blank = not content.strip()
            num_documents += is_blank and is_inside
            is_inside = not is_blank
        else:
            num_documents = number
        if offset - start.offset >= every and not is_inside:
            yield start, offset - start.offset
            start = Offset(offset, number, num_documents)
    if offset > start.offset or not offset:
        yield start, offset - start.offset
