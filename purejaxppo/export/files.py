"""Export of a policy to a file, which is verified against the agent before it is moved into place.

The file maps the simulator's observations to its actions. It contains the normalisation of
observations, the network, the distribution's mode and the scaling to the actions' bounds. `.npz`
runs in `player.py` with only NumPy, `.onnx` in any ONNX runtime.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

import purejaxppo
from purejaxppo import spaces
from purejaxppo.agents import normalize
from purejaxppo.agents.networks import convolutions
from purejaxppo.agents.policy import Policy
from purejaxppo.config.hints import short_path
from purejaxppo.config.installation import require
from purejaxppo.config.plain import user_path, whole
from purejaxppo.envs import registry
from purejaxppo.envs.native import (
    NativeArray,
    NativeSpace,
    arrays_in,
    decoder,
    example,
    form_of,
    whole_range,
)
from purejaxppo.envs.outside import SpaceConverter
from purejaxppo.export import godot, onnx_file, player
from purejaxppo.export.player import Port, Program
from purejaxppo.export.trace import trace
from purejaxppo.interrupts import atomic_write
from purejaxppo.runs.agent import Agent, HasBest, agent_of

POLICY_SUFFIXES = (".onnx", ".npz")
CHECKED = 100
"""Number of random observations to verify a new file with."""
TOLERANCE = 1e-4
"""Largest accepted difference of an action, relative to the largest action."""
INT32 = np.iinfo(np.int32)
MAX_TIES = 0.02
"""Fraction of discrete actions that may differ, because rounding can swap almost equal logits."""


class Written(NamedTuple):
    """A written file, and its largest difference from the agent."""

    path: Path
    program: Program
    player: str
    """Name of the runtime that the file was verified with."""
    difference: float
    """Largest difference of an action from the agent's, over `CHECKED` observations."""

    def __repr__(self) -> str:
        """Describe the file in a few lines."""
        info, size = self.program.metadata, self.path.stat().st_size / 1024
        lines = [
            f"{short_path(self.path)}: {size:,.0f} KB, {info['env']} after "
            f"{info['training_steps']:,} steps",
            *(f"  in   {_line(port)}" for port in self.program.inputs),
            *(f"  out  {_line(port)}" for port in self.program.outputs),
            f"verified with {self.player} on {CHECKED} random observations: the largest difference "
            f"from the checkpoint's actions is {self.difference:.1e}",
        ]
        return "\n".join(lines)


def _line(port: Port) -> str:
    return f"{port.name:<16} {port.dtype} {list(port.shape)}"


def check_target(
    path: str | Path, *, engine: str = "", force: bool = False, overwrite: str = "force=True"
) -> None:
    """Check that a file can be written; see `export`.

    Args:
        path: path of the file.
        engine: the game engine that will load the file; "": none.
        force: whether an existing file may be replaced.
        overwrite: the way to set `force`, for the message.

    Raises:
        ValueError: the suffix is unknown, the folder does not exist, the file exists, or a package
            is missing.
    """
    path = user_path(path)
    if path.suffix not in POLICY_SUFFIXES:
        raise ValueError(f"{path}: the file name must end in {' or '.join(POLICY_SUFFIXES)}.")
    if engine and path.suffix != ".onnx":
        raise ValueError(f"{path}: {engine} loads only .onnx files. Change the suffix.")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist. Create it.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Give a file.")
    if path.exists() and not force:
        raise ValueError(f"{path} exists. Use {overwrite} to overwrite it.")
    if path.suffix == ".onnx":
        require("onnx", "export")


def export(
    agent: Agent | HasBest,
    path: str | Path,
    *,
    batch: int = 1,
    engine: Literal["", "godot"] = "",
    force: bool = False,
) -> Written:
    """Export an agent's deterministic policy to a file, and verify the file against the agent.

        ppo.export(run, "policy.onnx")

    Args:
        agent: one agent, or a run for its best agent.
        path: path that ends in .onnx or .npz.
        batch: number of observations per call of the exported policy.
        engine: "godot": write the .onnx file that the plugin of Godot RL Agents loads.
        force: whether to overwrite an existing file.

    Raises:
        ValueError: the file cannot be written, the policy uses an operation that is not supported,
            or the file's actions differ from the agent's.
    """
    if (size := whole(batch)) is None or size < 1:
        raise ValueError(f"batch = {batch!r}: must be a whole number of at least 1.")
    batch = size
    check_target(path, engine=engine, force=force)
    path, agent = user_path(path), agent_of(agent)
    agent.check_single("export", "this run", "agent.member(i)")
    agent = in_float32(agent)
    with on_cpu(), contextlib.closing(registry.make(agent.config.env, 1, evaluation=True)) as env:
        policy, state = agent.policy, jax.device_get(agent.state)
        converter = SpaceConverter(env.spec)
        act = in_native_form(deterministic(policy, state, env.to_simulator), converter)
        if engine:
            game_agent = godot.game_agent(env, policy, batch)
            act = godot.with_one_output(act, game_agent)
        program = trace_policy(
            act, policy, batch, metadata(agent), converter.form, keep_inputs=bool(engine)
        )
        if engine:
            program = godot.with_plugin_names(program, game_agent)
        else:
            program.metadata.update(describe_arrays(program, converter))
        with atomic_write(path) as partial:
            play, name = written_as(program, partial, path.suffix)
            difference = compare(act, policy, play, batch, state.obs_stats, form=converter.form)
            check_difference(difference, path)
    return Written(path, program, name, max(x.largest for x in difference))


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Run the computations of the block on a CPU."""
    try:
        cpu = jax.devices("cpu")[0]
    except RuntimeError as error:
        raise ValueError(
            "JAX does not find the CPU, which the export requires. Unset JAX_PLATFORMS, or add cpu "
            "to it."
        ) from error
    with jax.default_device(cpu):
        yield


def in_float32(agent: Agent) -> Agent:
    """Return a copy of the agent whose network computes in float32."""
    network = dataclasses.replace(agent.config.network, compute_dtype="float32")
    return dataclasses.replace(agent, config=dataclasses.replace(agent.config, network=network))


def metadata(agent: Agent) -> dict[str, Any]:
    """Return the metadata to store in the file."""
    return {
        "env": str(agent.config.env.name),
        "training_steps": int(agent.env_steps),
        "version": purejaxppo.__version__,
    }


def deterministic(
    policy: Policy, state: Any, to_simulator: Callable = lambda x, obs: x
) -> Callable:
    """Return the deterministic policy (obs, carry, start bool [B]) -> (action, carry).

    Args:
        policy: policy of the agent.
        state: state of the agent.
        to_simulator: (the policy's action, obs) -> the simulator's action.
    """

    def act(obs, carry, start):
        carry, action = policy.mode(state, carry, obs, start)
        return to_simulator(action, obs), carry

    return act


def in_native_form(act: Callable, converter: SpaceConverter) -> Callable:
    """Return `act` as a function from the simulator's observations to the simulator's actions."""

    def native_act(obs, carry, start):
        action, carry = act(converter.encode(obs), carry, start)
        return converter.decode(action), carry

    return native_act


def describe_arrays(program: Program, converter: SpaceConverter) -> dict[str, Any]:
    """Describe the simulator's arrays of observation and action, in the program's order.

    Raises:
        ValueError: integers do not fit into int32.
    """
    forms = {"observation": ("obs", converter.form), "action": ("action", converter.action)}
    return {
        kind: [
            describe_array(port, dict(named_arrays(root, form)).get(port.name))
            for port in (*program.inputs, *program.outputs)
            if port.name.partition(".")[0] == root
        ]
        for kind, (root, form) in forms.items()
    }


def named_arrays(root: str, form: NativeSpace | None) -> Iterator[tuple[str, NativeArray]]:
    """Yield the arrays of a form with their names in files."""
    for path, array in arrays_in(form) if form else ():
        yield ".".join((root, *path)), array


def describe_array(port: Port, array: NativeArray | None) -> dict[str, Any]:
    """Describe an array of the simulator: name, shape, dtype, and `low` and `high` of integers.

    Raises:
        ValueError: integers do not fit into int32.
    """
    entry = {"name": port.name, "shape": list(port.shape[1:]), "dtype": port.dtype}
    if array is None or port.dtype.startswith("float"):
        return entry if array is None else entry | {"dtype": array.dtype}
    low, high = whole_range(array)
    if min(low.min(), high.min()) < INT32.min or max(low.max(), high.max()) > INT32.max:
        raise ValueError(
            f"{port.name} has integers from {low.min()} to {high.max()}, but the export supports "
            f"only int32. Change the range of the environment's space."
        )
    return entry | {"dtype": array.dtype, "low": low.tolist(), "high": high.tolist()}


def trace_policy(
    act: Callable,
    policy: Policy,
    batch: int = 1,
    metadata: dict[str, Any] | None = None,
    form: NativeSpace | None = None,
    *,
    keep_inputs: bool = False,
) -> Program:
    """Trace a function that `deterministic` returns to a program.

    Args:
        act: the function.
        policy: policy of the agent.
        batch: number of observations per call.
        metadata: metadata of the file.
        form: form of the observations that `act` takes; None: the policy's.
        keep_inputs: whether to keep inputs that do not affect the action.

    Raises:
        ValueError: the function uses an operation that is not supported.
    """
    obs = example(form or form_of(policy.observation), batch)
    with convolutions.using(convolutions.LAX):
        carry = policy.network.initial_carry((batch,))
        return trace(act, obs, carry, metadata, keep_inputs=keep_inputs)


Play = Callable[[Any, Any, Any], tuple[list[np.ndarray], Any]]
"""(obs, carry, start) -> (arrays of the action, carry). A carry of None is the initial one."""


def written_as(program: Program, path: Path, suffix: str) -> tuple[Play, str]:
    """Write a program; return a function that runs the file, and the name of its runtime."""
    if suffix == ".npz":
        player.write(program, path)
        policy = player.load(path)

        def play(obs, carry, start):
            carry = policy.initial_carry() if carry is None else carry
            return _flat_action(policy(obs, carry, start))

        return play, "numpy"
    onnx_file.write(program, path)
    run, name = onnx_file.load(path)
    return onnx_player(program, run), name


def _flat_action(result: tuple[Any, Any]) -> tuple[list[np.ndarray], Any]:
    action, carry = result
    return jax.tree.leaves(action), carry


def onnx_player(program: Program, session_run: Callable) -> Play:
    """Wrap an ONNX session as a function of (obs, carry, start)."""
    actions = len(jax.tree.leaves(program.action))

    def play(obs, carry, start):
        parts = player.leaves_by_index(program.obs, obs, "obs")
        carry = program.initial_carry if carry is None else carry
        values = [
            *(parts[i] for i in range(len(parts))),
            *carry,
            start,
        ]  # feed-forward policies do not take `start`
        pairs = zip(program.inputs, values, strict=False)
        outputs = session_run({port.name: np.asarray(x, port.dtype) for port, x in pairs})
        return outputs[:actions], outputs[actions:]

    return play


class Difference(NamedTuple):
    """Difference between the actions of an exported file and of its agent, for one array."""

    largest: float
    scale: float
    """Largest magnitude of the agent's action."""
    share: float
    """Fraction of elements that differ."""
    discrete: bool


def compare(
    act: Callable,
    policy: Policy,
    play: Play,
    batch: int,
    stats: Any = None,
    *,
    count: int = CHECKED,
    form: NativeSpace | None = None,
) -> list[Difference]:
    """Compare a file's actions with the agent's on random observations.

    The carry is passed from each observation to the next, and reset with probability 0.1.

    Args:
        act: the agent's function from `deterministic`.
        policy: policy of the agent.
        play: function that runs the file.
        batch: number of observations per call.
        stats: running statistics; observations that they normalise are sampled to match them.
        count: number of observations, rounded up to whole batches.
        form: form of the observations that the file takes; None: the policy's.
    """
    rng = np.random.default_rng(0)
    reference = jax.jit(act)
    to_native = decoder(form or form_of(policy.observation))
    carry = policy.network.initial_carry((batch,))
    played_carry: Any = None
    rows = []
    for i in range(-(-count // batch)):
        obs = to_native(random_observation(policy, rng, batch, stats))
        start = np.full(batch, True) if i == 0 else rng.random(batch) < 0.1
        action, carry = reference(obs, carry, start)
        played, played_carry = play(obs, played_carry, start)
        rows.append((jax.tree.leaves(jax.device_get(action)), played))
    pairs = zip(*(zip(*row, strict=True) for row in rows), strict=True)
    return [_difference(*(np.stack(x) for x in zip(*pair, strict=True))) for pair in pairs]


def _difference(expected: np.ndarray, played: np.ndarray) -> Difference:
    error = np.abs(expected.astype(np.float64) - played)
    discrete = not np.issubdtype(expected.dtype, np.floating)
    return Difference(
        float(error.max()),
        float(np.abs(expected).max()),
        float((expected != played).mean()),
        discrete,
    )


def check_difference(differences: list[Difference], path: Path) -> None:
    """Check that a file's actions equal the agent's up to rounding.

    Raises:
        ValueError: the actions differ by more.
    """
    for d in differences:
        is_close = d.share <= MAX_TIES if d.discrete else d.largest <= TOLERANCE * max(1.0, d.scale)
        if not is_close:
            raise ValueError(
                f"{path} was not written, because {d.share:.0%} of its actions differ from the "
                f"agent's, by up to {d.largest:.2g}. Please report this with the run's config.yaml."
            )


def random_observation(policy: Policy, rng: np.random.Generator, batch: int, stats: Any = None):
    """Sample a batch of random observations of a policy's space, as NumPy arrays [B, ...].

    Args:
        policy: the policy.
        rng: random number generator.
        batch: number of observations.
        stats: running statistics. Normalised floats are sampled from a normal distribution with
            the running mean and twice the running standard deviation.
    """
    obs = _random(policy.observation, rng, batch)
    if stats is None:
        return obs
    leaves, tree = jax.tree.flatten(obs)
    normalized = [i for i, yes in enumerate(policy.is_normalized()) if yes]
    scales = jax.tree.leaves(normalize.variance(stats))
    means = jax.tree.leaves(stats.mean)
    for i, mean, var in zip(normalized, means, scales, strict=True):
        if np.issubdtype(leaves[i].dtype, np.floating):
            noise = rng.standard_normal(leaves[i].shape)
            leaves[i] = np.asarray(mean + 2 * np.sqrt(var) * noise, np.float32)
    return jax.tree.unflatten(tree, leaves)


def _random(space: Any, rng: np.random.Generator, batch: int):
    match space:
        case spaces.Dict(parts):
            return {name: _random(part, rng, batch) for name, part in parts}
        case spaces.Discrete(n):
            return rng.integers(0, n, batch).astype(np.int32)
        case spaces.MultiDiscrete(nvec):
            return rng.integers(0, nvec, (batch, len(nvec))).astype(np.int32)
    shape = (batch, *space.shape)
    low, high = (np.broadcast_to(bound, shape) for bound in (space.low, space.high))
    near = np.isfinite(low) & np.isfinite(high) & (np.abs(high) < 1e6) & (np.abs(low) < 1e6)
    within = rng.uniform(np.where(near, low, 0), np.where(near, high, 1))
    if not np.issubdtype(np.dtype(space.dtype), np.floating):
        within = np.round(within)
    anywhere = np.clip(3 * rng.standard_normal(shape), low, high)
    return np.where(near, within, anywhere).astype(space.dtype)
