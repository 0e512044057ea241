"""Command lines: what flags mean, and the one sentence that a wrong one gets."""

import pytest
from support.runs import refusal

import purejaxppo.train as train_command
from purejaxppo.envs.host.bridge import SimulatorError
from purejaxppo.runs import cli
from purejaxppo.runs.console import Stopped

pytestmark = pytest.mark.toy

WRONG = [
    (["--ppo.learning_rat", "1"], "unknown flag; did you mean --ppo.learning_rate?"),
    (["--learning_rate", "1"], "unknown flag; did you mean --ppo.learning_rate?"),
    (["--seed"], "--seed needs a value"),
    (["--seed", "1", "2"], "--seed takes one value, but '2' follows it"),
    (["--seed", "one"], "--seed = 'one' is a word; it must be a whole number"),
    (["--network.hidden", "64", "x"], "--network.hidden = 'x' is a word"),
    (["--ppo.shuffle", "rows"], "--ppo.shuffle = 'rows' is none of transitions"),
    (["--env.options", "length"], "--env.options needs pairs"),
    (["--ppo.normalize_obs", "1"], "--ppo.normalize_obs takes no value"),
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
