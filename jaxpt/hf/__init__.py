"""Hugging Face directories, read and written: `model, params = jaxpt.hf.load(directory)`, `jaxpt.hf.save(…)`.

directory  load, save, one tensor at a time     files    safetensors and .bin
mapping    weights: the engine                  options  config.json: the engine
verify     their model beside ours              bert …   a table of weights and one of options for each family
"""

from jaxpt.hf.directory import load, save

__all__ = ["load", "save"]
