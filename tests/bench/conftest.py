"""A tiny data root with weights, written once."""

import pytest
from trees import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench") / "data")
