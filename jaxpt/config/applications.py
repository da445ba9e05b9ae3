"""The applications that the core knows, by name alone: it imports none of them before a run asks for one."""

EVALUATORS = "jaxpt.evals"
"""Package of the evaluators that `evals` of a recipe names."""
READERS = ("jaxpt.hf.reader",)
"""Modules that read models which other programs saved: each has the functions of `jaxpt.train.foreign.Reader`."""
RECIPES = "jaxpt.inference.run"
"""Module whose `read_config` completes a recipe, for `Config.load`: labels and models are not the core's."""
