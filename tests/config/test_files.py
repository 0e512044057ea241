"""Config files: one-sentence errors, atomic writes, and round trips."""

import random
from pathlib import Path

import numpy as np
import pytest
from support.runs import rejection

from purejaxppo import interrupts
from purejaxppo.config.files import flatten, from_dict, load_config, to_yaml, write_whole
from purejaxppo.config.run_files import load_members, save_members

pytestmark = pytest.mark.toy

NO_FILE = [
    (["--config", "hoper.yaml"], "--config hoper.yaml: no such file", "'hopper.yaml'"),
    (["--config", "/no/such/file.yaml"], "/no/such/file.yaml: no such file"),
    (["--config", "~nobody/a.yaml"], "--config ~nobody/a.yaml: no such file"),
    (["--config", "cartpole", "--init_from", "~nobody/a"], "init_from = ~nobody/a: run folder not"),
    (["--config", "sub/mine"], "no such file or config. Did you mean 'sub/mine.yml'?"),
    (["--config", "mine.yaml"], "no such file or config. `purejaxppo list configs` lists"),
    (["--config", "sub"], "--config sub: is a folder. Did you mean 'sub/mine.yml'?"),
    (["--config", "0"], "--config 0: is a folder. `purejaxppo list configs` lists"),
    (["--config", "hopper-s0"], "is a folder. Did you mean 'hopper-s0/config.yaml'?"),
    (["--config"], "--config requires a value."),
]
WRONG = [
    ("env: [unclosed", "bad.yaml: invalid YAML in line", "Check indentation, tabs, quotes"),
    ("env:\n\tname: a\n", "bad.yaml: invalid YAML in line 2", "Check indentation, tabs, quotes"),
    ("- 1\n- 2\n", "must be a mapping of keys to values, not a list"),
    (
        "ppo:\n  clip_epsilon: 0.1\n",
        "ppo.clip_epsilon: unknown key. Use ppo.clip_eps",
    ),
    ("ppo:\n  gamma: 0.9\n  gamma: 0.99\n", "in line 3: duplicate key 'gamma'"),
    ("env: &e\n  options: *e\n", "invalid YAML in line 1: found unconstructable recursive node"),
    ("[" * 3000, "bad.yaml: values are nested too deeply"),
    ("num_envs: 4\n", "num_envs: unknown key. Use env.num_envs = 4."),
    ("ppo:\n  gama: 0.9\n", "ppo.gama: unknown key. Did you mean ppo.gamma?"),
    ("ppo.gamma: 0.9\n", "bad.yaml: ppo.gamma: unknown key. Write gamma in the section ppo."),
    ("env.options.a: 1\n", "env.options.a: unknown key. Write options in the section env."),
    ("ppo: 3\n", "ppo: must be a section of keys, not a whole number"),
    ("ppo:\n  gamma: high\n", "ppo.gamma = 'high': must be a number"),
    ("env:\n  num_envs: 2.5\n", "env.num_envs = 2.5: must be", "a whole number"),
    ("env:\n  num_envs: yes\n", "env.num_envs = True", "a whole number"),
    ("ppo:\n  normalize_obs: 1\n", "ppo.normalize_obs = 1", "true or false"),
    ("network:\n  hidden: 64\n", "network.hidden = 64: must be a list, such as [64, 64]"),
    ("network:\n  activation: sine\n", "'sine': must be one of tanh, relu"),
    ("network:\n  policies: {a: [1]}\n", "network.policies.a = [1]: must be a number"),
    ("seed:\n", "seed = None: must be a whole number"),
    ("seed: !!int [1]\n", "bad.yaml: invalid YAML in line 1: expected a scalar node"),
    ("seed: !!timestamp [1]\n", "bad.yaml: invalid YAML in line 1: expected a scalar node"),
    ("env: !!map abc\n", "bad.yaml: invalid YAML in line 1: expected a mapping node"),
    ("seed: !!bool abc\n", "bad.yaml: invalid YAML: 'abc' does not fit its tag"),
    (f"\nseed: {'1' * 5000}\n", "bad.yaml: invalid YAML in line 2: a number of 5000 digits"),
    (f"ppo:\n  learning_rate: {10**400}\n", "ppo.learning_rate: must be a finite number"),
    (f"ppo:\n  term_coefs: [{10**400}]\n", "ppo.term_coefs: must be a finite number"),
    (f"env:\n  randomize: {{a: {10**400}}}\n", "env.randomize", "must be a finite number"),
]


@pytest.mark.parametrize(("words", "expected"), [(row[0], row[1:]) for row in NO_FILE])
def test_a_missing_file_gets_a_one_sentence_error(words, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("0").mkdir()
    Path("sub").mkdir()
    Path("sub/mine.yml").write_text("seed: 1\n")
    Path("hopper-s0").mkdir()
    Path("hopper-s0/config.yaml").write_text("seed: 1\n")
    message = rejection(words, capsys)
    assert all(part in message for part in expected), message


@pytest.mark.parametrize(("text", "expected"), [(row[0], row[1:]) for row in WRONG])
def test_an_invalid_file_gets_a_one_sentence_error(text, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("folder/bad.yaml")
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    message = rejection(["--config", str(path)], capsys)
    assert message.startswith(f"error: {path}: "), message
    assert all(part in message for part in expected), message


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path):
    path = tmp_path / "config.yaml"
    write_whole(path, "old")
    with pytest.raises(RuntimeError, match="full"), interrupts.atomic_write(path) as partial:
        partial.write_text("ne")
        assert path.read_text() == "old"
        raise RuntimeError("the disk is full")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    write_whole(path, "new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


WORDS = (
    *("695e0514", "1e5", "2E3", "-2e-3", ".5e3", "1_0e1", "1e999", "1.e3", ".5", "+1", "1_000"),
    *("0x1f", "0b11", "0x_", "010", "0o17", "1:30", "1:30.5", "-0.0", "5e-324", "inf", ".inf"),
    *("-.INF", "nan", ".nan", "yes", "no", "on", "off", "True", "null", "~", "", "2024-01-01"),
    *("2024-13-45", "2001-12-14t21:59:43.10-05:00", " x", "x ", "a\nb", "\n", "a\r\n", "\t", "é"),
    *("\x85", "\u2028", "\ufeff", "\ud800", "\U0001f600" * 127, "\x00", "'", '"', "'x", "# x"),
    *("a # x", "- a", "-", "{", "}", "[1]", "a: b", ":", "?", "&a x", "*a", "!x", "%x", "@x", "`"),
    *("|", ">", "=", "<<", "---", "...", "x" * 5000, "x y " * 500, "file.py:Name", "a.b:Name"),
)
NUMBERS = (0, -1, 10**30, True, False, 0.0, -0.0, 1.0, 5e-324, 1e-7, 1e16, 1e300, 0.1 + 0.2)
INFINITE = (float("inf"), -float("inf"), float("nan"))


def with_values(values, words):
    """Return a config with values in its mappings and words in its text fields."""
    options = {f"{index}": value for index, value in enumerate(values)}
    return from_dict(
        {
            "env": {"name": "gymnax/CartPole-v1", "options": options, "backend": words[0]},
            "eval": {"options": {word: 1 for word in words}},
            "network": {"actor_keys": words, "policies": {words[0]: words[-1]}},
            "pretrain": {"teacher": words[-1]},
            "gpu": {"env.backend": words[0]},
            "run_dir": words[-1],
        }
    )


@pytest.mark.parametrize(
    "values",
    [WORDS, NUMBERS, INFINITE, *[[word] for word in WORDS[:12]]],
    ids=lambda values: str(values[0])[:12],
)
def test_config_yaml_restores_every_value_with_its_type(values, tmp_path):
    check_restored(
        with_values(values, [word for word in values if type(word) is str] or ["a"]), tmp_path
    )


def test_config_yaml_restores_random_words(tmp_path):
    drawn = random.Random(0)
    letters = "0189.eExX_+-:~#'\"{}[],&*!|>%@`?= \t\n\r\x85\u2028\x00\x7fé\ud800\U0001f600nNoOfFlL<"
    for _ in range(20):
        lengths = drawn.choices((1, 2, 3, 5, 90), k=50)
        words = ["".join(drawn.choices(letters, k=length)) for length in lengths]
        check_restored(with_values(words, words), tmp_path)


def check_restored(config, folder):
    """Check that a run folder's files restore a config, each value with its type."""
    path = folder / "config.yaml"
    write_whole(path, to_yaml(config))
    again = load_config(path, saved=True)
    assert repr(flatten(again)) == repr(flatten(config))


def test_numpy_numbers_and_strings_are_written_as_plain_ones(tmp_path):
    write_whole(tmp_path / "config.yaml", to_yaml(with_values([np.float64(0.1)], [np.str_("1e5")])))
    again = load_config(tmp_path / "config.yaml", saved=True)
    assert repr(again) == repr(with_values([0.1], ["1e5"]))


def test_members_yaml_restores_words_and_numbers(tmp_path):
    config = with_values(["a"], ["a"])
    members = [config.replace(**{"env.options": {"x": value}}) for value in (*WORDS, *NUMBERS)]
    save_members(tmp_path / "members.yaml", config, members)
    again = load_members(tmp_path / "members.yaml", config)
    assert [repr(x.env.options) for x in again] == [repr(x.env.options) for x in members]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("695e0514", "695e0514"), ("1e400", "1e400"), ("2024-01-01", "2024-01-01")],
        *[
            ("1e5", 1e5),
            ("3e-4", 3e-4),
            ("1_000", 1000),
            ("0x1f", 31),
            *[("010", 10), ("-08", -8), ("1:30", "1:30"), ("1:30.5", "1:30.5"), ("0x_", "0x_")],
            ("yes", True),
            (".inf", float("inf")),
        ],
        *[("'1e5'", "1e5"), ('"1e5"', "1e5"), ("v1.0", "v1.0")],
    ],
)
def test_yaml_values_are_read_as_numbers_or_words(text, value, tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text(f"env: {{options: {{x: {text}}}}}", encoding="utf-8")
    assert repr(load_config(path).env.options["x"]) == repr(value)
