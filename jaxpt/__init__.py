"""jaxpt: pretrain, fine-tune, evaluate and ship Transformers of all three families with JAX."""

__version__ = "0.1.0"
