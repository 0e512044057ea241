"""`godot/`: Godot 4 games with the plugin of Godot RL Agents.

`godot/path/to/game.x86_64` is an exported game, `godot/path/to/project` a project folder, which
needs the Godot editor, and `godot/editor` waits for a game that is started in the editor. Each game
is a process that connects to this one, and each of its agents is a row.

Reference: Beeching et al. 2021, https://arxiv.org/abs/2112.03636.
"""

import logging
import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.engines import game_env
from purejaxppo.envs.engines.game_env import (
    GameEnv,
    count_games,
    forget_agents,
    game_errors,
    read_agents,
)
from purejaxppo.envs.engines.godot.game import GodotGame, GodotLaunch
from purejaxppo.envs.engines.godot.games import GodotGames
from purejaxppo.envs.engines.process import EDITOR, EngineError, has_display, runnable
from purejaxppo.envs.families import Family
from purejaxppo.envs.host.bridge import HostEnv, seed_at
from purejaxppo.envs.host.callbacks import CallbackPool
from purejaxppo.envs.host.workers.errors import MakeError, SimulatorError
from purejaxppo.envs.options import Option, with_defaults

logger = logging.getLogger("purejaxppo")

OPTIONS = {
    **game_env.OPTIONS,
    "godot": Option("", "Program of the Godot editor, for a project folder.", refers="program"),
    "action_repeat": Option(0, "Physics ticks per action; 0: the game's setting.", low=0),
    "speedup": Option(
        0.0, "Physics ticks between two frames, without effect on physics; 0: the game's.", low=0
    ),
    "fixed_fps": Option(
        60, "Simulated frames per second, run as fast as possible; 0: real time.", low=0
    ),
    "port": game_env.port(11008),
}
EDITOR_PROGRAMS = ("godot", "godot4")
SEED_STRIDE = 100_003
"""Distance between the seeds of two runs' games."""


def task_names() -> list[str]:
    """Return the editor. Games and projects are paths."""
    return [EDITOR]


def make(
    name: str,
    config: EnvConfig,
    num_envs: int,
    *,
    seed: int,
    evaluation: bool = False,
    render: bool = False,
    first: int = 0,
) -> HostEnv:
    """Create the games for `num_envs` agents.

    Args:
        name: an exported game, a project folder, or `editor`.
        config: options are `OPTIONS`.
        num_envs: N, over all agents.
        seed: seed of the games' random generators.
        evaluation: use other seeds than training; N is rounded up to whole games.
        render: the game draws frames in a window. Without a display, videos show observations of
            the first agent.
        first: index of the first row in a larger batch.

    Raises:
        ValueError: an unknown game, unsupported spaces, or N is not a multiple of a game's agents.
        SimulatorError: the game does not start.
    """
    _check_limit(config)
    options = with_defaults(config.options, OPTIONS)
    recorded = render and name != EDITOR and _has_display_for_video(config.name)
    launch = _launch(name, config.name, options | {"show": options["show"] or recorded})
    launch = replace(launch, record=recorded)

    editor = name == EDITOR

    def first_seed(update: int) -> int:
        return seed_at(2 * seed + evaluation, update) * SEED_STRIDE % 2**31

    with game_errors(config.name):
        layout, started = read_agents(
            launch,
            lambda: GodotGame(launch, 0, first_seed(0)),
            GodotGame.connect,
            editor=editor,
            keep=not (evaluation or first),
        )
    count = count_games(config, layout, started, num_envs, evaluation=evaluation, editor=editor)
    if started and not evaluation:  # reserve it for this environment
        started = [started.pop()]

    def make_games(count: int, update: int) -> CallbackPool[GodotGames]:
        seed = (first_seed(update) + first // layout.size) % 2**31
        with game_errors(config.name):
            games = GodotGames(launch, seed, count, started)
            if games.layout != layout:
                games.close()
                forget_agents(launch)
                raise EngineError(
                    "the agents or spaces of the game differ from those at its first start. If "
                    "you have changed the game, run the same command again. Otherwise, the game "
                    "must start with the same agents and spaces every time."
                )
        return CallbackPool(games, layout.observation, count * layout.size, at_once=True)

    return GameEnv(make_games, layout, count, started, editor=editor)


def _has_display_for_video(name: str) -> bool:
    """Return True if there is a display; otherwise warn about the contents of the video."""
    found = has_display()
    if not found:
        logger.warning(
            "%s: no display found. The video shows the observations of the first agent. To record "
            "the game, run the command with xvfb-run.",
            name,
        )
    return found


def _check_limit(config: EnvConfig) -> None:
    """Raise ValueError for a time limit."""
    if config.max_episode_steps:
        raise ValueError(
            f"env.max_episode_steps = {config.max_episode_steps} is not supported by "
            f"{config.name}. In the game, set `done`, and `truncated` in get_info."
        )


def _launch(path: str, name: str, options: dict[str, Any]) -> GodotLaunch:
    """Return the launch settings of the game called `name`."""
    if path == EDITOR:
        return GodotLaunch((), options["timeout"], port=options["port"])
    if options["show"] and not has_display():
        raise MakeError(
            "env.options.show = true: no display found. Use false, or run the command with "
            "xvfb-run."
        )
    flags = [] if options["show"] else ["--headless"]
    if options["fixed_fps"]:
        flags += ["--fixed-fps", str(options["fixed_fps"])]
    for key in ("action_repeat", "speedup"):
        if options[key]:
            flags.append(f"--{key}={options[key]:g}")
    command = [*_program(Path(path), name, options), *flags, *shlex.split(options["arguments"])]
    return GodotLaunch(tuple(command), options["timeout"], options["restarts"])


def _program(path: Path, name: str, options: dict[str, Any]) -> list[str]:
    """Return the program that runs a game, and its arguments.

    Raises:
        MakeError: the file or the editor does not exist.
    """
    path = path.parent if path.name == "project.godot" else path
    if (path / "project.godot").is_file():
        editor = _editor(name, options["godot"])
        _import(editor, path, name, options["timeout"])
        return [editor, "--path", str(path)]
    if path.is_dir():
        raise MakeError(
            f"env.name: the folder {name} does not contain project.godot. Use a project folder."
        )
    if not path.is_file():
        raise MakeError(
            f"env.name: {path} not found in {Path.cwd()}. Use an exported game, a project folder, "
            f"or godot/{EDITOR}."
        )
    return [runnable(path)]


def _editor(name: str, option: str) -> str:
    """Return the editor's program, which runs projects that were not exported."""
    program_name = option or os.environ.get("GODOT", "")
    paths = [
        shutil.which(program) for program in ((program_name,) if program_name else EDITOR_PROGRAMS)
    ]
    program = next((program for program in paths if program), None)
    if program is None:
        problem = (
            f"{program_name} was not found"
            if program_name
            else f"PATH does not contain {' or '.join(EDITOR_PROGRAMS)}"
        )
        raise MakeError(
            f"env.name = {name}: a project folder needs the editor of Godot 4, but {problem}. Set "
            f"env.options.godot or the environment variable GODOT, or export the game."
        )
    return program


def _import(editor: str, project: Path, name: str, timeout: float) -> None:
    """Import a project's assets with the editor, unless this was done before.

    Raises:
        SimulatorError: the import fails or exceeds `timeout`.
    """
    imported = project / ".godot"
    if imported.exists():
        return
    command = [editor, "--headless", "--path", str(project), "--import"]
    try:
        result = subprocess.run(
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
        shutil.rmtree(imported, ignore_errors=True)  # or the next run skips the import
        raise SimulatorError(
            f"{name}: importing its assets took longer than {timeout:g} s. Raise "
            f"env.options.timeout, or open the project in the editor once."
        ) from None
    if result.returncode:
        shutil.rmtree(imported, ignore_errors=True)
        raise SimulatorError(f"{name}: importing its assets failed:\n{result.stdout[-2000:]}")


FAMILY = Family(
    about="Godot 4 games: an exported game, a project folder, or editor",
    tasks=task_names,
    make_batch=make,
    names="program",
    options=OPTIONS,
    free_options=("godot", *game_env.FREE_OPTIONS),
    not_options=game_env.NOT_OPTIONS,
)
