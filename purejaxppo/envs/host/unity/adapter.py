"""`unity/`: players that Unity ML-Agents' package is built into, and Unity's editor.

`unity/path/to/Player` is an executable, of which as many are started as `env.num_envs` has rows
for; `unity/editor` waits until Play is pressed. Rows are slots that agents take: see `world`.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp

from purejaxppo.aliases import Scalar
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import curriculum
from purejaxppo.envs.curriculum import Values
from purejaxppo.envs.host.bridge import HostEnv, HostState, SimulatorError, seed_at, spread
from purejaxppo.envs.host.callbacks import CallbackPool
from purejaxppo.envs.host.engine import EngineError
from purejaxppo.envs.host.gymnasium import STREAMS
from purejaxppo.envs.host.observed import first_image
from purejaxppo.envs.host.unity import channels, parameters
from purejaxppo.envs.host.unity.behaviours import Layout
from purejaxppo.envs.host.unity.options import split_options
from purejaxppo.envs.host.unity.parameters import Parameter
from purejaxppo.envs.host.unity.player import EDITOR, Player, PlayerSpec
from purejaxppo.envs.host.unity.players import Players, probe
from purejaxppo.envs.worlds import count_worlds

HAS_PARAMETERS = True
"""`env.randomize` and `env.curriculum` are for this family, too."""

_layouts: dict[Any, Layout] = {}
"""Slots of players that were looked at before, by spec, file and `max_agents`."""
_ready: dict[Any, Player] = {}
"""Players that were started to be looked at, and that nobody has taken, by spec and seed."""
_trains: list["UnityEnv"] = []
"""Environments of training that are not closed."""
_lock = threading.RLock()


def task_names() -> list[str]:
    """The editor; any path of a player works, too."""
    return [EDITOR]


def is_task(name: str) -> bool:
    """True for any name but ""; `make` raises an error if there is no such player."""
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
) -> HostEnv:
    """`num_envs` rows of players.

    Args:
        name: the path of a player's executable, or `editor`.
        config: `options` as `options.DEFAULTS`, and `max_agents.NAME` (slots of a behaviour) and
            `parameters.NAME` (an environment parameter), which `randomize` and `curriculum` vary.
        num_envs: N, of all slots; rounded up to whole players in an evaluation.
        seed: of the players' generators.
        evaluation: other streams of these generators.
        film: ignored: players draw in windows of their own, and films show what agents observe.
        first: the number that the first row has in a larger batch.

    Raises:
        ValueError: a bad option, behaviours whose spaces cannot be padded to one, or N rows are not
            a whole number of players.
        SimulatorError: the player does not start, or is none.
    """
    del film
    if config.max_episode_steps:
        raise ValueError(
            f"env.max_episode_steps = {config.max_episode_steps} is for simulators with a time "
            f"limit of ours, and {config.name} has its own: set Max Step of the agents in Unity"
        )
    options, slots, given = split_options(config)
    values = curriculum.schedule(config.curriculum)
    spec = _spec(name, options, _varied(config, given, _floats(values, float(evaluation))))
    seed = 2 * seed + evaluation
    with _in_words(config.name):
        layout = _layout(spec, slots, _seed_after(seed, 0))
    count = count_worlds(config, layout.size, num_envs, evaluation=evaluation)
    if spec.is_editor:
        _check_editor(config, count, evaluation=evaluation)
    env = UnityEnv(spec, layout, count, seed, first // num_envs * count, options["restarts"])
    if not evaluation:
        env.follow(values if config.curriculum else None)
        _trains.append(env)
    return env


class UnityEnv(HostEnv):
    """Slots of several players.

    Args:
        player: of each of them.
        layout: of its slots.
        count: number of players.
        seed: of their generators.
        first: the number of the first player in a larger batch.
        restarts: see `Players`.
    """

    def __init__(
        self, player: PlayerSpec, layout: Layout, count: int, seed: int, first: int, restarts: int
    ) -> None:
        """Prepares the batch; players are started when a program is traced."""
        super().__init__(
            self._start,
            layout.observation,
            layout.action,
            num_envs=count * layout.size,
            max_episode_steps=0,
            num_agents=layout.size,
            agents=layout.names if len(layout.names) > 1 else (),
            absent=True,
        )
        self.player, self._layout, self._restarts = player, layout, restarts
        self._seed, self._first = seed, first
        self._curriculum: Callable[[Scalar], Values] | None = None
        self._now: dict[str, float] = {}
        self._tells: dict[int, Callable] = {}

    def follow(self, values: Callable[[Scalar], Values] | None) -> None:
        """Sets parameters by their curriculum, progress [] -> values, if there is one."""
        self._curriculum = values

    def at(self, state: HostState, progress: Scalar) -> HostState:
        """Sends the players, with their next actions, the parameters at `progress`."""
        if self._curriculum is None:
            return state
        found = self._curriculum(progress)
        values = jnp.stack([found[name] for name in sorted(found)])
        tell = self._tell_of(self.spec.num_envs, tuple(sorted(found)))
        return state.replace(token=tell(state.token, values))

    def _tell_of(self, num_envs: int, names: tuple[str, ...]) -> Callable:
        """(token, values) -> token of a pool of `num_envs`; under vmap one call for all seeds."""
        if num_envs in self._tells:
            return self._tells[num_envs]

        @jax.custom_batching.custom_vmap
        def tell(token, values):
            return cast("CallbackPool", self.pool(num_envs)).tell(token, names, values)

        @tell.def_vmap
        def fold(size: int, batched, token, values):
            token, values = (
                x[0] if own else x for x, own in zip((token, values), batched, strict=True)
            )
            token = self._tell_of(size * num_envs, names)(token, values)
            return spread(token, size), True

        self._tells[num_envs] = tell
        return tell

    def continue_at(self, update: int, progress: float) -> None:
        """See `HostEnv`: the players' first episodes have the parameters at `progress`, too."""
        super().continue_at(update, progress)
        if self._curriculum is not None:
            self._now = _floats(self._curriculum, progress)

    def _start(self, rows: int, update: int) -> CallbackPool:
        """A pool of so many rows, for a run that continues after `update` updates."""
        seed = _seed_after(self._seed, update) + self._first
        with _in_words(f"unity/{self.player.path}"):
            ready = _take(self.player, seed)
            players = Players(
                self.player,
                self._layout,
                rows // self._layout.size,
                seed=seed,
                restarts=self._restarts,
                ready=[ready] if ready else [],
            )
            players.tell(self._now)
        return CallbackPool(players, self._layout.observation, rows, absent=True)

    def shown(self, obs: Any) -> Any:
        """The first image that slot 0 observes, uint8 [H, W, 3], or else its observation."""
        image = first_image(obs, channels_first=True)
        return obs if image is None else image

    @property
    def players(self) -> list[Player]:
        """The players that were started."""
        pools = (cast("CallbackPool", pool).envs for pool in self._pools.values())
        return [player for players in pools for player in players.players]

    def close(self) -> None:
        """Ends the players; programs that were compiled with them must not run again."""
        super().close()
        self._tells = {}
        if self in _trains:
            _trains.remove(self)
        if not any(env.player == self.player for env in _trains):
            _take(self.player, None)


def training_players() -> list[Player]:
    """The players of all environments of training that are not closed."""
    return [player for env in _trains for player in env.players]


def _seed_after(seed: int, update: int) -> int:
    """The first player's seed in a run that continues after `update` updates."""
    return seed_at(seed, update) * STREAMS % 2**30


def _varied(
    config: EnvConfig, given: dict[str, Parameter], start: dict[str, float]
) -> dict[str, Parameter]:
    """Parameters with the draws and the curriculum of a config; see `parameters.varied`."""
    return parameters.varied(given, config.randomize, parameters.finite(start))


def _floats(values: Callable[[Scalar], Values], progress: float) -> dict[str, float]:
    """A curriculum's values at a progress, outside of any program."""
    return {name: float(x) for name, x in values(progress).items()}


def _check_editor(config: EnvConfig, count: int, *, evaluation: bool) -> None:
    """Raises ValueError if the editor, which is one player, is to be several."""
    if count > 1:
        raise ValueError(
            f"env.num_envs = {config.num_envs} needs {count} players, and the editor is one: try "
            f"env.num_envs = {config.num_envs // count}"
        )
    if evaluation and any(env.player.is_editor for env in _trains):
        raise ValueError(
            "unity/editor is one player, and training uses it: switch evaluations off with "
            "eval.num_episodes = 0"
        )


def _spec(name: str, options: dict[str, Any], given: dict[str, Parameter]) -> PlayerSpec:
    """A player with its options."""
    settings = (
        channels.engine(channels.RESOLUTION, options["width"], options["height"]),
        channels.engine(channels.QUALITY, options["quality_level"]),
        channels.engine(channels.TIME_SCALE, options["time_scale"]),
        channels.engine(channels.TARGET_FPS, options["target_frame_rate"]),
        channels.engine(channels.CAPTURE_FPS, options["capture_frame_rate"]),
    )
    return PlayerSpec(
        path=name,
        timeout=float(options["timeout"]),
        show=options["show"],
        arguments=options["arguments"],
        port=options["port"],
        package_version=options["package_version"],
        engine=settings,
        parameters=tuple(sorted(given.items())),
        own_channels=options["channels"],
    )


def _layout(spec: PlayerSpec, slots: dict[str, int], seed: int) -> Layout:
    """The slots of a player, which is started to be looked at unless it was before."""
    path = Path(spec.path).expanduser()
    stamp = path.stat().st_mtime if path.is_file() else 0.0
    key = spec, stamp, tuple(sorted(slots.items()))
    with _lock:
        if key not in _layouts:
            player = Player(spec, seed)
            try:
                player.connect()
                _layouts[key] = probe(player, slots)
            except BaseException:
                player.kill()  # and keep its log
                raise
            _ready[spec, seed] = player
        return _layouts[key]


def _take(spec: PlayerSpec, seed: int | None) -> Player | None:
    """The player that was looked at, if it has this seed; others of its kind are ended."""
    with _lock:
        mine = {key: _ready.pop(key) for key in [*_ready] if key[0] == spec}
        taken = None
        for (_, its_seed), player in mine.items():
            if taken is None and seed is not None and (its_seed == seed or spec.is_editor):
                taken = player
            else:
                player.close()
        return taken


@contextlib.contextmanager
def _in_words(name: str) -> Iterator[None]:
    """Converts an EngineError to a SimulatorError that names the environment."""
    try:
        yield
    except EngineError as error:
        raise SimulatorError(f"{name}: {error}") from error
