"""What conftest.py sets for all tests."""

import os
from pathlib import Path

import jax
import pytest

pytestmark = pytest.mark.toy


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs all tests")
def test_the_tests_of_a_file_stay_in_one_process(request):
    assert request.node.nodeid.endswith("@test_support")


def test_tests_have_their_own_home_and_cache():
    assert jax.config.jax_compilation_cache_dir == os.environ["JAX_COMPILATION_CACHE_DIR"]
    for name in ("HOME", "JAX_COMPILATION_CACHE_DIR"):
        assert Path(os.environ[name]).parent.name == ".pytest_cache"
    assert not [name for name in os.environ if name.startswith("XDG_")]
