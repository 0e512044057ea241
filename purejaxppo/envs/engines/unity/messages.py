"""Messages of Unity ML-Agents' communicator, protocol 1.5, as protobuf classes.

The descriptors are built from a table of the fields that this package uses, which avoids generated
files. Fields that are not in the table are skipped when a message is read. This module does not
import JAX.
"""

import functools
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

PACKAGE = "communicator_objects"
PROTOCOL = "1.5.0"
"""Version of the protocol. A game must have the same major version."""
OK, QUIT_STATUS = 200, 400
"""Status in a message's header."""
STEP, RESET, QUIT = 0, 1, 2
"""Commands to the game."""
PNG = 1
"""Compression type of an observation; 0 is uncompressed."""

MESSAGES = {
    "Header": "int32 status 1, string message 2",
    "UnityMessage": "Header header 1, UnityOutput unity_output 2, UnityInput unity_input 3",
    "UnityOutput": "RLOutput rl_output 1, RLInitializationOutput rl_initialization_output 2",
    "UnityInput": "RLInput rl_input 1, RLInitializationInput rl_initialization_input 2",
    "RLInitializationInput": (
        "int32 seed 1, string communication_version 2, string package_version 3, "
        "Capabilities capabilities 4, int32 num_areas 5"
    ),
    "RLInitializationOutput": (
        "string name 1, string communication_version 2, string log_path 3, "
        "BrainParameters* brain_parameters 5, string package_version 7, Capabilities capabilities 8"
    ),
    "Capabilities": (
        "bool baseRLCapabilities 1, bool concatenatedPngObservations 2, "
        "bool compressedChannelMapping 3, bool hybridActions 4, bool trainingAnalytics 5, "
        "bool variableLengthObservation 6, bool multiAgentGroups 7"
    ),
    "BrainParameters": (
        "int32* vector_action_size_deprecated 3, string* vector_action_descriptions_deprecated 5, "
        "int32 vector_action_space_type_deprecated 6, string brain_name 7, bool is_training 8, "
        "ActionSpec action_spec 9"
    ),
    "ActionSpec": (
        "int32 num_continuous_actions 1, int32 num_discrete_actions 2, "
        "int32* discrete_branch_sizes 3, string* action_descriptions 4"
    ),
    "RLInput": "ListAgentAction% agent_actions 1, int32 command 4, bytes side_channel 5",
    "RLOutput": "ListAgentInfo% agentInfos 2, bytes side_channel 3",
    "ListAgentAction": "AgentAction* value 1",
    "ListAgentInfo": "AgentInfo* value 1",
    "AgentAction": (
        "float* vector_actions_deprecated 1, float value 4, float* continuous_actions 6, "
        "int32* discrete_actions 7"
    ),
    "AgentInfo": (
        "float reward 7, bool done 8, bool max_step_reached 9, int32 id 10, bool* action_mask 11, "
        "Observation* observations 13, int32 group_id 14, float group_reward 15"
    ),
    "Observation": (
        "int32* shape 1, int32 compression_type 2, bytes compressed_data 3, FloatData float_data 4,"
        " int32* compressed_channel_mapping 5, int32* dimension_properties 6, "
        "int32 observation_type 7, string name 8"
    ),
    "FloatData": "float* data 1",
}
"""Fields of each message: type, name and number; `*` is repeated, `%` a map from strings.

Enums are written as int32, and the two forms of an observation's data as two fields: the encoding
is the same.
"""

Message = Any
"""A protobuf message. Its classes are created when this module is imported."""


class ProtocolError(Exception):
    """A game sent a message that violates the protocol."""


class SlotsError(ProtocolError):
    """A game has agents without slots, which a restart would not change."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    """Return the table as the descriptor of a .proto file."""
    file = descriptor_pb2.FileDescriptorProto(
        name="purejaxppo/unity.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split(","):
            kind, field, number = text.split()
            _add_field(message, kind, field, int(number))
    return file


def _add_field(message: Any, kind: str, name: str, number: int) -> None:
    """Add a field with a type of the table."""
    plain = kind.rstrip("*%")
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if kind != plain else field.LABEL_OPTIONAL
    if kind.endswith("%"):
        entry = message.nested_type.add(name=f"{name[0].upper()}{_camel(name)[1:]}Entry")
        entry.options.map_entry = True
        _add_field(entry, "string", "key", 1)
        _add_field(entry, plain, "value", 2)
        plain = f"{message.name}.{entry.name}"
    if plain[0].isupper():
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{plain}"
    else:
        field.type = field.Type.Value(f"TYPE_{plain.upper()}")


def _camel(name: str) -> str:
    """Return a field's name as protobuf writes it in the name of a map's entry."""
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    """Return a separate pool: the default one may hold the same names from another package."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return pool


@functools.cache
def kind(name: str) -> Any:
    """Return the class of a message of the table."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


UnityMessage, AgentAction = kind("UnityMessage"), kind("AgentAction")


def parse(data: bytes) -> Message:
    """Parse a `UnityMessage` from a game's bytes.

    Raises:
        ProtocolError: the bytes are not such a message.
    """
    try:
        return UnityMessage.FromString(data)
    except DecodeError as error:
        raise ProtocolError(
            f"sent {len(data)} bytes that are not an ML-Agents message. Use a Unity build with "
            f"ML-Agents"
        ) from error


def initialization(seed: int, package_version: str) -> Message:
    """Return the reply to a game's first message."""
    message = UnityMessage()
    message.header.status = OK
    start = message.unity_input.rl_initialization_input
    start.seed, start.num_areas = seed, 1
    start.communication_version, start.package_version = PROTOCOL, package_version
    for name in (
        "baseRLCapabilities",
        "concatenatedPngObservations",
        "compressedChannelMapping",
        "hybridActions",
        "variableLengthObservation",
        "multiAgentGroups",
    ):
        setattr(start.capabilities, name, True)
    return message


def command(kind: int, side_channel: bytes = b"", status: int = OK) -> Message:
    """Return a command without actions: STEP, RESET or QUIT."""
    message = UnityMessage()
    message.header.status = status
    message.unity_input.rl_input.command = kind
    message.unity_input.rl_input.side_channel = side_channel
    return message


def agent_action(continuous: np.ndarray, discrete: np.ndarray) -> Message:
    """Return one agent's action: float [C] and int [branches]."""
    action = AgentAction()
    action.continuous_actions.extend(continuous.tolist())
    action.discrete_actions.extend(discrete.tolist())
    return action


def check_version(version: str) -> None:
    """Raise ProtocolError if a game's protocol has another major version."""
    if version.partition(".")[0] != PROTOCOL.partition(".")[0]:
        raise ProtocolError(
            f"uses version {version!r} of the ML-Agents protocol, but {PROTOCOL} is required. "
            f"Build the game with version 2 or later of Unity's package com.unity.ml-agents"
        )
