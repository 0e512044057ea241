"""Names of other libraries: each is answered with a setting that exists here."""

import re

import pytest

from purejaxppo.commands import evaluate, train
from purejaxppo.commands.flags import Evaluate, Export, Train
from purejaxppo.config.files import flatten, from_dict
from purejaxppo.config.foreign import LIBRARIES, meanings
from purejaxppo.config.schema import HINTS, Config, flat_hints
from purejaxppo.export import __main__ as export
from purejaxppo.sweep.__main__ import main as sweep

pytestmark = pytest.mark.toy
FIELDS = flatten(Config())
TRAIN = HINTS | flat_hints(Train)
LATER = flat_hints(Evaluate) | flat_hints(Export)
ROWS = [
    (library, name, *((ours, "") if isinstance(ours, str) else ours))
    for library, names in LIBRARIES.items()
    for name, ours in names.items()
]
EVERYONES = (
    "lr learning-rate env env-id gym-id env_name n_steps num-steps n_envs num-envs ent-coef "
    "vf-coef timesteps n-timesteps num_timesteps batch_size n_epochs update-epochs gae-lambda "
    "clip_range clip-coef max-grad-norm gamma anneal-lr target-kl wandb track episode_length "
    "unroll_length num_minibatches minibatch-size entropy_cost discounting reward_scaling "
    "net_arch NUM_ENVS policy_hidden_layer_sizes"
)


@pytest.mark.parametrize(("library", "name", "ours", "remark"), ROWS)
def test_every_setting_in_the_table_exists(library, name, ours, remark):
    key, _, value = ours.partition(" = ")
    assert ours or remark
    known = LATER if library == "evaluate and export" else FIELDS
    assert key in known or not key
    if value:
        section, _, leaf = key.partition(".")
        from_dict({section: {leaf: value}})
    for dotted in re.findall(r"\b(?:env|network|ppo|eval|logging|checkpoint)\.\w+", remark):
        assert dotted in FIELDS
    for flag in re.findall(r"--(\w+)", remark):
        assert flag in TRAIN or flag in LATER
    assert name not in (LATER if known is LATER else TRAIN) or name == ours, "one of ours"


@pytest.mark.parametrize("name", sorted({*EVERYONES.split(), *(row[1] for row in ROWS)}))
def test_every_name_is_answered_as_a_flag_and_as_a_key(name, capsys):
    command, known = train.main, TRAIN
    if not any(ours.partition(" ")[0] in ("", *TRAIN) for ours, _ in meanings(name)):
        command = evaluate.main if "to" not in {ours for ours, _ in meanings(name)} else export.main
        known = LATER
    if name in known:
        return  # ours, too
    assert command([f"--{name}", "1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --{name} ") and said.count("\n") == 1
    targets = [ours.partition(" ")[0] for ours, _ in meanings(name)]
    targets = [key for key in targets if key in known]
    assert all(f"is --{target}" in said for target in targets), said
    assert targets or "is no setting here: " in said
    if known is TRAIN and name != "env":  # a section of ours
        with pytest.raises(ValueError, match=f"^mine.yaml: {name}: unknown key; it (is|of) "):
            from_dict({name: 1}, "mine.yaml")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--lr", "1e-3"], "--lr is --ppo.learning_rate here"),
        (["--ppo.lr", "1e-3"], "--ppo.lr is --ppo.learning_rate here"),
        (["--LR=1e-3"], "--LR is --ppo.learning_rate here"),
        (["--env-id", "Hopper-v5"], "--env-id is --env.name here, as in gymnax/CartPole-v1"),
        (["--anneal-lr"], "--anneal-lr is --ppo.learning_rate_schedule linear here"),
        (["--track"], "--track is --logging.wandb_project here, with a project's name"),
        (
            ["--minibatch-size", "64"],
            "--minibatch-size is no setting here: a minibatch has env.num_envs x "
            "ppo.rollout_length / ppo.num_minibatches rows",
        ),
        (
            ["--target-kl", "0.01"],
            "--target-kl of Stable-Baselines3 is --ppo.target_kl here, 1.5 times as large, with "
            "ppo.early_stop_kl; that of CleanRL is --ppo.target_kl here, with ppo.early_stop_kl",
        ),
    ],
)
@pytest.mark.parametrize("main", [train.main, sweep], ids=["train", "sweep"])
def test_an_answer_is_one_sentence(main, words, sentence, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err == f"error: {sentence}\n"


def test_a_command_without_a_config_has_no_names_of_settings(capsys):
    assert evaluate.main(["--gamma", "1"]) == 2
    assert "--gamma: unknown flag; --help lists them" in capsys.readouterr().err
