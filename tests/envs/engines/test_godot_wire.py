"""Messages of a Godot game by hand, and thousands of corrupted ones."""

import json
import random
import socket
import struct
import threading
import time

import numpy as np
import pytest

from purejaxppo.envs.engines.godot.game import GodotGame, GodotLaunch
from purejaxppo.envs.engines.godot.games import GodotGames, parse
from purejaxppo.envs.engines.godot.spaces import layout_of
from purejaxppo.envs.engines.godot.wire import CHUNK, LARGEST_FRAME, Wire, WireError
from purejaxppo.envs.engines.process import EngineError, GameHandle
from purejaxppo.envs.host.workers.errors import MakeError
from purejaxppo.envs.step import EnvStep
from purejaxppo.spaces import Box, Dict, Discrete

pytestmark = pytest.mark.toy
SECONDS = 0.2


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield Wire(ours), theirs
    ours.close()
    theirs.close()


def frame(data):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    return struct.pack("<I", len(data)) + data


def test_a_frame_is_four_bytes_of_length_and_utf_8(pair):
    wire, game = pair
    wire.send({"type": "reset"}, SECONDS)
    assert game.recv(100) == b'\x10\x00\x00\x00{"type":"reset"}'
    game.sendall(b'\x0a\x00\x00\x00{"a":"\xc3\xa9"}')  # nine characters, ten bytes
    assert wire.receive(SECONDS) == {"a": "é"}


def test_messages_may_arrive_in_pieces_or_together(pair):
    wire, game = pair
    data = frame({"n": 1}) + frame({"n": 2})
    for piece in (data[:2], data[2:7], data[7:20], data[20:]):
        threading.Timer(0.0, game.sendall, (piece,)).start()
        time.sleep(0.01)
    assert [wire.receive(SECONDS), wire.receive(SECONDS)] == [{"n": 1}, {"n": 2}]
    assert not wire.has_unread()
    game.sendall(b"x")
    assert wire.has_unread()


@pytest.mark.parametrize("rest", [1, 3, 4, 5])
def test_the_last_bytes_of_a_message_do_not_wait_for_the_timeout(rest):
    listener = socket.create_server(("127.0.0.1", 0))  # the option exists for TCP only
    game = socket.create_connection(listener.getsockname())
    ours, _ = listener.accept()
    wire, began = Wire(ours), time.monotonic()
    for size in (CHUNK - 4, 2 * CHUNK - 4, 10):  # the first two fill whole reads
        data = frame(b" " * (size + rest - 2) + b"{}")
        game.sendall(data[:-rest])
        assert wire.poll() is None
        threading.Timer(0.01, game.sendall, (data[-rest:],)).start()
        assert wire.receive(10.0) == {}
        game.sendall(data)
        assert wire.receive(10.0) == {}
    assert time.monotonic() - began < 5
    for end in (listener, game, ours):
        end.close()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"HTTP/1.1 404 Not Found", r"announced a message of 1,347,703,880 bytes, more than 67,1"),
        (frame(b"{"), "sent invalid JSON: '{'"),
        (frame(b"[1]"), r"sent an invalid message: '\[1\]'"),
        (frame(b"\xff\xfe\x00"), "sent invalid JSON"),
        (frame(b"[" * 100_000), "sent invalid JSON: '\\[+'\\.\\.\\."),
        (b"\x05", r"did not reply within 0\.2 s"),
        (b"\x05\x00\x00\x00{", r"did not reply within 0\.2 s"),
    ],
)
def test_an_invalid_message_is_rejected_within_the_timeout(pair, sent, words):
    wire, game = pair
    game.sendall(sent)
    began = time.monotonic()
    with pytest.raises(WireError, match=words):
        wire.receive(SECONDS)
    assert time.monotonic() - began < 5 * SECONDS


def test_a_slow_sender_does_not_delay_the_timeout(pair):
    wire, game = pair
    stop = threading.Event()

    def trickle():
        game.sendall(b"\xff\x00\x00\x00")
        while not stop.wait(0.02):
            game.sendall(b" ")

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(WireError, match="did not reply"):
        wire.receive(SECONDS)
    stop.set()
    thread.join()


def test_the_largest_length_allocates_no_memory_before_its_bytes_arrive(pair):
    wire, game = pair
    game.sendall(struct.pack("<I", LARGEST_FRAME) + b"{")
    game.close()
    with pytest.raises(WireError):
        wire.receive(SECONDS)
    assert len(wire._received) == 5


def test_a_game_that_does_not_read_is_an_error(pair):
    wire, _ = pair
    with pytest.raises(WireError, match="did not read a message"):
        wire.send({"x": "x" * 10_000_000}, SECONDS)


def info(observation, action, count=1, **more):
    message = {"observation_space": observation, "action_space": action, "n_agents": count}
    return {"type": "env_info", **message, **more}


BOX, MOVE = {"obs": {"size": [2], "space": "box"}}, {"move": {"size": 3, "action_type": "discrete"}}
MIXED = {
    "turn": {"size": 2, "action_type": "continuous"},
    "jump": {"size": 3, "action_type": "discrete"},
    "brake": {"size": 1, "action_type": "continuous"},
}


def test_actions_are_written_in_the_order_of_the_game():
    layout = layout_of(info([BOX] * 2, [MIXED] * 2, 2))
    parts = {"brake": Box((1,), -1.0, 1.0), "jump": Discrete(3), "turn": Box((2,), -1.0, 1.0)}
    assert layout.action == Dict.of(parts)
    action = {
        "brake": np.array([[0.5], [-1]]),
        "jump": np.array([2, 0]),
        "turn": np.array([[1.0, 0.25], [0, 0]]),
    }
    text = json.dumps(layout.write(action))
    assert text == (
        '[{"turn": [1.0, 0.25], "jump": 2, "brake": [0.5]}, '
        '{"turn": [0.0, 0.0], "jump": 0, "brake": [-1.0]}]'
    )
    assert json.dumps(layout.zero_actions) == json.dumps(
        [{"turn": [0.0, 0.0], "jump": 0, "brake": [0.0]}] * 2
    )


def test_one_description_covers_all_agents_of_older_plugins():
    layout = layout_of(info(BOX, MOVE, 3))
    assert layout.size == 3 and layout.names == ()
    assert (layout.observation, layout.action) == (Box((2,)), Discrete(3))


def test_an_undeclared_alpha_channel_is_removed():
    space = {"camera_2d": {"size": [3, 1, 2], "space": "box"}}
    layout = layout_of(info([space], [MOVE]))
    assert layout.observation == Box((1, 2, 3), 0.0, 255.0, "uint8")
    (image,) = layout.read([{"camera_2d": "010203ff040506ff"}])
    assert image.tolist() == [[[[1, 2, 3], [4, 5, 6]]]]
    (image,) = layout.read([{"camera_2d": "010203040506"}])
    assert image.tolist() == [[[[1, 2, 3], [4, 5, 6]]]]
    for bad in ("0102", "010203ff04", "zz", "01020304"):
        with pytest.raises(
            WireError, match="'camera_2d' of agent 0 that does not match get_obs_space"
        ):
            list(layout.read([{"camera_2d": bad}]))
    with pytest.raises(WireError, match="a camera needs a display"):
        list(layout.read([{"camera_2d": None}]))


def test_an_action_mask_is_part_of_the_observation():
    space = BOX | {"action_mask": {"size": [3], "space": "box"}}
    layout = layout_of(info([space], [MOVE]))
    assert layout.observation["action_mask"] == Box((3,), 0.0, 1.0, "uint8")
    (mask, _) = layout.read([{"obs": [0, 0], "action_mask": [0, 1, 1]}])
    assert mask.tolist() == [[0, 1, 1]]
    (mask, _) = layout.read([{"obs": [0, 0], "action_mask": [0, 0, 0]}])
    assert mask.tolist() == [[1, 1, 1]]  # an empty mask allows everything


def test_a_mask_of_several_actions_is_in_the_order_of_get_action_space():
    actions = {
        "steer": {"size": 3, "action_type": "discrete"},
        "push": {"size": 2, "action_type": "continuous"},
        "fire": {"size": 2, "action_type": "discrete"},
    }
    space = BOX | {"action_mask": {"size": [5], "space": "box"}}
    sent = {"obs": [0, 0], "action_mask": [0, 0, 1, 0, 1]}  # steer = 2 and fire = 1
    layout = layout_of(info([space], [actions]))
    (mask, _) = layout.read([sent])
    assert mask.tolist() == [[0, 1, 0, 0, 1]]  # of fire, then steer, as in a Dict
    two = layout_of(info([space] * 2, [actions] * 2, 2, agent_policy_names=["a", "b"]))
    free = {"obs": [0, 0], "action_mask": [1, 1, 0, 1, 1]}
    arrays = dict(zip((leaf.path for leaf in two.leaves), two.read([sent, free]), strict=True))
    assert arrays["action_mask", "fire"].tolist() == [[0, 1], [1, 1]]
    assert arrays["action_mask", "steer"].tolist() == [[0, 0, 1], [1, 1, 0]]


def test_agents_of_several_policies_are_padded_and_have_an_agent_index():
    wide = {"obs": {"size": [3], "space": "box"}}
    two = {"move": {"size": 2, "action_type": "discrete"}}
    names = ["hunter", "prey", "hunter"]
    layout = layout_of(info([BOX, wide, BOX], [MOVE, two, MOVE], 3, agent_policy_names=names))
    assert layout.names == ("hunter_0", "prey_0", "hunter_1")
    obs = [{"obs": [1, 2]}, {"obs": [3, 4, 5]}, {"obs": [6, 7]}]
    mask, agent, rows = layout.read(obs + obs)
    assert agent.tolist() == [0, 1, 2, 0, 1, 2]
    assert rows[:3].tolist() == [[1, 2, 0], [3, 4, 5], [6, 7, 0]]
    assert mask[:3].tolist() == [[1, 1, 1], [1, 1, 0], [1, 1, 1]]
    assert layout.write(np.array([2, 2, 1])) == [{"move": 2}, {"move": 1}, {"move": 1}]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"type": "env_info"}, "env_info message has no observation_space"),
        (info([], [], 0), "n_agents = 0: the group AGENT must have 1 to 10,000"),
        (info(BOX, MOVE, 10**9), "n_agents = 1000000000: the group AGENT must have 1 to 10,000"),
        (info([BOX], [MOVE], 2), "observation_space must list a space for each of 2 agents"),
        (info([BOX], [MOVE], 1, agent_policy_names=["a", "b"]), "one name for each of 1 agents"),
        (
            info([{"obs": {"size": [0], "space": "box"}}], [MOVE]),
            "observation 'obs': invalid space",
        ),
        (info([{"obs": 3}], [MOVE]), "observation 'obs': invalid space 3. Return one"),
        (info([{"a_2d": {"size": [9], "space": "box"}}], [MOVE]), r"\[channels, height, width\]"),
        (
            info([BOX], [{"move": {"size": 3, "action_type": "fuzzy"}}]),
            "action 'move': invalid space",
        ),
        (
            info([BOX], [{"move": {"size": 2.5, "action_type": "discrete"}}]),
            "action 'move': invalid space",
        ),
        (info([BOX], [{}]), "action_space must list a space for each of 1 agents"),
        (info([BOX] * 2, [MOVE, MIXED], 2), "without a common one"),
        (
            info([BOX | {"action_mask": {"size": [2], "space": "box"}}], [MOVE]),
            "its size is 2, but get_action_space has 3 discrete choices",
        ),
    ],
)
def test_an_unusable_description_gets_a_one_sentence_error(message, words):
    with pytest.raises(MakeError, match=words) as caught:
        layout_of(message)
    assert "\n" not in str(caught.value)


SPACES = {
    "obs": {"size": [3], "space": "box"},
    "camera_2d": {"size": [3, 2, 2], "space": "box"},
    "phase": {"size": 4, "space": "discrete"},
    "action_mask": {"size": [3], "space": "box"},
}
ONE = {"obs": [1.5, -2.0, 0.0], "camera_2d": "00" * 16, "phase": 3, "action_mask": [1, 0, 1]}
STEP = {
    "type": "step",
    "obs": [ONE, ONE],
    "reward": [1.0, 0.5],
    "done": [False, True],
    "info": [{}, {"truncated": True, "terminal_observation": ONE}],
}
STRANGE = (
    *(None, True, -1, 7, 0.5, 1e300, 10**400, "", "x", "00", "é\u0000", [], {}, [[]], [None]),
    *([1.0] * 5, {"obs": []}, [{}], "step", {"truncated": True}, [[1], [2, 3]], ["1", "nan"]),
)


def spoil(draw, tree):
    """Return a copy of a JSON tree with something replaced, removed or added."""
    if isinstance(tree, dict | list) and tree and draw.random() < 0.8:
        copy = dict(tree) if isinstance(tree, dict) else list(tree)
        key = draw.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
        what = draw.random()
        if what < 0.15:
            del copy[key]
        elif what < 0.2 and isinstance(copy, list):
            copy.append(copy[key])
        else:
            copy[key] = spoil(draw, copy[key])
        return copy
    return draw.choice(STRANGE)


def spoiled_bytes(draw):
    """Return a corrupted message."""
    kind = draw.random()
    step = STEP | {"done": [False, draw.random() < 0.5]}
    if kind < 0.6:
        return frame(spoil(draw, step))
    data = bytearray(frame(step))
    if kind < 0.7:
        return bytes(data[: draw.randrange(len(data))])
    if kind < 0.8:
        return frame(bytes(data[4 : draw.randrange(4, len(data))]))
    if kind < 0.9:
        return struct.pack("<I", draw.randrange(2**32)) + bytes(data[4:])
    for _ in range(draw.randrange(1, 8)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def one_game():
    """Return `GodotGames` with one game of two agents, whose messages `feed` sends."""
    games, game = GodotGames.__new__(GodotGames), GodotGame.__new__(GodotGame)
    game.engine, game._launch = GameHandle("the game"), GodotLaunch((), SECONDS)
    game.layout = games.layout = layout_of(info([SPACES] * 2, [MOVE] * 2, 2))
    games._games = [game]
    return games, game


def feed(games, game, data):
    """Return the parsed answer to a step if the game sends `data` and exits."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        game._wire = Wire(ours)
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        return games._parse_one(0, game.receive_step())


def test_a_truncated_agent_gets_its_terminal_observation():
    last = ONE | {"obs": [9.0, 9.0, 9.0]}
    step = STEP | {"info": [{}, {"truncated": True, "terminal_observation": last}]}
    parsed = feed(*one_game(), frame(step))
    mask, _, obs, phase = parsed.obs
    assert obs.tolist() == [[1.5, -2.0, 0.0], [9.0, 9.0, 9.0]]
    assert phase.tolist() == [3, 3] and mask.tolist() == [[1, 0, 1]] * 2
    assert parsed.truncated.tolist() == [False, True] and not parsed.terminated.any()


def test_a_skipped_row_keeps_the_observation_that_was_sent():
    infos = [{}, {"truncated": True, "terminal_observation": ONE | {"obs": [9.0, 9.0, 9.0]}}]
    reply = STEP | {"info": infos}
    games, _ = one_game()
    for skipped, last in ((False, 9.0), (True, 1.5)):
        parsed = parse(games.layout, [reply], np.array([False, skipped]))
        assert parsed.obs[2][1, 0] == last
        assert parsed.truncated.tolist() == [False, not skipped]


def test_corrupted_messages_are_parsed_or_rejected():
    count = 2_000
    draw, (games, game) = random.Random(count), one_game()
    refused = 0
    for _ in range(count):
        try:
            parsed = feed(games, game, spoiled_bytes(draw))
        except EngineError as error:
            assert str(error).startswith("the game ")
            assert len(str(error)) < 500
            refused += 1
        else:
            assert isinstance(parsed, EnvStep)
            assert [part.shape for part in parsed.obs] == [(2, 3), (2, 2, 2, 3), (2, 3), (2,)]
            assert parsed.reward.shape == parsed.terminated.shape == (2,)
    assert 0.5 * count < refused < count


def test_a_spinning_wait_falls_back_to_sleep_and_detects_a_closed_connection(pair):
    wire, game = pair
    game.sendall(frame({"x": 1}))
    assert wire.receive(SECONDS, eager=1.0) == {"x": 1}
    threading.Timer(0.1, game.sendall, [frame({"x": 2})]).start()
    assert wire.receive(5.0, eager=0.01) == {"x": 2}
    threading.Timer(0.1, game.sendall, [frame({"x": 3})]).start()
    assert wire.receive(5.0, eager=2.0) == {"x": 3}
    with pytest.raises(WireError, match="did not reply within"):
        wire.receive(SECONDS, eager=0.01)
    game.close()
    with pytest.raises(WireError, match=r"^$"):
        wire.receive(SECONDS, eager=1.0)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        (
            "phase",
            0.64,
            "'phase' of agent 0 that does not match get_obs_space: not an integer from 0 to 3",
        ),
        ("phase", 4, "not an integer from 0 to 3"),
        ("phase", None, "not an integer from 0 to 3"),
        (
            "action_mask",
            [1, 0.5, 0],
            r"'action_mask' of agent 0 that does not match get_obs_space: \[1, 0.5, 0\]",
        ),
        (
            "action_mask",
            [1, -1, 0],
            r"'action_mask' of agent \d that does not match get_obs_space: \[1, -1, 0\]",
        ),
    ],
)
def test_a_value_outside_its_space_is_an_error(part, value, words):
    layout = layout_of(info([SPACES], [MOVE], 1))
    with pytest.raises(WireError, match=words):
        list(layout.read([ONE | {part: value}]))
    whole = layout.read([ONE | {"phase": 3.0, "action_mask": [1.0, False, True]}])
    mask, _, _, phase = whole
    assert (mask.tolist(), phase.tolist()) == ([[1, 0, 1]], [3])
