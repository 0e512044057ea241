"""Gymnasium environments in worker processes and threads: rows by hand, faults, process ends."""

import copy
import gc
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from support.paths import EXAMPLE_ENVS
from support.spec import make_spec

from purejaxppo.envs.host.workers.factory import time_limit
from purejaxppo.envs.host.workers.noop import NoOp
from purejaxppo.envs.host.workers.pool import WorkerError, WorkerPool
from purejaxppo.envs.host.workers.pool import copy as copy_output
from purejaxppo.spaces import Box, Dict, Discrete, MultiDiscrete

pytestmark = pytest.mark.xdist_group("processes")
CHANGES = EXAMPLE_ENVS.with_name("changes_process.py")
KINDS = ("process", "thread")


def example(name, *, limit=50, wrappers=(), **options):
    return make_spec(f"{EXAMPLE_ENVS}:{name}", wrappers, options, limit)


def by_hand(env, seed, actions):
    """Return the first observation and the rows of one environment with next-step auto-reset."""
    first, _ = env.reset(seed=seed)
    over, rows = False, []
    for action in actions:
        if over:
            (obs, _), reward, terminated, truncated = env.reset(), 0.0, False, False
        else:
            obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, reward, terminated, truncated and not terminated, not over))
        over = terminated or truncated
    return first, rows


def lives(pid):
    """Return whether a process runs. A zombie counts as ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until_gone(pids, seconds=10.0):
    deadline = time.monotonic() + seconds
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [pid for pid in pids if lives(pid)]


@pytest.mark.parametrize(
    ("name", "length", "kind", "workers"),
    [
        ("CartPole-v1", 150, "process", 2),
        ("CartPole-v1", 150, "thread", 3),
        ("Pendulum-v1", 450, "process", 2),
        ("Hopper-v5", 100, "process", 2),
    ],
)
def test_rows_equal_those_of_an_environment_stepped_by_hand(name, length, kind, workers):
    single = gymnasium.make(name)
    single.action_space.seed(0)
    actions = [[single.action_space.sample() for _ in range(3)] for _ in range(length)]
    with WorkerPool(make_spec(name), 3, num_workers=workers, kind=kind) as pool:
        first = pool.reset(7)
        rows = [pool.step(np.stack(action)) for action in actions]
        assert pool.info.max_episode_steps == single.spec.max_episode_steps
    ends = 0
    for i in range(3):
        start, expected = by_hand(single, 7 + i, [action[i] for action in actions])
        np.testing.assert_array_equal(first[i], np.float32(start))
        for row, (obs, reward, terminated, truncated, valid) in zip(rows, expected, strict=True):
            np.testing.assert_array_equal(row.obs[i], np.float32(obs))
            assert row.reward[i] == np.float32(reward)
            assert (row.terminated[i], row.truncated[i]) == (terminated, truncated)
            assert valid or row.reward[i] == 0
            ends += terminated or truncated
    assert ends >= 6


@pytest.mark.parametrize("flags", ["terminated", "truncated", "both"])
def test_the_step_after_an_end_delivers_the_next_first_observation(flags):
    with WorkerPool(example("Counter", flags=flags), 1, kind="thread") as pool:
        np.testing.assert_array_equal(pool.reset(4), [[4, 0, 0]])
        rows = [pool.step(np.zeros(1, int)) for _ in range(5)]
    np.testing.assert_array_equal(
        [row.obs[0] for row in rows], [[4, 0, 1], [4, 0, 2], [4, 0, 3], [4, 1, 0], [4, 1, 1]]
    )
    assert [row.reward[0] for row in rows] == [1, 2, 3, 0, 11]
    ends = [False, False, True, False, False]
    assert [row.terminated[0] for row in rows] == ([False] * 5 if flags == "truncated" else ends)
    assert [row.truncated[0] for row in rows] == (ends if flags == "truncated" else [False] * 5)


def test_reset_starts_every_environment_again():
    with WorkerPool(example("Counter"), 3, kind="thread", num_workers=2) as pool:
        pool.reset(0)
        for _ in range(3):
            pool.step(np.zeros(3, int))
        np.testing.assert_array_equal(pool.reset(10), [[10, 0, 0], [11, 0, 0], [12, 0, 0]])
        np.testing.assert_array_equal(pool.step(np.zeros(3, int)).reward, [1, 1, 1])


def test_max_episode_steps_overrides_the_time_limit():
    with WorkerPool(make_spec("Pendulum-v1", (), {}, 4), 2, kind="thread") as pool:
        assert pool.info.max_episode_steps == 4
        pool.reset(0)
        rows = [pool.step(np.zeros((2, 1))) for _ in range(9)]
    assert [row.truncated[0] for row in rows] == [i in (3, 8) for i in range(9)]


@pytest.mark.parametrize(
    "limit", [2.0 / 0.1, np.array([20])[0], np.float32(20), np.array(20), jnp.int32(20)], ids=repr
)
@pytest.mark.parametrize("where", ["attribute", "registered"])
def test_a_time_limit_may_have_any_numeric_type(limit, where):
    env = make_limited(limit, where)
    assert (time_limit(env), type(time_limit(env))) == (20, int)
    env.reset(seed=0)
    truncated = [env.step(0)[3] for _ in range(20)]
    assert truncated == [False] * 19 + [True]


@pytest.mark.parametrize("limit", [20.5, 0, -3, "20", True, float("nan"), np.array([20])], ids=repr)
@pytest.mark.parametrize("where", ["attribute", "registered"])
def test_a_time_limit_that_is_not_a_whole_number_is_rejected(limit, where):
    names = {"attribute": "Limited.max_episode_steps"}
    name = names.get(where, "max_episode_steps of Limited-v0")
    with pytest.raises(ValueError) as caught:
        make_limited(limit, where)
    assert str(caught.value) == (
        f"{name} = {limit!r}: a time limit must be a whole number of steps, at least 1. Use None "
        f"for no limit."
    )


def test_none_means_no_time_limit():
    assert time_limit(make_limited(None, "attribute")) == 0
    assert time_limit(make_limited(None, "registered")) == 0


def make_limited(limit, where):
    """Make an environment with a time limit in an attribute or in Gymnasium's registry."""
    if where == "attribute":
        return make_spec(f"{EXAMPLE_ENVS}:Limited", (), {"limit": limit})()
    entry = runpy.run_path(str(EXAMPLE_ENVS))["Limited"]
    gymnasium.register("Limited-v0", entry, max_episode_steps=limit, kwargs={"limit": None})
    try:
        return make_spec("Limited-v0")()
    finally:
        del gymnasium.registry["Limited-v0"]


def test_a_class_that_truncates_by_itself_keeps_its_limit():
    with WorkerPool(example("OwnLimit", limit=0), 1, kind="thread") as pool:
        assert pool.info.max_episode_steps == 3


def test_a_class_without_a_time_limit_runs_until_it_terminates():
    with WorkerPool(example("Counter", limit=0), 1, kind="thread") as pool:
        assert pool.info.max_episode_steps == 0
        pool.reset(0)
        rows = [pool.step(np.zeros(1, int)) for _ in range(5)]
    assert [row.terminated[0] for row in rows] == [False, False, True, False, False]


def test_results_are_copies_that_later_steps_do_not_change():
    with WorkerPool(example("Counter"), 1, kind="thread") as pool:
        first = pool.reset(0)
        row = pool.step(np.zeros(1, int))
        pool.step(np.zeros(1, int))
    assert first[0, 2] == 0
    assert (row.obs[0, 2], row.reward[0]) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_environments_that_share_one_buffer_keep_their_own_observations(kind):
    with WorkerPool(example("OneBuffer"), 3, num_workers=1, kind=kind) as pool:
        assert pool.reset(5).tolist() == [[5, 0, 0], [6, 0, 0], [7, 0, 0]]
        assert pool.step(np.zeros(3, int)).obs.tolist() == [[5, 0, 1], [6, 0, 1], [7, 0, 1]]


def test_stacked_images_are_from_different_steps_even_if_rendered_into_one_buffer():
    spec = make_spec(f"{EXAMPLE_ENVS}:OneBuffer", pixels=4, frame_stack=3)
    with WorkerPool(spec, 2, kind="thread", num_workers=1) as pool:
        seen = [pool.reset(0), *(pool.step(np.zeros(2, int)).obs for _ in range(3))]
    stacks = [obs[1, 0, 0].reshape(3, 3)[:, 0].tolist() for obs in seen]
    assert stacks == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]


def test_stacked_observations_are_from_different_steps_even_if_written_into_one_buffer():
    spec = example("OneBuffer", limit=0, wrappers=(f"{EXAMPLE_ENVS}:Stack",) * 2)
    with WorkerPool(spec, 2, kind="thread", num_workers=1) as pool:
        seen = [pool.reset(3), *(pool.step(np.zeros(2, int)).obs for _ in range(3))]
    times = [obs[1, :, :, 2].tolist() for obs in seen]
    zeros = [0, 0, 0]
    assert times[0] == [zeros, zeros, zeros]
    assert times[2] == [zeros, [0, 0, 1], [0, 1, 2]]
    assert times[3] == [[0, 0, 1], [0, 1, 2], [1, 2, 3]]


def test_a_wrapped_environment_keeps_its_class_and_attributes_and_can_be_copied():
    env = example("OneBuffer", limit=0, wrappers=(f"{EXAMPLE_ENVS}:Stack",))()
    inner = env.env
    assert (type(inner).__name__, inner.length) == ("OneBuffer", 20)
    env.reset(seed=0)
    twin = copy.deepcopy(inner)
    twin.step(0)
    assert (inner.time, twin.time) == (0, 1)


def test_all_kinds_of_spaces_are_converted():
    with WorkerPool(example("Compound"), 2, num_workers=2, kind="thread") as pool:
        assert pool.observation == Dict.of(
            {
                "bits": MultiDiscrete((2, 2, 2, 2)),
                "choice": Discrete(5),
                "image": Box((2, 2, 3), 0.0, 255.0, "uint8"),
                "pair": Dict.of({"0": Box((), -1.0, 1.0), "1": MultiDiscrete((3, 4))}),
            }
        )
        assert pool.action == MultiDiscrete((3, 4, 5, 6))
        pool.reset(0)
        row = pool.step(np.array([[2, 3, 0, 0], [0, 0, 4, 5]], np.int32))
    # Their spaces start at 0, 1, 2, 3: the actions are [[2, 4], [2, 3]] and [[0, 1], [6, 8]].
    np.testing.assert_array_equal(row.reward, [11, 15])
    assert row.obs["image"].dtype == np.uint8
    np.testing.assert_array_equal(row.obs["image"][:, 1, 1, 2], [252, 250])
    np.testing.assert_array_equal(row.obs["choice"], [1 + 2, -2 + 2])
    np.testing.assert_array_equal(row.obs["bits"], [[0, 1, 0, 0], [0, 0, 1, 1]])
    np.testing.assert_array_equal(row.obs["pair"]["0"], np.float32([0.5, 0.5]))
    np.testing.assert_array_equal(row.obs["pair"]["1"], [[2, 3], [2, 3]])
    assert row.obs["choice"].dtype == row.obs["pair"]["1"].dtype == np.int32


def test_actions_lie_within_bounds_that_float32_rounds_outwards():
    with WorkerPool(example("Bounded"), 1, kind="thread") as pool:
        pool.reset(0)
        assert float(np.float32(0.1)) > 0.1
        reward = pool.step(np.float32([[0.1, 3.0]])).reward[0]
    assert reward == np.float32(1 + 10 * 3.1)


def test_discrete_actions_are_shifted_to_the_start_of_their_space():
    with WorkerPool(example("Bounded", discrete=True), 3, kind="thread") as pool:
        pool.reset(0)
        np.testing.assert_array_equal(pool.step(np.arange(3)).reward, [51, 61, 71])


def test_wrappers_are_applied_in_order():
    doubled = f"{EXAMPLE_ENVS}:Doubled"
    wrappers = (doubled, "DtypeObservation:none", "FlattenObservation")
    with pytest.raises(
        ValueError, match=r"env.options.wrappers: DtypeObservation:none: the package"
    ):
        example("Compound", wrappers=wrappers)()
    with WorkerPool(
        example("Compound", wrappers=("FlattenObservation", doubled)), 1, kind="thread"
    ) as pool:
        assert pool.reset(0).shape[0] == 1
        assert pool.reset(0).max() == 500  # an image of 250s


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        ("NormalizeReward", "ppo.normalize_reward = true."),
        ("NormalizeObservation", "ppo.normalize_obs = true."),
        ("gymnasium.wrappers.vector:NormalizeReward", "ppo.normalize_reward = true."),
        (f"{EXAMPLE_ENVS}:MyNormalize", "MyNormalize (a NormalizeReward) normalises"),
    ],
)
def test_normalising_wrappers_of_gymnasium_are_rejected(wrapper, words):
    with pytest.raises(ValueError) as error:
        example("Counter", wrappers=(wrapper, "FlattenObservation"))()
    assert str(error.value).startswith("env.options.wrappers: the wrapper ")
    assert words in str(error.value)


def test_normalising_wrappers_are_found_below_others():
    with pytest.raises(ValueError) as error:
        example("NormalizedCounter")()
    assert str(error.value) == (
        f"env.name = gymnasium/{EXAMPLE_ENVS}:NormalizedCounter: the wrapper NormalizeObservation "
        f"normalises with running statistics that are not saved with the agent. Remove it and set "
        f"ppo.normalize_obs = true."
    )


def test_a_worker_restores_the_folder_and_numpy_settings_that_environments_change(
    tmp_path, monkeypatch
):
    """The file has a relative path. float32 rounds 1e-300 to 0 and 1e300 to inf."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile.py").write_text(CHANGES.read_text())
    with WorkerPool(make_spec("hostile.py:Env"), 2, num_workers=1) as pool:
        np.testing.assert_array_equal(pool.reset(0), np.zeros((2, 2)))
        rows = [pool.step(np.array([1, 0])) for _ in range(31)]
    np.testing.assert_array_equal([row.reward for row in rows[:20]], [[1, 0]] * 20)
    np.testing.assert_array_equal(rows[20].obs, np.zeros((2, 2)))  # the next first observation
    assert [row.diverged.all() for row in rows] == [i == 30 for i in range(31)]


def test_actions_of_wrong_shape_are_rejected():
    with WorkerPool(example("Counter"), 2, kind="thread") as pool:
        pool.reset(0)
        with pytest.raises(ValueError, match=r"actions have shape \(3,\), expected \(2,\)"):
            pool.step(np.zeros(3, int))
        np.testing.assert_array_equal(pool.step(np.zeros(2, int)).reward, [1, 1])


# Faults


@pytest.mark.parametrize("fault", ["nan", "infinite", "huge"])
def test_a_nan_ends_only_the_episode_of_its_environment(fault):
    with WorkerPool(example("Faulty", fault=fault), 3, kind="thread", num_workers=2) as pool:
        pool.reset(0)
        rows = [pool.step(np.zeros(3, int)) for _ in range(5)]
    assert [row.diverged.tolist() for row in rows] == [[False, i == 2, False] for i in range(5)]
    values = {"nan": "observation[1] = nan", "infinite": "reward = inf", "huge": "reward = inf"}
    assert pool.diverged_value == values[fault]
    assert rows[2].terminated.tolist() == [False, True, False]
    assert rows[2].reward.tolist() == [3, 0, 3]
    np.testing.assert_array_equal(rows[2].obs, [[0, 0, 3], [0, 0, 0], [2, 0, 3]])
    assert rows[3].reward.tolist() == [4, 0, 4]
    np.testing.assert_array_equal(rows[3].obs, [[0, 0, 4], [1, 1, 0], [2, 0, 4]])
    assert not any(row.truncated.any() for row in rows)


def run(pool):
    """Reset, then take some steps."""
    pool.reset(0)
    for _ in range(5):
        pool.step(np.zeros(pool.num_envs, int))


RAISES = {
    "init": ("(worker 0) raised KeyError in __init__: 'no such asset'", "environment 0"),
    "reset": ("environment 1 (worker 0) raised RuntimeError in reset: the scene", "in reset"),
    "reset nan": (
        "in reset: reset returned observation[0] = nan in 3 tries. Observations must be finite",
        "environment 1",
    ),
    "step": ("raised ZeroDivisionError in step: division by zero", "in misbehave"),
    "leave": ("environment 1 (worker 0) raised SystemExit in step: 3", "in misbehave"),
}


@pytest.mark.parametrize(
    ("fault", "kind"), [*((fault, "thread") for fault in RAISES), ("step", "process")]
)
def test_an_error_is_reported_with_its_traceback(fault, kind):
    with pytest.raises(WorkerError) as caught:
        # In the constructor all workers fail, and any may report first.
        workers = 1 if fault == "init" else 2
        run(WorkerPool(example("Faulty", fault=fault), 4, num_workers=workers, kind=kind))
    env = 0 if fault == "init" else 1
    assert str(caught.value).startswith(f"environment {env} (worker 0) ")
    assert "Traceback (most recent call last)" in str(caught.value)
    for part in RAISES[fault]:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        (
            "shape",
            "thread",
            "observation has shape (2,), but its space has shape (3,). Return "
            "an array of that shape in the environment or a wrapper, or change the space.",
        ),
        (
            "bytes",
            "process",
            "observation[0] = 0.6666666666666667, but its space (Box, uint8) contains integers "
            "from 0 to 255. Return integers in this range, or change the space.",
        ),
    ],
)
def test_an_observation_outside_its_space_gets_a_one_sentence_error(fault, kind, sentence):
    with pytest.raises(ValueError, match=r"^observation") as caught:
        run(WorkerPool(example("Faulty", fault=fault), 4, num_workers=2, kind=kind))
    assert str(caught.value) == sentence


def test_after_an_error_the_pool_is_closed_and_repeats_the_error():
    pool = WorkerPool(example("Faulty", fault="step"), 2, kind="thread")
    with pytest.raises(WorkerError):
        run(pool)
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        pool.step(np.zeros(2, int))


@pytest.mark.parametrize("kind", KINDS)
def test_a_hang_is_reported_within_the_timeout_with_its_location(kind):
    pool = WorkerPool(
        example("Faulty", fault="hang", culprit=2), 4, num_workers=2, timeout=0.5, kind=kind
    )
    start = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 1 \(environments 2 to 3\) did not step") as it:
        run(pool)
    assert "within 0.5 s" in str(it.value)
    assert "in misbehave" in str(it.value)
    assert time.monotonic() - start < (4 if kind == "process" else 8)


def test_a_hang_in_the_constructor_is_reported():
    with pytest.raises(WorkerError, match="make its environments within 1 s") as caught:
        WorkerPool(example("Faulty", fault="slow init"), 1, timeout=1)
    assert "in __init__" in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ("exit", ("ended with exit code 3 while it was supposed to step",)),
        ("kill", ("was killed by SIGKILL (possibly out of memory) while",)),
        ("crash", ("was killed by SIGSEGV", "Segmentation fault", "in misbehave")),
    ],
)
def test_a_worker_that_dies_is_reported_immediately(fault, parts):
    pool = WorkerPool(example("Faulty", fault=fault), 4, num_workers=2, timeout=30)
    start = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 0 \(environments 0 to 1\)") as caught:
        run(pool)
    assert time.monotonic() - start < 5
    for part in parts:
        assert part in str(caught.value)


# Names


UNKNOWN = [
    (make_spec("CartPol-v1"), "unknown task 'gymnasium/CartPol-v1'. Did you mean 'CartPole-v1'?"),
    (make_spec("Hopper-v99"), "unknown task 'gymnasium/Hopper-v99'. Did you mean 'Hopper-v"),
    (make_spec("Qwxyz-v0"), "For an id of a package, use package:Id-v0."),
    (make_spec("no words"), "gymnasium/no words: Malformed environment ID"),
    (make_spec("nopackage:Some-v0"), "the package 'nopackage' is not installed"),
    (make_spec("CartPole-v1", (), {"gravitas": 1}), "unexpected keyword argument 'gravitas'"),
    (make_spec("CartPole-v1", ("FlattenObs",)), "Did you mean 'FlattenObservation'?"),
    (make_spec("no/file.py:Env"), f"env.name: no/file.py: no such file in {Path.cwd()}"),
    (make_spec("/no/file.py:Env"), "env.name: /no/file.py: no such file"),
    (make_spec("no/file.py"), "the class is missing. Use gymnasium/no/file.py:ClassName"),
    (example("Contour"), "has no function or class 'Contour'. It has Counter, OwnLimit"),
    (example("make_vector"), "this is a vector environment. Pass one environment"),
    (example("NoEnvironment"), "NoEnvironment is not a subclass of gymnasium.Env"),
    (example("Counter", size=3), "env.options: "),
]


@pytest.mark.parametrize(("maker", "message"), UNKNOWN)
def test_a_wrong_name_gets_a_one_sentence_error(maker, message):
    with pytest.raises(ValueError, match=r"^(env|gymnasium)") as caught:
        maker()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_pool_reports_a_wrong_name(kind):
    with pytest.raises(ValueError, match=r"^env.name: unknown task 'gymnasium/CartPol-v1'"):
        WorkerPool(make_spec("CartPol-v1"), 2, kind=kind)


def test_the_error_of_a_missing_package_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ValueError, match=r"gymnasium/Hopper-v5 needs a missing package: .*mujoco"):
        make_spec("Hopper-v5")()


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("obs", "the observation space Text is not supported. Use Box, Discrete"),
        ("action", "the action space Text is not supported. Use Box, Discrete"),
        ("integers", "the action space contains a Box with dtype int32, which is not supported"),
        ("nothing", r"the observation space contains an empty Box of shape \(2, 0\)"),
    ],
)
def test_the_error_of_an_unsupported_space_names_it(which, message):
    with pytest.raises(ValueError, match=message):
        WorkerPool(example("Unsupported", which=which), 1, kind="thread")


def test_one_environment_can_be_made_for_rendering():
    assert make_spec("CartPole-v1")("rgb_array").render_mode == "rgb_array"


@pytest.mark.parametrize(
    ("name", "limit", "wrappers", "steps"),
    [
        ("SaysOnly", 0, (), 5),
        ("SaysOnly", 9, (), 9),  # longer than the spec's limit
        ("SaysOnly", 2, (), 2),
        ("SaysOnly", 0, ("FlattenObservation",), 5),
        ("OwnLimit", 0, (), 3),
    ],
)
def test_a_time_limit_of_the_spec_is_enforced(name, limit, wrappers, steps):
    env = example(name, limit=limit, wrappers=wrappers)()
    assert time_limit(env) == steps
    env.reset(seed=0)
    truncated = [env.step(0)[3] for _ in range(steps)]
    assert truncated == [False] * (steps - 1) + [True]


@pytest.mark.parametrize("dtype", ["uint32", "int64", "uint64"])
def test_large_integers_do_not_wrap_around(dtype):
    with WorkerPool(example("Large", dtype=dtype), 1, kind="thread") as pool:
        assert pool.observation.dtype == "float32"
        np.testing.assert_array_equal(pool.reset(0), np.float32([[3e9]]))


# Processes


def test_workers_import_no_jax_and_print_nothing_on_stdout(capfd):
    with WorkerPool(example("Report"), 4, num_workers=2) as pool:
        pids, parents, jax = pool.reset(0).T
        pool.step(np.zeros((4, 2), int))
    assert "jax" in sys.modules
    assert not jax.any()
    assert len(set(pids)) == 2
    assert set(parents) == {os.getpid()}
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("chatter") == 4
    assert wait_until_gone(pids) == []


def test_endless_output_of_a_worker_is_truncated_without_blocking(capfd):
    reader, writer = os.pipe()
    copying = threading.Thread(target=copy_output, args=(reader, "worker 1 (environment 3)"))
    copying.start()
    with open(writer, "wb") as prints:
        for _ in range(1000):
            prints.write(b"a line of some length\n" * 100)
    copying.join(10)
    _, err = capfd.readouterr()
    assert len(err.encode()) < 1_000_100
    assert err.startswith("a line of some length\n")
    assert err.endswith(
        "\nworker 1 (environment 3) printed 1,000,000 bytes. The rest is dropped.\n"
    )


def test_the_package_imports_jax_only_when_a_name_is_used():
    code = (
        "import sys, purejaxppo\n"
        "import purejaxppo.envs.host.workers.pool, purejaxppo.envs.host.workers.worker\n"
        "assert not {'jax', 'gymnasium'} & set(sys.modules)\n"
        "from purejaxppo import *\n"
        "assert 'jax' in sys.modules and callable(make_train)\n"
        "assert set(purejaxppo.__all__) <= set(dir(purejaxppo))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workers_ignore_sigint():
    with WorkerPool(example("Report"), 1) as pool:
        (pid, _, _) = pool.reset(0)[0]
        os.kill(pid, signal.SIGINT)
        assert pool.step(np.zeros((1, 2), int)).reward.shape == (1,)


def test_closing_a_pool_ends_its_workers_and_can_be_repeated():
    pool = WorkerPool(example("Report"), 2, num_workers=2)
    pids = pool.reset(0)[:, 0]
    assert all(map(lives, pids))
    pool.close()
    pool.close()
    assert not any(map(lives, pids))
    with pytest.raises(RuntimeError, match="the worker pool is closed"):
        pool.reset(0)


def test_a_garbage_collected_pool_is_closed():
    pool = WorkerPool(example("Report"), 1)
    pids = pool.reset(0)[:, 0]
    del pool
    gc.collect()
    assert not any(map(lives, pids))


def test_a_pool_made_in_a_thread_survives_the_thread():
    made = []
    thread = threading.Thread(target=lambda: made.append(WorkerPool(example("Report"), 1)))
    thread.start()
    thread.join()
    with made[0] as pool:
        time.sleep(0.1)
        pool.reset(0)


PARENT = """
import sys, threading
import numpy as np
from purejaxppo.envs.host.workers.factory import GymnasiumSpec
from purejaxppo.envs.host.workers.pool import WorkerPool

def run():
    pool = WorkerPool(GymnasiumSpec({name!r}, (), {{"hang": {hang!r}}}, 9), 2, num_workers=2)
    print(*pool.reset(0)[:, 0], flush=True)
    return pool

if {in_thread}:
    thread = threading.Thread(target=lambda: pools.append(run()))
    pools = []
    thread.start()
    thread.join()
    pool = pools[0]
else:
    pool = run()
if {wait}:
    pool.step(np.zeros((2, 2), int))
    sys.stdin.read()
"""


def start_parent(*, hang="", in_thread=False, wait=True):
    script = PARENT.format(name=f"{EXAMPLE_ENVS}:Report", hang=hang, in_thread=in_thread, wait=wait)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def kill_parents(count, hang="", **options):
    """Start processes with pools, kill them, and return the workers that still run.

    If `hang` is a folder, the workers hang when the processes are killed.
    """
    left = set(os.listdir("/dev/shm"))
    parents = [start_parent(hang=hang, **options) for _ in range(count)]
    pids = [int(pid) for parent in parents for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 * count
    deadline = time.monotonic() + 20.0
    while hang and not {str(pid) for pid in pids} <= set(os.listdir(hang)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert all(map(lives, pids))
    for parent in parents:
        parent.kill()
    remaining = wait_until_gone(pids)
    for pid in remaining:
        os.kill(pid, signal.SIGKILL)
    for parent in parents:
        parent.communicate()
    assert {name for name in os.listdir("/dev/shm") if "purejaxppo" in name} <= left
    return remaining


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /dev/shm")


@linux
@pytest.mark.parametrize("in_thread", [False, True])
def test_workers_end_with_a_killed_parent(in_thread, tmp_path):
    assert kill_parents(1, hang=str(tmp_path), in_thread=in_thread) == []


@linux
@pytest.mark.full
def test_parents_killed_together_leave_no_processes():
    assert kill_parents(4) == []


@linux
def test_a_script_without_a_guard_may_leave_its_pool_open():
    parent = start_parent(wait=False)
    out, err = parent.communicate(timeout=30)
    assert parent.returncode == 0
    assert err == ""
    assert wait_until_gone([int(pid) for pid in out.split()]) == []


# Children of environments


def children(folder, count, seconds=20.0):
    """Wait for `count` processes that environments started, and return their ids."""
    deadline = time.monotonic() + seconds
    while len(list(folder.iterdir())) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    pids = [int(file.name) for file in folder.iterdir()]
    assert len(pids) == count
    return pids


@linux
@pytest.mark.parametrize(
    "fault", ["", "exit", *(pytest.param(x, marks=pytest.mark.full) for x in ("step", "hang"))]
)
def test_children_of_environments_end_with_their_worker(fault, tmp_path):
    maker = example("Parent", folder=str(tmp_path), fault=fault, stubborn=True)
    with WorkerPool(maker, 2, num_workers=2, timeout=3.0 if fault == "hang" else 30.0) as pool:
        pids = children(tmp_path, 2)
        assert all(map(lives, pids))
        if fault:
            with pytest.raises(WorkerError):
                run(pool)
        else:
            run(pool)
            pool.close()
        assert wait_until_gone(pids, 2.0) == []


ENDING = """
import os, signal, sys, threading
from pathlib import Path
from purejaxppo import commands, interrupts
from purejaxppo.envs.host.workers.factory import GymnasiumSpec
from purejaxppo.envs.host.workers.pool import WorkerPool

commands.begin_process()
interrupts.handle_signals()
maker = GymnasiumSpec({env!r}, (), {{"folder": {folder!r}, "stubborn": {stubborn}}}, 9)
pool = WorkerPool(maker, 2, num_workers=2, kind={kind!r})
pool.reset(0)
print("ready", flush=True)
if sys.stdin.readline() == "raise":
    raise ValueError("a failure")
"""


@linux
@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("thread", "return"),
        ("thread", "raise"),
        ("thread", signal.SIGTERM),
        pytest.param("process", "raise", marks=pytest.mark.full),
        pytest.param("process", signal.SIGTERM, marks=pytest.mark.full),
        ("process", signal.SIGKILL),
    ],
)
def test_children_of_environments_end_with_the_command(kind, end, tmp_path):
    script = ENDING.format(
        env=f"{EXAMPLE_ENVS}:Parent",
        folder=str(tmp_path),
        stubborn=kind == "process",
        kind=kind,
    )
    pipe = subprocess.PIPE
    command = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert command.stdout.readline() == "ready\n"
    pids = children(tmp_path, 2)
    assert all(map(lives, pids))
    if isinstance(end, str):
        command.stdin.write(end)
        command.stdin.close()
    else:
        command.send_signal(end)
    command.wait(20.0)
    command.stdout.close()
    command.stdin.close()
    assert command.returncode == {"return": 0, "raise": 1, 15: 143, 9: -9}[end]
    assert wait_until_gone(pids, 8.0) == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_that_does_nothing_repeats_its_first_observation(kind):
    with WorkerPool(NoOp(example("Counter", length=2)), 3, num_workers=2, kind=kind) as pool:
        first = [[0, 0, 0]] * 3  # (seed, episode, step)
        assert pool.reset(7).tolist() == first
        for _ in range(4):  # episodes of 2 steps would have ended
            rows = pool.step(np.zeros(3, np.int32))
            assert rows.obs.tolist() == first and rows.reward.tolist() == [0, 0, 0]
            assert not rows.terminated.any() and not rows.truncated.any()
        assert (pool.kind, pool.num_workers) == (kind, 2)


@pytest.mark.parametrize(("limit", "steps"), [(0, 5), (8, 4)])
def test_limits_count_steps_of_the_policy_if_declared_and_of_the_environment_if_set(limit, steps):
    """The class declares a limit of five steps; the wrapper takes two at once."""
    skip = [{"MaxAndSkipObservation": {"skip": 2}}]
    env = example("SaysOnly", limit=limit, wrappers=skip)()
    env.reset(seed=0)
    truncated = [env.step(0)[3] for _ in range(steps)]
    assert truncated == [False] * (steps - 1) + [True]
