"""Keys of version 0.1: answered with the new name in a config, replaced in a saved run."""

import pytest

from purejaxppo.commands.evaluate import main as evaluate
from purejaxppo.commands.train import main as train
from purejaxppo.config.files import flatten, from_dict, load_config, to_yaml
from purejaxppo.config.renamed import RENAMED, RENAMED_FLAGS, upgrade
from purejaxppo.config.schema import Config
from purejaxppo.sweep.__main__ import main as sweep

pytestmark = pytest.mark.toy


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_key_or_flag_is_answered_with_the_new_one(old, new, capsys):
    section, _, key = old.partition(".")
    assert old not in flatten(Config())
    assert new.partition(" ")[0] in flatten(Config())
    with pytest.raises(ValueError, match=f"^mine.yaml: {old} is {new} now$"):
        from_dict({section: {key: 1}}, "mine.yaml")
    assert train(["--config", "cartpole.yaml", f"--{old}", "1"]) == 2
    assert f"--{old} is --{new.replace(' = ', ' ')} now" in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new"), RENAMED_FLAGS.items())
def test_an_old_flag_of_a_sweep_or_an_evaluation_is_answered_with_the_new_one(old, new, capsys):
    command = evaluate if new == "member" else sweep
    assert command([f"--{old}", "1"]) == 2
    assert f"--{old} is --{new} now" in capsys.readouterr().err


def test_the_config_of_a_run_of_version_0_1_is_read_by_its_new_names(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "env: {visible: [0, 2], full_state: true}\n"
        "network: {layers: residual, memory: gru, memory_size: 7, memory_span: 9,\n"
        "          part_hidden: [5]}\n"
        "ppo: {kl_rate: true, kl_stop: true, rollout_start: reset,\n"
        "      learning_rate_schedule: constant}\n"
        "imitate: {teacher: runs/teacher, updates: 3}\n"
    )
    read = flatten(load_config(path, saved=True))
    default = flatten(Config())
    assert {key: value for key, value in read.items() if value != default[key]} == {
        "env.obs_indices": (0, 2),
        "env.privileged_obs": True,
        "network.block": "residual",
        "network.rnn": "gru",
        "network.rnn_size": 7,
        "network.rnn_timescale": 9,
        "network.input_hidden": (5,),
        "ppo.learning_rate_schedule": "adaptive",
        "ppo.early_stop_kl": True,
        "ppo.reset_each_rollout": True,
        "ppo.obs_preprocessing": "by_dtype",
        "pretrain.teacher": "runs/teacher",
        "pretrain.updates": 3,
    }


def test_a_config_of_today_is_not_changed_by_an_upgrade():
    new = {"learning_rate_schedule": "linear", "obs_preprocessing": "by_bounds"}
    ppo = {**new, "kl_rate": False, "rollout_start": "continue"}
    assert upgrade({"seed": 3, "ppo": ppo}) == {
        "seed": 3,
        "ppo": {**new, "reset_each_rollout": False},
    }


def test_adaptive_run_of_0_2_keeps_the_limits_of_its_rate():
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


def test_a_rate_that_was_scheduled_and_adapted_needs_the_version_that_had_it(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("ppo: {kl_rate: true, learning_rate_schedule: linear}")
    with pytest.raises(ValueError, match=r"config.yaml: ppo.kl_rate .* version 0\.1 only"):
        load_config(path, saved=True)


@pytest.mark.parametrize(("old", "new"), [("auto", False), ("always", True), ("never", False)])
def test_choice_of_awake_cores_of_0_2_becomes_true_or_false(old, new, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"keep_cores_awake: {old}")
    assert load_config(path, saved=True).keep_cores_awake is new
    with pytest.raises(ValueError, match=f"keep_cores_awake = '{old}' .* must be true or false"):
        load_config(path)
