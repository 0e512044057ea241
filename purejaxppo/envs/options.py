"""Checks of `env.options` for adapters: one sentence about the first option that is wrong."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from purejaxppo.config.hints import KINDS, did_you_mean, wrong_type
from purejaxppo.config.plain import whole


def check_known(task: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Checks that a task has all options that are given.

    Args:
        task: its full name, family/task.
        given: names of options.
        known: names that the task has.

    Raises:
        ValueError: an unknown option.
    """
    known = list(known)
    there = f"It has {', '.join(known)}." if known else "It has no options."
    for option in given:
        if option not in known:
            hint = did_you_mean(option, known, there)
            raise ValueError(f"env.options.{option}: {task} has no such option. {hint}")


def checked(
    task: str, given: Mapping[str, Any], defaults: Mapping[str, Any], others: Iterable[str] = ()
) -> dict[str, Any]:
    """Return a task's options with the types of their defaults.

    Args:
        task: its full name, family/task.
        given: the options.
        defaults: every option that the task has, with its default.
        others: names of further options, which are checked elsewhere.

    Raises:
        ValueError: an unknown option, or a value of another type.
    """
    check_known(task, given, [*defaults, *others])
    return {option: alike(option, value, defaults[option]) for option, value in given.items()}


def check_instances(options: Iterable[str]) -> None:
    """Raises ValueError if the number of running games is to be limited by an option."""
    if "instances" in options:
        raise ValueError(
            "env.options.instances: unknown option. env.num_envs sets the number of games, and "
            "evaluations start at most as many more. If only one can run at a time, set "
            "eval.num_episodes = 0 and run purejaxppo evaluate after training"
        )


def alike(option: str, value: Any, default: Any) -> Any:
    """Return an option's value with the type of its default; an int may replace a float.

    A whole float, such as 2.0, may replace an int.

    Raises:
        ValueError: it has another type.
    """
    number = whole(value) if type(default) is int else None
    if number is not None:
        return number
    is_text = isinstance(value, str) and isinstance(default, str)  # also a reference
    if is_text or type(value) is type(default) or (type(default) is float and type(value) is int):
        return value
    name = f"env.options.{option}"
    if type(default) in KINDS:
        raise ValueError(wrong_type(name, value, type(default)))
    raise ValueError(f"{name} = {value!r} must be like {default!r}")


def check_port(port: int) -> None:
    """Raises ValueError if `env.options.port` is no port."""
    if not 1 <= port <= 65_535:
        raise ValueError(f"env.options.port = {port} must be between 1 and 65535")


def split_arguments(text: str) -> list[str]:
    """The words of `env.options.arguments`, as a shell has them.

    Raises:
        ValueError: a quote is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"env.options.arguments = {text!r}: a quote is not closed") from error
