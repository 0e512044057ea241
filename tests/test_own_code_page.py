"""Every file on the page docs/own_code.md works unchanged, alone and together."""

import re
import sys

import numpy as np
import pytest
from support.paths import ROOT
from support.runs import train

from purejaxppo import load_config
from purejaxppo.agents.networks import distributions
from purejaxppo.envs import registry
from purejaxppo.parts import make_parts
from purejaxppo.spaces import Box

BLOCKS = re.findall(
    r"```(python|yaml)\n(.*?)```", (ROOT / "docs/own_code.md").read_text(), re.DOTALL
)
NAMED = re.compile(r"# (\w+\.\w+)\n")


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The files of the page in the current folder, and its other blocks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("walk", "mine", "watch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    others = []
    for _, text in BLOCKS:
        named = NAMED.match(text)
        if named:
            (tmp_path / named[1]).write_text(text)
        else:
            others.append(text)
    return others


@pytest.mark.toy
def test_every_reference_in_the_table_exists(page):
    small = {"env.num_envs": 4, "ppo.rollout_length": 8}
    rows = re.findall(
        r"`(\w+\.\w+): \[?([\w/]+\.py:\w+)\]?`", (ROOT / "docs/own_code.md").read_text()
    )
    assert len(rows) >= 11
    for field, reference in rows:
        if reference.startswith(("gymnasium/", "brax/", "playground/")):
            continue  # documented on another page
        if field == "network.distribution":
            assert distributions.for_space(Box((2,)), reference).num_params == 2
            continue
        listed = field in ("env.wrappers", "ppo.terms", "logging.loggers")
        value = [reference] if listed else reference
        make_parts(load_config("cartpole.yaml", {**small, field: value}))


@pytest.mark.toy
@pytest.mark.parametrize("torso", ["Net", "Linear", "shared", "separate"])
def test_every_torso_of_the_page_is_valid(page, torso):
    make_parts(load_config("cartpole.yaml", {"network.torso": f"net.py:{torso}"}))


@pytest.mark.toy
def test_the_gymnax_environment_of_the_page_works(page):
    config = load_config("cartpole.yaml", {"env.name": "gymnax/cart.py:make"}).env
    assert registry.make_task(config).max_episode_steps == 100


@pytest.mark.toy
def test_the_python_blocks_of_the_page_run(page):
    assert len(page) == 3
    page[1] = page[1].replace(
        "jax.jit(make_train(config))(jax.random.key(0))", "make_train(config)"
    )
    for text in page[1:]:
        exec(text, {})


@pytest.mark.full
def test_the_run_from_python_of_the_page_trains(page):
    here = {}
    exec(page[0].replace("100_000", "4096"), here)
    missing = here["run"].metrics["mine/missing"]
    np.testing.assert_allclose(missing, 2.0 - here["run"].metrics["eval/return_mean"])


@pytest.mark.full
def test_the_complete_config_of_the_page_trains(page):
    assert train("own.yaml", "--run_dir", "run", "--total_timesteps", "16384") == 0
