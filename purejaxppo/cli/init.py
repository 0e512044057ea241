"""`purejaxppo init env walk.py`: writes an example to start from."""

import keyword
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from purejaxppo.cli import parser
from purejaxppo.config.hints import did_you_mean
from purejaxppo.runs.command_line import command_line


class Template(NamedTuple):
    """A template, and the flags that train with the file made from it."""

    about: str
    file: str
    """A name for the file, for help and errors."""
    flags: tuple[str, ...]
    """In these, {file} stands for the file."""


CARTPOLE = ("--config", "cartpole.yaml")
TEMPLATES = {
    "env": Template("an environment in JAX", "walk.py", ("--env.name", "jax/{file}:Walk")),
    "network": Template(
        "a network's hidden layers", "net.py", (*CARTPOLE, "--network.torso", "{file}:Net")
    ),
    "loss": Template(
        "a term of the loss", "mine.py", (*CARTPOLE, "--ppo.terms", "{file}:predict_next")
    ),
    "objective": Template(
        "an objective of the policy", "mine.py", (*CARTPOLE, "--ppo.objective", "{file}:objective")
    ),
    "callback": Template(
        "a function of the run's progress", "mine.py", (*CARTPOLE, "--callbacks", "{file}:Watch")
    ),
}
PROG = "purejaxppo init"
HELP = f"""usage: {PROG} KIND FILE

Write a short working example to start from, and print how to train with it.

""" + "\n".join(
    f"  {f'{PROG} {name} {kind.file}':33} {kind.about}" for name, kind in TEMPLATES.items()
)


def main(args: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return parser.run(run, args)


def run(words: Sequence[str]) -> int:
    """Writes a file and prints the command that trains with it.

    Raises:
        ValueError: no such kind, or a file that cannot be written or is there already.
    """
    if {"-h", "--help"} & set(words):
        print(HELP)
        return 0
    kind, path = check(words)
    text = resources.files("purejaxppo.cli.templates").joinpath(f"{words[0]}.py").read_text("utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ValueError(f"{path} is there already: name another file") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror})") from error
    flags = (flag.format(file=path) for flag in kind.flags)
    run_dir = f"runs/{path.stem}"
    print(f"{path}: {kind.about}, to be changed")
    print(f"train with it: {command_line('train', *flags, '--run_dir', run_dir)}")
    return 0


def check(words: Sequence[str]) -> tuple[Template, Path]:
    """The kind and the file that a command line names.

    Raises:
        ValueError: one sentence about what is missing or wrong.
    """
    if not words:
        raise ValueError(f"{PROG} needs a kind and a file, as in {PROG} env walk.py")
    name = words[0]
    if name not in TEMPLATES:
        hint = did_you_mean(name, TEMPLATES, f"There are {', '.join(TEMPLATES)}.")
        raise ValueError(f"{PROG} {name}: no such kind. {hint}")
    if len(words) != 2:
        found = f"not {len(words) - 1}" if len(words) > 2 else "none is there"
        raise ValueError(
            f"{PROG} {name} takes one file, and {found}: try {PROG} {name} {TEMPLATES[name].file}"
        )
    path = Path(words[1])
    if path.suffix != ".py" or not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        raise ValueError(
            f"{path}: the name of a Python module is needed, letters, digits and _ before .py, "
            f"as in {TEMPLATES[name].file}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    return TEMPLATES[name], path
