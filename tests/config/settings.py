"""Tables of published settings beside the recipes: CSV files, a row of texts each."""

import csv

from jaxpt.config.files import parse


def read(path):
    """The rows of a table as mappings of column to text."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def value(text):
    """What a cell says, read as in a recipe; null where it is empty."""
    return parse(text, "a table of settings") if text else None
