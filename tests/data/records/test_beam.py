"""Apache Beam makes the same bytes. Needs the extra [beam]."""

import pytest

pytest.importorskip("apache_beam")

from jaxpt.data.progress import Progress
from jaxpt.data.records import cache
from tests.data.records.test_cache import Numbers, content, make

pytestmark = pytest.mark.slow


def test_beam_makes_the_same_bytes(tmp_path):
    make(tmp_path / "here" / "numbers")
    cache.build(Numbers(), tmp_path / "beam" / "numbers", {"seed": 0}, Progress(), beam=["--runner=DirectRunner"])
    assert content(tmp_path / "beam" / "numbers") == content(tmp_path / "here" / "numbers")
