"""Names of other libraries: their errors suggest an existing field."""

import re

import pytest

from purejaxppo.cli import evaluate, train
from purejaxppo.cli.flags import EvaluateFlags, ExportFlags, TrainFlags
from purejaxppo.config.files import flatten, from_dict
from purejaxppo.config.foreign import FORMULAS, describe, libraries, meanings, sizes_of
from purejaxppo.config.schema import HINTS, Config, flat_hints
from purejaxppo.export import __main__ as export
from purejaxppo.sweep.__main__ import main as sweep

pytestmark = pytest.mark.toy
FIELDS = flatten(Config())
TRAIN = HINTS | flat_hints(TrainFlags)
LATER = flat_hints(EvaluateFlags) | flat_hints(ExportFlags)
ROWS = [
    (library, name, meaning)
    for library, names in libraries().items()
    for name, meaning in names.items()
]
EVERYONES = (
    "lr learning-rate env env-id gym-id env_name n_steps num-steps n_envs num-envs ent-coef "
    "vf-coef timesteps n-timesteps num_timesteps batch_size n_epochs update-epochs gae-lambda "
    "clip_range clip-coef max-grad-norm gamma anneal-lr target-kl wandb track episode_length "
    "unroll_length num_minibatches minibatch-size entropy_cost discounting reward_scaling "
    "net_arch NUM_ENVS policy_hidden_layer_sizes"
)


@pytest.mark.parametrize(("library", "name", "meaning"), ROWS)
def test_every_setting_in_the_table_exists(library, name, meaning):
    field, value, remark = meaning
    known = LATER if library == "evaluate and export" else FIELDS
    assert field in known if field else remark
    if isinstance(value, dict):
        for ours in value.values():
            Config().replace(**{field: ours})
    else:
        assert value in FORMULAS or remark
    for dotted in re.findall(r"\b(?:env|network|ppo|eval|logging|checkpoint)\.\w+", remark):
        assert dotted in FIELDS
    for flag in re.findall(r"--(\w+)", remark):
        assert flag in TRAIN or flag in LATER
    assert name not in (LATER if known is LATER else TRAIN) or name == field, "one of ours"
    assert not remark or remark.endswith(".")


@pytest.mark.parametrize("name", sorted({*EVERYONES.split(), *(row[1] for row in ROWS)}))
def test_every_foreign_name_gets_an_error_as_a_flag_and_as_a_key(name, capsys):
    command, known = train.main, TRAIN
    fields = {meaning.field for meaning in meanings(name).values()}
    if not fields & {"", *TRAIN}:
        command = export.main if "to" in fields else evaluate.main
        known = LATER
    if name in known:
        return  # also a name of ours
    assert command([f"--{name}", "1"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: --{name}: unknown flag. ") and message.count("\n") == 1
    fields = [meaning.field for meaning in meanings(name).values() if meaning.field in known]
    assert all(f"Use --{field}" in message for field in fields), message
    assert fields or any(meaning.remark in message for meaning in meanings(name).values())
    if known is TRAIN and name != "env":  # a section of our config
        with pytest.raises(ValueError, match=f"^mine.yaml: {name}: unknown key. ") as error:
            from_dict({name: 1}, "mine.yaml")
        assert all(f"Use {field}" in str(error.value) for field in fields)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--lr", "1e-3"], "--lr: unknown flag. Use --ppo.learning_rate 0.001."),
        (["--ppo.lr", "1e-3"], "--ppo.lr: unknown flag. Use --ppo.learning_rate 0.001."),
        (["--LR=1e-3"], "--LR: unknown flag. Use --ppo.learning_rate 0.001."),
        (["--hidden-sizes", "8", "4"], "--hidden-sizes: unknown flag. Use --network.hidden 8 4."),
        (["--no_norm_obs"], "--no_norm_obs: unknown flag. Use --ppo.normalize_obs false."),
        (
            ["--env-id", "Hopper-v5"],
            "--env-id: unknown flag. Use --env.name. Write family/task, such as "
            "gymnax/CartPole-v1.",
        ),
        (["--anneal-lr"], "--anneal-lr: unknown flag. Use --ppo.learning_rate_schedule linear."),
        (["--verbose", "1"], "--verbose: unknown flag. Progress is always printed."),
        (
            ["--target-kl", "0.01"],
            "--target-kl: unknown flag. Stable-Baselines3: Use --ppo.target_kl 0.015. Also set "
            "ppo.early_stop_kl. CleanRL: Use --ppo.target_kl 0.01. Also set ppo.early_stop_kl.",
        ),
    ],
)
@pytest.mark.parametrize("main", [train.main, sweep], ids=["train", "sweep"])
def test_the_error_of_a_foreign_flag_is_one_line(main, words, sentence, capsys):
    assert main(words) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {sentence}") and message.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        # 256 environments x 128 steps = 32,768 rows
        ("minibatch_size", 64, "Use ppo.num_minibatches = 512. A minibatch has "),
        ("minibatch_size", 1000, "Use ppo.num_minibatches. A minibatch has "),
        ("max_iterations", 10, "Use total_timesteps = 327680. An iteration has "),
        ("num_evals", 11, "Use eval.interval = 50000. It counts "),
        ("num_evals", 1, "Use eval.interval. It counts "),
        ("log_std_init", 0.0, "Use network.init_std = 1.0. Here it is "),
        ("deterministic_eval", True, "Use eval.stochastic = false."),
        ("anneal_lr", False, "Use ppo.learning_rate_schedule = constant."),
        ("schedule", "fixed", "Use ppo.learning_rate_schedule = constant."),
        ("schedule", "cosine", "Use ppo.learning_rate_schedule."),
        ("rnd_cfg", {"weight": 1.0}, "Use intrinsic.kind = rnd."),
        ("net_arch", [256, 64], "Use network.hidden = [256, 64]. For "),
        ("hidden_size", 256, "Use network.hidden = [256]."),
        ("policy_obs_key", "state", "Use network.actor_keys = ['state']."),
        ("n_steps", "many", "Use ppo.rollout_length."),
        ("N-Steps", 5.0, "Use ppo.rollout_length = 5."),
        ("track", True, "Use logging.wandb_project. Set it "),
        (
            "target_kl",
            0.07,
            "Stable-Baselines3: Use ppo.target_kl = 0.105. Also set ppo.early_stop_kl. "
            "CleanRL: Use ppo.target_kl = 0.07. Also set ppo.early_stop_kl.",
        ),
    ],
)
def test_an_error_gives_the_equivalent_field_and_value(name, value, sentence):
    given = {"env.num_envs": 256, "ppo.rollout_length": 128, "total_timesteps": 500_000}
    message = describe(name, value, known=FIELDS, sizes=sizes_of(given))
    assert message == sentence or (sentence[-1] == " " and message.startswith(sentence))


def test_a_suggested_flag_is_written_as_on_the_command_line():
    def flag(name, value):
        return describe(name, value, known=FIELDS, sizes=sizes_of({}), dashes="--")

    assert flag("n_epochs", 3) == "Use --ppo.num_epochs 3."
    assert flag("hidden_sizes", [32, 16]) == "Use --network.hidden 32 16."
    assert flag("norm_obs", False) == "Use --ppo.normalize_obs false."


def test_all_unknown_keys_of_a_config_are_reported_together():
    """Sizes may also have names of other libraries: 64 x 32 / 128 = 16 minibatches."""
    settings = {"n_steps": 32, "minibatch_size": 128, "env": {"num_envs": 64, "nam": "dummy/box"}}
    with pytest.raises(ValueError) as error:
        from_dict(settings, "mine.yaml")
    lines = str(error.value).splitlines()
    assert lines[:2] == [
        "mine.yaml: 3 unknown names:",
        "  n_steps: unknown key. Use ppo.rollout_length = 32.",
    ]
    assert lines[2].startswith("  minibatch_size: unknown key. Use ppo.num_minibatches = 16. A ")
    assert lines[3:] == ["  env.nam: unknown key. Did you mean env.name?"]


def test_an_unknown_argument_of_a_function_gets_a_message_with_the_keyword():
    with pytest.raises(ValueError) as error:
        Config().replace(num_envs=4)
    assert str(error.value) == (
        "config: num_envs: unknown key. Use env.num_envs = 4. "
        'As a keyword: **{"env.num_envs": ...}.'
    )
    with pytest.raises(ValueError) as error:
        Config().replace(n_epochs=3, bogus=1, env_num_envs=8, ppo={"gama": 1})
    assert str(error.value).splitlines()[1:] == [
        '  ppo.gama: unknown key. Did you mean ppo.gamma? As a keyword: ppo={"gamma": ...}.',
        '  n_epochs: unknown key. Use ppo.num_epochs = 3. As a keyword: ppo={"num_epochs": ...}.',
        "  bogus: unknown key. `purejaxppo train --help all` lists all keys.",
        "  env_num_envs: unknown key. Did you mean env.num_envs? "
        'As a keyword: **{"env.num_envs": ...}.',
    ]


def test_all_unknown_flags_of_a_command_line_are_reported_together(capsys):
    """128 x 64 / 32 = 256 minibatches."""
    words = ["--n-envs", "128", "--ppo.rollout_length=64", "--minibatch-size=32"]
    assert train.main(["--config", "cartpole.yaml", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: 2 unknown names:"
    assert lines[1] == "  --n-envs: unknown flag. Use --env.num_envs 128."
    assert lines[2].startswith("  --minibatch-size: unknown flag. Use --ppo.num_minibatches 256. ")


def test_a_command_without_a_config_suggests_no_fields(capsys):
    assert evaluate.main(["--gamma", "1"]) == 2
    assert "--gamma: unknown flag. --help lists all flags." in capsys.readouterr().err
