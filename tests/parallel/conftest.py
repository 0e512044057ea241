"""Tests of processes, themselves started by mpirun or srun or not."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Hides the launcher that may have started these tests."""
    for name in os.environ:
        if name.startswith(("OMPI_", "SLURM_")):
            monkeypatch.delenv(name)
