"""`godot/`: games made with Godot 4 that contain the plugin of Godot RL Agents.

`godot/path/to/game.x86_64` is an exported game, `godot/path/to/project` a project's folder, which
needs the editor's program, and `godot/editor` waits for a game that is started in the editor. Each
game is a process that connects to this one, and each of its agents is a row.

Beeching et al. 2021, https://arxiv.org/abs/2112.03636.
"""

import contextlib
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.host.bridge import HostEnv, SimulatorError, seed_at
from purejaxppo.envs.host.callbacks import CallbackPool
from purejaxppo.envs.host.engine import EngineError, has_display, runnable
from purejaxppo.envs.host.errors import MakeError
from purejaxppo.envs.host.godot_game import Launch
from purejaxppo.envs.host.godot_games import Games
from purejaxppo.envs.host.godot_spaces import Layout
from purejaxppo.envs.host.observed import first_image
from purejaxppo.envs.options import (
    alike,
    check_instances,
    check_known,
    check_port,
    split_arguments,
)
from purejaxppo.envs.worlds import count_worlds

notice = logging.getLogger("purejaxppo")

DEFAULTS: dict[str, Any] = {
    "godot": "",
    "action_repeat": 0,
    "speedup": 0.0,
    "fixed_fps": 60,
    "show": False,
    "timeout": 60.0,
    "restarts": 3,
    "port": 11008,
    "arguments": "",
}
"""Options, with their defaults."""
EDITOR = "editor"
PROGRAMS = ("godot", "godot4")
STREAMS = 100_003
"""Distance between the seeds of two runs' games."""
_LAYOUTS: dict[Launch, Layout] = {}
_EDITOR: list[Games] = []
"""The editor's game, while it is connected and no pool has it."""


def task_names() -> list[str]:
    """The editor; games and projects are files."""
    return [EDITOR]


def is_task(name: str) -> bool:
    """True for any name but ""; `make` raises an error if there is no such game."""
    return bool(name)


def make(
    name: str,
    config: EnvConfig,
    num_envs: int,
    *,
    seed: int,
    evaluation: bool = False,
    film: bool = False,
    first: int = 0,
) -> "GodotEnv":
    """`num_envs` agents of as many games as have them.

    Args:
        name: an exported game, a project's folder, or `editor`.
        config: `options` as in `DEFAULTS`.
        num_envs: N, of all agents.
        seed: of the games' generators, with their numbers.
        evaluation: other seeds; N is rounded up to whole games.
        film: the game's own pictures will be requested, which need a window; without a display
            films show what the first agent observes.
        first: the number that the first row has in a larger batch.

    Raises:
        ValueError: there is no such game, its spaces are not supported, or N rows are not a whole
            number of games.
        SimulatorError: it does not start.
    """
    options = _options(config)
    filmed = film and name != EDITOR and _has_display_for_film(config.name)
    launch = _launch(name, config.name, options | {"show": options["show"] or filmed})
    launch = replace(launch, film=filmed)

    def start(update: int, number: int) -> Games:
        base = seed_at(2 * seed + evaluation, update)
        with _in_words(config.name):
            return Games(launch, (base * STREAMS + number) % 2**31)

    layout, unused = _asked(launch, lambda: start(0, 0), keep=not (evaluation or first))
    try:
        count = count_worlds(config, layout.size, num_envs, evaluation=evaluation)
    except ValueError:
        while unused:
            unused.pop().close()
        raise
    number = first // layout.size
    return GodotEnv(config.name, lambda update: start(update, number), layout, unused, count)


def _has_display_for_film(name: str) -> bool:
    """True if there is a display; if not, says what the film shows then."""
    there = has_display()
    if not there:
        notice.warning(
            "%s: there is no display, so that the film shows what the first agent observes; within "
            "xvfb-run it shows the game's own pictures",
            name,
        )
    return there


def _asked(launch: Launch, start: Callable[[], Games], *, keep: bool) -> tuple[Layout, list[Games]]:
    """A game's agents, and the game that was started to ask for them, unless it was ended again.

    A program is asked once; the editor's game, which nobody else starts again, is always kept.
    """
    if not launch.command:
        if not _EDITOR:
            _EDITOR.append(start())
        return _EDITOR[-1].layout, _EDITOR
    unused = []
    if launch not in _LAYOUTS:
        games = start()
        _LAYOUTS[launch] = games.layout
        if keep:
            unused.append(games)
        else:
            games.close()
    return _LAYOUTS[launch], unused


class GodotEnv(HostEnv):
    """Agents of several games.

    Args:
        name: family/task, for messages.
        start: number of updates before a run continues -> a first game.
        layout: its agents.
        unused: games that were started for a run's beginning, until a pool takes them over.
        count: number of games.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[int], Games],
        layout: Layout,
        unused: list[Games],
        count: int,
    ) -> None:
        """Prepares the batch."""
        self._unused = unused

        def make_pool(rows: int, update: int) -> CallbackPool:
            if update and unused and unused is not _EDITOR:  # other episodes than at the beginning
                unused.pop().close()
            games = unused.pop() if unused else start(update)
            with _in_words(name):
                if games.layout != layout:
                    games.close()
                    raise EngineError("its agents or their spaces have changed since it was made")
                games.extend(rows // layout.size)
            return CallbackPool(games, layout.observation, rows, at_once=True)

        super().__init__(
            make_pool,
            layout.observation,
            layout.action,
            num_envs=count * layout.size,
            max_episode_steps=0,
            num_agents=layout.size,
            agents=layout.names,
        )

    def shown(self, obs: Any) -> Any:
        """The first image that agent 0 observes, uint8 [H, W, 3], or else its observation."""
        image = first_image(obs)
        return obs if image is None else image

    def close(self) -> None:
        """Ends the games; programs that were compiled with them must not run again."""
        super().close()
        while self._unused:
            self._unused.pop().close()


def _options(config: EnvConfig) -> dict[str, Any]:
    """All options, with their defaults.

    Raises:
        ValueError: an unknown one, or one of another kind; a time limit.
    """
    if config.max_episode_steps:
        raise ValueError(
            f"env.max_episode_steps = {config.max_episode_steps}: the episodes of {config.name} "
            f"end where the game says so; limit them there: set `done`, and `truncated` in get_info"
        )
    check_instances(config.options)
    check_known(config.name, config.options, DEFAULTS, suggest=True)
    changed = {key: alike(key, value, DEFAULTS[key]) for key, value in config.options.items()}
    options = DEFAULTS | changed
    for key, value in options.items():
        least = 1 if key == "timeout" else 0
        if isinstance(value, int | float) and value < least:
            raise ValueError(f"env.options.{key} = {value} must be at least {least}")
    check_port(options["port"])
    split_arguments(options["arguments"])
    return options


def _launch(path: str, name: str, options: dict[str, Any]) -> Launch:
    """Start of the game called `name`."""
    if path == EDITOR:
        return Launch((), options["timeout"], port=options["port"])
    if options["show"] and not has_display():
        raise MakeError(
            "env.options.show = true opens a window, and there is no display: leave it off, or run "
            "the command within xvfb-run"
        )
    flags = [] if options["show"] else ["--headless"]
    if options["fixed_fps"]:
        flags += ["--fixed-fps", str(options["fixed_fps"])]
    for key in ("action_repeat", "speedup"):
        if options[key]:
            flags.append(f"--{key}={options[key]:g}")
    command = [*_program(Path(path), name, options), *flags, *split_arguments(options["arguments"])]
    return Launch(tuple(command), options["timeout"], options["restarts"])


def _program(path: Path, name: str, options: dict[str, Any]) -> list[str]:
    """The program that runs a game, and its arguments.

    Raises:
        MakeError: there is no such file, or no editor.
    """
    path = path.parent if path.name == "project.godot" else path
    if (path / "project.godot").is_file():
        editor = _editor(name, options["godot"])
        _import(editor, path, name, options["timeout"])
        return [editor, "--path", str(path)]
    if path.is_dir():
        raise MakeError(f"env.name: {name} is a folder without project.godot")
    if not path.is_file():
        raise MakeError(
            f"env.name: there is no {path} in {Path.cwd()}: name an exported game, a project's "
            f"folder, or godot/{EDITOR}"
        )
    return [runnable(path)]


def _editor(name: str, option: str) -> str:
    """The program of the editor, which runs projects that were not exported."""
    given = option or os.environ.get("GODOT", "")
    found = [shutil.which(program) for program in ((given,) if given else PROGRAMS)]
    program = next((program for program in found if program), None)
    if program is None:
        where = f"{given} is no program" if given else f"none of {', '.join(PROGRAMS)} is on PATH"
        raise MakeError(
            f"{name} is a project, which needs the program of Godot 4's editor, and {where}: name "
            f"it in env.options.godot or in the environment's GODOT, or export the game"
        )
    return program


def _import(editor: str, project: Path, name: str, timeout: float) -> None:
    """Imports a project's assets, which the editor does once, if it has not.

    Raises:
        SimulatorError: it fails, or takes longer than `timeout`.
    """
    if (project / ".godot").exists():
        return
    command = [editor, "--headless", "--path", str(project), "--import"]
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise SimulatorError(f"{name}: its import took longer than {timeout:g} s") from None
    if done.returncode:
        raise SimulatorError(f"{name}: its import failed:\n{done.stdout[-2000:]}")


@contextlib.contextmanager
def _in_words(name: str) -> Iterator[None]:
    """Converts an EngineError to a SimulatorError that names the environment."""
    try:
        yield
    except EngineError as error:
        raise SimulatorError(f"{name}: {error}") from error
    except MakeError as error:
        raise MakeError(f"{name}: {error}") from error
