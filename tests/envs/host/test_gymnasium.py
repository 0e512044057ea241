"""Gymnasium environments by reference and as objects, created by workers."""

import os
import sys
import threading
from dataclasses import replace

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from gymnasium.wrappers import TimeLimit, TransformReward
from support import example_envs
from support.example_envs import Counter
from support.paths import EXAMPLE_ENVS
from support.spec import make_spec

from purejaxppo.config.run_files import code_files
from purejaxppo.config.schema import Config, EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.host.gymnasium import RenderedEnv
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.envs.host.workers.factory import pickled, wrapper_calls

FILE = str(EXAMPLE_ENVS)


def rewards(config, steps=6):
    """Return the rewards [steps] of environment 1 of 2, with action 1."""
    env = registry.make(config, 2, seed=3)
    state, _ = env.reset(jax.random.key(0))
    collected = []
    for _ in range(steps):
        state, out = env.step(jax.random.key(0), state, np.ones(2, np.int32))
        collected.append(float(out.reward[1]))
    env.close()
    return collected


def local(length=2):
    return lambda: TransformReward(Counter(length), lambda reward: 2 * reward)


# A Counter's reward is the step, plus 10 in the second episode. The step after an end has reward 0.
FORMS = [
    (f"gymnasium/{FILE}:Counter", {"length": 2}, [1, 2, 0, 11, 12, 0]),
    (f"gymnasium/{FILE}:make_counter", {"config": {"lengths": [2]}}, [1, 2, 0, 11, 12, 0]),
    ("gymnasium/support.example_envs:Counter", {"length": 2}, [1, 2, 0, 11, 12, 0]),
    ("gymnasium/support.example_envs:make_counter", {"config": {"lengths": [2]}}, [1, 2, 0]),
    (
        f"gymnasium/{FILE}:Counter",
        {"length": 2, "wrappers": [f"{FILE}:Times", {f"{FILE}:Times": {"factor": 3}}]},
        [6, 12, 0, 66],
    ),
    (Counter, {"length": 2}, [1, 2, 0, 11]),
    (Counter(2), {}, [1, 2, 0, 11]),
    (TimeLimit(Counter(4), 3), {}, [1, 2, 3, 0, 11]),
    (TimeLimit(Counter(4), 3), {"wrappers": f"{FILE}:Times"}, [2, 4, 6, 0, 22]),
    (local(), {}, [2, 4, 0, 22]),
]


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize(("env", "options", "expected"), FORMS)
def test_every_form_of_an_environment_steps_in_workers(env, options, expected, workers):
    config = EnvConfig(name=env, options={**options, "workers": workers, "num_workers": 1})
    assert rewards(config, len(expected)) == expected


@pytest.fixture
def counts():
    """The registered id of a Counter, with a wrapper that doubles rewards."""
    wrapper = WrapperSpec("Times", f"{example_envs.__name__}:RecordedTimes", {"factor": 2})
    gymnasium.register(
        "Counts-v0",
        f"{example_envs.__name__}:Counter",
        kwargs={"length": 2},
        additional_wrappers=(wrapper,),
    )
    yield "Counts-v0"
    del gymnasium.registry["Counts-v0"]


def test_an_id_of_this_process_steps_in_worker_processes(counts):
    assert rewards(EnvConfig(name=f"gymnasium/{counts}"), 4) == [2, 4, 0, 22]
    assert rewards(EnvConfig(name=gymnasium.make(counts)), 4) == [2, 4, 0, 22]
    env = gymnasium.make(counts, max_episode_steps=1)
    assert rewards(EnvConfig(name=env), 4) == [2, 0, 22, 0]
    assert rewards(EnvConfig(name=example_envs.RecordedTimes(env, 3)), 4) == [6, 0, 66, 0]
    env = gymnasium.make(counts, length=None)  # None is an argument, not a missing one
    assert EnvConfig(name=env).options == {"length": None}


def test_ids_of_this_process_may_use_classes_of_gymnasium(monkeypatch):
    entry = gymnasium.spec("CartPole-v1").entry_point
    for name, limit in (("LongCartPole-v0", 900), ("CartPole-v1", 77)):
        spec = EnvSpec(name, entry_point=entry, max_episode_steps=limit)
        monkeypatch.setitem(gymnasium.registry, name, spec)
        env = registry.make(EnvConfig(name=f"gymnasium/{name}", options={"num_workers": 1}), 1)
        assert env.spec.max_episode_steps == limit
        env.close()


def test_changes_of_a_function_to_a_registered_environment_are_kept(counts):
    def make(length):
        env = gymnasium.make(counts, length=length + 1)
        env.unwrapped.step = lambda action: (np.zeros(3, np.float32), 5.0, True, False, {})
        return env

    assert rewards(EnvConfig(name=make, options={"length": 2}), 4) == [10, 0, 10, 0]


def test_wrappers_of_a_function_or_script_step_in_worker_processes(counts):
    class Local(example_envs.RecordedTimes):
        pass

    env = Local(gymnasium.make(counts), 10)
    assert rewards(EnvConfig(name=env), 4) == [20, 40, 0, 220]
    assert str(EnvConfig(name=env.spec).name) == f"gymnasium/object of gymnasium:{counts}"


def test_a_function_without_a_render_mode_can_be_rendered_and_observed_as_pixels():
    config = EnvConfig(name=lambda: gymnasium.make("CartPole-v1"), options={"pixels": 16})
    env = registry.make(config, 1)
    assert env.reset(jax.random.key(0))[1].shape[-1] == 3
    env.close()
    maker = make_spec("object of x:f", pickled=pickled(config.name.object, "x"))
    rendered = RenderedEnv(maker)
    rendered.reset(0)
    assert rendered.render_frame().shape == (400, 600, 3)
    rendered.close()


def test_an_id_with_a_wrapper_of_this_script_works_in_threads(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "Twice", example_envs.RecordedTimes, raising=False)
    entry = f"{example_envs.__name__}:Counter"
    wrapper = WrapperSpec("Twice", "__main__:Twice", {"factor": 2})
    spec = EnvSpec("Twice-v0", entry_point=entry, additional_wrappers=(wrapper,))
    monkeypatch.setitem(gymnasium.registry, "Twice-v0", spec)
    config = EnvConfig(name="gymnasium/Twice-v0", options={"workers": "thread"})
    assert rewards(config, 4) == [2, 4, 6, 0]


CHANGING = """
import gymnasium
import numpy as np
from support.example_envs import Counter
from support.spec import make_spec

class Wide(gymnasium.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, ({size},))

    def observation(self, obs):
        return np.zeros({size}, np.float32)

def make_wide():
    return Wide(Counter(2))
"""


def obs_shape(name, **options):
    """Return the shape of an observation of a new environment."""
    env = registry.make(EnvConfig(name=name, options={"num_workers": 1, **options}), 1)
    try:
        return env.reset(jax.random.key(0))[1].shape
    finally:
        env.close()


def test_changed_spaces_are_read_again(tmp_path, monkeypatch):
    """A worker process imports a changed module; this process may know its old spaces."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "changing.py"
    named = "gymnasium/changing:make_wide"
    file.write_text(CHANGING.format(size=3))
    assert obs_shape(named) == (1, 3)
    file.write_text(CHANGING.format(size=12))
    os.utime(file, (1, 1))
    with pytest.raises(SimulatorError, match=r"the spaces have changed since .* again\."):
        obs_shape(named)
    assert obs_shape(named) == (1, 12)
    wrapped = {"workers": "thread", "wrappers": f"{file}:Wide", "length": 2}
    assert obs_shape(f"gymnasium/{FILE}:Counter", **wrapped) == (1, 12)
    file.write_text(CHANGING.format(size=5))
    assert obs_shape(f"gymnasium/{FILE}:Counter", **wrapped) == (1, 5)


def test_the_limit_of_the_config_replaces_that_of_an_environment():
    config = EnvConfig(name=TimeLimit(Counter(9), 2), max_episode_steps=4)
    assert registry.make(config, 2).spec.max_episode_steps == 4
    assert rewards(config) == [1, 2, 3, 4, 0, 11]


def test_the_limit_of_the_config_replaces_that_of_a_registered_function(monkeypatch):
    entry = EnvSpec("Inner-v0", lambda: TimeLimit(Counter(9), 2))
    monkeypatch.setitem(gymnasium.registry, "Inner-v0", entry)
    config = EnvConfig("gymnasium/Inner-v0", max_episode_steps=4, options={"workers": "thread"})
    assert rewards(config) == [1, 2, 3, 4, 0, 11]


def test_a_wrapper_cannot_have_another_limit_than_the_config():
    options = {"workers": "thread", "wrappers": [{"TimeLimit": {"max_episode_steps": 3}}]}
    config = EnvConfig(f"gymnasium/{FILE}:Counter", options=options | {"length": 9})
    assert rewards(config)[:4] == [1, 2, 3, 0]
    assert rewards(replace(config, max_episode_steps=3))[:4] == [1, 2, 3, 0]
    with pytest.raises(ValueError) as caught:
        registry.make(replace(config, max_episode_steps=50), 1)
    assert str(caught.value) == (
        "env.options.wrappers: TimeLimit has max_episode_steps = 3, but env.max_episode_steps = "
        "50. Remove one of them."
    )
    skip = [{"MaxAndSkipObservation": {"skip": 2}}, *options["wrappers"]]
    repeated = replace(config, max_episode_steps=6, options=options | {"wrappers": skip})
    assert registry.make(repeated, 1).spec.max_episode_steps == 3


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ({"max_episode_steps": 50}, "Use env.max_episode_steps."),
        ({"disable_env_checker": True}, "Remove it."),
        ({"id": "CartPole-v0"}, "Remove it."),
    ],
)
def test_arguments_of_gymnasiums_make_are_not_options(option, hint):
    config = EnvConfig("gymnasium/CartPole-v1", options=option | {"workers": "thread"})
    (name,) = option
    with pytest.raises(ValueError) as caught:
        registry.make(config, 1)
    assert str(caught.value) == (
        f"env.options.{name}: not an option of gymnasium/CartPole-v1. {hint}"
    )


class Locked(Counter):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("env", "options", "problem"),
    [
        (Locked(), {}, "cannot be copied to workers (TypeError: cannot pickle '_thread.lock'"),
        (Counter(3), {"length": 2}, "is an environment, which takes no arguments. Remove length"),
        (lambda: Counter(3), {"size": 2}, "unexpected keyword argument 'size'"),
        (
            f"gymnasium/{FILE}:pass_on",
            {"size": 2},
            "TypeError: Counter.__init__() got an unexpected",
        ),
        (f"gymnasium/{FILE}:Spaceless", {}, "Spaceless has no observation_space. Set self."),
        (f"gymnasium/{FILE}:make_number", {}, "make_number returns a int instead of a gymnasium"),
        (
            "gymnasium/support.own_code:Walk",
            {},
            "is not a subclass of gymnasium.Env. Use jax/support.own_code:Walk.",
        ),
        (
            "gymnasium/mpe2.simple_spread_v3:parallel_env",
            {},
            "Use pettingzoo/mpe2.simple_spread_v3:parallel_env.",
        ),
        (f"gymnasium/{FILE}:Counter", {"wrappers": [{"ClipReward": 3}]}, "must be a name, or a"),
        (f"gymnasium/{FILE}:Counter", {"wrappers": [3]}, "must be a name, or a mapping"),
        (f"gymnasium/{FILE}:Counter", {"wrappers": {"a": {}}}, "must be a string or a list"),
        (
            f"gymnasium/{FILE}:Counter",
            {"wrappers": [{"ClipReward": {"top": 3}}]},
            "ClipReward failed with the arguments top: ",
        ),
        ("gymnasium/CartPole-v1", {"num_workers": [2]}, "env.options.num_workers = [2]: must be a"),
    ],
)
def test_an_invalid_environment_is_an_error_of_one_sentence(env, options, problem):
    with pytest.raises(ValueError, match=r"^env") as caught:
        registry.make(EnvConfig(name=env, options={**options, "workers": "thread"}), 2)
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_a_task_of_another_family_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"an environment of the family gymnasium\. Use gymnasium/"
    ):
        registry.make(EnvConfig(name=f"jax/{FILE}:Counter"), 2)


def test_wrappers_are_names_or_mappings_to_arguments():
    assert list(wrapper_calls("A, b.c:D,")) == [("A", {}), ("b.c:D", {})]
    calls = wrapper_calls(["A", {"B": {"size": 3}}, {"C": None}, {f"{FILE}:D": {}}])
    assert list(calls) == [("A", {}), ("B", {"size": 3}), ("C", {}), (f"{FILE}:D", {})]


def test_files_of_wrappers_are_copied_into_the_run_folder():
    options = {"wrappers": [{f"{FILE}:Times": {"factor": 2}}, "own.py:One"]}
    config = Config(env=EnvConfig(name="gymnasium/CartPole-v1", options=options))
    assert set(code_files(config)) == {FILE, "own.py"}
    assert registry.external_code(config.env).modules == []


def test_arguments_are_copied_for_each_environment():
    spec = make_spec(f"{FILE}:make_counter", (), {"config": {"lengths": [3, 2]}})
    assert [spec().length, spec().length] == [2, 2]  # make_counter pops the last length


def test_the_frames_of_an_environment_object_are_rendered():
    env = registry.make(EnvConfig(name=gymnasium.make("CartPole-v1")), 1, render=True)
    env.reset(jax.random.key(0))
    assert env.spec.max_episode_steps == 500

    unregistered = gymnasium.make("CartPole-v1").unwrapped
    unregistered.spec = None
    rendered = RenderedEnv(make_spec("object of x:CartPole", pickled=pickled(unregistered, "x")))
    rendered.reset(0)
    assert rendered.render_frame().shape == (400, 600, 3)
    rendered.close()
    env.close()


def test_workers_do_not_import_the_script():
    assert "__main__" in sys.modules and rewards(EnvConfig(name=local(3)), 4) == [2, 4, 6, 0]


def test_a_stack_of_frames_without_pixels_gets_a_warning():
    config = EnvConfig(name="gymnasium/CartPole-v1", options={"frame_stack": 3})
    (line,) = registry.warnings_of(config, registry.make(config, 1).spec)
    assert line.startswith("env.options.frame_stack = 3 has no effect without env.options.pixels")


def test_a_reset_setting_has_no_effect_on_the_host():
    config = EnvConfig(name="gymnasium/CartPole-v1", reset="every_step")
    (line,) = registry.warnings_of(config, registry.make(config, 1).spec)
    assert line == "env.reset = every_step has no effect on host simulators."
