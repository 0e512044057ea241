"""Wrong commands and files: each gets one sentence: where, what was found, what would do."""

import pytest

import purejaxppo.train as train_command
from purejaxppo import cli
from purejaxppo.envs.host import SimulatorError
from purejaxppo.reporting import Stopped


def _yaml(text):
    return lambda tmp_path: _write(tmp_path / "bad.yaml", text)


def _write(path, text):
    path.write_text(text, encoding="utf-8")
    return ["--config", str(path)]


def _flags(*flags):
    return lambda tmp_path: ["--config", "cartpole", *flags]


BAD = [
    # files
    (lambda tmp: ["--config", "hoper.yaml"], "--config hoper.yaml: no such file", "'hopper.yaml'"),
    (lambda tmp: ["--config", "/no/such/file.yaml"], "/no/such/file.yaml: no such file"),
    (lambda tmp: ["--config"], "--config needs a file or a name"),
    (_yaml("env: [unclosed"), "bad.yaml: not valid YAML in line"),
    (_yaml("- 1\n- 2\n"), "a config is a mapping of keys to values, not a list"),
    (
        _yaml("ppo:\n  clip_epsilon: 0.1\n"),
        "ppo.clip_epsilon: unknown key; did you mean 'clip_eps'",
    ),
    (_yaml("ppo:\n  gamma: 0.9\n  gamma: 0.99\n"), "in line 3: 'gamma' is there twice"),
    (_yaml("num_envs: 4\n"), "num_envs: unknown key; did you mean 'env.num_envs'?"),
    (_yaml("ppo: 3\n"), "ppo is a section of keys, not a whole number"),
    (_yaml("ppo:\n  gamma: high\n"), "ppo.gamma = 'high' is a word; it must be a number"),
    (_yaml("env:\n  num_envs: 2.5\n"), "env.num_envs = 2.5 is a number", "a whole number"),
    (_yaml("env:\n  num_envs: yes\n"), "env.num_envs = True", "a whole number"),
    (_yaml("ppo:\n  normalize_obs: 1\n"), "ppo.normalize_obs = 1", "true or false"),
    (_yaml("network:\n  hidden: 64\n"), "network.hidden = 64 is not a list such as [64, 64]"),
    (_yaml("network:\n  activation: sine\n"), "'sine' is none of tanh, relu"),
    (_yaml("env:\n  options: {a: [1]}\n"), "env.options.a = [1] is not a number"),
    (_yaml("seed:\n"), "seed = None is nothing; it must be a whole number"),
    # flags
    (_flags("--ppo.learning_rat", "1"), "unknown flag; did you mean --ppo.learning_rate?"),
    (_flags("--learning_rate", "1"), "unknown flag; did you mean --ppo.learning_rate?"),
    (_flags("--seed"), "--seed needs a value"),
    (_flags("--seed", "1", "2"), "--seed takes one value, but '2' follows it"),
    (_flags("--seed", "one"), "--seed = 'one' is a word; it must be a whole number"),
    (_flags("--network.hidden", "64", "x"), "--network.hidden = 'x' is a word"),
    (_flags("--ppo.shuffle", "rows"), "--ppo.shuffle = 'rows' is none of transitions"),
    (_flags("--env.options", "length"), "--env.options needs pairs"),
    (_flags("--ppo.normalize_obs", "1"), "--ppo.normalize_obs takes no value"),
    # values that cannot be
    (_flags("--ppo.gamma", "1.5"), "ppo.gamma = 1.5 is not between 0 and 1"),
    (
        _flags("--ppo.kl_rate", "--ppo.num_epochs", "1", "--ppo.num_minibatches", "1"),
        "ppo.num_epochs x ppo.num_minibatches = 1 makes no other: raise one of them",
    ),
    (_flags("--ppo.clip_eps", "0"), "ppo.clip_eps = 0.0 must be finite and greater than 0"),
    (_flags("--env.num_envs", "0"), "env.num_envs = 0 is too small; it must be at least 1"),
    (_flags("--total_timesteps", "0"), "total_timesteps = 0 is too small"),
    (_flags("--seed", "-1"), "seed = -1 is too small"),
    (_flags("--seed", "1e10"), "seed = 10000000000 is too large; it must be below 2147483648"),
    (_flags("--ppo.learning_rate", ".nan"), "ppo.learning_rate = nan is not a finite number"),
    (_flags("--total_timesteps", "1.5e0"), "--total_timesteps = 1.5 is a number", "a whole"),
    (_flags("--logging.log_file", "debug"), "logging.log_file = 'debug' must end in .log"),
    (_flags("--logging.log_file", "/tmp/x.log"), "'/tmp/x.log' lies outside of the run's folder"),
    (_flags("--logging.log_file", "../x.log"), "'../x.log' lies outside of the run's folder"),
    (_flags("--network.hidden", "0"), "network.hidden = [0] has a width below 1"),
    (_flags("--network.min_std", "20"), "network.min_std = 20.0 is above network.max_std = 10.0"),
    # products that cannot be
    (
        _flags("--env.num_envs", "5", "--ppo.rollout_length", "5"),
        "env.num_envs x ppo.rollout_length = 25 does not split into ppo.num_minibatches = 4; try",
    ),
    (
        _flags("--env.num_envs", "6", "--ppo.shuffle", "trajectories"),
        "does not split into num_shards x ppo.num_minibatches = 4; try env.num_envs = 8",
    ),
    (
        _flags("--num_shards", "3"),
        "env.num_envs = 64 does not split into num_shards = 3; try 63",
    ),
    # environments
    (_flags("--env.name", "hopper"), "is not of the form family/task; did you mean 'brax/hopper'"),
    (_flags("--env.name", "gymnax/Cartpole"), "unknown task", "did you mean 'gymnax/CartPole-v1'"),
    (_flags("--env.name", "brx/hopper"), "unknown family 'brx'; did you mean 'brax'?"),
    (
        _flags("--env.name", "brax/hopper", "--env.backend", "bullet"),
        "env.backend = 'bullet': brax has spring, positional, generalized, mjx",
    ),
    (_flags("--env.backend", "mjx"), "env.backend = 'mjx': gymnax has no back ends"),
    (_flags("--env.options", "gravity", "strong"), "gravity = 'strong' is not a number"),
    (_flags("--env.options", "max_steps_in_episode", "0"), "= 0 must be at least 1"),
    (_flags("--env.options", "gravitas", "3"), "env.options.gravitas: gymnax/CartPole-v1 has no"),
    (
        _flags("--env.name", "dummy/vector", "--env.options", "a", "1"),
        "env.options.a: dummy/vector takes no options",
    ),
    (
        _flags("--env.name", "gymnax/Breakout-MinAtar", "--network.encoder", "cnn_nature"),
        "cnn_nature needs images of at least 36 x 36 pixels; these are 10 x 10: use cnn_small",
    ),
    (_flags("--logging.wandb_project", "p"), "wandb is not installed: pip install"),
    (_flags("--devices", "4096"), "devices = 4096, but JAX sees"),
]


@pytest.mark.parametrize(("command", "expected"), [(row[0], row[1:]) for row in BAD])
def test_wrong_command_gets_one_sentence(command, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    find_spec = train_command.importlib.util.find_spec
    monkeypatch.setattr(
        train_command.importlib.util, "find_spec", lambda n: None if n == "wandb" else find_spec(n)
    )
    code = train_command.main([*command(tmp_path), "--run_dir", "never"])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for part in expected:
        assert part in err
    assert not (tmp_path / "never").exists()


def test_a_folder_that_is_no_run_is_left_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("words")
    code = train_command.main(["--config", "cartpole", "--run_dir", "thesis", "--clobber"])
    assert code == 2
    assert "thesis holds something else than a run (chapter.tex)" in capsys.readouterr().err
    (tmp_path / "thesis" / "config.yaml").write_text("{}")  # another program's, perhaps
    assert train_command.main(["--config", "cartpole", "--run_dir", "thesis", "--clobber"]) == 2
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "words"


def test_a_missing_package_is_named_with_its_extra(capsys, monkeypatch):
    from purejaxppo.envs import registry

    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    assert train_command.main(["--config", "cartpole", "--run_dir", "never"]) == 2
    assert "gymnax is not installed: pip install 'purejaxppo[gymnax]'" in capsys.readouterr().err


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


def test_a_stretch_means_nothing_without_a_memory(make_config):
    ppo = {"rollout_length": 12, "bptt_length": 5}
    assert make_config(ppo=ppo).ppo.bptt_length == 5
    with pytest.raises(ValueError, match=r"stretches of .*bptt_length = 5; try 10"):
        make_config(ppo=ppo, network={"memory": "gru"})
