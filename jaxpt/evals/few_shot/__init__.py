"""An evaluation harness for encoders, decoders and encoder-decoders: few-shot tasks as small YAML files.

    row of a file → Example: contexts and continuations        task.py, templates.py, examples.py
                  → SampleResult: what the model says of it         scoring.py, by a `Model` (model.py)
                  → metrics with standard errors               measures.py; trivial baselines: baselines.py

A task is a file of `configs/tasks/` or anyone's own. `jaxpt eval RUN_DIR --tasks lambada,piqa` runs it
(`jaxpt.inference.evaluate`), and so does an evaluator in a recipe (`evals: [{kind: harness, tasks: [lambada]}]`).
"""
