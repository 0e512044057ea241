"""Wrong commands: each gets a one-sentence error with the place, the problem and a solution."""

import importlib.util

import pytest
from support.runs import rejection

import purejaxppo.cli.train as train_command
from purejaxppo.config.installation import install_extra

toy = pytest.mark.toy

BAD = [
    # environments
    (["--env.name", "gymnax/Cartpole"], "unknown task", "Did you mean 'gymnax/CartPole-v1'"),
    (["--env.name", "brx/hopper"], "unknown family 'brx'. Did you mean 'brax'?"),
    (
        ["--env.name", "brax/hopper", "--env.backend", "bullet"],
        "env.backend = 'bullet': brax has the back ends spring, positional, generalized, mjx",
    ),
    (["--env.backend", "mjx"], "env.backend = 'mjx': gymnax has no back ends"),
    (["--env.options", "gravity", "strong"], "gravity = 'strong': must be a number"),
    (["--env.options", "max_steps_in_episode", "0"], "= 0: a time limit must be a whole number"),
    (["--env.options", "gravitas", "3"], "env.options.gravitas: gymnax/CartPole-v1 has no"),
    (
        ["--env.name", "dummy/vector", "--env.options", "a", "1"],
        "env.options.a: dummy/vector has no such option. It has no options.",
    ),
    (
        ["--env.name", "gymnax/Breakout-MinAtar", "--network.encoder", "cnn_nature"],
        "cnn_nature needs images of at least 36 x 36 pixels, but these are 10 x 10. Use cnn_small.",
    ),
    (["--logging.wandb_project", "p"], "wandb is not installed. Run: "),
    (["--devices", "1000"], "devices = 1000: JAX finds only"),
]


@toy
@pytest.mark.parametrize(("flags", "expected"), [(row[0], row[1:]) for row in BAD])
def test_a_wrong_command_gets_a_one_sentence_error(flags, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "wandb" else find_spec(name)
    )
    message = rejection(["--config", "cartpole", *flags], capsys)
    assert all(part in message for part in expected), message


def test_a_task_without_a_family_is_searched_in_all_families(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = rejection(["--config", "cartpole", "--env.name", "hopper"], capsys)
    assert "env.name = 'hopper': the family is missing. Use brax/hopper." in message


def test_evaluation_options_are_checked_before_the_run_folder_is_made(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("pgx")
    flags = ["--env.name", "pgx/tic_tac_toe", "--eval.options", "opponent", "rand"]
    message = rejection(["--config", "cartpole", *flags], capsys)
    assert "in evaluations: eval.options.opponent = 'rand': must be random, or" in message
    assert not list(tmp_path.iterdir())


@toy
def test_a_folder_that_is_not_a_run_is_not_changed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("words")
    code = train_command.main(["--config", "cartpole", "--run_dir", "thesis", "--clobber"])
    assert code == 2
    assert "thesis is not a run folder: it contains chapter.tex" in capsys.readouterr().err
    (tmp_path / "thesis" / "config.yaml").write_text("{}")  # perhaps of another program
    assert train_command.main(["--config", "cartpole", "--run_dir", "thesis", "--clobber"]) == 2
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "words"


def test_a_run_resumes_next_to_other_files_and_clobber_keeps_files_that_are_not_its_own(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    flags = ["--config", "cartpole", "--run_dir", "run", "--eval.num_episodes", "0"]
    assert train_command.main([*flags, "--total_timesteps", "1000"]) == 0
    for name in ("mine.mp4", "elo.csv", "elo.png"):
        (tmp_path / "run" / name).write_text("mine")
    assert train_command.main([*flags, "--total_timesteps", "20000"]) == 0
    assert "resuming at" in capsys.readouterr().out
    assert train_command.main([*flags, "--total_timesteps", "1000", "--clobber"]) == 0
    assert (tmp_path / "run" / "mine.mp4").read_text() == "mine"
    assert not (tmp_path / "run" / "elo.csv").exists()  # of the deleted run


@toy
def test_the_error_of_a_missing_package_names_its_extra(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert train_command.main(["--config", "cartpole", "--run_dir", "never"]) == 2
    assert f"gymnax is not installed. Run: {install_extra('gymnax')}" in capsys.readouterr().err
