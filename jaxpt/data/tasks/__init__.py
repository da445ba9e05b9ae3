"""Tasks of fine-tuning: what the columns of labelled data mean, and how predictions are scored. One file per kind.

A task knows neither JAX nor tokens: `jaxpt.objectives` turns it into a loss, by a head or as text to text.
"""
