"""Reads and writes Hugging Face directories: `model, params = jaxpt.hf.load(directory)`, `jaxpt.hf.save(…)`.

directory  load and save, one tensor at a time  files    safetensors and .bin files
mapping    names and layouts of weights         options  keys of config.json
tasks      classes for fine-tuning, labels      peft     low-rank adapters in peft's layout
verify     compares outputs with transformers   bert …   tables of weights and options for each family
"""

from jaxpt.hf.directory import load, save

__all__ = ["load", "save"]
