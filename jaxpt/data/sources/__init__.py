"""Sources of documents. `base` says what one is, `opening` finds the one that a configuration names."""
