"""Simple models of labelled tasks: what a fine-tuned model is to beat, trained in seconds on the CPU.

    rows of the run's splits → candidates fitted on the training rows     texts.py, choices.py, tagging.py,
                                                                          generation.py, questions.py
                             → the best candidate of the validation rows
                             → metrics with standard errors               measure.py
                             → compared with a fine-tuned model           beside.py

`jaxpt baseline RECIPE` prints them (`jaxpt.report.simple_models`), the evaluator of kind `task` tells the best of them
at the end of a fine-tuning, and a row of a study may be one (`simple_model: best`).
"""
