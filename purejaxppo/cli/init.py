"""The command `purejaxppo init env walk.py`, which writes a template."""

import keyword
import sys
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import NamedTuple

from purejaxppo.cli import parser
from purejaxppo.config.hints import did_you_mean
from purejaxppo.runs.command_line import command_line


class Template(NamedTuple):
    """A template, and the flags that train with the file written from it."""

    about: str
    file: str
    """Example file name, for help and errors."""
    flags: tuple[str, ...]
    """Flags of `purejaxppo train`, with {file} in place of the file."""
    data: tuple[str, ...] = ()
    """Files that are written next to it, with the same names."""


CARTPOLE = ("--config", "cartpole.yaml")
TEMPLATES = {
    "env": Template("an environment in JAX", "walk.py", ("--env.name", "jax/{file}:Walk")),
    "gymnasium": Template(
        "a Gymnasium environment", "my_env.py", ("--env.name", "gymnasium/{file}:Corridor")
    ),
    "robot": Template(
        "a robot in MuJoCo MJX, its model and a mesh",
        "robot.py",
        (
            *("--env.name", "jax/{file}:Balancer", "--ppo.rollout_length", "16"),
            *("--total_timesteps", "1_000_000"),
        ),
        ("balancer.xml", "chassis.obj"),
    ),
    "network": Template(
        "a network's hidden layers", "net.py", (*CARTPOLE, "--network.torso", "{file}:Net")
    ),
    "loss": Template(
        "an auxiliary loss", "mine.py", (*CARTPOLE, "--ppo.terms", "{file}:predict_next")
    ),
    "objective": Template(
        "a policy objective", "mine.py", (*CARTPOLE, "--ppo.objective", "{file}:objective")
    ),
    "callback": Template(
        "a callback that watches training", "mine.py", (*CARTPOLE, "--callbacks", "{file}:Watch")
    ),
}
PROG = "purejaxppo init"
HELP = f"""usage: {PROG} KIND FILE

Write a template for custom code, and print the command that trains with it. KIND is one of
{", ".join(TEMPLATES)}.

""" + "\n".join(
    f"  {f'{PROG} {name} {kind.file}':36} {kind.about}" for name, kind in TEMPLATES.items()
)


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return parser.run(run, args)


def run(words: Sequence[str]) -> int:
    """Write a file and print the command that trains with it.

    Raises:
        ValueError: the kind is unknown, or the file exists or cannot be written.
    """
    if {"-h", "--help"} & set(words):
        print(HELP)
        return 0
    kind, path = check(words)
    write(f"{words[0]}.py", path)
    for name in kind.data:
        write(name, path.with_name(name))
    flags = (flag.format(file=path) for flag in kind.flags)
    run_dir = f"runs/{path.stem}"
    written = ", ".join(str(path.with_name(name)) for name in (path.name, *kind.data))
    print(f"wrote {written}: {kind.about}")
    print(f"to train with it: {command_line('train', *flags, '--run_dir', run_dir)}")
    return 0


def write(template: str, path: Path) -> None:
    """Write a template.

    Raises:
        ValueError: the file exists or cannot be written.
    """
    text = resources.files("purejaxppo.cli.templates").joinpath(template).read_text("utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ValueError(f"{path} already exists. Choose another file name.") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}).") from error


def check(words: Sequence[str]) -> tuple[Template, Path]:
    """Parse `KIND FILE`; return the template of that kind and the path to write.

    Raises:
        ValueError: the kind or the file is missing or invalid.
    """
    if not words:
        raise ValueError(
            f"the kind and the file are missing. Use for example: {PROG} env walk.py. "
            f"Kinds: {', '.join(TEMPLATES)}."
        )
    name = words[0]
    if name not in TEMPLATES:
        hint = did_you_mean(name, TEMPLATES, f"Kinds: {', '.join(TEMPLATES)}.")
        raise ValueError(f"{PROG} {name}: unknown kind. {hint}")
    if len(words) != 2:
        problem = "takes only one file" if len(words) > 2 else "requires a file"
        raise ValueError(
            f"{PROG} {name} {problem}. Use for example: {PROG} {name} {TEMPLATES[name].file}"
        )
    path = Path(words[1])
    if path.suffix != ".py" or not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        raise ValueError(
            f"{path}: must be a Python file name of letters, digits and _, such as "
            f"{TEMPLATES[name].file}."
        )
    if path.stem in sys.stdlib_module_names or path.stem in metadata.packages_distributions():
        raise ValueError(
            f"{path}: {path.stem} is the name of an installed module, which the file would hide. "
            f"Choose another name, such as {TEMPLATES[name].file}."
        )
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist. Create it.")
    for data in map(path.with_name, TEMPLATES[name].data):
        if data.exists() and not path.exists():
            raise ValueError(f"{data} already exists. Choose another folder.")
    return TEMPLATES[name], path
