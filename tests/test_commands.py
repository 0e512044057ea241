"""The command `purejaxppo`, `python -m`, and public names equal to names of modules."""

import importlib.util
import os
import subprocess
import sys
import tomllib

import pytest
from support.paths import ROOT

from purejaxppo import __main__ as command
from purejaxppo.config import hints
from purejaxppo.config.installation import install_extra
from purejaxppo.runs.command_line import command_line

toy = pytest.mark.toy
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def python(*words):
    """Run Python, and return its exit code, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    return done.returncode, done.stdout, done.stderr


ORDERS = [
    "import purejaxppo.evaluate; from purejaxppo import evaluate",
    "from purejaxppo import evaluate; import purejaxppo.evaluate",
    "import purejaxppo.cli.evaluate, purejaxppo.train, importlib; "
    "importlib.import_module('purejaxppo.evaluate'); from purejaxppo import evaluate; "
    "import purejaxppo.evaluate",
]


@toy
@pytest.mark.parametrize(
    "order", [ORDERS[2], *(pytest.param(order, marks=pytest.mark.full) for order in ORDERS[:2])]
)
def test_a_public_name_is_the_function_after_any_import(order):
    check = (
        "import inspect, purejaxppo; assert inspect.isfunction(evaluate), evaluate; "
        "assert evaluate.__module__ == 'purejaxppo.runs.evaluation'; "
        "assert purejaxppo.evaluate is evaluate"
    )
    assert python("-c", f"{order}; {check}") == (0, "", "")


@toy
def test_other_submodules_are_attributes_of_the_package():
    code = "import purejaxppo.spaces, types; assert isinstance(purejaxppo.spaces, types.ModuleType)"
    assert python("-c", code) == (0, "", "")


@toy
def test_help_is_printed_without_jax():
    code = (
        "import sys; from purejaxppo.__main__ import main; assert main(['--help']) == 0; "
        "assert main(['trian']) == 2; assert main([]) == 2; assert main(['init', '--help']) == 0; "
        "assert 'jax' not in sys.modules"
    )
    code, message, _ = python("-c", code)
    assert code == 0 and message.startswith("usage: purejaxppo COMMAND")
    assert all(f"\n  {name} " in message for name in command.COMMANDS)


@pytest.mark.full
def test_every_command_runs_as_subcommand_and_as_module():
    for name in ("train", "evaluate", "sweep", "export", "anatomy"):
        long, short = (
            python("-m", *words, "--help")
            for words in ([f"purejaxppo.{name}"], ["purejaxppo", name])
        )
        assert long == short and long[0] == 0 and long[1].startswith(f"usage: purejaxppo {name}")


@toy
def test_the_console_script_calls_the_main_module():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"purejaxppo": "purejaxppo.__main__:main"}


@toy
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command trian. Did you mean train?"),
        (["x"], "unknown command x. Commands: train, evaluate, sweep, export, anatomy, list, init"),
        (["--config", "a.yaml"], "the command is missing. Run: purejaxppo train --config a.yaml"),
        (["--run", "runs/a"], "the command is missing. Run: purejaxppo evaluate --run runs/a"),
        (["list"], "the name of a list is missing. Use envs or configs."),
        (["list", "env"], "unknown list. Did you mean 'envs'?"),
        (["list", "envs", "dumy/*"], "no environment matches. Did you mean 'dummy'?"),
        (["list", "envs", "dummy/x*"], "list envs dummy/x*: no environment matches"),
        (["list", "configs", "hoper.yaml"], "no config matches. Did you mean 'hopper.yaml'?"),
        (["list", "configs", "a", "b"], "takes only one pattern. Remove 'b'."),
        (
            ["init"],
            "the kind and the file are missing. Use for example: purejaxppo init env walk.py.",
        ),
        (["init", "envs", "walk.py"], "unknown kind. Did you mean 'env'?"),
        (["init", "env"], "requires a file. Use for example: purejaxppo init env walk.py"),
        (["init", "env", "a.py", "b.py"], "takes only one file."),
        (["init", "env", "walk"], "walk: must be a Python file name"),
        (["init", "env", "my-walk.py"], "my-walk.py: must be a Python file name"),
        (["init", "env", "class.py"], "class.py: must be a Python file name"),
        (["init", "env", "no/walk.py"], "no/walk.py: the folder no does not exist"),
    ],
)
def test_wrong_command_words_get_a_one_sentence_error(
    words, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert command.main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and message in err, err
    assert not list(tmp_path.iterdir())


@toy
def test_without_a_command_a_short_usage_is_printed(capsys):
    assert command.main([]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 12
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("purejaxppo ")


@toy
def test_lists_are_filtered_by_a_pattern_a_family_or_part_of_a_name(capsys):
    assert command.main(["list", "envs", "dummy"]) == 0
    lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert lines.pop(0).split()[:2] == ["env.name", "observation"]
    assert [line.split()[0] for line in lines] == [
        "dummy/vector",
        "dummy/pixels",
        "dummy/constant",
        "dummy/choices",
    ]
    assert command.main(["list", "envs", "DUMMY/c*"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert command.main(["list", "envs", "jax"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("jax/  ") and "--env.options:" in lines
    assert command.main(["list", "configs", "*pole*"]) == 0
    found = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert "cartpole.yaml" in found and "hopper.yaml" not in found


def test_a_list_ends_without_an_error_when_its_output_is_closed():
    words = [sys.executable, "-m", "purejaxppo", "list", "configs"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@toy
def test_the_tasks_of_a_family_are_listed_with_spaces_limit_agents_and_configs(capsys):
    for words in (
        ["list", "envs", "particles"],
        ["train", "--list_envs", "particles"],
        ["train", "--list-envs=particles"],
    ):
        assert command.main(words) == 0
        columns, spread, tag, empty, head, *options = capsys.readouterr().out.splitlines()
        assert (empty, head) == ("", "--env.options:")
        assert columns.split(maxsplit=1) == [
            "env.name",
            "observation (preprocessing) -> action, time limit, agents, configs",
        ]
        assert options[0].split(maxsplit=3) == [
            "num_agents",
            "(default",
            "3)",
            "spread: number of agents, and of landmarks.",
        ]
        assert spread.split(maxsplit=1) == [
            "particles/spread",
            "agent 1 of 3 one-hot & obs [14] normalised -> 1 of 5, 25 steps, 3 agents, "
            "particles_spread.yaml",
        ]
        assert tag.endswith("50 steps, 5 agents, particles_tag.yaml")
    assert command.main(["list", "envs", "dummy"]) == 0
    columns, _, pixels, *_ = capsys.readouterr().out.splitlines()
    assert "uint8 [84, 84, 4] / 255 -> " in pixels and pixels.endswith(" steps")
    assert command.main(["list", "envs", "dummy/p*"]) == 0
    assert capsys.readouterr().out.splitlines() == [columns, pixels]


@toy
def test_an_error_of_several_tasks_is_printed_once(capsys, monkeypatch):
    from purejaxppo.envs import registry

    def refuse(config, *args, **kwargs):
        needs = "a map" if config.name.endswith("c") else "models"
        raise ValueError(f"{config.name} needs {needs}")

    monkeypatch.setattr(registry, "task_names", lambda family: ["dummy/a", "dummy/b", "dummy/c"])
    monkeypatch.setattr(registry, "make", refuse)
    assert command.main(["list", "envs", "dummy"]) == 0
    _, *lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    message = dict(line.split(maxsplit=1) for line in lines)
    assert message == {
        "dummy/a": "needs models",
        "dummy/b": "same as dummy/a",
        "dummy/c": "needs a map",
    }


@toy
def test_missing_families_are_listed_with_the_command_that_installs_them(capsys, monkeypatch):
    from purejaxppo.envs import families

    found = importlib.util.find_spec
    here = {"jax", "brax"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: found("jax") if name in here else None
    )
    for words in (["list", "envs"], ["train", "--list_envs"]):
        assert command.main(words) == 0
        *lines, last = capsys.readouterr().out.splitlines()
        message = dict(line.split(maxsplit=1) for line in lines)
        assert set(message) == {f"{family}/" for family in families.ADAPTERS}
        assert message["brax/"] == families.load("brax").about
        assert message["gymnax/"] == f"gymnax is not installed. Run: {install_extra('gymnax')}"
        assert last == "`purejaxppo list envs FAMILY` lists the tasks of a family"


@toy
def test_a_printed_command_uses_the_script_or_this_interpreter(tmp_path, monkeypatch):
    script = tmp_path / ".venv" / "bin" / "purejaxppo"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hints, "START", tmp_path)
    monkeypatch.setattr("sys.executable", str(script.with_name("python")))
    words = ("evaluate", "--run", "runs/my run")
    monkeypatch.setenv("PATH", "/nowhere")
    there = ".venv/bin/python -m purejaxppo.evaluate --run 'runs/my run'"
    assert command_line(*words) == there
    monkeypatch.setenv(
        "PATH", str(script.parent)
    )  # exists, but belongs to another virtual environment
    assert command_line(*words) == there
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(script.parent))
    assert command_line(*words) == "purejaxppo evaluate --run 'runs/my run'"
    script.unlink()
    script.with_name("python").touch(mode=0o755)
    assert command_line(*words) == "python -m purejaxppo.evaluate --run 'runs/my run'"
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command_line("train") == f"{script.with_name('python')} -m purejaxppo.train"
