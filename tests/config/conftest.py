import pytest

from tests.config.helpers import RECIPE, write


@pytest.fixture
def recipe(tmp_path):
    return write(tmp_path / "recipe.yaml", RECIPE)
