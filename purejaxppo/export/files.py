"""Export of a policy as one file, checked against the agent before it gets its name.

The file takes the simulator's observations and returns its actions: the normalisation of
observations, the network, the distribution's mode and the scaling to the actions' bounds are all
inside. `.npz` is played by `player.py` with numpy alone, `.onnx` by any runtime of ONNX.
"""

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import purejaxppo
from purejaxppo import spaces
from purejaxppo.agents import normalize
from purejaxppo.agents.networks import convolutions
from purejaxppo.agents.policy import Policy
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
from purejaxppo.export import onnx_file, player
from purejaxppo.export.player import Port, Program
from purejaxppo.export.trace import trace
from purejaxppo.interrupts import atomic_write
from purejaxppo.runs.agent import Agent

POLICY_SUFFIXES = (".onnx", ".npz")
CHECKED = 100
"""Observations that a new file is checked with."""
TOLERANCE = 1e-4
"""Largest accepted difference of an action, relative to the largest action."""
INT32 = np.iinfo(np.int32)
TIES = 0.02
"""Share of discrete actions that may differ, since two logits may be equal but for rounding."""


class Written(NamedTuple):
    """A written file, and its largest difference from the agent."""

    path: Path
    program: Program
    player: str
    """Name of the player that the file was checked with."""
    difference: float
    """Largest difference of an action from the agent's, over `CHECKED` observations."""


def check_target(path: str | Path, *, force: bool = False) -> None:
    """Checks, before any work, that a file can be written.

    Raises:
        ValueError: another suffix, a folder that does not exist, a file that does, or a missing
            package.
    """
    path = Path(path)
    if path.suffix not in POLICY_SUFFIXES:
        raise ValueError(f"{path}: an exported policy ends in {' or '.join(POLICY_SUFFIXES)}")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file")
    if path.exists() and not force:
        raise ValueError(f"{path} exists: --force replaces it")
    if path.suffix == ".onnx" and importlib.util.find_spec("onnx") is None:
        raise ValueError("onnx is not installed: pip install 'purejaxppo[export]'")


def export(agent: Agent, path: str | Path, *, batch: int = 1, force: bool = False) -> Written:
    """Writes an agent's deterministic policy, checked against the agent before it gets its name.

    Args:
        agent: from `restore`, one agent.
        path: ends in .onnx or .npz.
        batch: observations that the file takes at once.
        force: replace a file that is there.

    Raises:
        ValueError: as `check_target`; the policy uses an operation that no file can hold; or the
            file's actions are not the agent's.
    """
    check_target(path, force=force)
    path = Path(path)
    agent = in_float32(agent)
    with on_cpu(), contextlib.closing(registry.make(agent.config.env, 1, evaluation=True)) as env:
        policy, state = agent.policy, jax.device_get(agent.state)
        converter = SpaceConverter(env.spec)
        act = in_native_form(deterministic(policy, state, env.to_simulator), converter)
        program = trace_policy(act, policy, batch, metadata(agent), converter.form)
        program.metadata.update(described(program, converter))
        with atomic_write(path) as partial:
            play, name = written_as(program, partial, path.suffix)
            difference = compare(act, policy, play, batch, state.obs_stats, form=converter.form)
            check_difference(difference, path)
    return Written(path, program, name, max(x.largest for x in difference))


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Runs the computations inside on a CPU."""
    try:
        cpu = jax.devices("cpu")[0]
    except RuntimeError as error:
        raise ValueError(
            "JAX does not see the CPU, which policies are exported on: unset JAX_PLATFORMS, or add "
            "cpu to it"
        ) from error
    with jax.default_device(cpu):
        yield


def in_float32(agent: Agent) -> Agent:
    """Copies the agent with a network that computes in float32, as its parameters are."""
    network = dataclasses.replace(agent.config.network, compute_dtype="float32")
    return dataclasses.replace(agent, config=dataclasses.replace(agent.config, network=network))


def metadata(agent: Agent) -> dict[str, Any]:
    """Metadata that the file holds beside the policy."""
    return {
        "env": str(agent.config.env.name),
        "training_steps": int(agent.env_steps),
        "version": purejaxppo.__version__,
    }


def deterministic(
    policy: Policy, state: Any, to_simulator: Callable = lambda x, obs: x
) -> Callable:
    """A policy's mode as (obs, carry, start bool [B]) -> (action, carry), arrays [B, ...].

    Args:
        policy: of the agent.
        state: of the agent.
        to_simulator: (the policy's action, obs) -> the simulator's action.
    """

    def act(obs, carry, start):
        carry, action = policy.mode(state, carry, obs, start)
        return to_simulator(action, obs), carry

    return act


def in_native_form(act: Callable, converter: SpaceConverter) -> Callable:
    """Return `act` as a function from the simulator's own observations to its own actions."""

    def native_act(obs, carry, start):
        action, carry = act(converter.encode(obs), carry, start)
        return converter.decode(action), carry

    return native_act


def described(program: Program, converter: SpaceConverter) -> dict[str, Any]:
    """Describe the observation's and action's arrays in the simulator, in the program's order.

    Raises:
        ValueError: integers do not fit into int32.
    """
    forms = {"observation": ("obs", converter.form), "action": ("action", converter.action)}
    return {
        what: [
            array_in_words(port, dict(named_arrays(root, form)).get(port.name))
            for port in (*program.inputs, *program.outputs)
            if port.name.partition(".")[0] == root
        ]
        for what, (root, form) in forms.items()
    }


def named_arrays(root: str, form: NativeSpace | None) -> Iterator[tuple[str, NativeArray]]:
    """Yield the arrays of a form with their names in files."""
    for path, array in arrays_in(form) if form else ():
        yield ".".join((root, *path)), array


def array_in_words(port: Port, array: NativeArray | None) -> dict[str, Any]:
    """Describe an array in the simulator: name, shape, dtype, and `low` and `high` of integers.

    Raises:
        ValueError: integers do not fit into int32.
    """
    entry = {"name": port.name, "shape": list(port.shape[1:]), "dtype": port.dtype}
    if array is None or port.dtype.startswith("float"):
        return entry if array is None else entry | {"dtype": array.dtype}
    low, high = whole_range(array)
    if min(low.min(), high.min()) < INT32.min or max(low.max(), high.max()) > INT32.max:
        raise ValueError(
            f"{port.name} has integers from {low.min()} to {high.max()}, but a file holds int32 "
            f"only. Choose a start and a range in the environment that fit."
        )
    return entry | {"dtype": array.dtype, "low": low.tolist(), "high": high.tolist()}


def trace_policy(
    act: Callable,
    policy: Policy,
    batch: int = 1,
    about: dict[str, Any] | None = None,
    form: NativeSpace | None = None,
) -> Program:
    """Traces what `deterministic` returns; convolutions in the form with the fewest operations.

    Args:
        act: the function.
        policy: of the agent.
        batch: observations that the file takes at once.
        about: metadata of the file.
        form: of the observations that `act` takes; None: the policy's.

    Raises:
        ValueError: it uses an operation that no file can hold.
    """
    obs = example(form or form_of(policy.observation), batch)
    with convolutions.using(convolutions.LAX):
        return trace(act, obs, policy.network.initial_carry((batch,)), about)


Play = Callable[[Any, Any, Any], tuple[list[np.ndarray], Any]]
"""(obs, carry, start) -> (the action's arrays, carry)."""


def written_as(program: Program, path: Path, suffix: str) -> tuple[Play, str]:
    """Writes a program to a path; returns a function that plays the file, and its player's name."""
    if suffix == ".npz":
        player.write(program, path)
        policy = player.load(path)
        return lambda *args: _listed(policy(*args)), "numpy"
    onnx_file.write(program, path)
    session = onnx_file.Session(path)
    return onnx_player(program, session.run), session.name


def _listed(result: tuple[Any, Any]) -> tuple[list[np.ndarray], Any]:
    action, carry = result
    return jax.tree.leaves(action), carry


def onnx_player(program: Program, session_run: Callable) -> Play:
    """Wraps a session of ONNX as a function like the player's."""
    actions = sum(port.name.partition(".")[0] == "action" for port in program.outputs)

    def play(obs, carry, start):
        values = [*jax.tree.leaves(obs), *carry, start]  # a policy without memory takes no start
        pairs = zip(program.inputs, values, strict=False)
        outputs = session_run({port.name: np.asarray(x, port.dtype) for port, x in pairs})
        return outputs[:actions], outputs[actions:]

    return play


class Difference(NamedTuple):
    """Difference of one array of the action between a file and its agent."""

    largest: float
    scale: float
    """Largest magnitude of the agent's action."""
    share: float
    """Share of elements that differ."""
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
    """Compares a file's actions with the agent's, over random observations.

    The carry is passed from one observation to the next, and reset now and then.

    Args:
        act: the agent, as `deterministic` returns it.
        policy: of the agent.
        play: the file.
        batch: observations that it takes at once.
        stats: of the agent's observations; arrays that they normalise are drawn to match them.
        count: observations, rounded up to whole batches.
        form: of the observations that the file takes; None: the policy's.
    """
    rng = np.random.default_rng(0)
    reference = jax.jit(act)
    to_native = decoder(form or form_of(policy.observation))
    carry = policy.network.initial_carry((batch,))
    played_carry: Any = tuple(np.asarray(x) for x in jax.tree.leaves(carry))
    rows = []
    for i in range(-(-count // batch)):
        obs = to_native(random_observation(policy, rng, batch, stats))
        start = np.full(batch, True) if i == 0 else rng.random(batch) < 0.1
        action, carry = reference(obs, carry, start)
        played, played_carry = play(obs, played_carry, start)
        rows.append((jax.tree.leaves(jax.device_get(action)), played))
    pairs = zip(*(zip(*row, strict=True) for row in rows), strict=True)
    return [_difference(*(np.stack(x) for x in zip(*pair, strict=True))) for pair in pairs]


def _difference(one: np.ndarray, other: np.ndarray) -> Difference:
    apart = np.abs(one.astype(np.float64) - other)
    discrete = not np.issubdtype(one.dtype, np.floating)
    return Difference(
        float(apart.max()), float(np.abs(one).max()), float((one != other).mean()), discrete
    )


def check_difference(differences: list[Difference], path: Path) -> None:
    """Checks that a file's actions are the agent's.

    Raises:
        ValueError: they differ by more than rounding explains.
    """
    for d in differences:
        good = d.share <= TIES if d.discrete else d.largest <= TOLERANCE * max(1.0, d.scale)
        if not good:
            raise ValueError(
                f"{path}: not written, since its actions are not the agent's: {d.share:.0%} of "
                f"them differ, by up to {d.largest:.2g}"
            )


def random_observation(policy: Policy, rng: np.random.Generator, batch: int, stats: Any = None):
    """Draws a batch of random observations of a policy's space; numpy arrays [B, ...].

    Args:
        policy: the one that observes them.
        rng: source of random numbers.
        batch: number of observations.
        stats: running statistics; floats that they normalise have their mean and twice their
            standard deviation.
    """
    obs = _random(policy.observation, rng, batch)
    if stats is None:
        return obs
    leaves, tree = jax.tree.flatten(obs)
    places = [i for i, yes in enumerate(policy.is_normalized()) if yes]
    scales = jax.tree.leaves(normalize.variance(stats))
    means = jax.tree.leaves(stats.mean)
    for i, mean, var in zip(places, means, scales, strict=True):
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
