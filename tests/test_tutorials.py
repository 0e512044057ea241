"""The tutorials: every command and program runs in order in an empty folder."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys

import pytest
from support import opengl
from support.children import environment
from support.paths import ROOT

from purejaxppo import load, load_config
from purejaxppo.__main__ import main
from purejaxppo.cli import train

ENVIRONMENT = "docs/tutorial_own_environment.md"
NETWORK = "docs/tutorial_own_network_and_loss.md"
GYMNASIUM = "docs/from_gymnasium.md"
OWN_ROBOT = "docs/tutorial_own_robot.md"
PAGES = (
    "README.md",
    "docs/index.md",
    "docs/quickstart.md",
    "docs/from_others.md",
    ENVIRONMENT,
    NETWORK,
    GYMNASIUM,
    OWN_ROBOT,
)


def blocks(page):
    """Return (language, text) of each fenced block of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


def commands(page, name):
    """Return the words of each command `purejaxppo NAME` on a page."""
    lines = [line for _, text in blocks(page) for line in text.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[2:] for line in lines if f"purejaxppo {name}" in line]


class Reader:
    """Runs blocks in a folder, in processes with `purejaxppo` and `python` of this checkout."""

    def __init__(self, folder):
        self.folder = folder
        commands = folder / ".commands"
        commands.mkdir()
        for name, words in (("python", ""), ("purejaxppo", "-m purejaxppo")):
            path = commands / name
            path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            path.chmod(0o755)
        path = f"{commands}:{os.environ['PATH']}"
        self.environment = environment(PATH=path)

    def follow(self, page, **changes):
        """Run the blocks of a page with replaced words, and return their outputs."""
        return [self.run(*block, changes) for block in blocks(page) if block[0] != "text"]

    def run(self, language, text, changes):
        for old, new in changes.items():
            text = re.sub(old, new, text)
        if language == "yaml":
            (self.folder / "config.yaml").write_text(text)
            assert load_config(self.folder / "config.yaml").env.name
            return ""
        if named := re.match(r"# (\w+\.py)\n", text):
            (self.folder / named[1]).write_text(text)
            return ""
        return self.run_program(language, text)

    def run_program(self, language, text):
        """Run a block of the shell or of Python, and return its output."""
        words = ["sh", "-e", "-c", text] if language == "bash" else ["python", "-c", text]
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout


class QuickReader(Reader):
    """Runs blocks in this process. Its current folder must be the folder of the blocks."""

    def run_program(self, language, text):
        """Call the program of each command, or execute Python."""
        with contextlib.redirect_stdout(io.StringIO()) as out:
            if language == "python":
                exec(text, {})
            else:
                for line in text.replace("\\\n", " ").splitlines():
                    program, *words = shlex.split(line, comments=True)
                    assert program == "purejaxppo" and main(words) == 0, line
        return out.getvalue()


@pytest.fixture
def reader(tmp_path):
    return Reader(tmp_path)


@pytest.fixture
def quick_reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield QuickReader(tmp_path)
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def number(text, pattern):
    """Return the number after a pattern in a text."""
    return float(re.search(rf"{pattern} (-?[\d.]+)", text)[1])


@pytest.mark.full
@pytest.mark.usefixtures("optimized")
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("test_own_environment")
def test_the_environment_tutorial_learns_and_renders(quick_reader):
    shorter = {"500_000": "300_000", "100_000": "20_000", "episodes 100": "episodes 10"}
    *_, evaluated, drawn, used = printed = quick_reader.follow(ENVIRONMENT, **shorter)[:7]
    assert "an environment in JAX" in printed[0]
    assert number(evaluated + drawn, "episodes: return") > 85
    assert (quick_reader.folder / "walk.gif").stat().st_size > 1000
    assert number(used, "distance from the goal") < 0.3


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("test_network_and_loss")
def test_the_network_and_loss_tutorial_trains_and_sweeps(quick_reader):
    shorter = {r"\b20_000": "4_096", "50_000": "8_192"}
    shorter["purejaxppo train"] = "purejaxppo train --eval.num_episodes 0"
    printed = "".join(quick_reader.follow(NETWORK, **shorter))
    assert number(printed, "at first,") < number(printed, "error of the prediction:")
    assert (quick_reader.folder / "runs/net128/code").is_dir()
    assert (quick_reader.folder / "policy.npz").is_file()


@pytest.mark.full
@pytest.mark.usefixtures("optimized")
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("test_gymnasium")
def test_the_gymnasium_page_trains_environments_of_each_form(reader):
    pytest.importorskip("gymnasium")
    few = "eval.num_episodes 16 --eval.interval 50_000"
    shorter = {
        "50_000": "20_000",
        "purejaxppo train": f"purejaxppo train --{few}",
        "env=env, run_dir": 'env=env, eval={"num_episodes": 16, "interval": 50_000}, run_dir',
        "episodes 100": "episodes 10",
    }
    printed = "".join(reader.follow(GYMNASIUM, **shorter))
    assert number(printed, "\nreturn") > 300
    assert number(printed, "episodes: return") > 60
    run = load(reader.folder / "runs/scaled")
    assert run.config.env.options == {"length": 3}
    # The reward of at most 1 per step is scaled by 0.1, over 100 steps.
    assert run.metrics["eval/return_mean"][-1] < 10


@pytest.mark.slow  # trains a million steps in MJX, and compiles a task of Playground
@pytest.mark.usefixtures("optimized")
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("test_robot_of_ones_own")
def test_the_tutorial_of_a_custom_robot_balances_in_numpy(reader):
    pytest.importorskip("mujoco_playground")
    changes = {"pip install .*": "true", "episodes 100": "episodes 10", "200_000": "8_192"}
    changes["--env.stagger"] = "--env.num_envs 32 --eval.num_episodes 2 --env.stagger"
    if not opengl.draws():
        changes["--render .*"] = ""
    printed = "".join(reader.follow(OWN_ROBOT, **changes))
    assert abs(number(printed, "\ntilt")) < 0.3
    code = reader.folder / "runs/robot/code"
    assert {path.name for path in code.rglob("*")} >= {"robot.py", "balancer.xml", "chassis.obj"}


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("page", "run"),
    [
        ("README.md", "gym"),
        pytest.param("docs/index.md", "gym", marks=pytest.mark.slow),  # like the README
        ("docs/quickstart.md", "cartpole-s0"),
        ("docs/from_others.md", "as-sb3"),
    ],
)
def test_the_python_code_of_a_page_runs(reader, page, run):
    for language, text in blocks(page):
        if language == "python":
            changes = {"100_000": "4_096", "200_000": "4_096", "episodes=100": "episodes=4"}
            reader.run(language, text, changes)
    assert (reader.folder / "runs" / run / "config.yaml").is_file()


@pytest.mark.toy
@pytest.mark.parametrize("page", PAGES)
def test_training_commands_on_pages_are_valid(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kinds = {"env": "walk.py", "network": "net.py", "loss": "mine.py"}
    kinds |= {"gymnasium": "my_env.py", "robot": "robot.py"}
    for kind, file in kinds.items():
        assert main(["init", kind, file]) == 0
    trained = [words for words in commands(page, "train") if words and "--help" not in words]
    trained = [words for words in trained if words[0].startswith("--")]
    assert trained
    for words in trained:
        assert train.parse(words).config.env.name
