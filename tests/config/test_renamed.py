"""Configs of runs of earlier versions, and their upgrade."""

import dataclasses
import re

import pytest

from purejaxppo.cli.evaluate import main as evaluate
from purejaxppo.cli.train import main as train
from purejaxppo.cli.train import parse
from purejaxppo.config.files import load_config, to_yaml
from purejaxppo.config.renamed import upgrade
from purejaxppo.config.schema import Config, EnvConfig
from purejaxppo.export.__main__ import main as export

pytestmark = pytest.mark.toy


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (train, ["--config", "cartpole.yaml", "--run_dir"]),
        (evaluate, ["--run"]),
        (export, ["--to", "policy.npz", "--run"]),
    ],
)
def test_every_command_rejects_a_run_of_version_0_1_with_one_sentence(
    command, flags, tmp_path, capsys
):
    (tmp_path / "config.yaml").write_text("network: {memory: none}\nppo: {kl_rate: false}\n")
    (tmp_path / "versions.json").write_text("{}")
    assert command([*flags, str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"error: {tmp_path}/config.yaml: this run is from version 0.1, which this version "
        "cannot read. Use version 0.1, or train again in another --run_dir.\n"
    )


@pytest.mark.parametrize("text", ["ppo: [1]", "network: 5", "env: cartpole"])
def test_a_section_of_a_saved_run_must_be_a_mapping(text, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    name = text.partition(":")[0]
    with pytest.raises(ValueError, match=rf"config\.yaml: {name}: must be a section of keys, not"):
        load_config(tmp_path / "config.yaml", saved=True)


def test_a_config_of_this_version_is_not_changed_by_an_upgrade():
    changes = {"ppo.learning_rate_schedule": "adaptive", "ppo.critic": "hl_gauss"}
    data = dataclasses.asdict(Config().replace(**changes))
    assert data["ppo"]["obs_preprocessing"] == "by_bounds"
    assert upgrade(data) == data


def test_an_adaptive_run_of_0_2_keeps_the_limits_of_its_learning_rate():
    def limits(**ppo):
        upgraded = upgrade({"ppo": {"learning_rate": 0.002, **ppo}})["ppo"]
        return upgraded.get("min_learning_rate"), upgraded.get("max_learning_rate")

    adaptive = {"learning_rate_schedule": "adaptive"}
    assert limits(**adaptive) == pytest.approx((0.00002, 0.2))
    given = {"min_learning_rate": 0.001, "max_learning_rate": 0.1}
    assert limits(**adaptive, **given) == (0.001, 0.1)
    assert limits() == (None, None)


def test_histograms_of_a_run_of_0_2_keep_their_range(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("ppo: {critic: hl_gauss}")
    saved = load_config(path, saved=True)
    assert saved.ppo.value_limit == pytest.approx(162_754, abs=1)
    assert load_config(path).ppo.value_limit == 0
    path.write_text(to_yaml(saved.replace(**{"ppo.value_limit": 0.0})))
    assert load_config(path, saved=True).ppo.value_limit == 0
    assert "value_limit" not in upgrade({"ppo": {"critic": "scalar"}})["ppo"]


@pytest.mark.parametrize(("old", "new"), [("auto", False), ("always", True), ("never", False)])
def test_keep_cores_awake_of_0_2_becomes_true_or_false(old, new, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"keep_cores_awake: {old}")
    assert load_config(path, saved=True).keep_cores_awake is new
    assert load_config(path).keep_cores_awake is new
    path.write_text("keep_cores_awake: sometimes")
    with pytest.raises(ValueError, match=r"keep_cores_awake = 'sometimes': must be true or false"):
        load_config(path)


@pytest.mark.parametrize("value", ["true", "false"])
def test_double_buffering_of_0_2_is_dropped_from_saved_configs(value, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"env: {{name: dummy/vector, double_buffer: {value}}}")
    assert load_config(path, saved=True).env == EnvConfig(name="dummy/vector")


def test_double_buffering_of_0_2_is_rejected_in_other_configs_if_it_is_on(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text("env: {name: dummy/vector, double_buffer: false}")
    assert load_config(path).env == EnvConfig(name="dummy/vector")
    path.write_text("env: {name: dummy/vector, double_buffer: true}")
    sentence = "env.double_buffer: unknown key. It was removed. Use asynchronous = true."
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_config(path)
    for off in (["--env.no_double_buffer"], ["--env.double_buffer", "false"]):
        assert parse(["--env.name", "dummy/vector", *off]).config.env == EnvConfig("dummy/vector")
    assert train(["--env.double_buffer"]) == 2
    assert "It was removed. Use asynchronous = true." in capsys.readouterr().err
