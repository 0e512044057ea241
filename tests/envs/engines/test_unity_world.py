"""Agents in slots: the rules of ML-Agents with hand-made messages and numbers."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("google.protobuf")

from purejaxppo.envs.engines.unity import messages
from purejaxppo.envs.engines.unity.behaviours import Behaviour, ObsRows, Sensor, UnityLayout
from purejaxppo.envs.engines.unity.messages import ProtocolError
from purejaxppo.envs.engines.unity.players import read_layout
from purejaxppo.envs.engines.unity.world import AgentSlots
from purejaxppo.envs.step import zeros
from purejaxppo.spaces import leaves, short_number

pytestmark = pytest.mark.toy

WALKER = Behaviour("Walker?team=0", (Sensor("x", (1,)),), 1, ())


def make_world(*behaviours, slots=2):
    behaviours = behaviours or (WALKER,)
    layout = UnityLayout(behaviours, (slots,) * len(behaviours))
    size = layout.size
    parts = [np.zeros((size, *leaf.shape), leaf.dtype) for leaf in leaves(layout.observation)]
    world = AgentSlots(layout, ObsRows(layout, parts), zeros((), size))
    world.parts = parts
    return world


def agent(number, x=0.0, *, reward=0.0, name=WALKER.name, size=1, **fields):
    """Return the report of an agent: (behaviour, AgentInfo)."""
    info = messages.kind("AgentInfo")(id=number, reward=reward, **fields)
    info.observations.add(shape=[size], name="x").float_data.data.extend([x] * size)
    return name, info


def output(*agents):
    message = messages.kind("RLOutput")()
    for name, info in agents:
        message.agentInfos[name].value.append(info)
    return message


def begin(world, *agents):
    world.clear()
    world.read(output(*agents))


def row(world, action, *agents):
    """Take a row: send actions, read the next message if there is one, and return the flags."""
    reply = world.act(np.asarray(action, np.float32).reshape(world.layout.size, -1))
    if reply is None:
        assert not agents, "the game waits for a step"
        world.enter_agents()
    else:
        assert world.read(output(*agents))
    sent = None
    if reply is not None:
        actions = reply.unity_input.rl_input.agent_actions
        sent = {
            name: [round(x.continuous_actions[0], 3) for x in actions[name].value]
            for name in actions
        }
    flags = world.flags
    return {
        "sent": sent,
        "obs": world.parts[-1][:, 0].tolist(),
        "reward": flags.reward.tolist(),
        "terminated": flags.terminated.tolist(),
        "truncated": flags.truncated.tolist(),
        "diverged": flags.diverged.tolist(),
        "asked": world.acting.tolist(),
    }


def test_actions_are_sent_in_the_order_of_the_requests():
    world = make_world(slots=3)
    begin(world, agent(7, 0.7), agent(3, 0.3), agent(5, 0.5))
    assert world.parts[0][:, 0].tolist() == pytest.approx([0.7, 0.3, 0.5])
    out = row(world, [0.1, 0.2, 0.3], agent(5, 5.0), agent(7, 7.0), agent(3, 3.0))
    assert out["sent"] == {WALKER.name: [0.1, 0.2, 0.3]}
    assert out["obs"] == [7.0, 3.0, 5.0]  # slots do not change
    out = row(world, [0.1, 0.2, 0.3], agent(3), agent(5), agent(7))
    assert out["sent"] == {WALKER.name: [0.3, 0.1, 0.2]}


def test_rewards_of_absent_agents_arrive_with_their_next_message():
    """Agent 1 decides at ticks 0 and 5 and ends at 7. Agent 2 decides at ticks 2 and 7."""
    world = make_world()
    begin(world, agent(1, 10.0))
    out = row(world, [0.1, 0.9], agent(2, 20.0))  # tick 2: only agent 2, which is new
    assert out["sent"] == {WALKER.name: [0.1]}
    assert (out["reward"], out["asked"]) == ([0.0, 0.0], [False, True])
    assert out["obs"] == [10.0, 20.0]  # the observation of agent 1 is old
    out = row(world, [0.5, 0.2], agent(1, 11.0, reward=5.0))  # tick 5
    assert out["sent"] == {WALKER.name: [0.2]}  # agent 1 was absent, so 0.5 is not sent
    assert (out["reward"], out["asked"]) == ([5.0, 0.0], [True, False])
    # Tick 7: agent 1 ended at tick 6 with the rewards of ticks 5 and 6.
    out = row(world, [0.3, 0.6], agent(1, 12.0, reward=2.0, done=True), agent(2, 21.0, reward=5.0))
    assert out["sent"] == {WALKER.name: [0.3]}
    assert (out["reward"], out["terminated"]) == ([2.0, 5.0], [True, False])
    assert (out["obs"], out["asked"]) == ([12.0, 21.0], [False, True])
    out = row(world, [0.4, 0.7], agent(3, 13.0))
    assert out["sent"] == {WALKER.name: [0.7]}
    assert (out["obs"], out["asked"]) == ([13.0, 21.0], [True, False])


def test_an_end_between_decisions_belongs_to_the_last_decision():
    world = make_world(slots=1)
    begin(
        world,
        agent(1, 1.0),
    )
    world.act(np.zeros((1, 1)))
    world.read(output(agent(1, 1.5, reward=1.0)))
    out = row(world, [0.2], agent(1, 2.0, reward=-1.0, done=True))
    assert (out["reward"], out["terminated"], out["obs"]) == ([-1.0], [True], [2.0])
    out = row(world, [0.2], agent(2, 3.0))
    assert out["sent"] == {}  # no agent requested an action
    assert (out["obs"], out["asked"], out["reward"]) == ([3.0], [True], [0.0])


def test_a_new_agent_in_the_same_message_as_an_end_appears_in_the_next_row():
    world = make_world()
    begin(world, agent(1, 1.0), agent(2, 2.0))
    last = agent(1, 1.5, reward=3.0, done=True)
    out = row(world, [0.1, 0.2], last, agent(2, 2.5, reward=0.5), agent(8, 8.0))
    assert (out["obs"], out["terminated"]) == ([1.5, 2.5], [True, False])
    assert (out["reward"], out["asked"]) == ([3.0, 0.5], [False, True])
    out = row(world, [0.3, 0.4])  # the build waits
    assert (out["sent"], out["obs"], out["asked"]) == (None, [8.0, 2.5], [True, False])
    assert out["reward"] == [0.0, 0.0]
    out = row(world, [0.5, 0.6], agent(2, 2.7, reward=0.7), agent(8, 8.5, reward=0.8))
    assert out["sent"] == {WALKER.name: [0.4, 0.5]}  # agent 2 requested first
    assert out["reward"] == pytest.approx([0.8, 0.7])
    assert out["asked"] == [True, True]


def test_a_new_agent_takes_an_empty_slot_immediately():
    world = make_world(slots=3)
    begin(world, agent(1, 1.0), agent(2, 2.0))
    out = row(world, [0, 0, 0], agent(1, 1.5, done=True), agent(2, 2.5), agent(3, 3.0))
    assert out["asked"] == [False, True, True]
    assert out["obs"] == [1.5, 2.5, 3.0]
    out = row(world, [0, 0, 0], agent(2), agent(3), agent(4, 4.0))
    assert out["asked"] == [True, True, True]
    assert out["obs"][0] == 4.0


def test_more_agents_than_slots_are_rejected():
    world = make_world()
    begin(world, agent(1), agent(2))
    world.act(np.zeros((2, 1)))
    with pytest.raises(ProtocolError, match=r"more than 2 agents of behaviour 'Walker\?team=0'"):
        world.read(output(agent(1), agent(2), agent(3)))


def test_an_agent_that_ends_before_its_first_request_has_no_decision():
    world = make_world()
    begin(world, agent(1))
    out = row(world, [0.1, 0.2], agent(9, reward=5.0, done=True), agent(1, reward=1.0))
    assert (out["reward"], out["terminated"]) == ([1.0, 0.0], [False, False])
    assert world.act(np.zeros((2, 1))) is not None
    assert not world.read(output(agent(10, done=True)))  # no row


def test_max_step_truncates_with_the_true_last_observation():
    world = make_world(slots=1)
    begin(world, agent(1))
    out = row(world, [0], agent(1, 9.0, done=True, max_step_reached=True), agent(1, 0.5))
    assert (out["terminated"], out["truncated"], out["obs"]) == ([False], [True], [9.0])
    assert row(world, [0])["obs"] == [0.5]


def test_group_rewards_are_added():
    world = make_world()
    begin(world, agent(1, group_id=4), agent(2))
    both = agent(1, reward=1.0, group_id=4, group_reward=0.25), agent(2, reward=1.0)
    assert row(world, [0, 0], *both)["reward"] == [1.25, 1.0]


def test_infinite_rewards_of_agent_and_group_do_not_cancel():
    world = make_world(slots=1)
    begin(world, agent(1))
    out = row(world, [0], agent(1, reward=np.inf, group_reward=-np.inf))
    assert (out["diverged"], out["reward"]) == ([True], [0.0])


@pytest.mark.parametrize("reward", [np.nan, np.inf, 1e11])
def test_a_reward_that_is_not_finite_ends_the_episode_as_diverged(reward):
    world = make_world()
    begin(world, agent(1, 1.0), agent(2, 2.0))
    out = row(world, [0.1, 0.2], agent(1, 1.5, reward=reward), agent(2, 2.5, reward=1.0))
    assert (out["diverged"], out["reward"]) == ([True, False], [0.0, 1.0])
    assert world.diverged_value == f"reward = {short_number(reward)}"
    assert (out["terminated"], out["asked"]) == ([True, False], [False, True])
    out = row(world, [0.3, 0.4], agent(1, 1.6, reward=1.0), agent(2, 2.6))
    assert out["sent"] == {WALKER.name: [0.0, 0.4]}  # agent 1 gets no action
    assert (out["diverged"], out["reward"]) == ([False, False], [0.0, 0.0])
    assert (out["obs"], out["asked"]) == ([pytest.approx(1.6), pytest.approx(2.6)], [True, True])


def test_an_observation_that_is_not_finite_is_never_returned():
    world = make_world(slots=1)
    begin(world, agent(1, np.nan))
    assert not world.acting.any()
    out = row(world, [0.5], agent(1, np.inf))
    assert (out["sent"], out["obs"], out["asked"]) == ({WALKER.name: [0.0]}, [0.0], [False])
    out = row(world, [0.5], agent(1, 1.0))
    assert (out["obs"], out["asked"], out["diverged"]) == ([1.0], [True], [False])
    assert row(world, [0.5], agent(1, np.nan, done=True))["diverged"] == [True]
    assert row(world, [0.5], agent(2, 2.0))["asked"] == [True]


def test_the_agents_of_a_lost_build_diverge():
    world = make_world()
    begin(world, agent(1, 1.0))
    world.act(np.zeros((2, 1)))
    world.end_all()
    assert world.flags.diverged.tolist() == [True, False]
    world.read(output(agent(1, 5.0), agent(2, 6.0)))  # of the next build
    assert world.acting.tolist() == [False, True]  # the diverged row returns nothing new
    assert row(world, [0, 0])["obs"] == [6.0, 5.0]


@pytest.mark.parametrize("done", [False, True])
def test_two_ends_or_two_requests_of_one_agent_in_a_message_are_an_error(done):
    world = make_world()
    begin(world, agent(1))
    with pytest.raises(ProtocolError, match="two decision requests of one agent in one message"):
        world.read(output(agent(1, done=done), agent(1, done=done)))


def test_an_end_and_the_next_decision_of_one_id_can_share_a_message():
    """Decision period 1: the episodes of agent 1 have returns 1 + 2 = 3 and 4 + 8 = 12."""
    world = make_world(slots=1)
    begin(world, agent(1, 10.0))
    out = row(world, [0.1], agent(1, 11.0, reward=1.0))
    assert (out["sent"], out["reward"]) == ({WALKER.name: [0.1]}, [1.0])
    out = row(world, [0.2], agent(1, 12.0, reward=2.0, done=True), agent(1, 20.0))
    assert (out["sent"], out["reward"]) == ({WALKER.name: [0.2]}, [2.0])
    assert (out["obs"], out["terminated"], out["asked"]) == ([12.0], [True], [False])
    out = row(world, [0.3])  # the build waits, so 0.3 is not sent
    assert (out["sent"], out["obs"], out["reward"]) == (None, [20.0], [0.0])
    assert (out["terminated"], out["asked"]) == ([False], [True])
    out = row(world, [0.4], agent(1, 21.0, reward=4.0))
    assert (out["sent"], out["reward"]) == ({WALKER.name: [0.4]}, [4.0])
    out = row(world, [0.5], agent(1, 22.0, reward=8.0, done=True), agent(1, 30.0))
    assert (out["obs"], out["reward"], out["terminated"]) == ([22.0], [8.0], [True])


def test_an_agent_that_ends_between_its_decisions_keeps_its_slot():
    """Decision period 5: agents 1 and 2 end at ticks 3 and 4 and decide again at tick 5."""
    world = make_world()
    begin(world, agent(1, 1.0), agent(2, 2.0))
    out = row(world, [0.1, 0.2], agent(2, 2.5, reward=3.0, done=True))
    assert (out["sent"], out["reward"]) == ({WALKER.name: [0.1, 0.2]}, [0.0, 3.0])
    assert (out["terminated"], out["asked"]) == ([False, True], [False, False])
    out = row(world, [0.3, 0.4], agent(1, 1.5, reward=4.0, done=True))
    assert (out["sent"], out["reward"], out["terminated"]) == ({}, [4.0, 0.0], [True, False])
    # Rewards before the first decision belong to no decision.
    out = row(world, [0.5, 0.6], agent(2, 20.0, reward=0.5), agent(1, 10.0, reward=0.25))
    assert (out["sent"], out["reward"]) == ({}, [0.0, 0.0])
    assert (out["obs"], out["asked"]) == ([10.0, 20.0], [True, True])
    out = row(world, [0.7, 0.8], agent(1, 11.0, reward=1.0), agent(2, 21.0, reward=2.0))
    assert (out["sent"], out["reward"]) == ({WALKER.name: [0.8, 0.7]}, [1.0, 2.0])


def test_an_agent_with_another_decision_step_is_absent_while_the_build_waits():
    """Decision period 5, steps 0 and 2: agent 1 ends at tick 4 and decides again at tick 5."""
    world = make_world()
    begin(world, agent(1, 1.0))
    out = row(world, [0.1, 0.9], agent(2, 2.0))  # tick 2
    assert out["asked"] == [False, True]
    last = agent(1, 1.5, reward=4.0, done=True)
    out = row(world, [0.8, 0.2], last, agent(1, 10.0))  # tick 5, when agent 2 is absent
    assert (out["sent"], out["reward"]) == ({WALKER.name: [0.2]}, [4.0, 0.0])
    assert (out["terminated"], out["asked"]) == ([True, False], [False, False])
    out = row(world, [0.3, 0.4])
    assert (out["sent"], out["obs"], out["asked"]) == (None, [10.0, 2.0], [True, False])
    out = row(world, [0.5, 0.6], agent(2, 2.5, reward=5.0))  # tick 7
    assert (out["sent"], out["reward"]) == ({WALKER.name: [0.5]}, [0.0, 5.0])
    assert out["asked"] == [False, True]


def test_a_group_that_ends_together_keeps_its_slots():
    world = make_world(slots=3)
    group = {"group_id": 1, "group_reward": 0.5}
    begin(world, *(agent(i, i, group_id=1) for i in (1, 2, 3)))
    ends = [agent(i, i + 0.5, reward=i, done=True, **group) for i in (3, 1, 2)]
    out = row(world, [0.1, 0.2, 0.3], *ends, *(agent(i, 10 * i, group_id=1) for i in (2, 3, 1)))
    assert (out["obs"], out["reward"]) == ([1.5, 2.5, 3.5], [1.5, 2.5, 3.5])
    assert out["terminated"] == [True, True, True]
    out = row(world, [0, 0, 0])
    assert (out["obs"], out["asked"]) == ([10.0, 20.0, 30.0], [True, True, True])
    out = row(world, [0.1, 0.2, 0.3], *(agent(i, reward=i, **group) for i in (1, 2, 3)))
    assert out["sent"] == {WALKER.name: [0.2, 0.3, 0.1]}
    assert out["reward"] == [1.5, 2.5, 3.5]


def test_a_re_enabled_agent_has_a_new_id_and_takes_the_empty_slot():
    world = make_world()
    begin(world, agent(1, 1.0), agent(2, 2.0))
    # Agent 1 ends and is disabled later, when it has nothing to report.
    out = row(world, [0, 0], agent(1, 1.5, done=True), agent(2, 2.5))
    assert out["terminated"] == [True, False]
    out = row(world, [0, 0], agent(2, 2.6), agent(3, 3.0))  # agent 1, enabled again
    assert (out["obs"], out["asked"]) == ([3.0, pytest.approx(2.6)], [True, True])
    # Agent 3 is disabled within its episode and enabled again in the same step.
    out = row(world, [0, 0], agent(3, 3.5, reward=1.0, done=True), agent(4, 4.0), agent(2, 2.7))
    assert (out["reward"], out["terminated"]) == ([1.0, 0.0], [True, False])
    assert row(world, [0, 0])["obs"] == [4.0, pytest.approx(2.7)]


def test_an_agent_returns_to_its_previous_slot_if_several_are_empty():
    world = make_world()
    begin(world, agent(1, 1.0), agent(2, 2.0))
    row(world, [0, 0], agent(1, done=True), agent(2, done=True))
    assert row(world, [0, 0], agent(2, 20.0))["asked"] == [False, True]
    assert row(world, [0, 0], agent(2, 21.0), agent(1, 10.0))["obs"] == [10.0, 21.0]


def test_an_end_without_an_open_decision_is_ignored():
    world = make_world(slots=1)
    begin(world, agent(1, 1.0))
    row(world, [0.1], agent(1, 2.0, reward=1.0, done=True))
    assert world.act(np.zeros((1, 1))) is not None
    assert not world.read(output(agent(1, 3.0, reward=5.0, done=True)))  # no row
    out = row(world, [0.2], agent(1, 4.0, done=True), agent(1, 5.0))
    assert (out["terminated"], out["obs"], out["asked"]) == ([False], [5.0], [True])


def test_an_agent_that_changes_its_behaviour_ends_in_one_and_starts_in_the_other():
    """Agent.SetModel with another behaviour's name: the end comes under the old one."""
    world = make_world(WALKER, Behaviour("A", WALKER.sensors, 1, ()), slots=1)
    begin(world, agent(1, 1.0))
    out = row(world, [0, 0], agent(1, 10.0, name="A"), agent(1, 2.0, reward=3.0, done=True))
    assert (out["reward"], out["terminated"]) == ([3.0, 0.0], [True, False])
    assert (out["obs"], out["asked"]) == ([2.0, 10.0], [False, True])


def test_a_behaviour_that_appears_later_is_rejected():
    with pytest.raises(ProtocolError, match=r"--env.options max_agents.Later N"):
        begin(make_world(), agent(1), agent(2, name="Later?team=1"))


def test_masks_are_inverted():
    chooser = Behaviour("C", (Sensor("x", (1,)),), 0, (3, 2))
    world = make_world(chooser)
    begin(
        world, agent(1, name="C", action_mask=[True, False, False, False, True]), agent(2, name="C")
    )
    assert world.parts[0].tolist() == [[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    reply = world.act(np.array([[2, 0], [1, 1]]))
    sent = reply.unity_input.rl_input.agent_actions["C"].value
    assert [list(x.discrete_actions) for x in sent] == [[2, 0], [1, 1]]
    with pytest.raises(ProtocolError, match="mask of 3 entries"):
        world.read(output(agent(1, name="C", action_mask=[True] * 3)))


def test_an_idle_action_is_allowed_by_the_mask():
    both = Behaviour("H", (Sensor("x", (1,)),), 2, (3, 2))
    mask = [True, True, False, True, False]
    _, info = agent(1, name="H", action_mask=mask)
    idle = both.idle(info)
    assert (list(idle.continuous_actions), list(idle.discrete_actions)) == ([0.0, 0.0], [2, 1])
    world = make_world(both, slots=1)
    begin(world, agent(1, np.nan, name="H", action_mask=mask))  # it gets no action
    reply = world.act({"continuous": np.ones((1, 2)), "discrete": np.zeros((1, 2), int)})
    (sent,) = reply.unity_input.rl_input.agent_actions["H"].value
    assert sent == idle


def test_hybrid_actions_are_both_sent_and_continuous_ones_clipped():
    hybrid = Behaviour("H", (Sensor("x", (1,)),), 2, (3,))
    world = make_world(hybrid, slots=1)
    begin(world, agent(1, name="H"))
    reply = world.act({"continuous": np.array([[0.5, -3.0]]), "discrete": np.array([2])})
    (sent,) = reply.unity_input.rl_input.agent_actions["H"].value
    assert (list(sent.continuous_actions), list(sent.discrete_actions)) == ([0.5, -1.0], [2])


def test_behaviours_have_separate_slots_and_are_padded():
    short = Behaviour("B", (Sensor("x", (1,)),), 0, (2,))
    long = Behaviour("A", (Sensor("x", (3,)),), 0, (4,))
    world = make_world(long, short, slots=1)
    mask, number, obs = world.parts
    begin(world, agent(5, 5.0, name="B"), agent(6, 6.0, name="A", size=3))
    assert number.tolist() == [0, 1]
    assert obs.tolist() == [[6.0, 6.0, 6.0], [5.0, 0.0, 0.0]]
    assert mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    reply = world.act(np.array([3, 3]))  # beyond its choices: the last one
    actions = reply.unity_input.rl_input.agent_actions
    assert list(actions["A"].value[0].discrete_actions) == [3]
    assert list(actions["B"].value[0].discrete_actions) == [1]


def test_behaviours_that_cannot_be_padded_are_rejected():
    other = Behaviour("D", (Sensor("x", (1,)),), 0, (3,))
    with pytest.raises(ValueError, match="have action spaces without a common one"):
        make_world(WALKER, other)


def test_a_sensor_that_changes_is_rejected():
    world = make_world(slots=1)
    begin(world, agent(1))
    world.act(np.zeros((1, 1)))
    with pytest.raises(ProtocolError, match=r"changed sensor 'x' of shape \(1,\) to"):
        world.read(output(agent(1, size=2)))


def brain(**fields):
    return messages.kind("BrainParameters")(brain_name="B", **fields)


def test_action_specs_of_older_packages_are_read():
    _, info = agent(1)
    old = Behaviour.of(brain(vector_action_size_deprecated=[3, 2]), info)
    assert (old.continuous, old.branches) == (0, (3, 2))
    old = Behaviour.of(
        brain(vector_action_size_deprecated=[3], vector_action_space_type_deprecated=1), info
    )
    assert (old.continuous, old.branches) == (3, ())


@pytest.mark.parametrize("names", [("", ""), ("x", "x"), ("action_mask", "x")])
def test_sensors_get_unique_names(names):
    _, info = agent(1)
    info.observations.add(shape=[1])
    for seen, name in zip(info.observations, names, strict=True):
        seen.name = name
    spec = messages.kind("ActionSpec")(num_continuous_actions=1)
    sensors = Behaviour.of(brain(action_spec=spec), info).sensors
    assert len({sensor.name for sensor in sensors} - {"action_mask"}) == 2


def test_agents_without_sensors_or_actions_are_rejected():
    _, info = agent(1)
    with pytest.raises(ProtocolError, match="without actions"):
        Behaviour.of(brain(), info)
    spec = messages.kind("ActionSpec")(num_continuous_actions=1)
    with pytest.raises(ProtocolError, match="without observations"):
        Behaviour.of(brain(action_spec=spec), messages.kind("AgentInfo")())


def test_agents_with_new_ids_reuse_slots_while_another_behaviour_completes_its_period():
    """Agent 1 decides twice, then returns with a new id every two messages."""
    walker = [1, 1, 2, 2, 3, 3, 4, 4]
    runner = [9, None, None, None, None, None, None, 9]
    brains = {}
    for name in ("Runner", "Walker"):
        brains[name] = messages.kind("BrainParameters")(brain_name=name)
        brains[name].action_spec.num_continuous_actions = 1
    told = [
        output(agent(one, name="Walker"), *([agent(two, name="Runner")] if two else []))
        for one, two in zip(walker, runner, strict=True)
    ]
    player = SimpleNamespace(
        launch=SimpleNamespace(timeout=60.0),
        brains=brains,
        connect=lambda: None,
        named=contextlib.nullcontext,
        reset=lambda: told.pop(0),
        receive=lambda: told.pop(0),
        send=lambda reply: None,
    )
    layout = read_layout(player, {})
    assert not told  # until agent 9 has decided twice
    assert dict(zip(layout.names, layout.capacities, strict=True)) == {"Runner": 1, "Walker": 1}
