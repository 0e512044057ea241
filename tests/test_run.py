"""Runs from the command line: finished, changed, clobbered and evaluated."""

import dataclasses
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from support.runs import CARTPOLE, error_of, start, train, wait_for

import purejaxppo.cli.evaluate as evaluate_command
import purejaxppo.cli.train as train_command
from purejaxppo import restore
from purejaxppo.config.files import load_config
from purejaxppo.config.installation import install_extra
from purejaxppo.config.references import CodeRef
from purejaxppo.config.run_files import save_members
from purejaxppo.config.schema import Config, EvalConfig
from purejaxppo.runs.checkpoint import Checkpoints
from purejaxppo.runs.evaluation import evaluate
from purejaxppo.runs.folder import run_folder
from purejaxppo.runs.progress import Progress
from purejaxppo.runs.resume import changes, continue_config, eval_settings, schedule_changes
from purejaxppo.runs.rows import read_csv


@pytest.mark.full
def test_a_teacher_is_needed_only_at_the_start(finished_run, config_file, capsys):
    finished_run.rename("teacher")
    flags = ["--run_dir", "student", "--network.hidden", "8", "--pretrain.teacher"]
    shared = ["--pretrain.updates", "2"]
    for teacher, words in [("nobody", "run folder not found"), ("empty", "")]:
        Path("empty").mkdir(exist_ok=True)
        assert train(config_file, *flags, teacher) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and words in err
        assert not Path("student").exists()
    assert train(config_file, *flags, "teacher", *shared, "--total_timesteps", 256) == 0
    out = capsys.readouterr().out
    assert "pretrained on the teacher teacher for 2 updates: imitation loss " in out
    assert "evaluation before training: return" in out
    first = read_csv(Path("student/metrics.csv"))[0]
    assert (first["global_step"], first["update"]) == (0, 0) and first["eval/return_mean"] > 0
    shutil.rmtree("teacher")
    assert train(config_file, *flags, "teacher", *shared, "--total_timesteps", 512) == 0
    assert "resuming at" in capsys.readouterr().out


def test_a_finished_run_is_reported_and_not_changed(finished_run, config_file, capsys):
    before = {p: p.stat().st_mtime_ns for p in Path("run").rglob("*") if p.is_file()}
    assert train(config_file, "--run_dir", "run") == 0
    assert "run is finished: " in capsys.readouterr().out
    after = {p: p.stat().st_mtime_ns for p in Path("run").rglob("*") if p.is_file()}
    before.pop(Path("run/.lock"))
    after.pop(Path("run/.lock"))
    assert before == after


def test_a_changed_structural_field_is_rejected_by_name(finished_run, config_file, capsys):
    assert train(config_file, "--run_dir", "run", "--env.num_envs", 16) == 2
    error = error_of(capsys)
    assert "run was trained with env.num_envs = 8, not 16" in error
    assert "--clobber" in error
    assert restore("run").config.env.num_envs == 8


def test_a_run_without_a_checkpoint_starts_with_the_new_config(finished_run, config_file, capsys):
    shutil.rmtree("run/checkpoints")
    Path("run/checkpoints/64.orbax-checkpoint-tmp/agent").mkdir(parents=True)
    Path("run/versions.json").write_text('{"command": "of the interrupted start"}')
    old = load_config("run/config.yaml", saved=True)
    save_members(Path("run/members.yaml"), old, [old, old])  # left by a start with two seeds
    Path("run/init.json").write_text("{}")  # left by a start with init_from
    assert train(config_file, "--run_dir", "run", "--network.hidden", 8) == 0
    assert "resuming" not in capsys.readouterr().out
    assert restore("run").config.network.hidden == (8,)
    assert not Path("run/init.json").exists()
    assert json.loads(Path("run/versions.json").read_text())["packages"]


@pytest.mark.toy
def test_a_run_without_its_config_cannot_be_resumed(tmp_path):
    with pytest.raises(ValueError, match=r"it contains checkpoints but no config.yaml"):
        continue_config(Config(), tmp_path)


def test_changed_tunable_fields_are_printed_with_those_without_effect(
    finished_run, config_file, capsys
):
    flags = ("--run_dir", "run", "--total_timesteps", 1152, "--ppo.ent_coef", "0.01")
    assert train(config_file, *flags, "--ppo.kl_coef", "0.5") == 0
    out = capsys.readouterr().out
    assert "note: ppo.ent_coef changes from 0.0 to 0.01 for the rest of the run\n" in out
    assert "warning: ppo.kl_coef = 0.5 has no effect. Set ppo.objective to kl or clip_kl.\n" in out


@pytest.mark.toy
def test_a_longer_run_reports_schedules_that_move_back(make_config):
    def config(steps, **ppo):
        ppo = {"learning_rate": 1e-3, "learning_rate_schedule": "linear", **ppo}
        return make_config(total_timesteps=steps, ppo=ppo)

    size = config(1).steps_per_update
    message = schedule_changes(config(10 * size), config(40 * size), Progress(10))
    assert message == (
        f"total_timesteps changes from {10 * size:,} to {40 * size:,}, and the completed "
        f"part of the run from 100% to 25%. This changes ppo.learning_rate from 0 to 0.00075."
    )
    constant = {"learning_rate_schedule": "constant"}
    whole, longer = config(10 * size, **constant), config(40 * size, **constant)
    assert schedule_changes(whole, longer, Progress(10)) == ""
    assert schedule_changes(config(10 * size), config(10 * size), Progress(5)) == ""
    fading = {**constant, "ent_coef": 0.01, "ent_schedule": "linear"}
    message = schedule_changes(whole, config(20 * size, **fading), Progress(5))
    assert message.endswith(
        "completed part of the run from 50% to 25%. This changes ppo.ent_coef from 0.005 to 0.0075."
    )


def test_a_resumed_run_reports_moved_schedules_once(config_file, capsys):
    for steps, count in ((512, 0), (1280, 1), (1280, 0)):
        assert train(config_file, "--run_dir", "run", "--total_timesteps", steps) == 0
        lines = capsys.readouterr().out.splitlines()
        assert sum("This changes ppo.learning_rate" in line for line in lines) == count
        few = [line for line in lines if "is less than 10 updates of 128 steps" in line]
        assert len(few) == (steps == 512)


def test_clobber_starts_from_scratch(finished_run, config_file):
    flags = ("--run_dir", "run", "--seed", 7, "--total_timesteps", 256)
    assert train(config_file, *flags) == 2
    assert train(config_file, *flags, "--clobber") == 0
    assert restore("run", "last").config.seed == 7
    assert restore("run", "last").env_steps < 300
    assert read_csv(Path("run/metrics.csv"))[0]["update"] == 1


def test_a_start_without_a_checkpoint_leaves_no_rows_behind(finished_run, config_file):
    shutil.rmtree("run/checkpoints")
    file = Path("run/metrics.csv")
    names, first, *_ = file.read_text().splitlines()
    before = dict.fromkeys(names.split(","), "0")  # an evaluation of the agent of another start
    file.write_text(f"{names}\n{','.join(before.values())}\n{first}\n")
    assert train(config_file, "--run_dir", "run", "--total_timesteps", 256) == 0
    assert read_csv(file)[0]["update"] == 1


def test_a_run_folder_has_everything_to_repeat_the_run(config_file):
    flags = ("--logging.tensorboard", "--logging.log_file", "debug.log", "--total_timesteps", 256)
    assert train(config_file, "--run_dir", "run", *flags) == 0
    run = Path("run")
    versions = json.loads((run / "versions.json").read_text())
    assert versions["packages"]["jax"] == jax.__version__
    assert load_config(run / "config.yaml") == restore("run").config
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").glob("events.*"))
    assert "losses/policy_loss" in (run / "debug.log").read_text()


def test_evaluate_restores_and_reports_exactly_the_requested_episodes(finished_run, capsys):
    command = ["--run", "run", "--episodes", "13", "--render", "video.gif"]
    assert evaluate_command.main(command) == 0
    out = capsys.readouterr().out
    assert "13 episodes: return" in out
    assert Path("video.gif").read_bytes().startswith(b"GIF8")
    agent = restore("run", "last")
    result = evaluate(agent, 13, seed=1)
    assert result.returns.shape == result.lengths.shape == (13,)
    np.testing.assert_array_equal(
        result.returns, result.lengths
    )  # the reward of CartPole is 1 per step
    again = evaluate(agent, 13, seed=1)
    np.testing.assert_array_equal(result.returns, again.returns)
    steps = f"{agent.env_steps:,}"  # as the run prints it
    assert restore("run", steps).env_steps == agent.env_steps
    sampled = evaluate(agent, 13, seed=1, deterministic=False)
    assert (sampled.returns != result.returns).mean() > 0.5
    # a run whose evaluations sample is also evaluated with samples by default
    saved = Path("run/config.yaml")
    saved.write_text(saved.read_text().replace("stochastic: false", "stochastic: true"))
    agent = restore("run", "last")
    assert agent.config.eval.stochastic
    np.testing.assert_array_equal(evaluate(agent, 13, seed=1).returns, sampled.returns)
    for flags, words in (
        ([], "steps (--checkpoint best), stochastic policy"),
        (["--deterministic"], "steps (--checkpoint best), deterministic policy"),
        (["--checkpoint", "last"], "steps (--checkpoint last), stochastic policy"),
    ):
        assert evaluate_command.main(["--run", "run", "--episodes", "13", *flags]) == 0
        assert words in capsys.readouterr().out


@pytest.mark.toy
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--run is missing. Give a run folder"),
        (["--run", "run", "--stochastic", "--deterministic"], "exclude each other"),
        (["run"], "'run': flags start with --. Did you mean --run run?"),
        (["-r", "run"], "'-r': flags start with --. --help lists them."),
        (
            ["--run", "nowhere"],
            "error: nowhere: not a run folder (no such folder). Use a folder written by",
        ),
        (
            ["--run", "run", "--checkpoint", "7"],
            "error: run: unknown checkpoint '7'. Checkpoints: last, 640",
        ),
        (["--run", "run", "--episodes", "0"], "--episodes = 0: must be at least 1"),
        (["--run", "run", "--episodes", "x"], "--episodes = 'x': must be"),
        (
            ["--run", "run", "--render", "video.avi"],
            "video.avi: a video file must end in .mp4, .gif or .html",
        ),
        (["--run", "run", "--render", "no/video.gif"], "the folder no does not exist"),
        (["--run", "run", "--epsiodes", "3"], "unknown flag. Did you mean --episodes?"),
    ],
)
def test_a_wrong_evaluation_gets_a_one_sentence_error(flags, message, config_file, capsys):
    Path("run").mkdir()
    Path("run/config.yaml").write_text(CARTPOLE)
    Path("run/checkpoints/640/progress").mkdir(parents=True)
    assert evaluate_command.main(flags) == 2
    assert message in error_of(capsys)


def test_a_folder_in_use_is_rejected(finished_run, config_file, capsys):
    with run_folder(finished_run, clobber=False):
        assert train(config_file, "--run_dir", "run", "--clobber") == 2
    assert "run is in use: another process trains in it" in error_of(capsys)
    assert restore("run").env_steps > 0


@pytest.mark.full
@pytest.mark.xdist_group("processes")
def test_a_second_process_on_the_same_folder_is_rejected(config_file):
    process = start(config_file, "--run_dir", "busy", "--total_timesteps", "100_000_000")
    try:
        wait_for(lambda: Path("busy/metrics.csv").is_file(), process)
        other = start(config_file, "--run_dir", "busy", "--total_timesteps", "100_000_000")
        _, err = other.communicate(timeout=120)
        assert other.returncode == 2
        assert "busy is in use: another process trains in it" in err
    finally:
        process.kill()
        process.communicate()


def test_a_truncated_line_of_metrics_does_not_stop_a_run(finished_run, config_file):
    with Path("run/metrics.csv").open("a") as file:
        file.write("1200,9,1.2e")
    assert train(config_file, "--run_dir", "run", "--total_timesteps", 1152) == 0
    updates = [row["update"] for row in read_csv(Path("run/metrics.csv"))]
    assert updates == sorted(set(updates))
    assert updates[-1] == 9


USER_FILES = ("code/net.py", "config.yaml", "tensorboard/old", "videos/one.mp4", "wandb/x")


@pytest.mark.parametrize("name", USER_FILES)
@pytest.mark.parametrize("flags", [(), ("--clobber",)])
def test_files_of_the_user_with_the_names_of_a_run_are_kept(name, flags, config_file, capsys):
    file = Path("mine", name)
    file.parent.mkdir(parents=True)
    file.write_text("mine: true")
    assert train(config_file, "--run_dir", "mine", *flags) == 2
    found = error_of(capsys)
    first = Path(name).parts[0]
    assert found.startswith(f"error: mine is not a run folder: it contains {first}. Move {first},")
    assert [path.read_text() for path in Path("mine").rglob("*") if path.is_file()] == [
        "mine: true"
    ]


def test_a_start_without_a_checkpoint_keeps_code_that_the_config_needs(config_file, capsys):
    """Its copies would be deleted before they are copied."""
    assert train(config_file, "--run_dir", "run", "--total_timesteps", 1152) == 0
    shutil.rmtree("run/checkpoints")
    code = Path("run/code/net.py")
    code.parent.mkdir(exist_ok=True)
    code.write_text("def linear(x):\n    return x\n")
    flags = ("--run_dir", "run", "--ppo.learning_rate_schedule", f"{code}:linear")
    capsys.readouterr()
    assert train(config_file, *flags) == 2
    assert "net.py: the config names this file, but a run that" in capsys.readouterr().err
    assert code.read_text().startswith("def linear")


def test_a_damaged_header_of_metrics_keeps_a_copy_of_all_rows(finished_run, config_file, caplog):
    file = Path("run/metrics.csv")
    lines = file.read_text().splitlines(keepends=True)
    damaged = "".join([lines[0].replace("global_step", "steps"), *lines[1:]])
    file.write_text(damaged)
    assert train(config_file, "--run_dir", "run", "--total_timesteps", 1152) == 0
    assert Path("run/metrics.csv.damaged").read_text() == damaged
    count = len(lines) - 1
    sentence = f"the header on line 1 is damaged, so {count} rows cannot be read. The"
    assert any(f"{sentence} old file is kept as metrics.csv.damaged" in x for x in caplog.messages)
    assert [row["update"] for row in read_csv(file)][-1] == 9
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:-1], "1,2\n", lines[-1]]))
    assert train(config_file, "--run_dir", "run", "--total_timesteps", 1280) == 0
    assert Path("run/metrics.csv.damaged").read_text() == damaged
    assert "\n1,2\n" in Path("run/metrics.csv.damaged2").read_text()
    with run_folder(Path("run"), clobber=True):
        assert not list(Path("run").glob("*.damaged*"))


def test_a_finished_run_reports_changes_it_was_not_trained_with(finished_run, config_file, capsys):
    assert train(config_file, "--run_dir", "run", "--ppo.learning_rate", "0.1") == 0
    assert "Not applied: ppo.learning_rate changes from 0.0003 to 0.1" in capsys.readouterr().out


def test_the_video_of_a_finished_run_belongs_to_its_files(finished_run, config_file, capsys):
    assert train(config_file, "--run_dir", "run", "--video") == 0
    message = capsys.readouterr().out.splitlines()[-1]
    assert message.startswith("video: run/video.mp4, ")
    assert Path("run/video.mp4").read_bytes()[4:8] == b"ftyp"
    with run_folder(finished_run, clobber=True):
        assert not Path("run/video.mp4").exists()


def test_a_failed_video_does_not_fail_the_run(finished_run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        message = train_command.write_video(finished_run)
    assert message == f"no video: pillow is not installed. Run: {install_extra('render')}"
    shutil.rmtree("run/checkpoints")
    assert (
        train_command.write_video(finished_run) == "no video: run: no checkpoint has been saved yet"
    )


def test_the_command_that_a_run_prints_at_its_end_evaluates_it(config_file, capsys):
    assert train(config_file, "--run_dir", "my run", "--total_timesteps", 128) == 0
    printed = capsys.readouterr().out.splitlines()[-1].removeprefix("evaluate: ")
    words = [*shlex.split(printed), "--episodes", "2"]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "2 episodes: return " in found


STEADY = '''
from dataclasses import dataclass

import jax.numpy as jnp

from purejaxppo.envs.base import TaskStep
from purejaxppo.spaces import Box


@dataclass(frozen=True)
class Steady:
    """Pays `pay` at every step and never ends."""

    pay: float = 1.0
    max_episode_steps: int = 0
    observation = Box((1,))
    action = Box((1,), -1.0, 1.0)
    cheap_reset = True

    def reset(self, key):
        return jnp.zeros(1), jnp.zeros(1)

    def step(self, key, state, action):
        no = jnp.array(False)
        return state, TaskStep(state, jnp.float32(self.pay), no, no)
'''


@pytest.fixture
def run_steady(config_file):
    """A function (flags) -> the printed lines of a run of `Steady`, with returns of pay x steps."""
    Path("steady.py").write_text(STEADY)
    few = ("--eval.num_episodes", 2, "--ppo.num_epochs", 1, "--num_shards", 1, "--num_seeds", 2)

    def run(capsys, steps, *flags):
        named = ("--env.name", "jax/steady.py:Steady", "--run_dir", "run")
        assert train(config_file, *named, *few, "--total_timesteps", steps, *flags) == 0
        return capsys.readouterr().out.splitlines()

    return run


def best_of_run():
    """Return the counters of the last checkpoint of `run`."""
    checkpoints = Checkpoints(Path("run"))
    checkpoints.close()
    return checkpoints.progress()


@pytest.mark.toy
@pytest.mark.parametrize("version", ["this", "0.2"])
def test_the_best_agent_is_evaluated_again_when_evaluation_settings_change(
    version, run_steady, capsys, caplog
):
    lines = run_steady(capsys, 256, "--eval.max_steps", 10)
    assert [line for line in lines if "stopped after" in line] == [
        "warning: eval.max_steps = 10: 4 of 4 episodes were stopped after this number of steps. "
        "The mean return includes their returns so far. Increase eval.max_steps to play them to "
        "their end."
    ]
    assert {row["eval/cut"] for row in read_csv(Path("run/metrics.csv")) if "eval/cut" in row} == {
        2
    }
    assert best_of_run().member_best == [10.0, 10.0]
    result = evaluate(restore("run").member(0), 3)
    assert result.cut.tolist() == [True] * 3 and result.score == 10.0
    assert caplog.text.count("eval.max_steps = 10: 3 of 3 episodes were stopped") == 1
    if version == "0.2":  # which stored neither settings nor checksums
        for path in Path("run/checkpoints").glob("*/progress/metadata"):
            counters = json.loads(path.read_text())
            del counters["checksums"], counters["eval_settings"]
            path.write_text(json.dumps(counters))
    lines = run_steady(capsys, 512, "--eval.max_steps", 4, "--eval.options", "pay", 2.0)
    (again,) = [line for line in lines if "evaluated again" in line]
    assert again == (
        "eval.options changes from {} to {'pay': 2.0}, eval.max_steps changes from 10 to 4. The "
        "best agent so far was evaluated again: return 8.000 (before: 10.0)"
    )
    assert best_of_run().member_best == [8.0, 8.0]
    assert best_of_run().member_best_steps == best_of_run().member_steps
    lines = run_steady(capsys, 768, "--eval.max_steps", 4, "--eval.options", "pay", 2.0)
    assert not any("evaluated again" in line for line in lines)


@pytest.mark.toy
def test_the_best_agent_is_kept_without_evaluations_and_if_new_settings_break_it(
    run_steady, capsys
):
    run_steady(capsys, 256, "--eval.max_steps", 10)
    steps = best_of_run().member_best_steps
    run_steady(capsys, 512, "--eval.num_episodes", 0)
    assert best_of_run().member_best == [10.0, 10.0]
    assert best_of_run().member_best_steps == steps
    lines = run_steady(capsys, 768, "--eval.max_steps", 4, "--eval.options", "pay", "1e30")
    assert sum("diverged episodes for a mean return (before: 10.0)" in line for line in lines) == 1
    assert not any("best evaluation" in line for line in lines)
    assert best_of_run().member_best_steps == steps
    assert list(Path("run/checkpoints").glob("*/best"))
    assert best_of_run().eval_settings["eval.max_steps"] == 4


def test_a_score_depends_on_every_evaluation_setting_except_the_interval(make_config):
    config = make_config()
    names = {f"eval.{field.name}" for field in dataclasses.fields(config.eval)}
    assert eval_settings(config).keys() == names - {"eval.interval"}
    other = make_config(eval={"num_episodes": 5, "stochastic": True})
    assert changes(eval_settings(config), eval_settings(other)) == (
        "eval.num_episodes changes from 32 to 5, eval.stochastic changes from False to True"
    )


def test_evaluation_settings_with_custom_code_are_equal_after_a_checkpoint():
    """Checkpoints store the counters as JSON."""
    opponent = CodeRef("saved.py:saved", files={"saved.py": "/elsewhere/saved.py"})
    config = Config(eval=EvalConfig(options={"opponent": opponent}))
    counters = dataclasses.asdict(Progress(eval_settings=eval_settings(config)))
    read = Progress.read(json.loads(json.dumps(counters)))
    assert changes(read.eval_settings, eval_settings(config)) == ""
    counters["eval_settings"]["eval.options"] = {"opponent": dataclasses.asdict(opponent)}
    old = Progress.read(json.loads(json.dumps(counters)))  # as in version 0.3.0
    assert changes(old.eval_settings, eval_settings(config)) == ""
    other = Config(eval=EvalConfig(options={"opponent": CodeRef("other.py:saved")}))
    assert "eval.options changes from" in changes(read.eval_settings, eval_settings(other))
