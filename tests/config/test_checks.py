"""Checks of fields and of their combinations, and their one-sentence errors."""

import dataclasses
import math
import re

import pytest
from support.runs import rejection

from purejaxppo import make_train
from purejaxppo.config.checks import settings, short_run, without_effect
from purejaxppo.config.files import for_platform, library_configs, load_config
from purejaxppo.config.schema import HINTS, Config

pytestmark = pytest.mark.toy

WRONG = [
    (["--ppo.gamma", "1.5"], "ppo.gamma = 1.5: must be from 0 to 1"),
    (
        ["--ppo.learning_rate_warmup", "1.5"],
        "ppo.learning_rate_warmup = 1.5: must be from 0 to 1",
    ),
    (["--ppo.dual_clip", "1"], "ppo.dual_clip = 1.0: must be greater than 1"),
    (["--ppo.clip_obs", ".inf"], "ppo.clip_obs = inf: must be a finite number"),
    (
        [
            "--ppo.learning_rate_schedule",
            "adaptive",
            "--ppo.num_epochs",
            "1",
            "--ppo.num_minibatches",
            "1",
        ],
        "ppo.num_epochs x ppo.num_minibatches = 1. Increase either",
    ),
    (["--ppo.clip_eps", "0"], "ppo.clip_eps = 0.0: must be greater than 0"),
    (["--env.num_envs", "0"], "env.num_envs = 0: must be at least 1"),
    (["--total_timesteps", "0"], "total_timesteps = 0: must be at least 1"),
    (["--seed", "-1"], "seed = -1: must be at least 0"),
    (["--seed", "1e10"], "seed = 10000000000: must be at most 2147483647"),
    (["--ppo.learning_rate", ".nan"], "ppo.learning_rate = nan: must be a finite number"),
    (["--total_timesteps", "1.5e0"], "total_timesteps = 1.5: must be", "a whole"),
    (["--logging.log_file", "debug"], "logging.log_file = debug: must end in .log"),
    (["--logging.log_file", "/tmp/x.log"], "/tmp/x.log: must be inside the run folder"),
    (["--logging.log_file", "../x.log"], "../x.log: must be inside the run folder"),
    (["--network.hidden", "0"], "network.hidden = [0]: each must be from 1 to 65536"),
    (["--network.min_std", "20"], "network.min_std = 20.0: must be at most network.max_std = 10.0"),
    (
        ["--ppo.min_learning_rate", "0.1"],
        "ppo.min_learning_rate = 0.1: must be at most ppo.max_learning_rate = 0.01.",
    ),
    # invalid combinations
    (
        [
            *("--ppo.learning_rate_schedule", "adaptive"),
            *("--ppo.early_stop_kl", "--ppo.early_stop_unit", "episode"),
        ],
        "ppo.early_stop_unit = episode is not supported with ppo.learning_rate_schedule = adaptive",
    ),
    (
        ["--env.num_envs", "5", "--ppo.rollout_length", "5"],
        "env.num_envs x ppo.rollout_length = 25 is not divisible by ppo.num_minibatches = 4. Try",
    ),
    (
        ["--env.num_envs", "6", "--ppo.shuffle", "trajectories"],
        "env.num_envs = 6: ppo.shuffle = trajectories requires a multiple of num_shards x "
        "ppo.num_minibatches = 4. Try env.num_envs = 8",
    ),
    (
        ["--env.num_envs", "2", "--ppo.rollout_length", "4", "--ppo.num_minibatches", "8"],
        "ppo.num_minibatches = 8: each minibatch has only one row, and one advantage cannot "
        "be normalised. Try ppo.num_minibatches = 4, or ppo.advantage_normalization = batch",
    ),
    (
        ["--env.num_envs", "1", "--ppo.rollout_length", "1", "--ppo.num_minibatches", "1"],
        "env.num_envs x ppo.rollout_length = 1: one advantage cannot be normalised",
    ),
    (
        ["--num_shards", "3"],
        "env.num_envs = 64: must be divisible by num_shards = 3. Try env.num_envs = 63",
    ),
]


@pytest.mark.parametrize(("flags", "expected"), [(row[0], row[1:]) for row in WRONG])
def test_an_invalid_value_gets_a_one_sentence_error(flags, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = rejection(["--config", "cartpole", *flags], capsys)
    assert all(part in message for part in expected), message


def config_with(name, value):
    """Return a config with another value of a field, made without `from_dict`."""
    section, _, key = name.rpartition(".")
    if section:
        name, value = section, dataclasses.replace(getattr(Config(), section), **{key: value})
    return dataclasses.replace(Config(), **{name: value})


WHOLE = {name: kind for name, kind in HINTS.items() if kind in (int, tuple[int, ...])}


@pytest.mark.parametrize("value", [10**30, 2**63, 1e19, 1e9, -(10**30), -1, 0, math.nan, math.inf])
def test_every_integer_field_accepts_its_range_and_rejects_other_values_with_one_sentence(value):
    abouts = {name: about for name, about, _ in settings(Config())}
    assert len(WHOLE) > 25
    for name, kind in WHOLE.items():
        low, high = abouts[name]["low"], abouts[name]["high"]
        given = value if kind is int else (value,)
        for change in (lambda n, x: Config().replace(**{n: x}), config_with):
            try:
                change(name, given)
            except ValueError as error:
                message = str(error)
                assert name in message and "\n" not in message and len(message) < 250, message
            else:
                assert low <= value <= high, name


def test_more_rows_or_updates_than_int32_are_rejected():
    with pytest.raises(ValueError, match="rollout_length = 2147483648: must be"):
        Config().replace(**{"env.num_envs": 2**24, "ppo.rollout_length": 2**7})
    with pytest.raises(ValueError, match="needs 34359738368 updates of "):
        Config().replace(total_timesteps=2**50)


def test_epoch_fraction_is_rejected_with_whole_trajectories(make_config):
    with pytest.raises(ValueError, match=r"0\.5 requires ppo\.shuffle = trans"):
        make_config(ppo={"epoch_fraction": 0.5, "shuffle": "trajectories"})


def test_bptt_length_is_ignored_without_a_recurrent_cell(make_config):
    ppo = {"rollout_length": 12, "bptt_length": 5}
    assert make_config(ppo=ppo).ppo.bptt_length == 5
    with pytest.raises(ValueError, match=r"divisible by ppo.bptt_length = 5. Try .* = 10"):
        make_config(ppo=ppo, network={"rnn": "gru"})


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"ppo.kl_coef": 0.5}, "ppo.objective = kl or clip_kl"),
        ({"ppo.dual_clip": 2.0}, "ppo.objective = dual_clip"),
        ({"ppo.clip_eps": 0.1, "ppo.objective": "kl"}, ".objective = clip, dual_clip, spo or clip"),
        (
            {"ppo.target_kl": 0.01},
            "ppo.early_stop_kl = true or ppo.learning_rate_schedule = adaptive",
        ),
        ({"ppo.vf_clip_eps": 0.1}, "ppo.value_clipping = true"),
        ({"ppo.bootstrap_limit": 5.0, "ppo.clip_bootstrap": "observed"}, "to fixed"),
        ({"ppo.symmetry_coef": 2.0, "ppo.symmetry": "augment"}, "ppo.symmetry = loss"),
        ({"ppo.clip_reward": 5.0}, "ppo.normalize_reward = true"),
        ({"ppo.clip_obs": 5.0, "ppo.normalize_obs": False}, "ppo.normalize_obs = true"),
        ({"ppo.ent_schedule": "linear"}, "ppo.ent_coef > 0"),
        ({"ppo.intrinsic_schedule": "linear"}, "intrinsic.kind to icm or rnd"),
        ({"ppo.early_stop_kl": True, "ppo.num_epochs": 1}, "ppo.num_epochs > 1"),
        ({"ppo.early_stop_unit": "episode"}, "ppo.early_stop_kl = true"),
        ({"ppo.bptt_length": 16}, "Set network.rnn to gru, lstm or mingru"),
        ({"network.layer_norm": True, "network.block": "residual"}, "Set network.block to plain"),
        ({"network.min_std": 0.1, "network.distribution": "beta"}, "to gaussian or tanh_gaussian"),
        ({"intrinsic.hidden": (8, 8)}, "intrinsic.kind to icm or rnd"),
        ({"pretrain.updates": 3}, "It needs pretrain.teacher"),
        ({"init_parts": ("policy",)}, "It needs init_from"),
        ({"eval.interval": 9, "eval.num_episodes": 0}, "It needs eval.num_episodes > 0"),
    ],
)
def test_a_setting_without_effect_is_reported_in_one_line(changes, needed):
    name, value = next(iter(changes.items()))
    (line,) = without_effect([Config().replace(**changes)])
    shown = list(value) if isinstance(value, tuple) else str(value).replace("True", "true")
    assert line.startswith(f"{name} = {shown} has no effect. ")
    assert needed.replace(" = ", " to ") in line


@pytest.mark.parametrize("steps", [1000, 294_912])
def test_a_run_with_fewer_than_ten_updates_is_reported(steps):
    """256 x 128 = 32,768."""
    config = Config().replace(**{"env.num_envs": 256, "ppo.rollout_length": 128})
    (line,) = short_run(config.replace(total_timesteps=steps))
    assert line.startswith(f"total_timesteps = {steps:,} is less than 10 updates of 32,768 steps")
    assert short_run(config.replace(total_timesteps=294_913)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ppo.kl_coef": 0.5, "ppo.objective": "clip_kl"},
        {"ppo.kl_coef": 0.5, "ppo.objective": "mine.py:loss"},
        {"ppo.target_kl": 0.01, "ppo.early_stop_kl": True},
        {"ppo.target_kl": 0.01, "ppo.learning_rate_schedule": "adaptive"},
        {"network.rnn_size": 8, "network.rnn": "mingru"},
        {"network.rnn_layers": 2, "network.rnn": "mingru"},
        {"pretrain.updates": 3, "pretrain.teacher": "runs/teacher"},
        {"ppo.ent_schedule": "linear", "ppo.ent_coef": 0.01},
    ],
)
def test_a_setting_with_an_effect_is_not_reported(changes):
    assert without_effect([Config().replace(**changes)]) == []


def test_a_setting_with_an_effect_in_one_run_of_a_sweep_is_not_reported():
    clip, other = (Config().replace(**{"ppo.kl_coef": x}) for x in (0.5, 0.25))
    assert without_effect([clip, clip.replace(**{"ppo.objective": "kl"})]) == []
    (line,) = without_effect([clip, other])
    expected = "ppo.kl_coef = 0.5, 0.25 has no effect. Set ppo.objective to kl or clip_kl."
    assert line == expected


def test_every_requirement_names_existing_fields_and_values():
    for name, about, _ in settings(Config()):
        other = ""
        for alternative in filter(None, re.split(", | or ", about.get("needs") or "")):
            *left, value = alternative.split()
            other = left[0] if left else other
            if value in HINTS:  # any value is enough
                continue
            assert other in HINTS and other != name
            choices = "'true'" if HINTS[other] is bool else str(HINTS[other])
            assert ">" in left or f"'{value}'" in choices, alternative


def test_shipped_configs_have_no_settings_without_effect():
    for name in library_configs():
        for platform in ("cpu", "gpu"):
            assert without_effect([for_platform(load_config(name), platform)]) == [], name


def test_make_train_logs_settings_without_effect(caplog):
    make_train(load_config("cartpole", {"ppo.kl_coef": 0.5})).close()
    assert "ppo.kl_coef = 0.5 has no effect. Set ppo.objective to kl or clip_kl" in caplog.text
