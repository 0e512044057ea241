"""Search spaces of sweeps: grids, ranges, and their errors."""

import numpy as np
import pytest
from support.paths import OWN_CODE as FILE

from purejaxppo.config.schema import Config
from purejaxppo.sweep.search import rules_of
from purejaxppo.sweep.search_space import (
    Choice,
    LogUniform,
    Uniform,
    apply,
    grid_settings,
    load_ranges,
    parse_grid,
    random_settings,
    structure,
)

pytestmark = pytest.mark.toy


def test_a_grid_is_every_combination_and_the_last_field_varies_fastest():
    grid = parse_grid(["ppo.gamma=0.9,0.99", "network.hidden=[8],[16, 16]"])
    assert grid_settings(grid) == [
        {"ppo.gamma": 0.9, "network.hidden": (8,)},
        {"ppo.gamma": 0.9, "network.hidden": (16, 16)},
        {"ppo.gamma": 0.99, "network.hidden": (8,)},
        {"ppo.gamma": 0.99, "network.hidden": (16, 16)},
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["ppo.gamma"], "--grid ppo.gamma: must be a field and values"),
        (["ppo.gamma="], "must be a field and values"),
        (["ppo.gama=0.9"], "unknown key. Did you mean ppo.gamma?"),
        (["gamma=0.9"], "--grid: gamma: unknown key"),
        (["ppo.gamma=high"], "--grid ppo.gamma: ppo.gamma = 'high': must be"),
        (["ppo.gamma=2"], "ppo.gamma = 2.0: must be from 0 to 1"),
        (["ppo.gamma=0.9,0.9"], "duplicate value"),
        (["ppo.gamma=0.9", "ppo.gamma=0.8"], "--grid ppo.gamma: the field is repeated"),
        (["ppo.gamma=[0.9"], "invalid values. Use a list such as"),
        (["seed=1,2"], "Use --num_seeds"),
        (["eval.num_episodes=1,2"], "a sweep cannot vary eval.num_episodes"),
        (["network.activation=tanh,sin"], "'sin': must be one of tanh, relu"),
    ],
)
def test_an_invalid_grid_gets_a_one_sentence_error(texts, message):
    with pytest.raises(ValueError, match="grid") as error:
        parse_grid(texts)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_single_coefficients_of_auxiliary_losses_can_vary(tmp_path):
    terms = [f"{FILE}:small_features", f"{FILE}:next_position"]
    base = Config().replace(**{"ppo.terms": terms})
    (tmp_path / "ranges.yaml").write_text("ppo.term_coefs.1: {log_uniform: [0.1, 10.0]}\n")
    ranges = load_ranges(tmp_path / "ranges.yaml", base)
    assert ranges == {"ppo.term_coefs.1": LogUniform(0.1, 10.0)}
    assert apply(base, {"ppo.term_coefs.1": 0.5}).ppo.term_coefs == (1.0, 0.5)
    grid = parse_grid(["ppo.term_coefs.0=0,2"], base)
    (first, second) = (apply(base, setting) for setting in grid_settings(grid))
    assert (first.ppo.term_coefs, second.ppo.term_coefs) == ((0.0, 1.0), (2.0, 1.0))
    assert structure(first) == structure(second)
    assert rules_of(ranges, 1, 0.25, 1.25).bounds == (("term_coefs.1", 0.1, 10.0),)
    with pytest.raises(ValueError, match=r"--grid ppo.term_coefs.2: .*ppo.terms has 2"):
        parse_grid(["ppo.term_coefs.2=0,2"], base)


def test_a_setting_must_fit_the_config():
    with pytest.raises(ValueError, match=r"setting ppo.num_minibatches = 7: .* is not divisible"):
        apply(Config(), {"ppo.num_minibatches": 7})


def test_sizes_that_only_fit_together_are_checked_together():
    setting = {"ppo.num_minibatches": 7, "env.num_envs": 14}
    (only,) = grid_settings(parse_grid(["ppo.num_minibatches=7", "env.num_envs=14"]))
    assert only == setting
    assert apply(Config(), only).ppo.num_minibatches == 7


@pytest.mark.parametrize(
    ("base", "texts"),
    [
        (
            {"ppo.bptt_length": 16, "ppo.rollout_length": 64},
            ["ppo.rollout_length=12,24", "ppo.bptt_length=6,12"],
        ),
        ({}, ["network.init_std=0.0005", "network.min_std=0.0001,0.0002"]),
    ],
)
def test_values_that_conflict_with_the_config_only_are_valid(base, texts):
    base = Config().replace(**base)
    settings = grid_settings(parse_grid(texts, base))
    assert all(apply(base, setting) for setting in settings)


def test_a_list_without_brackets_is_an_error():
    base = Config().replace(**{"ppo.terms": [f"{FILE}:small_features"]})
    with pytest.raises(ValueError, match=r"ppo\.term_coefs = 0\.5: must be a list"):
        parse_grid(["ppo.term_coefs=0.5,1"], base)


def test_samples_stay_in_their_ranges_and_follow_their_distributions():
    ranges = {
        "ppo.learning_rate": LogUniform(1e-5, 1e-1),
        "ppo.ent_coef": Uniform(0.0, 0.5),
        "ppo.num_epochs": Uniform(1, 4, whole=True),
        "env.num_envs": LogUniform(8, 64, whole=True),
        "network.activation": Choice(("tanh", "relu")),
    }
    drawn = random_settings(ranges, 4000, seed=0)
    assert drawn == random_settings(ranges, 4000, seed=0)
    assert drawn[:5] != random_settings(ranges, 5, seed=1)
    rates = np.log10([d["ppo.learning_rate"] for d in drawn])
    assert rates.min() >= -5 and rates.max() <= -1
    # A uniform over [-5, -1]: mean -3, standard deviation 4 / sqrt(12).
    np.testing.assert_allclose([rates.mean(), rates.std()], [-3, 4 / 12**0.5], atol=0.06)
    np.testing.assert_allclose(np.mean([d["ppo.ent_coef"] for d in drawn]), 0.25, atol=0.01)
    epochs = [d["ppo.num_epochs"] for d in drawn]
    np.testing.assert_allclose(np.bincount(epochs)[1:], [1000] * 4, atol=120)
    assert {type(d["env.num_envs"]) for d in drawn} == {int}
    assert {8, 64} <= {d["env.num_envs"] for d in drawn} <= set(range(8, 65))
    assert {d["network.activation"] for d in drawn} == {"tanh", "relu"}


def test_ranges_are_read_from_a_file(tmp_path):
    path = tmp_path / "ranges.yaml"
    path.write_text(
        "ppo.learning_rate: {log_uniform: [1e-5, 1e-2]}\n"
        "ppo.num_epochs: {uniform: [1, 10]}\n"
        "network.hidden: {choice: [[16], [32, 32]]}\n"
    )
    assert load_ranges(path) == {
        "ppo.learning_rate": LogUniform(1e-5, 1e-2),
        "ppo.num_epochs": Uniform(1, 10, whole=True),
        "network.hidden": Choice(((16,), (32, 32))),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ppo.gamma: [0.9, 0.99]", "must be {uniform"),
        ("ppo.gamma: {normal: [0.9, 0.99]}", "must be {uniform"),
        ("ppo.gamma: {uniform: [0.99, 0.9]}", "low must be less than high"),
        ("ppo.gamma: {uniform: [0.9]}", "uniform requires two numbers"),
        ("ppo.gamma: {uniform: 0.9}", "uniform requires a list of values"),
        ("ppo.gamma: {log_uniform: [0.0, 0.9]}", "must start above 0"),
        ("network.activation: {uniform: [tanh, relu]}", "uniform requires two numbers"),
        ("ppo.gammma: {uniform: [0.9, 0.99]}", "Did you mean ppo.gamma?"),
        ("", "the file is empty"),
    ],
)
def test_a_wrong_range_gets_a_one_sentence_error(tmp_path, text, message):
    path = tmp_path / "ranges.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"ranges\.yaml") as error:
        load_ranges(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_tunable_fields_and_seeds_share_a_structure_but_sizes_do_not():
    base = Config()
    assert structure(base) == structure(apply(base, {"ppo.gamma": 0.5, "ppo.learning_rate": 1.0}))
    assert structure(base) == structure(apply(base, {"seed": 3}))
    assert structure(base) != structure(apply(base, {"network.hidden": [8]}))
