#!/usr/bin/env python3
"""A scripted game with the protocol of the plugin of Godot RL Agents, without the engine.

    godot_game.py --port=11008 --env_seed=1 --action_repeat=8 [--agents=2 ...] [--fault=nan@5]

It imports only the standard library, and behaves like the plugin: it connects, reads a handshake
that it does not answer, and reads an action every `action_repeat` ticks; after a reset it reads
the first one a window late. Agents start their next episodes by themselves, and the message with
`done` contains the first observation of the next episode.

Each agent observes a sign, -1 or 1, which changes in every window. The reward is the sum over the
ticks of a window of 1 / action_repeat if its action equals the sign. Its k-th episode has `length`
+ (its number) windows.
"""

import itertools
import json
import os
import random
import socket
import struct
import sys
import time

OPTIONS = {
    "port": 11008,
    "env_seed": 1,
    "action_repeat": 8,
    "speedup": 1.0,
    "agents": 2,
    "length": 3,
    "obs": "vector",  # vector, vectors, parts, grid, masked, or camera
    "actions": "discrete",  # discrete, continuous, mixed, or pair
    "policies": "",  # separated by commas; agents of each further policy observe one more number
    "cut": 0,  # episodes of agents with a smaller number end by a time limit, and are reported so
    "old": 0,  # describes one agent, and sends no info, as plugins before 2024
    "fault": "",  # kind@window
    "fault_seed": -1,  # of the game with the fault; -1: all
    "record": "",  # file for received messages
}
ACTIONS = {
    "discrete": {"move": {"size": 3, "action_type": "discrete"}},
    "continuous": {"push": {"size": 2, "action_type": "continuous"}},
    "mixed": {
        "turn": {"size": 2, "action_type": "continuous"},
        "jump": {"size": 3, "action_type": "discrete"},
        "brake": {"size": 1, "action_type": "continuous"},
    },
    "pair": {
        "steer": {"size": 3, "action_type": "discrete"},
        "fire": {"size": 2, "action_type": "discrete"},
    },
}


def options():
    """Parse arguments of the form --name=value over their defaults; others are ignored.

    Those after `--` are not in Godot's `OS.get_cmdline_args()`, which the plugin reads.
    """
    visible = itertools.takewhile(lambda argument: argument != "--", sys.argv[1:])
    given = dict(a.lstrip("-").split("=", 1) for a in visible if "=" in a)
    return {k: type(v)(given.get(k, v)) for k, v in OPTIONS.items()}


class Agent:
    """An agent of the game."""

    def __init__(self, number, o, policies):
        self.number, self.o = number, o
        self.policy = policies[number % len(policies)]
        self.more = policies.index(self.policy)
        self.random = random.Random(1000 * o["env_seed"] + number)
        self.reward, self.done, self.info = 0.0, False, {}
        self.asked, self.shown, self.sign = 0.0, 0, 1
        self.begin()

    def begin(self):
        self.tick = 0

    def set_action(self, action):
        self.shown = self.sign  # that of the observation before the action
        self.sign = self.random.choice((-1, 1))
        kind = self.o["actions"]
        if kind == "discrete":
            self.asked = action["move"] - 1
        elif kind == "pair":
            self.asked = action["steer"] - 1
        elif kind == "continuous":
            self.asked = action["push"][0]
        else:
            self.asked = action["turn"][0]

    def step(self):
        """Simulate a tick."""
        self.tick += 1
        asked = (self.asked > 0.3) - (self.asked < -0.3)
        self.reward += (asked == self.shown) / self.o["action_repeat"]
        if self.tick == (self.o["length"] + self.number) * self.o["action_repeat"]:
            self.done = True
            if self.number < self.o["cut"]:
                self.info = {"truncated": True, "terminal_observation": self.obs()}
            self.begin()

    def obs(self):
        vector = [self.sign, self.tick / self.o["action_repeat"], self.number] + [0.5] * self.more
        if self.o["obs"] == "vector":
            return {"obs": vector}
        if self.o["obs"] == "vectors":
            return {"obs": vector, "goal": [0.5, -0.5]}
        if self.o["obs"] == "grid":
            return {"obs": vector, "grid": [0.5] * 6}
        if self.o["obs"] == "camera":
            pixels = bytes(range(12)) * 4 if self.sign > 0 else bytes(48)
            return {"camera_2d": bytes([*pixels]).hex()}
        if self.o["obs"] == "masked":  # the worst of three discrete actions
            return {"obs": vector, "action_mask": [int(self.sign < 0), 1, int(self.sign > 0)]}
        return {"obs": vector, "phase": self.tick % 4}

    def obs_space(self):
        if self.o["obs"] == "camera":
            return {"camera_2d": {"size": [3, 3, 4], "space": "box"}}
        space = {"obs": {"size": [3 + self.more], "space": "box"}}
        if self.o["obs"] == "vectors":
            space["goal"] = {"size": [2], "space": "box"}
        if self.o["obs"] == "grid":
            space["grid"] = {"size": [2, 3], "space": "box"}
        if self.o["obs"] == "parts":
            space["phase"] = {"size": 4, "space": "discrete"}
        if self.o["obs"] == "masked":
            space["action_mask"] = {"size": [3], "space": "box"}
        return space


class Game:
    """The loop of the plugin."""

    def __init__(self, o):
        self.o = o
        policies = o["policies"].split(",") if o["policies"] else ["shared_policy"]
        self.agents = [Agent(i, o, policies) for i in range(o["agents"])]
        kind, _, window = o["fault"].partition("@")
        if o["fault_seed"] not in (-1, o["env_seed"]):
            kind = ""
        self.fault, self.at = kind, int(window or 0)
        self.window = 0
        self.record = o["record"]

    def run(self):
        print("a scripted game", flush=True)
        if self.fault == "exit at start":
            print("ERROR: no main scene", flush=True)
            sys.exit(3)
        if self.fault == "never":
            time.sleep(600)
        self.socket = socket.create_connection(("127.0.0.1", self.o["port"]))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert self.receive()["type"] == "handshake"
        assert self.receive()["type"] == "env_info"
        self.describe()
        just_reset, asked = False, False
        while True:
            if just_reset:  # and no action is read in this window
                self.send({"type": "reset", "obs": self.obs(), "info": self.infos()})
                just_reset = False
            else:
                if asked:
                    self.send(self.result())
                kind = self.handle(self.receive())
                just_reset, asked = kind == "reset", kind == "action"
            for _ in range(self.o["action_repeat"]):
                for agent in self.agents:
                    agent.step()

    def handle(self, message):
        """Handle a message, and return its type."""
        if message["type"] == "close":
            sys.exit(0)
        if message["type"] == "reset":
            for agent in self.agents:
                agent.begin()
        elif message["type"] == "action":  # the plugin also accepts too few without an error
            for agent, action in zip(self.agents, message["action"], strict=False):
                agent.set_action(action)
        return message["type"]

    def describe(self):
        info = {
            "type": "env_info",
            "observation_space": [agent.obs_space() for agent in self.agents],
            "action_space": [ACTIONS[self.o["actions"]]] * len(self.agents),
            "n_agents": len(self.agents),
            "agent_policy_names": [agent.policy for agent in self.agents],
        }
        if self.o["old"]:
            info["observation_space"] = info["observation_space"][0]
            info["action_space"] = info["action_space"][0]
            del info["agent_policy_names"]
        if self.fault == "version":
            del info["action_space"]
        if self.fault == "kind":
            info["action_space"] = [{"move": {"size": 3, "action_type": "fuzzy"}}]
        if self.fault == "nobody":
            info |= {"n_agents": 0, "observation_space": [], "action_space": []}
        self.send(info)

    def obs(self):
        return [agent.obs() for agent in self.agents]

    def infos(self):
        return [agent.info for agent in self.agents]

    def result(self):
        self.window += 1
        message = {
            "type": "step",
            "obs": self.obs(),
            "reward": [agent.reward for agent in self.agents],
            "done": [agent.done for agent in self.agents],
            "info": self.infos(),
        }
        if self.o["old"]:
            del message["info"]
        for agent in self.agents:
            agent.reward, agent.done, agent.info = 0.0, False, {}
        if self.fault and self.window >= self.at:
            self.spoil(message)
        return message

    def spoil(self, message):
        """Apply the fault from window `at` on."""
        if self.fault == "exit":
            print("ERROR: out of enemies", flush=True)
            os._exit(7)
        elif self.fault == "crash":
            os.abort()
        elif self.fault == "hang":
            time.sleep(600)
        elif self.fault == "garbage":
            self.socket.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n")
        elif self.fault == "count":
            message["obs"] = message["obs"][:-1]
        elif self.fault == "size":
            message["obs"][-1]["obs"] = [1.0]
        elif self.fault == "twice":
            self.send(message)
        elif self.window == self.at:
            if self.fault == "nan":
                message["obs"][0]["obs"][1] = None
            elif self.fault == "inf":
                message["reward"][0] = "INFINITE"

    def send(self, message):
        data = json.dumps(message).replace('"INFINITE"', "1e99999").encode()
        self.socket.sendall(struct.pack("<I", len(data)) + data)

    def receive(self):
        size = struct.unpack("<I", self.exactly(4))[0]
        message = json.loads(self.exactly(size))
        if self.record:
            with open(self.record, "a") as file:
                file.write(json.dumps(message) + "\n")
        return message

    def exactly(self, size):
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                print("server disconnected status, closing", flush=True)
                sys.exit(0)
            data += more
        return data


if __name__ == "__main__":
    Game(options()).run()
