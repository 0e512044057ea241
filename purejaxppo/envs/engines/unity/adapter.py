"""`unity/`: Unity builds with the ML-Agents package, and Unity's editor.

`unity/path/to/build` is an executable; as many games are started as `env.num_envs` needs.
`unity/editor` waits until Play is pressed. Rows are slots of agents: see `world`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp

from purejaxppo.aliases import Array, Key, Scalar
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import curriculum
from purejaxppo.envs.curriculum import ParameterValues
from purejaxppo.envs.engines import game_env
from purejaxppo.envs.engines.game_env import GameEnv, count_games, game_errors, read_agents
from purejaxppo.envs.engines.process import EDITOR
from purejaxppo.envs.engines.unity import channels, parameters
from purejaxppo.envs.engines.unity.behaviours import UnityLayout
from purejaxppo.envs.engines.unity.parameters import Parameter
from purejaxppo.envs.engines.unity.player import UnityGame, UnityLaunch, executable
from purejaxppo.envs.engines.unity.players import UnityGames, read_layout
from purejaxppo.envs.families import Family
from purejaxppo.envs.host.bridge import HostEnv, HostState, Token, repeat_for_seeds, seed_at
from purejaxppo.envs.host.callbacks import CallbackPool
from purejaxppo.envs.host.gymnasium import SEED_STRIDE
from purejaxppo.envs.options import Option, with_defaults

OPTIONS = {
    **game_env.OPTIONS,
    "max_agents": Option(
        0,
        "Maximum number of agents per behaviour; 0: their number in the first decision period.",
        low=0,
    ),
    "max_agents.NAME": Option(
        None, "Maximum number of agents of the behaviour NAME.", kind=int, low=1
    ),
    "parameters.NAME": Option(
        None,
        "Environment parameter NAME of the game: a number, `uniform MIN MAX` or `gaussian MEAN "
        "STD`.",
        parse=parameters.from_option,
    ),
    "port": game_env.port(5004),
    "channels": Option(
        "", "Custom side channels as file.py:Name, separated by commas.", refers="code"
    ),
    "time_scale": Option(
        20.0, "Speed of the game's clock: Unity's `Time.timeScale`.", low=0, high=1_000_000
    ),
    "target_frame_rate": Option(
        -1,
        "Frames per second to render: Unity's `Application.targetFrameRate`; -1: its default.",
        low=-1,
        high=1_000_000,
    ),
    "capture_frame_rate": Option(
        60,
        "Frames per second of the game's clock: Unity's `Time.captureFramerate`.",
        low=0,
        high=1_000_000,
    ),
    "quality_level": Option(
        5, "Rendering quality: the index of a level in Unity's settings.", low=0, high=1_000
    ),
    "width": Option(84, "Width of the game's window in pixels.", low=1, high=100_000),
    "height": Option(84, "Height of the game's window in pixels.", low=1, high=100_000),
    "package_version": Option("1.1.0", "Version of ML-Agents to report to the game."),
}
SLOTS, PARAMETERS = "max_agents.", "parameters."


def task_names() -> list[str]:
    """Return the editor. Paths of builds also work."""
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
    """Create `num_envs` rows of Unity games.

    Args:
        name: path of a Unity build's executable, or `editor`.
        config: options are `OPTIONS`; `randomize` and `curriculum` vary environment parameters.
        num_envs: N, all slots; rounded up to whole games in an evaluation.
        seed: seed of the games' random generators.
        evaluation: use other random streams than training.
        render: ignored: games draw in their own windows, and videos show what agents observe.
        first: index of the first row in a larger batch.

    Raises:
        ValueError: an invalid option, behaviours whose spaces cannot be padded to a common one, or
            an N that is not a multiple of the rows of a game.
        SimulatorError: the game does not start, or does not use ML-Agents.
    """
    del render
    if config.max_episode_steps:
        raise ValueError(
            f"env.max_episode_steps = {config.max_episode_steps} is not supported by "
            f"{config.name}. Set Max Step of the agents in Unity."
        )
    options, slots, parameter_options = split_options(config)
    values = curriculum.schedule(config.curriculum)
    start = parameters.finite(_floats(values, float(evaluation)))
    varied = parameters.varied(parameter_options, config.randomize, start)
    launch = _launch(name, options, varied)
    seed = 2 * seed + evaluation
    with game_errors(config.name):
        stamp = 0.0 if launch.is_editor else Path(executable(name)).stat().st_mtime
        layout, started = read_agents(
            (launch, tuple(sorted(slots.items())), stamp),
            lambda: UnityGame(launch, _seed_after(seed, 0)),
            lambda game: read_layout(game, slots),
            editor=launch.is_editor,
            keep=not first,
        )
    count = count_games(
        config, layout, started, num_envs, evaluation=evaluation, editor=launch.is_editor
    )
    if started and not evaluation:  # reserve it for this environment
        started = [started.pop()]
    return UnityEnv(
        launch,
        layout,
        count,
        started,
        seed=seed,
        first=first // num_envs * count,
        restarts=options["restarts"],
        values=values if config.curriculum and not evaluation else None,
    )


class UnityEnv(GameEnv):
    """Vector environment over several Unity games; each slot holds one agent of a game.

    Args:
        launch: settings to start each game.
        layout: layout of a game's slots.
        count: number of games.
        started: see `GameEnv`.
        seed: seed of the games' random generators.
        first: index of the first game in a larger batch.
        restarts: see `UnityGames`.
        values: a function from progress to the game's parameters; None if they never change.
    """

    def __init__(
        self,
        launch: UnityLaunch,
        layout: UnityLayout,
        count: int,
        started: list[UnityGame],
        *,
        seed: int,
        first: int,
        restarts: int,
        values: Callable[[Scalar], ParameterValues] | None = None,
    ) -> None:
        """Store the description. Games are started when a program is traced."""

        def make_games(count: int, update: int) -> CallbackPool[UnityGames]:
            first_seed = _seed_after(seed, update) + first
            with game_errors(f"unity/{launch.path}"):
                games = UnityGames(
                    launch, layout, count, seed=first_seed, restarts=restarts, started=started
                )
                games.set_parameters(self._current_values)
            return CallbackPool(games, layout.observation, count * layout.size, absent=True)

        super().__init__(
            make_games,
            layout,
            count,
            started,
            editor=launch.is_editor,
            absent=True,
            channels_first=True,
        )
        self.launch = launch
        self._curriculum = values
        self._current_values: dict[str, float] = {}

    def begin_rollout(self, state: HostState, key: Key, progress: Scalar) -> HostState:
        """Send the parameters at `progress` to the games with their next actions."""
        del key
        if self._curriculum is None:
            return state
        by_name = self._curriculum(progress)
        names = sorted(by_name)
        values = jnp.stack([by_name[name] for name in names])
        return state.replace(token=self._send(names, self.spec.num_envs, state.token, values))

    def _send(self, names: list[str], num_envs: int, token: Token, values: Array) -> Token:
        """Send parameters to the games of `num_envs` rows; under vmap it makes one call."""

        @jax.custom_batching.custom_vmap
        def send(token: Token, values: Array) -> Token:
            pool = self._games_of(num_envs)

            def set_values(values: Any) -> None:
                pool.envs.set_parameters(dict(zip(names, values.tolist(), strict=True)))

            return pool.send_values(set_values, token, values)

        @send.def_vmap
        def fold(size: int, batched: list[bool], token: Token, values: Array) -> tuple[Token, bool]:
            token, values = (
                x[0] if is_batched else x
                for x, is_batched in zip((token, values), batched, strict=True)
            )
            token = self._send(names, size * num_envs, token, values)
            return repeat_for_seeds(token, size), True

        return send(token, values)

    def _games_of(self, num_envs: int) -> CallbackPool[UnityGames]:
        """Return the pool of `num_envs` rows."""
        return cast("CallbackPool[UnityGames]", self.pool(num_envs))

    def continue_at(self, update: int, progress: float) -> None:
        """See `HostEnv`. The first episodes also use the parameters at `progress`."""
        super().continue_at(update, progress)
        if self._curriculum is not None:
            self._current_values = _floats(self._curriculum, progress)

    @property
    def games(self) -> list[UnityGame]:
        """Return the games that were started."""
        return [game for n in self._pools for game in self._games_of(n).envs.games]


def _seed_after(seed: int, update: int) -> int:
    """Return the first game's seed in a run that continues after `update` updates."""
    return seed_at(seed, update) * SEED_STRIDE % 2**30


def _floats(values: Callable[[Scalar], ParameterValues], progress: float) -> dict[str, float]:
    """Return a curriculum's values at a progress, outside of a compiled program."""
    return {name: float(x) for name, x in values(progress).items()}


def _launch(
    name: str, options: dict[str, Any], parameter_values: dict[str, Parameter]
) -> UnityLaunch:
    """Return the launch settings of a game."""
    settings = (
        channels.engine(channels.RESOLUTION, options["width"], options["height"]),
        channels.engine(channels.QUALITY, options["quality_level"]),
        channels.engine(channels.TIME_SCALE, options["time_scale"]),
        channels.engine(channels.TARGET_FPS, options["target_frame_rate"]),
        channels.engine(channels.CAPTURE_FPS, options["capture_frame_rate"]),
    )
    return UnityLaunch(
        path=name,
        timeout=float(options["timeout"]),
        show=options["show"],
        arguments=options["arguments"],
        port=options["port"],
        package_version=options["package_version"],
        engine=settings,
        parameters=tuple(sorted(parameter_values.items())),
        custom_channels=options["channels"],
    )


def split_options(
    config: EnvConfig,
) -> tuple[dict[str, Any], dict[str, int], dict[str, Parameter]]:
    """Return (`OPTIONS`, slots by behaviour with "" for all others, parameters)."""
    options = with_defaults(config.options, OPTIONS)
    slots: dict[str, int] = {"": options["max_agents"]}
    parameter_options: dict[str, Any] = {}
    for key, value in config.options.items():
        if key.startswith(PARAMETERS):
            name = key.removeprefix(PARAMETERS)
            parameter_options[name] = value
        elif key.startswith(SLOTS):
            slots[key.removeprefix(SLOTS)] = int(value)
    return options, slots, parameter_options


FAMILY = Family(
    about="Unity builds with ML-Agents: path/to/build, or editor",
    tasks=task_names,
    make_batch=make,
    requires="grpc",
    package="grpcio",
    names="program",
    options=OPTIONS,
    free_options=game_env.FREE_OPTIONS,
    not_options=game_env.NOT_OPTIONS,
    randomizes=True,
)
