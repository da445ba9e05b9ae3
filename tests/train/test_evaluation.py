"""The evaluators of a phase."""

import pytest

from jaxpt.data import datasets
from jaxpt.errors import UserError
from jaxpt.train import evaluation, state
from tests import fine_tuning


@pytest.mark.slow
def test_a_best_metric_that_the_held_out_loss_has_not_is_refused_before_the_first_step(tmp_path):
    for metric in ("validation/target_loss", "validation/acuracy"):
        config = fine_tuning.recipe(tmp_path, evals=[{"kind": "heldout"}], checkpoint={"best_metric": metric})
        data = datasets.prepare(config, report=lambda line: None)
        evaluators = evaluation.Evaluators(state.setup(config).for_evaluation(), data)
        if metric == "validation/target_loss":
            evaluators.compile()
            continue
        with pytest.raises(UserError) as error:
            evaluators.compile()
        assert str(error.value) == (
            "checkpoint.best_metric: validation/acuracy: validation measures no acuracy; did you mean accuracy?"
        )
