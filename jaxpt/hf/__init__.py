"""Reads and writes Hugging Face directories: `model, params = jaxpt.hf.load(directory)`, `jaxpt.hf.save(…)`.

directory  load and save, one tensor at a time  files    safetensors and .bin files
table      tables of names                      mapping  converts weights by a table
options    keys of config.json                  origin   config.json of the model that a run came from
tasks      classes for fine-tuning, labels      peft     low-rank adapters in peft's layout
verify     compares outputs with transformers   families  tables of weights and options for each family
formats    checkpoints of T5X, MaxText and Flax, read under Hugging Face's names
"""

from jaxpt.hf.directory import load, save

__all__ = ["load", "save"]
