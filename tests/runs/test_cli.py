"""Command lines: what flags mean, and the one sentence that a wrong one gets."""

import dataclasses

import pytest
from support.runs import error_of, refusal

import purejaxppo.commands.train as train_command
from purejaxppo.config.files import flatten, load_config, to_yaml, write_whole
from purejaxppo.config.schema import Config, EnvConfig
from purejaxppo.envs.host.errors import SimulatorError
from purejaxppo.runs import cli
from purejaxppo.runs.console import Stopped
from purejaxppo.runs.session import run_name
from purejaxppo.sweep.__main__ import main as sweep

pytestmark = pytest.mark.toy

WRONG = [
    (["--ppo.learning_rat", "1"], "unknown flag; did you mean --ppo.learning_rate?"),
    (["--learning_rate", "1"], "--learning_rate is --ppo.learning_rate here"),
    (["--zzz", "1"], "--zzz: unknown flag; --help all lists them"),
    (["--ppo", "1"], "--ppo is a section of fields: --help ppo lists them"),
    (["--seed"], "--seed needs a value"),
    (["--seed", "1", "2"], "--seed takes one value, but '2' follows it"),
    (["--seed", "one"], "--seed = 'one' is a word; it must be a whole number"),
    (["--network.hidden", "64", "x"], "--network.hidden = 'x' is a word"),
    (["--ppo.shuffle", "rows"], "--ppo.shuffle = 'rows' is none of transitions"),
    (["--env.options", "length"], "--env.options needs pairs"),
    (["--ppo.normalize_obs", "1"], "--ppo.normalize_obs takes no value"),
    (["--env.stagger", "false"], "--env.no_stagger switches it off"),
]


@pytest.mark.parametrize(("flags", "expected"), [(row[0], row[1:]) for row in WRONG])
def test_a_wrong_flag_gets_one_sentence(flags, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refusal(["--config", "cartpole", *flags], capsys)
    assert all(part in said for part in expected), said


def test_yaml_numbers_and_words_are_what_flags_mean_too():
    flags = ["--total_timesteps", "1e6", "--env.options", "a", "false", "b", "2", "c", "word"]
    command = train_command.parse(["--config", "cartpole", *flags, "--ppo.no_normalize_obs"])
    assert command.total_timesteps == 1_000_000
    assert command.env.options == {"a": False, "b": 2, "c": "word"}
    assert command.ppo.normalize_obs is False


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *[("1e5", 1e5), ("0x1f", 31), ("yes", True), (".inf", float("inf")), ("-0.0", -0.0)],
        *[("'1e5'", "1e5"), ('"yes"', "yes"), ("''", "")],
        *[("695e0514", "695e0514"), ("2024-01-01", "2024-01-01"), ("2024-13-45", "2024-13-45")],
        *[
            (word, word)
            for word in ("", " ", " x ", "# x", "a # b", "1 # b", "- a", "{", "{}", "[1]")
        ],
        *[
            (word, word)
            for word in ("a: b", "&a x", "*a", "!x", "|", "'x", "a\nb", "0x_", "\udce9")
        ],
    ],
)
def test_a_flags_word_is_a_number_a_quoted_text_or_itself(word, value, tmp_path):
    options = ("--env.options", "x", word)
    command = train_command.parse(["--config", "cartpole", *options, "--network.actor_keys", word])
    assert repr(command.env.options) == repr({"x": value})
    assert command.network.actor_keys == (value if isinstance(value, str) else word,)
    config = Config(
        **{field.name: getattr(command, field.name) for field in dataclasses.fields(Config)}
    )
    write_whole(tmp_path / "config.yaml", to_yaml(config))
    assert repr(load_config(tmp_path / "config.yaml", saved=True)) == repr(config)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("a wrong number"), 2, "error: a wrong number\n"),
        (OSError("no disk"), 2, "error: no disk\n"),
        (SimulatorError("worker 3 died"), 2, "error: worker 3 died\n"),
        (Stopped("full disk"), 2, "error: full disk\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_a_command_that_fails_says_one_sentence(error, code, said, capsys):
    def command(words):
        assert words == ["--seed", "1"]
        raise error

    assert cli.run(command, ["--seed", "1"]) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("command", [train_command.main, sweep], ids=["train", "sweep"])
def test_without_a_config_the_task_is_needed(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(["--seed", "3"]) == 2
    said = error_of(capsys)
    assert "env.name is missing" in said
    assert "--env.name gymnax/CartPole-v1" in said and "--config hopper.yaml" in said
    (tmp_path / "mine.yaml").write_text("seed: 3\n")
    assert command(["--config", "mine.yaml"]) == 2
    assert "env.name is missing" in error_of(capsys)


def test_without_a_config_every_field_has_its_own_default():
    command = train_command.parse(["--env.name", "gymnax/CartPole-v1", "--seed", "3"])
    default = flatten(Config())
    fields = {f.name: getattr(command, f.name) for f in dataclasses.fields(Config)}
    found = {key: v for key, v in flatten(Config(**fields)).items() if v != default[key]}
    assert found == {"env.name": "gymnax/CartPole-v1", "seed": 3}


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("gymnax/CartPole-v1", "cartpole-v1"),
        ("brax/hopper", "hopper"),
        ("jax/envs/walk.py:Walk", "walk"),
        ("gymnasium/ALE/Pong-v5", "ale-pong-v5"),
        ("gymnasium/my package:My/Id v2", "my-id-v2"),
        ("pettingzoo/mpe2.simple_spread_v3", "mpe2.simple_spread_v3"),
        ("gymnasium/..", "run"),
    ],
)
def test_a_run_without_a_config_is_named_after_its_task(task, name):
    config = Config(env=EnvConfig(name=task), seed=2)
    assert run_name("", config) == f"{name}-s2"
    assert run_name("", dataclasses.replace(config, num_seeds=4)) == f"{name}-s2x4"
    assert run_name("configs/hopper.yaml", config) == "hopper-s2"


@pytest.mark.parametrize("flags", [[], ["--clobber"]])
def test_a_typo_in_a_task_is_not_compared_with_an_earlier_run(flags, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    earlier = tmp_path / "runs" / "constannt-s0"
    earlier.mkdir(parents=True)
    (earlier / "config.yaml").write_text("env: {name: dummy/vector, num_envs: 64}\n")
    assert train_command.main(["--env.name", "dummy/constannt", *flags]) == 2
    assert "unknown task 'dummy/constannt'; did you mean 'dummy/constant'" in error_of(capsys)
    assert (earlier / "config.yaml").is_file()
