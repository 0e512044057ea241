"""Messages of ML-Agents: hand-made bytes, side channels and images."""

import io
import struct
import uuid

import numpy as np
import pytest

pytest.importorskip("google.protobuf")
from PIL import Image

from purejaxppo.envs.engines.unity import channels, images, messages
from purejaxppo.envs.engines.unity.behaviours import Behaviour, ObsRows, Sensor, UnityLayout
from purejaxppo.envs.engines.unity.messages import ProtocolError
from purejaxppo.envs.step import zeros

pytestmark = pytest.mark.toy


def varint(number, value):
    """Return a field with an integer below 2^14."""
    low = [value] if value < 128 else [value & 127 | 128, value >> 7]
    return bytes([number << 3, *low])


def block(number, data):
    """Return a field with a length: bytes, texts, messages or packed arrays."""
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def test_the_first_message_of_a_build_is_read_from_its_bytes():
    brain = (
        block(3, bytes([4]))
        + varint(6, 1)
        + block(7, b"Crawler?team=0")
        + varint(8, 1)
        + block(9, varint(1, 2) + varint(2, 1) + block(3, bytes([3])))
    )
    start = block(1, b"Unity") + block(2, b"1.5.0") + block(5, brain) + block(7, b"3.0.0")
    data = block(1, varint(1, 200)) + bytes([2 << 3 | 2, len(start) + 2]) + block(2, start)
    message = messages.parse(data)
    there = message.unity_output.rl_initialization_output
    assert message.header.status == 200
    assert (there.communication_version, there.package_version) == ("1.5.0", "3.0.0")
    brain = there.brain_parameters[0]
    assert brain.brain_name == "Crawler?team=0"
    assert list(brain.vector_action_size_deprecated) == [4]
    assert brain.action_spec.num_continuous_actions == 2
    assert list(brain.action_spec.discrete_branch_sizes) == [3]


def test_agents_are_read_from_the_bytes_of_a_message():
    seen = block(1, bytes([2])) + block(4, block(1, floats(1.5, -2.0))) + block(8, b"ray")
    info = (
        bytes([7 << 3 | 5])
        + floats(0.25)
        + varint(8, 1)
        + varint(9, 1)
        + varint(10, 300)
        + block(11, bytes([1, 0, 1]))
        + block(13, seen)
        + varint(14, 2)
        + bytes([15 << 3 | 5])
        + floats(0.5)
    )
    entry = block(1, b"A") + block(2, block(1, info))
    output = block(1, block(2, entry) + block(3, b"side"))
    message = messages.parse(block(1, varint(1, 200)) + block(2, output))
    agent = message.unity_output.rl_output.agentInfos["A"].value[0]
    assert (agent.reward, agent.done, agent.max_step_reached, agent.id) == (0.25, True, True, 300)
    assert list(agent.action_mask) == [True, False, True]
    assert (agent.group_id, agent.group_reward) == (2, 0.5)
    (there,) = agent.observations
    assert (there.name, list(there.shape), list(there.float_data.data)) == ("ray", [2], [1.5, -2.0])
    assert message.unity_output.rl_output.side_channel == b"side"


def test_actions_are_written_as_the_expected_bytes():
    message = messages.command(messages.RESET, b"ab")
    action = messages.agent_action(np.array([1.0, -0.5]), np.array([2]))
    message.unity_input.rl_input.agent_actions["A"].value.append(action)
    own = block(6, floats(1.0, -0.5)) + block(7, bytes([2]))
    entry = block(1, b"A") + block(2, block(1, own))
    rl_input = block(1, entry) + varint(4, 1) + block(5, b"ab")
    expected = block(1, varint(1, 200)) + block(3, block(1, rl_input))
    assert message.SerializeToString(deterministic=True) == expected


def test_the_first_answer_has_the_seed_and_the_capabilities_of_the_trainer():
    message = messages.initialization(300, "1.1.0")
    able = b"".join(varint(i, 1) for i in (1, 2, 3, 4, 6, 7))  # 5 is training analytics
    start = varint(1, 300) + block(2, b"1.5.0") + block(3, b"1.1.0") + block(4, able) + varint(5, 1)
    expected = block(1, varint(1, 200)) + block(3, block(2, start))
    assert message.SerializeToString(deterministic=True) == expected


def test_protocol_versions_must_agree_in_the_major_number():
    messages.check_version("1.0.0")
    with pytest.raises(ProtocolError, match=r"version '2.0.0' of the ML-Agents protocol"):
        messages.check_version("2.0.0")


def damaged(count):
    """Yield messages of a build with bytes removed, replaced or inserted."""
    random = np.random.default_rng(0)
    message = messages.UnityMessage()
    message.header.status = 200
    info = message.unity_output.rl_output.agentInfos["A"].value.add(id=1, reward=1.0)
    info.observations.add(shape=[2], name="x").float_data.data.extend([1.0, 2.0])
    whole = message.SerializeToString()
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(len(data)))
            data[at : at + int(random.integers(3))] = random.bytes(int(random.integers(3)))
        yield bytes(data[: int(random.integers(1, len(data) + 1))])


def read_damaged(count):
    """Read damaged messages, and return the number of rejected ones."""
    from purejaxppo.envs.engines.unity.world import AgentSlots

    layout = UnityLayout((Behaviour("A", (Sensor("x", (2,)),), 1, ()),), (4,))
    parts = [np.zeros((4, 2), np.float32)]
    refused = 0
    for data in damaged(count):
        world = AgentSlots(layout, ObsRows(layout, parts), zeros((), 4))
        try:
            output = messages.parse(data).unity_output.rl_output
            list(channels.unpack(output.side_channel))
            world.read(output)
        except ProtocolError:
            refused += 1
        assert np.isfinite(parts[0]).all()
    return refused


def test_damaged_messages_raise_only_protocol_errors():
    assert read_damaged(2_000) > 1_000


def test_side_channels_are_an_id_a_length_and_a_payload():
    data = channels.engine(channels.TIME_SCALE, 20.0)
    assert data[:16] == uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7").bytes_le
    assert data[16:] == bytes([8, 0, 0, 0, 2, 0, 0, 0]) + floats(20.0)
    size = channels.engine(channels.RESOLUTION, 84, 85)
    assert size[16:] == struct.pack("<4i", 12, 0, 84, 85)
    gravity = channels.parameter("g", -9.5)
    assert gravity[16:] == struct.pack("<2i", 13, 1) + b"g" + struct.pack("<i", 0) + floats(-9.5)
    assert [payload for _, payload in channels.unpack(data + gravity)] == [data[20:], gravity[20:]]


@pytest.mark.parametrize("cut", [1, 10, 19, 23])
def test_truncated_side_channel_messages_are_rejected(cut):
    with pytest.raises(ProtocolError, match="truncated side channel data"):
        list(channels.unpack(channels.engine(channels.QUALITY, 5)[:cut]))


def test_a_statistic_has_a_name_a_value_and_an_aggregation():
    payload = struct.pack("<i", 3) + b"a/b" + struct.pack("<fi", 0.5, 1)
    assert channels.stat(payload) == ("a/b", 0.5, 1)
    with pytest.raises(ProtocolError, match="for StatsRecorder"):
        channels.stat(payload[:6])


def test_statistics_of_several_builds_are_aggregated():
    stats = pytest.importorskip("purejaxppo.envs.engines.unity.stats")
    each = [channels.Statistic(0) for _ in range(2)]
    for one, values in zip(each, ((1.0, 2.0), (6.0,)), strict=True):
        for value in values:
            one.add(value)
    for aggregation, expected in enumerate((3.0, 4.0, 9.0, 3.0)):
        each[0].aggregation = aggregation
        assert stats.total(each) == expected


def png(pixels):
    out = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(out, "PNG")
    return out.getvalue()


COLOURS = np.array([[[0, 30, 60], [255, 100, 1]]])  # one row of two pixels


def test_a_decoded_image_has_channels_first():
    seen = images.decode(png(COLOURS), 3)
    assert seen.dtype == np.uint8
    np.testing.assert_array_equal(seen, COLOURS.transpose(2, 0, 1))


def test_a_grey_image_is_the_mean_of_its_channels():
    np.testing.assert_array_equal(images.decode(png(COLOURS), 1), [[[30, 119]]])  # 356 / 3


def test_stacked_images_are_concatenated_pngs_averaged_by_the_mapping():
    data = png(COLOURS) + png(COLOURS // 2)
    np.testing.assert_array_equal(
        images.decode(data, 2, [0, 0, 0, 1, 1, 1]), [[[30, 119]], [[15, 59]]]
    )
    np.testing.assert_array_equal(
        images.decode(data, 2, [1, -1, -1, 0, -1, -1])[:, 0, 1], [127, 255]
    )
    assert images.decode(data, 5).shape == (5, 1, 2)


@pytest.mark.parametrize(
    ("data", "channels", "mapping", "expected_message"),
    [
        (b"", 3, (), "not a PNG"),
        (b"GIF89a", 3, (), "not a PNG"),
        (png(COLOURS)[:-5], 3, (), "truncated PNG"),
        (png(COLOURS) + b"x", 3, (), "not a PNG"),
        (png(COLOURS)[:40] + bytes(8) + png(COLOURS)[48:], 3, (), "truncated|cannot be read"),
        (png(COLOURS), 4, (), "declares 4 channels"),
        (png(COLOURS), 3, [0, 1], r"mapping \[0, 1\]"),
        (png(COLOURS), 3, [0, 1, 1], r"mapping \[0, 1, 1\]"),
    ],
)
def test_an_invalid_image_is_rejected(data, channels, mapping, expected_message):
    with pytest.raises(ProtocolError, match=expected_message):
        images.decode(data, channels, mapping)


def test_the_statistics_callback_is_importable_by_its_path_of_version_0_2():
    pytest.importorskip("grpc")
    from purejaxppo.envs.host.unity.stats import Stats as Earlier

    from purejaxppo.envs.engines.unity.stats import Stats

    assert Earlier is Stats
