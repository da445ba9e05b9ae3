"""What the decoder's configuration refuses, in one line each."""

import pytest
from pydantic import ValidationError

from tests.models.helpers import OTHERS


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pattern": ()}, "pattern: wants at least one kind of layer"),
        ({"window": 2}, "other_window: 3 is wider than window 2; swap the two"),
        ({"parallel": "one_norm"}, "parallel: one_norm wants norm_position before"),
        ({"positions": "alibi"}, "positions: alibi goes with no window; remove window and other_window"),
    ],
)
def test_what_does_not_go_together_is_refused(options, words):
    with pytest.raises(ValidationError, match=words):
        OTHERS["decoder_only"](**options)
