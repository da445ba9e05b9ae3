"""Rows of labelled data as records of token ids, for a model's layout of texts. No TensorFlow."""
