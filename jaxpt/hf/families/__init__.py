"""Architectures of Hugging Face: one file each, with `FAMILIES`, the names of their parameters and options."""
