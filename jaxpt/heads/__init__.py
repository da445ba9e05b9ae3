"""What turns hidden states into predictions of a task: one file per head.

A head is an `nn.Module` that an objective, or a fine-tuning task, declares beside the backbone
(`jaxpt.models.network.Head`); its parameters live in `{"model": …, "heads": {name: …}}`.
"""
