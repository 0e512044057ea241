"""The gpu section of configs."""

import pytest

from purejaxppo.cli import train
from purejaxppo.config.files import for_platform, library_configs, load_config, to_yaml
from purejaxppo.setup import MIN_ROWS_ACCELERATED, resolve_shards

pytestmark = pytest.mark.toy
SIZED = sorted(name for name in library_configs() if load_config(name).gpu)


def test_the_gpu_section_applies_only_on_a_gpu():
    config = load_config("cartpole.yaml")
    on_gpu, on_cpu = (for_platform(config, platform) for platform in ("gpu", "cpu"))
    assert on_cpu == config.replace(gpu={})
    assert on_gpu.env.num_envs == config.gpu["env.num_envs"] > config.env.num_envs
    assert on_gpu.total_timesteps == config.gpu["total_timesteps"]
    assert on_gpu.gpu == {} and "gpu: {}" in to_yaml(on_gpu)


@pytest.mark.parametrize("name", SIZED)
def test_gpu_sections_give_large_minibatches_and_enough_updates(name):
    config = for_platform(load_config(name), "gpu")
    assert config.steps_per_update // config.ppo.num_minibatches >= MIN_ROWS_ACCELERATED
    assert config.num_updates >= 50


def test_the_command_line_overrides_the_gpu_section():
    words = ["--config", "cartpole.yaml"]
    for flag in (["--env.num_envs", "64"], ["--env.num-envs=64"]):
        config = train.parse([*words, *flag]).config
        assert config.env.num_envs == 64 and "env.num_envs" not in config.gpu
        assert "ppo.num_minibatches" in config.gpu
    assert "env.num_envs" not in load_config("cartpole.yaml", {"env.num_envs": 64}).gpu
    assert load_config("cartpole.yaml", {"env.name": "gymnax/CartPole-v1"}).gpu
    other = ["--env.name", "gymnasium/CartPole-v1"]
    assert train.parse([*words, *other]).config.gpu == {}
    assert train.parse([*words, *other, "--gpu.env.num_envs=8"]).config.gpu == {"env.num_envs": 8}
    for flag in (["--gpu", "env.num_envs", "128"], ["--gpu.env.num_envs=128"]):
        gpu = train.parse([*words, *flag]).config.gpu
        assert gpu["env.num_envs"] == 128 and "ppo.num_minibatches" in gpu


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"env.num_env": 3}, "gpu.env.num_env: unknown key. Did you mean env.num_envs?"),
        ({"env.num_envs": "x"}, "gpu.env.num_envs = 'x': must be a whole number"),
        ({"env": 3}, "gpu.env: unknown key"),
        ({"what.ever": 3}, "gpu.what.ever: unknown key"),
    ],
)
def test_invalid_entries_of_the_gpu_section_are_reported_on_any_device(settings, sentence):
    with pytest.raises(ValueError, match=sentence.replace("?", "[?]")):
        load_config("cartpole.yaml", {"gpu": settings})


def test_a_gpu_section_that_does_not_fit_is_an_error_only_on_a_gpu():
    config = load_config("cartpole.yaml", {"gpu": {"ppo.num_minibatches": 7}})
    for_platform(config, "cpu")
    with pytest.raises(ValueError, match=r"gpu: env.num_envs x ppo.rollout_length = 2048 is not"):
        for_platform(config, "gpu")


def test_shards_on_an_accelerator_have_thousands_of_rows():
    small, large = load_config("hopper.yaml"), for_platform(load_config("cartpole.yaml"), "gpu")
    assert resolve_shards(small, 4).num_shards == 4
    assert resolve_shards(small, 4, "gpu").num_shards == 1
    assert resolve_shards(large, 4, "gpu").num_shards == 4
    assert resolve_shards(small.replace(num_shards=2), 4, "gpu").num_shards == 2
