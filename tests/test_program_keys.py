"""What keeps programs apart, what is never kept, and runs that are made of kept ones."""

import dataclasses

import jax
import numpy as np
import pytest
from support.trees import assert_same

from purejaxppo import program_keys
from purejaxppo.commands import keep_programs
from purejaxppo.config.schema import Config
from purejaxppo.evaluation import evaluate
from purejaxppo.parallel import processes, program_store
from purejaxppo.parallel.placeholders import Placeholder
from purejaxppo.pictures.mujoco_scene import Scene
from purejaxppo.runs import recording
from purejaxppo.runs.checkpoint import Checkpoints
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.progress import Progress
from purejaxppo.trained_agent import Agent

CARTPOLE = {"name": "gymnax/CartPole-v1", "num_envs": 4}


@pytest.fixture
def keeping(monkeypatch, tmp_path):
    """Programs are kept, in a folder of the test's own, and modules count as settled."""
    monkeypatch.setenv(program_store.SWITCH, "1")
    monkeypatch.setattr(program_store, "SETTLED", -1e9)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / "programs"
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def config(make_config):
    return make_config(env=CARTPOLE, eval={"num_episodes": 4})


def key_of(config, *more, devices=()):
    return program_keys.store(config, devices, *more).key


@pytest.mark.toy
def test_seeds_folders_and_intervals_change_no_program(keeping, config):
    changes = {
        "seed": 3,
        "run_dir": "there",
        "logging.interval": 100,
        "checkpoint.interval": 100,
        "eval.interval": 100,
    }
    assert key_of(config) == key_of(config.replace(**changes)) != ""


@pytest.mark.toy
@pytest.mark.parametrize(
    "changes",
    [
        {"ppo.gamma": 0.9},
        {"network.hidden": (9,)},
        {"env.name": "gymnax/Acrobot-v1"},
        {"env.options": {"x": 1}},
        {"eval.num_episodes": 5},
        {"total_timesteps": 2000},
        {"num_shards": 2},
    ],
)
def test_other_fields_do(keeping, config, changes):
    assert key_of(config) != key_of(config.replace(**changes))


@pytest.mark.toy
def test_settings_devices_and_the_environment_do(keeping, config, monkeypatch):
    before = key_of(config)
    assert key_of(config, "more") != before
    assert key_of(config, devices=jax.devices()[:2]) != before
    assert key_of(config, devices=jax.devices()[1:2]) != before
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        assert key_of(config) != before
    finally:
        jax.config.update("jax_default_matmul_precision", None)
    monkeypatch.setenv("XLA_SOMETHING", "1")
    assert key_of(config) != before
    monkeypatch.delenv("XLA_SOMETHING")
    assert key_of(config) == before


@pytest.mark.toy
def test_this_packages_sources_and_installed_versions_do(keeping, config, monkeypatch, tmp_path):
    before = key_of(config)
    (tmp_path / "purejaxppo").mkdir()
    (tmp_path / "purejaxppo" / "program_keys.py").write_text("")
    monkeypatch.setattr(program_keys, "__file__", str(tmp_path / "purejaxppo" / "program_keys.py"))
    assert (changed := key_of(config)) != before
    (tmp_path / "purejaxppo" / "program_keys.py").write_text("more")
    assert key_of(config) != changed
    monkeypatch.undo()


@pytest.mark.toy
def test_commands_keep_programs_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv(program_store.SWITCH)
    assert program_store.folder() is None
    keep_programs()
    assert program_store.folder() is not None
    monkeypatch.setenv(program_store.SWITCH, "0")
    keep_programs()
    assert program_store.folder() is None


@pytest.mark.toy
def test_an_installed_package_changes_the_key(monkeypatch, tmp_path):
    before = program_keys.software()
    (tmp_path / "site-packages" / "brax-9.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    assert program_keys.software() != before


@pytest.mark.toy
@pytest.mark.parametrize(
    "changes",
    [
        {"env.name": "jax/mine.py:Walk"},
        {"env.name": "envpool/CartPole-v1"},
        {"env.name": "gymnasium/CartPole-v1"},
        {"network.torso": "mine.py:Torso"},
        {"ppo.objective": "package.module:objective"},
        {"env.wrappers": ("mine.py:Wrapper",)},
        {"env.options": {"model": "/"}},
        {"eval.options": {"model": "/"}},
    ],
)
def test_own_code_hosts_and_files_are_not_kept(keeping, config, changes):
    section, _, name = next(iter(changes)).partition(".")
    value = next(iter(changes.values()))
    part = dataclasses.replace(getattr(config, section), **{name: value})
    assert key_of(dataclasses.replace(config, **{section: part})) == ""


@pytest.mark.toy
def test_a_file_below_the_home_is_not_kept_and_another_place_of_imports_is_another_key(
    keeping, config, monkeypatch, tmp_path
):
    before = key_of(config)
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    named = config.replace(**{"env.options": {"menagerie": "~/models"}})
    assert key_of(named) == ""
    assert key_of(config.replace(**{"env.options": {"menagerie": "~/none"}})) != ""
    monkeypatch.syspath_prepend(tmp_path)
    assert key_of(config) != before
    monkeypatch.undo()


@pytest.mark.toy
def test_objects_changed_parts_and_several_processes_are_not_kept(keeping, config, monkeypatch):
    class Own:
        """An environment that was handed over."""

    own = config.replace(**{"env.name": program_keys.references.own_env(Own())})
    assert key_of(own) == ""
    assert program_keys.store(config, [], changed=True).key == ""
    monkeypatch.setattr(processes, "is_distributed", lambda: True)
    assert key_of(config) == ""


def trained(config: Config):
    """(programs, state after two chunks, outcome of an evaluation)."""
    programs = Programs(config, jax.devices())
    state = programs.init()
    programs.compile(state)
    for _ in range(2):
        state, metrics = programs.train_chunk(state, programs.hp, np.int32(1))
    outcome = programs.evaluate(state.agent, programs.eval_key(2))
    return programs, jax.device_get((jax.tree.leaves(state), metrics, outcome))


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.full), 2])
def test_a_run_of_kept_programs_is_the_same_and_makes_no_parts(keeping, config, shards):
    config = config.replace(num_shards=shards)
    first, want = trained(config)
    second, got = trained(config.replace(seed=config.seed))
    assert "parts" in vars(first)
    assert "parts" not in vars(second)
    assert second.evaluator is None
    assert second.facts == first.facts
    assert_same(got, want)
    third, _ = trained(config.replace(**{"ppo.num_epochs": 3}))
    assert "parts" in vars(third)
    for programs in (first, second, third):
        programs.close()


def test_a_kept_program_takes_other_seeds(keeping, config):
    trained(config)[0].close()
    programs, got = trained(config.replace(seed=5))
    assert "parts" not in vars(programs)
    programs.close()
    keeping.parent.rename(keeping.parent.with_name("away"))
    programs, want = trained(config.replace(seed=5))
    assert "parts" in vars(programs)
    programs.close()
    assert_same(got, want)


@pytest.mark.parametrize(
    "name",
    [
        "train",
        pytest.param("init", marks=pytest.mark.full),
        pytest.param("evaluate", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("damaged", [True, pytest.param(False, marks=pytest.mark.full)])
def test_without_one_of_its_programs_a_run_makes_that_one(keeping, config, name, damaged):
    programs, want = trained(config)
    programs.close()
    (entry,) = keeping.glob(f"{name}-*")
    entry.write_bytes(b"") if damaged else entry.unlink()
    programs, got = trained(config)
    assert "parts" in vars(programs)
    programs.close()
    assert_same(got, want)
    assert entry.stat().st_size > 1000


def test_a_save_of_one_kind_of_run_is_restored_by_the_other(keeping, config, tmp_path):
    runs, states = [], []
    for _ in range(2):
        runs.append(Programs(config, jax.devices()))
        states.append(runs[-1].init())
        runs[-1].compile(states[-1])
        assert runs[-1].evaluate  # all of them are compiled, and kept
    assert jax.tree.structure(states[0]) != jax.tree.structure(states[1])
    for saved, template in (states, reversed(states)):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        checkpoints = Checkpoints(folder)
        checkpoints.save(saved, Progress.of(1))
        checkpoints.wait()
        restored = checkpoints.restore(template)[0]
        checkpoints.close()
        assert jax.tree.structure(restored) == jax.tree.structure(template)
        assert_same(jax.tree.leaves(restored), jax.tree.leaves(saved))
    for run in runs:
        run.close()


def test_evaluation_is_not_compiled_before_the_first_update_needs_it(keeping, config):
    programs = Programs(config, jax.devices())
    programs.compile(programs.init())
    assert "evaluate" not in programs._jobs
    programs.begin_evaluation()
    programs.evaluate(programs.init().agent, programs.eval_key(0))
    programs.close()
    again = Programs(config, jax.devices())
    again.begin()
    assert "evaluate" in again._jobs  # it is kept, and takes no time
    again.close()


@pytest.mark.full
def test_a_kept_film_of_a_robot_makes_no_simulator(keeping, make_config, monkeypatch):
    pytest.importorskip("brax")
    pytest.importorskip("mujoco")
    config = make_config(env={"name": "brax/inverted_pendulum", "max_episode_steps": 5})
    policy = Agent(config, None).policy
    agent = Agent(config, policy.init(jax.random.key(0)))
    task, states, rewards = recording.record_states(agent, seed=1)
    assert isinstance(task, Scene) and len(states) == len(rewards) + 1
    assert [part.shape for part in states[0] if part is not None] == [(2,)]

    def unwanted(*args, **kwargs):
        raise AssertionError("a simulator is made")

    monkeypatch.setattr(recording.registry, "make", unwanted)
    again = recording.record_states(agent, seed=1)
    assert again[0] == task
    assert_same(again[1:], (states, rewards))


def test_evaluations_and_films_are_the_same_from_kept_programs(keeping, config):
    programs = Programs(config, jax.devices())
    state = programs.init()
    programs.close()
    agent = Agent(config, jax.tree.map(lambda x: x[0], state.agent))
    want, got = (evaluate(agent, 6, seed=1) for _ in range(2))
    assert_same(got, want)
    first, second = (recording.record_states(agent, seed=1) for _ in range(2))
    assert_same(second[1:], first[1:])
    assert not isinstance(second[1][0], Placeholder)
    assert len(list(keeping.glob("film-*"))) == 1
