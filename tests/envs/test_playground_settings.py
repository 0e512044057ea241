"""`--config playground/TASK`: settings derived from Playground's tuned parameters."""

import pytest
import yaml
from support.rail import Rail
from support.runs import rejection
from support.runs import train as train_command

from purejaxppo import load, load_config
from purejaxppo import train as train_from_python
from purejaxppo.cli import list as listing
from purejaxppo.cli import train
from purejaxppo.config.files import Loader, from_dict, to_yaml
from purejaxppo.config.installation import install_extra
from purejaxppo.envs import playground_settings

pytest.importorskip("mujoco_playground")
from mujoco_playground import registry

# As in mujoco_playground/config/*_params.py and the defaults of Brax's ppo.train, by hand.
CONTROL = {
    "env.num_envs": 2048,
    "env.options": {"action_repeat": 1, "episode_length": 1000},
    "network.hidden": (32, 32, 32, 32),
    "network.critic_hidden": (256, 256, 256, 256, 256),
    "network.activation": "swish",
    "network.actor_keys": (),
    "network.critic_keys": (),
    "network.distribution": "tanh_gaussian",
    "network.std": "dependent",
    "ppo.rollout_length": 480,  # 30 x 1024 x 32 / 2048
    "ppo.num_minibatches": 32,
    "ppo.num_epochs": 16,
    "ppo.gamma": 0.995,
    "ppo.gae_lambda": 0.95,
    "ppo.learning_rate": 1e-3,
    "ppo.learning_rate_schedule": "constant",
    "ppo.ent_coef": 1e-2,
    "ppo.clip_eps": 0.3,
    "ppo.vf_coef": 0.5,
    "ppo.max_grad_norm": 0.0,
    "ppo.reward_scale": 10.0,
    "ppo.normalize_obs": True,
    "ppo.normalize_reward": False,
    "eval.num_episodes": 128,
    "eval.interval": 6_666_667,  # 60 M / 9
    "eval.stochastic": True,
    "total_timesteps": 60_000_000,
}
GO1 = CONTROL | {
    "env.num_envs": 8192,
    "network.hidden": (512, 256, 128),
    "network.critic_hidden": (512, 256, 128),
    "network.actor_keys": ("state",),
    "network.critic_keys": ("privileged_state",),
    "ppo.rollout_length": 20,  # 20 x 256 x 32 / 8192
    "ppo.num_epochs": 4,
    "ppo.gamma": 0.97,
    "ppo.learning_rate": 3e-4,
    "ppo.max_grad_norm": 1.0,
    "ppo.reward_scale": 1.0,
    "eval.interval": 22_222_223,  # 200 M / 9
    "total_timesteps": 200_000_000,
}
PICK = CONTROL | {
    "env.options": {"action_repeat": 1, "episode_length": 150},
    "ppo.rollout_length": 80,  # 10 x 512 x 32 / 2048
    "ppo.num_epochs": 8,
    "ppo.gamma": 0.97,
    "ppo.ent_coef": 2e-2,
    "ppo.reward_scale": 1.0,
    "eval.interval": 6_666_667,  # 20 M / 3
    "total_timesteps": 20_000_000,
}
PEG = CONTROL | {
    "env.num_envs": 1024,
    "env.options": {"action_repeat": 2, "episode_length": 1000},
    "network.hidden": (256, 256, 256, 256),
    "ppo.rollout_length": 640,  # 40 x 512 x 32 / 1024
    "ppo.num_epochs": 8,
    "ppo.gamma": 0.97,
    "ppo.learning_rate": 3e-4,
    "ppo.reward_scale": 1.0,
    "eval.interval": 8_333_334,  # 75 M / 9
    "total_timesteps": 75_000_000,  # actions: 150 M counts repeats
}
BY_HAND = {
    "CartpoleBalance": CONTROL,
    "CheetahRun": CONTROL,
    "AcrobotSwingup": CONTROL | {"total_timesteps": 100_000_000, "eval.interval": 11_111_112},
    "Go1JoystickFlatTerrain": GO1,
    "PandaPickCube": PICK,
    "AlohaSinglePegInsertion": PEG,
}
SPOT = "SpotFlatTerrainJoystick"


@pytest.mark.parametrize("task", BY_HAND)
def test_derived_settings_equal_those_made_by_hand(task):
    config = load_config(f"playground/{task}")
    found = {}
    for key in BY_HAND[task]:
        section, _, name = key.rpartition(".")
        found[key] = getattr(getattr(config, section) if section else config, name)
    assert found == BY_HAND[task]
    assert config.env.name == f"playground/{task}"


@pytest.mark.parametrize("task", registry.ALL_ENVS)
def test_every_task_has_settings_that_a_run_saves_as_plain_values(task):
    config = load_config(f"playground/{task}")
    brax = playground_settings.tuned(task)
    rows = config.env.num_envs * config.ppo.rollout_length
    assert rows == brax["unroll_length"] * brax["batch_size"] * brax["num_minibatches"]
    assert from_dict(yaml.load(to_yaml(config), Loader)) == config
    critic = ("privileged_state",) if task != SPOT else ("state",)
    assert config.network.critic_keys in ((), critic)
    assert config.network.actor_keys == (("state",) if config.network.critic_keys else ())


def test_an_unknown_tuned_parameter_is_rejected():
    brax = playground_settings.tuned("CheetahRun")
    with pytest.raises(ValueError, match=r"CheetahRun: .* of Playground: momentum"):
        playground_settings.translated("CheetahRun", {**brax, "momentum": 0.9})
    network = {"network_factory": {"layer_norm": True}}
    with pytest.raises(ValueError, match="of Playground: layer_norm"):
        playground_settings.translated("CheetahRun", {**brax, **network})


def test_flags_replace_single_settings():
    words = ["--config", "playground/CheetahRun"]
    config = train.parse([*words, "--env.num_envs", "64"]).config
    assert (config.env.num_envs, config.ppo.rollout_length) == (64, 480)
    config = train.parse([*words, "--env.options", "menagerie", "/a"]).config
    assert config.env.options == CONTROL["env.options"] | {"menagerie": "/a"}
    config = load_config("playground/PandaPickCube", {"ppo.gamma": 0.9})
    assert (config.ppo.gamma, config.ppo.num_epochs) == (0.9, 8)


def test_a_wrong_task_gets_a_one_sentence_error_with_the_nearest_name(capsys):
    message = rejection(["--config", "playground/CheetaRun"], capsys)
    assert "--config playground/CheetaRun" in message and "'playground/CheetahRun'" in message


def test_without_playground_the_error_names_the_extra(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    message = rejection(["--config", "playground/CheetahRun"], capsys)
    assert install_extra("playground") in message


def test_a_file_named_playground_takes_precedence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "playground").mkdir()
    (tmp_path / "playground" / "CheetahRun").write_text("seed: 7\n", encoding="utf-8")
    assert load_config("playground/CheetahRun").seed == 7
    (tmp_path / "playground" / "mine.yaml").write_text("seed: 8\n", encoding="utf-8")
    assert load_config("playground/mine.yaml").seed == 8


def test_the_list_of_configs_names_playground_tasks(capsys):
    assert listing.main(["configs", "playground/*"]) == 0
    assert capsys.readouterr().out.startswith("playground/TASK")


@pytest.mark.full
def test_a_run_resumes_and_is_evaluated_without_deriving_settings_again(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "load", lambda *args, **kwargs: Rail())
    small = {
        "env.num_envs": 4,
        "env.options": {"episode_length": 6, "action_repeat": 2},
        "network.hidden": [4],
        "network.critic_hidden": [4],
        "ppo.rollout_length": 8,
        "ppo.num_minibatches": 2,
        "ppo.num_epochs": 1,
        "eval.num_episodes": 2,
        "eval.interval": 32,
        "logging.tensorboard": False,
        "num_shards": 1,
        "total_timesteps": 32,
    }
    run = train_from_python("playground/CartpoleBalance", **small)
    assert run.run_dir.name == "CartpoleBalance-s0"
    saved = yaml.load((run.run_dir / "config.yaml").read_text(encoding="utf-8"), Loader)
    assert saved["ppo"]["reward_scale"] == 10 and saved["env"]["name"].endswith("CartpoleBalance")

    monkeypatch.setattr(playground_settings, "tuned", None)
    assert load(run.run_dir).best.act([0.5]).shape == (1,)
    again = train_command(run.run_dir / "config.yaml", "--run_dir", run.run_dir)
    assert again == 0 and not capsys.readouterr().err
