"""Config files: each that is wrong gets one sentence: where, what was found, what would do."""

from pathlib import Path

import pytest
from support.runs import refusal

from purejaxppo import interrupts
from purejaxppo.config.files import write_whole

pytestmark = pytest.mark.toy

NO_FILE = [
    (["--config", "hoper.yaml"], "--config hoper.yaml: no such file", "'hopper.yaml'"),
    (["--config", "/no/such/file.yaml"], "/no/such/file.yaml: no such file"),
    (["--config"], "--config needs a file or a name"),
]
WRONG = [
    ("env: [unclosed", "bad.yaml: not valid YAML in line"),
    ("- 1\n- 2\n", "a config is a mapping of keys to values, not a list"),
    (
        "ppo:\n  clip_epsilon: 0.1\n",
        "ppo.clip_epsilon: unknown key; it is ppo.clip_eps here",
    ),
    ("ppo:\n  gamma: 0.9\n  gamma: 0.99\n", "in line 3: 'gamma' is there twice"),
    ("num_envs: 4\n", "num_envs: unknown key; it is env.num_envs here"),
    ("ppo:\n  gama: 0.9\n", "ppo.gama: unknown key; did you mean 'gamma'?"),
    ("ppo: 3\n", "ppo is a section of keys, not a whole number"),
    ("ppo:\n  gamma: high\n", "ppo.gamma = 'high' is a word; it must be a number"),
    ("env:\n  num_envs: 2.5\n", "env.num_envs = 2.5 is a number", "a whole number"),
    ("env:\n  num_envs: yes\n", "env.num_envs = True", "a whole number"),
    ("ppo:\n  normalize_obs: 1\n", "ppo.normalize_obs = 1", "true or false"),
    ("network:\n  hidden: 64\n", "network.hidden = 64 is not a list such as [64, 64]"),
    ("network:\n  activation: sine\n", "'sine' is none of tanh, relu"),
    ("env:\n  options: {a: [1]}\n", "env.options.a = [1] is not a number"),
    ("seed:\n", "seed = None is nothing; it must be a whole number"),
]


@pytest.mark.parametrize(("words", "expected"), [(row[0], row[1:]) for row in NO_FILE])
def test_a_file_that_is_not_there_gets_one_sentence(words, expected, capsys):
    said = refusal(words, capsys)
    assert all(part in said for part in expected), said


@pytest.mark.parametrize(("text", "expected"), [(row[0], row[1:]) for row in WRONG])
def test_a_wrong_file_gets_one_sentence(text, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(text, encoding="utf-8")
    said = refusal(["--config", "bad.yaml"], capsys)
    assert all(part in said for part in expected), said


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "config.yaml"
    write_whole(path, "old")
    with pytest.raises(RuntimeError, match="full"), interrupts.named_when_done(path) as partial:
        partial.write_text("ne")
        assert path.read_text() == "old"
        raise RuntimeError("the disk is full")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    write_whole(path, "new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]
