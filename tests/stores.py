"""Stores of one shard, of a data set made here."""

from pathlib import Path

from jaxpt.data.records.shard import write_shard
from jaxpt.data.records.store import Store, made, publish, shard_name


def build(make, directory, counts=dict, report=lambda records: None):
    """The store at `directory`; where there is none that is whole, `make` gives the data set of its records."""
    directory = Path(directory)
    found = Store.open(directory)
    if found is not None:
        return found
    with made(directory):
        write_shard(make(), directory / shard_name(0, 1), counts, report)
        return publish(directory, 1, {})
