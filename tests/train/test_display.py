"""How a run's numbers are said."""

import pytest

from jaxpt.train.display import duration


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0s"), (59.4, "59s"), (59.9, "1m00s"), (74.99999999, "1m15s"), (75, "1m15s"), (3599.9, "1h00m")],
)
def test_a_duration_is_said_to_the_nearest_second(seconds, text):
    assert duration(seconds) == text
