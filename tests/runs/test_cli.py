"""Command lines: how flags are parsed, and the errors of wrong ones."""

import dataclasses

import pytest
from support.runs import error_of, rejection

import purejaxppo.cli.train as train_command
from purejaxppo.cli import parser
from purejaxppo.cli.evaluate import main as evaluate
from purejaxppo.cli.flags import TrainFlags
from purejaxppo.cli.parser import parse_over_config
from purejaxppo.config.files import flatten, load_config, to_yaml, write_whole
from purejaxppo.config.schema import Config, EnvConfig
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.runs.console import Stopped
from purejaxppo.runs.session import run_name
from purejaxppo.sweep.__main__ import main as sweep

pytestmark = pytest.mark.toy

WRONG = [
    (["--ppo.learning_rat", "1"], "unknown flag. Did you mean --ppo.learning_rate?"),
    (["--learning_rate", "1"], "--learning_rate: unknown flag. Use --ppo.learning_rate 1.0."),
    (["--zzz", "1"], "--zzz: unknown flag. --help all lists all flags."),
    (["--ppo", "1"], "--ppo: this is a section. --help ppo lists its flags."),
    (["--seed"], "--seed requires a value."),
    (["--seed", "1", "2"], "--seed takes only one value. Remove '2'."),
    (["--seed", "1.5"], "command line: seed = 1.5: must be a whole number"),
    (["--network.hidden", "64", "x"], "network.hidden = 'x': must be"),
    (["--network.hidden", "[" * 3000], "': must be a whole number"),
    (["--ppo.shuffle", "rows"], "ppo.shuffle = 'rows': must be one of transitions"),
    (["--env.options", "length"], "--env.options requires pairs"),
    (["--env.options.length"], "--env.options.length requires a value."),
    (["--ppo.normalize_obs", "1"], "ppo.normalize_obs = 1: must be true or"),
    (["--ppo.no_normalize_obs", "false"], "--ppo.no_normalize_obs takes no value"),
    (["--video", "yes", "no"], "--video takes only one value. Remove 'no'."),
    (["--wait_seconds", "long"], "--wait_seconds = 'long': must be a number"),
]


@pytest.mark.parametrize(("flags", "expected"), [(row[0], row[1:]) for row in WRONG])
def test_a_wrong_flag_gets_a_one_sentence_error(flags, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = rejection(["--config", "cartpole", *flags], capsys)
    assert all(part in message for part in expected), message


def test_the_seed_of_an_evaluation_has_limits(capsys):
    assert evaluate(["--run", "nowhere", "--seed", "1" * 20]) == 2
    assert f"seed = {'1' * 20}: must be at most 2147483647" in capsys.readouterr().err


PORTED = {  # names of Stable-Baselines3, at 256 x 128 rows
    "n_envs": (256, "env.num_envs", 256),
    "n_steps": (128, "ppo.rollout_length", 128),
    "batch_size": (64, "ppo.num_minibatches", 512),
    "vf_coef": (0.25, "ppo.vf_coef", 0.5),
}


def test_all_unknown_flags_are_reported_together_with_our_flag_and_value(capsys):
    words = [f"--{name}={theirs}" for name, (theirs, _, _) in PORTED.items()]
    words = [*words, "--seed", "1", "--ppo.gama=0.9", "--num-epochs", "4"]
    assert train_command.main(["--config", "cartpole", *words]) == 2
    out, err = capsys.readouterr()
    first, *lines = err.splitlines()
    assert out == "" and first == "error: 6 unknown names:"
    for line, (name, (_, ours, value)) in zip(lines[:-2], PORTED.items(), strict=True):
        assert line.startswith(f"  --{name}: ") and f"--{ours} {value}" in line
    assert lines[-2].startswith("  --ppo.gama: ") and "Did you mean --ppo.gamma?" in lines[-2]
    assert lines[-1].startswith("  --num-epochs: ") and "--ppo.num_epochs?" in lines[-1]


def test_all_unknown_keys_of_a_file_are_reported_together_with_our_key_and_value(tmp_path):
    text = "".join(f"{name}: {theirs}\n" for name, (theirs, _, _) in PORTED.items())
    path = tmp_path / "mine.yaml"
    path.write_text(text + "ppo: {gama: 0.9, gamma: 0.8}\n")
    with pytest.raises(ValueError, match="unknown names") as error:
        load_config(path)
    first, *lines = str(error.value).splitlines()
    assert first == f"{path}: 5 unknown names:"
    for line, (name, (_, ours, value)) in zip(lines[:-1], PORTED.items(), strict=True):
        assert line.startswith(f"  {name}: ") and f"{ours} = {value}" in line
    assert lines[-1] == "  ppo.gama: unknown key. Did you mean ppo.gamma?"


SAME = [
    *[("seed", value) for value in ("3", "1e2", "1_000", "0x1f", "'3'", "1.5", "yes", "null")],
    *[("ppo.gamma", value) for value in ("0.9", "1", "9e-1", ".inf", "high")],
    *[("ppo.normalize_obs", value) for value in ("true", "false", "no", "1", "'true'")],
    *[("ppo.shuffle", value) for value in ("trajectories", "'trajectories'", "rows")],
    *[("network.hidden", value) for value in ("[128, 64]", "[]", "[64, x]")],
    *[("network.actor_keys", value) for value in ("[obs, state]", "['1']", "[1]")],
    *[("ppo.term_coefs", "[0.5]"), ("run_dir", "runs/a b"), ("run_dir", "a=b")],
    *[("env.options", value) for value in ("{length: 2, other: x}", "{length: [1]}")],
    *[("gpu", value) for value in ("{env.num_envs: 128}", "{env.num_env: 128}")],
]


@pytest.mark.parametrize(("key", "value"), SAME)
def test_a_flag_is_parsed_like_the_key_of_a_file(key, value, tmp_path):
    section, _, leaf = key.rpartition(".")
    lines = f"{section}:\n  {leaf}: {value}\n" if section else f"{leaf}: {value}\n"
    (tmp_path / "mine.yaml").write_text(lines)
    results = {outcome(load_config, tmp_path / "mine.yaml")}
    for words in ([f"--{key}={value}"], [f"--{key}", value], [f"--{key.replace('_', '-')}", value]):
        results.add(outcome(lambda *line: parse_over_config(TrainFlags, line).config, *words))
    assert len(results) == 1, results


def outcome(function, *args):
    """Return the function's result as text, or its error without the location."""
    try:
        return repr(function(*args))
    except ValueError as error:
        return str(error).partition(": ")[2]


@pytest.mark.parametrize(("flag", "value"), [("--film", True), ("--no-film", False)])
def test_film_is_the_earlier_name_of_the_video_flag(flag, value):
    assert parse_over_config(TrainFlags, [flag]).flags.video is value


def test_an_entry_of_a_mapping_has_a_flag():
    words = ["--env.options.arguments=--level=3", "--env.options.frame-skip", "4"]
    config = parse_over_config(TrainFlags, [*words, "--env.randomize.length", "0.5"]).config
    assert config.env.options == {"arguments": "--level=3", "frame-skip": 4}
    assert config.env.randomize == {"length": 0.5}
    changed = Config().replace(**{"env.options.arguments": "--level=3"})
    assert changed.env.options == {"arguments": "--level=3"}


def test_flag_values_are_parsed_as_yaml_scalars():
    flags = ["--total_timesteps", "1e6", "--env.options", "a", "false", "b", "2", "c", "word"]
    config = train_command.parse(["--config", "cartpole", *flags, "--ppo.no-normalize-obs"]).config
    assert config.total_timesteps == 1_000_000
    assert config.env.options == {"a": False, "b": 2, "c": "word"}
    assert config.ppo.normalize_obs is False


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *[("1e5", 1e5), ("0x1f", 31), ("yes", True), (".inf", float("inf")), ("-0.0", -0.0)],
        *[("'1e5'", "1e5"), ('"yes"', "yes"), ("''", "")],
        *[("695e0514", "695e0514"), ("2024-01-01", "2024-01-01"), ("2024-13-45", "2024-13-45")],
        *[(word, word) for word in ("", " ", " x ", "# x", "a # b", "1 # b", "- a", "{", "[")],
        *[
            ("{}", {}),
            ("[1]", [1]),
            ("'[1]'", "[1]"),
            ("{a: [1, b], 2: null}", {"a": [1, "b"], 2: None}),
        ],
        *[
            (word, word)
            for word in ("a: b", "&a x", "*a", "!x", "|", "'x", "a\nb", "0x_", "\udce9")
        ],
    ],
)
def test_an_option_on_the_command_line_is_yaml_or_the_text_itself(word, value, tmp_path):
    options = ("--env.options", "x", word)
    keys = ("--network.actor_keys", word, "y")
    config = train_command.parse(["--config", "cartpole", *options, *keys]).config
    assert repr(config.env.options) == repr({"x": value})
    assert config.network.actor_keys == (value if isinstance(value, str) else word, "y")
    write_whole(tmp_path / "config.yaml", to_yaml(config))
    assert repr(load_config(tmp_path / "config.yaml", saved=True)) == repr(config)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("a wrong number"), 2, "error: a wrong number\n"),
        (OSError("no disk"), 2, "error: no disk\n"),
        (SimulatorError("worker 3 died"), 2, "error: worker 3 died\n"),
        (Stopped("full disk"), 2, "error: full disk\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_a_failing_command_prints_a_one_sentence_error(error, code, message, capsys):
    def command(words):
        assert words == ["--seed", "1"]
        raise error

    assert parser.run(command, ["--seed", "1"]) == code
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("command", [train_command.main, sweep], ids=["train", "sweep"])
def test_without_a_config_env_name_is_required(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(["--seed", "3"]) == 2
    message = error_of(capsys)
    assert "env.name is missing" in message
    assert "--env.name gymnax/CartPole-v1" in message and "--config hopper.yaml" in message
    (tmp_path / "mine.yaml").write_text("seed: 3\n")
    assert command(["--config", "mine.yaml"]) == 2
    assert "env.name is missing" in error_of(capsys)


def test_without_a_config_every_field_has_its_default():
    config = train_command.parse(["--env.name", "gymnax/CartPole-v1", "--seed", "3"]).config
    default = flatten(Config())
    found = {key: value for key, value in flatten(config).items() if value != default[key]}
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
def test_a_misspelled_task_is_not_compared_with_an_earlier_run(
    flags, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    earlier = tmp_path / "runs" / "constannt-s0"
    earlier.mkdir(parents=True)
    (earlier / "config.yaml").write_text("env: {name: dummy/vector, num_envs: 64}\n")
    assert train_command.main(["--env.name", "dummy/constannt", *flags]) == 2
    assert "unknown task 'dummy/constannt'. Did you mean 'dummy/constant'" in error_of(capsys)
    assert (earlier / "config.yaml").is_file()
