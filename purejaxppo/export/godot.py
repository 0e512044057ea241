"""Policies in the form that the plugin of Godot RL Agents runs, in its mode "Onnx Inference".

Its script ONNXInference.cs passes each entry of `get_obs` as the input of the same name, and
`state_ins`. It reads one array `output`: for each action, in the order of `get_action_space`, the
values of a continuous one, or a logit for each choice of a discrete one. If the game has discrete
actions, the plugin skips as many numbers after the values of each continuous action, which are
standard deviations in other libraries.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from purejaxppo.agents.policy import Policy
from purejaxppo.envs.base import Env
from purejaxppo.envs.engines.game_env import GameEnv
from purejaxppo.envs.engines.godot.spaces import GodotAgent, GodotLayout
from purejaxppo.export.player import Port, Program
from purejaxppo.spaces import MASK, Discrete

CHOSEN = 1e4
"""Logit of the choice that the policy takes. The others have 0; exp(-1e4) is 0 in float32.

Plugins before September 2025 take the first choice if no logit is positive.
"""


def game_agent(env: Env, policy: Policy, batch: int) -> GodotAgent:
    """Return the agent of the game whose actions and observations the file will have.

    Raises:
        ValueError: the plugin cannot run the policy.
    """
    layout = env.agents_of_game if isinstance(env, GameEnv) else None
    if not isinstance(layout, GodotLayout):
        raise ValueError(
            "engine = godot: the agent was not trained with godot/. Export without engine."
        )
    if layout.team is not None:
        raise ValueError(
            "engine = godot: the game's agents differ in their spaces or policy names, and the "
            "file would need all of their observations. Export without engine."
        )
    if policy.recurrent:
        raise ValueError(
            "engine = godot: the plugin does not keep the state of recurrent policies. Train "
            "with network.rnn = none, or export without engine."
        )
    if batch != 1:
        raise ValueError(f"batch = {batch}: the plugin passes one observation. Use 1.")
    agent = layout.agents[0]
    for part in agent.parts:
        if part.is_image:
            kind = "an image"
        elif part.name == MASK or isinstance(part.space, Discrete):
            kind = "a mask or an integer"
        elif len(part.space.shape) != 1:
            kind = f"of shape {list(part.space.shape)}"
        else:
            kind = ""
        if kind:
            raise ValueError(
                f"engine = godot: the plugin passes only lists of numbers, but the observation "
                f"{part.name!r} is {kind}. Export without engine."
            )
    return agent


def with_one_output(act: Callable, agent: GodotAgent) -> Callable:
    """Return `act` with one array [1, K] as its action, as the plugin reads it.

    Args:
        act: (obs, carry, start) -> (the simulator's action, carry).
        agent: the agent of the game.
    """
    has_choices = any(isinstance(space, Discrete) for _, space in agent.actions)

    def columns(action: Any) -> list[jax.Array]:
        arrays = []
        for name, space in agent.actions:
            value = action[name] if isinstance(action, Mapping) else action
            if isinstance(space, Discrete):
                chosen = jax.nn.one_hot(value, space.n, dtype=bool)
                arrays.append(jnp.where(chosen, CHOSEN, 0.0))
            else:
                arrays += [value, jnp.zeros_like(value)] if has_choices else [value]
        return arrays

    def plugin_act(obs, carry, start):
        action, carry = act(obs, carry, start)
        return jnp.concatenate(columns(action), axis=1), carry

    return plugin_act


def with_plugin_names(program: Program, agent: GodotAgent) -> Program:
    """Return a program with the plugin's names of inputs and outputs, and its unused state.

    Raises:
        ValueError: the game's observation has a part with a name of another input or output.
    """
    names = {port.name: port.name.partition(".")[2] for port in program.inputs}
    if len(agent.parts) == 1:
        names = {program.inputs[0].name: agent.parts[0].name}
    state = Port("state_ins", (1,), "float32")
    if reserved := {"output", "state_ins", "state_outs"}.intersection(names.values()):
        raise ValueError(
            f"--engine godot: the key {min(reserved)!r} of get_obs is the name of another input or "
            f"output of the plugin's models. Rename it in the game and train again."
        )
    inside = [*program.constants, *(equation.output for equation in program.equations)]
    prefix = "_"  # internal arrays must not have the name of an input
    while any(name.startswith(prefix) for name in names.values()):
        prefix += "_"
    names |= {name: prefix + name for name in inside}
    (output,) = program.outputs
    equations = (
        equation._replace(
            inputs=tuple(names[name] for name in equation.inputs), output=names[equation.output]
        )
        for equation in program.equations
    )
    return program._replace(
        inputs=(*(port._replace(name=names[port.name]) for port in program.inputs), state),
        outputs=(output._replace(name="output"), state._replace(name="state_outs")),
        results=(*(names[name] for name in program.results), state.name),
        equations=tuple(equations),
        constants={names[name]: array for name, array in program.constants.items()},
    )
