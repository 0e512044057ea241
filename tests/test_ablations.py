"""Every study of benchmarks/ablations.py is one that the train command takes."""

import importlib.util
import sys

import pytest
from support.paths import ROOT

from purejaxppo.commands import train


def studies():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location("ablations", ROOT / "benchmarks/ablations.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module.STUDIES


def test_objectives_and_schedules_are_compared_where_a_difference_can_show():
    for name in ("objective", "schedule"):
        assert studies()[name].config != "cartpole.yaml"  # where all of them come near 500


@pytest.mark.parametrize("name", studies())
def test_flags_are_flags_and_variants_differ(name, tmp_path):
    study = studies()[name]
    configs = []
    for flags in study.variants.values():
        words = f"{study.flags} {flags}".replace("TEACHER", str(tmp_path)).split()
        size = ["--num_seeds", "5", "--total_timesteps", str(study.steps)]
        _, command = train.start(["--config", study.config, *words, *size])
        configs.append(command)
    assert len(study.variants) >= 2
    assert all(configs[0] != other for other in configs[1:])
