"""Runs that start from a trained agent."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.runs import (
    assert_same_bits,
    final_state,
    rejection,
    remove_last_checkpoint,
    setup_of,
    train,
)

import purejaxppo as ppo
from purejaxppo.config.checks import without_effect
from purejaxppo.config.files import load_config
from purejaxppo.learner import PPO
from purejaxppo.parts import make_parts
from purejaxppo.runs import warm_start
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.programs import Programs, evaluation_keys
from purejaxppo.setup import resolve
from purejaxppo.types import AgentState, named_leaves

HARD = {
    "env": {"name": "dummy/choices", "max_episode_steps": 7, "num_envs": 4},
    "network": {"hidden": (4,), "rnn": "gru", "rnn_size": 3},
    "ppo": {"critic": "popart", "normalize_reward": True, "num_epochs": 1, "num_minibatches": 1},
    "num_shards": 2,
}
"""A recurrent network, PopArt, normalised rewards, two shards."""
CRITIC = ("params.critic.", "params.critic_torso.", "params.critic_memory.", "value_stats.")
NORMALIZERS = ("obs_stats.", "reward_stats.")


def part_of(name):
    """Return the part of init_parts to which an array belongs."""
    if name.startswith(CRITIC):
        return "critic"
    return "normalizers" if name.startswith(NORMALIZERS) else "policy"


@pytest.fixture(scope="module")
def trained(make_config):
    """Two agents of `HARD` after two updates, on one device."""
    programs = Programs(setup_of(make_config(**HARD, num_seeds=2)))
    state = programs.init()
    programs.compile(state)
    state, _ = programs.train_chunk(state, programs.hp, np.int32(2))
    config, members = programs.setup.config, programs.setup.members
    return Agent(config, jax.device_get(state.learned), 100, members, (100, 100))


@pytest.mark.parametrize(
    ("parts", "seeds", "devices"),
    [
        (("policy", "critic", "normalizers"), 2, 2),
        (("critic",), 3, 1),
        (("policy",), 2, 1),
        (("normalizers",), 2, 1),
    ],
)
def test_a_run_starts_with_the_chosen_arrays_of_an_agent_and_nothing_else(
    parts, seeds, devices, trained, make_config, tmp_path
):
    """Two agents start two seeds in order; one agent starts three seeds."""
    source = trained if seeds == 2 else trained.member(1)
    env = {"name": "dummy/choices", "max_episode_steps": 9, "num_envs": 8}
    config = make_config(**{**HARD, "env": env, "num_seeds": seeds, "init_parts": parts, "seed": 5})
    setup = replace(setup_of(config, devices), init=source)
    programs = Programs(setup)
    fresh = programs.init()
    state, line = warm_start.begin(setup, programs.parts, fresh, tmp_path, record=True)
    assert line == f"starts from an agent of dummy/choices after 100 steps: {', '.join(parts)}"
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, fresh)
    theirs, before = named_leaves(source.state), named_leaves(fresh.learned)
    for name, x in named_leaves(state.learned).items():
        theirs_or_ours = theirs[name] if part_of(name) in parts else before[name]
        expected = np.broadcast_to(theirs_or_ours, x.shape)
        np.testing.assert_array_equal(x, expected, err_msg=name)
    changed = {part_of(n) for n, x in before.items() if not np.array_equal(x, theirs[n])}
    assert changed == {"policy", "critic", "normalizers"}  # the test could fail
    for x in jax.tree.leaves(state.opt_state):
        assert not np.any(np.asarray(x))
    assert not np.any(np.asarray(state.update))
    assert json.loads((tmp_path / "init.json").read_text())["parts"] == list(parts)
    programs.close()


@pytest.mark.parametrize(
    ("parts", "normalize_obs", "warns"),
    [
        (("policy",), True, True),
        (("policy",), False, False),
        (("policy", "normalizers"), True, False),
    ],
)
def test_networks_without_the_statistics_of_their_observations_are_warned_of(
    parts, normalize_obs, warns, trained, make_config, caplog, tmp_path
):
    ppo_settings = {"init_parts": parts, "ppo.normalize_obs": normalize_obs}
    config = make_config(**HARD, num_seeds=2).replace(**ppo_settings)
    source = Agent(trained.config.replace(**ppo_settings), trained.state, members=trained.members)
    setup = replace(setup_of(config), init=source)
    programs = Programs(setup)
    warm_start.begin(setup, programs.parts, programs.init(), tmp_path, record=False)
    programs.close()
    assert ("Add normalizers" in caplog.text) == warns


def stores_start(config):
    """Return plain gradient descent whose state is the parameters from which it starts."""
    del config
    return optax.GradientTransformation(lambda params: params, lambda g, state, params: (g, state))


def copies_start(config):
    """Return PPO's update whose state is the parameters from which it starts."""
    del config
    return PPO._replace(init=lambda parts, agent, key: jax.tree.map(jnp.copy, agent.params))


@pytest.mark.parametrize("devices", [1, 2])
def test_an_optimiser_and_a_custom_update_start_from_the_parameters_of_the_agent(
    devices, trained, make_config, tmp_path
):
    custom = {"ppo.optimizer": stores_start, "ppo.learner": copies_start}
    config = make_config(**HARD, num_seeds=2).replace(**custom)
    setup = replace(setup_of(config, devices), init=trained)
    programs = Programs(setup)
    state = programs.init()
    state, _ = warm_start.begin(setup, programs.parts, state, tmp_path, record=False)
    jax.tree.map(np.testing.assert_array_equal, state.opt_state, trained.state.params)
    jax.tree.map(np.testing.assert_array_equal, state.learner, trained.state.params)
    programs.close()


def test_a_fine_tuned_run_resumes_exactly_without_the_run_that_it_started_from(
    finished_run, config_file
):
    """It has other environments, a shorter limit and two seeds."""
    shutil.copytree(finished_run, "source")
    flags = ["--init_from", "source", "--env.num_envs", 16, "--env.max_episode_steps", 50]
    flags += ["--num_seeds", 2, "--checkpoint.interval", 512, "--seed", 3]
    assert train(config_file, *flags, "--run_dir", "whole") == 0
    first = ppo.load("whole").metrics
    assert first["update"][:2].tolist() == [0, 0] and first["update"][2] > 0

    # The evaluation before the first update is that of the source's agent.
    config = load_config("whole/config.yaml")
    programs = Programs(setup_of(config))
    source = ppo.restore("source").state.agent
    agents = jax.tree.map(lambda x: np.stack([x, x]), source)
    returns = programs.evaluate(agents, evaluation_keys(programs.key, 0)).returns
    expected = np.asarray(returns).mean(axis=1)
    np.testing.assert_allclose(first["eval/return_mean"][:2], expected, rtol=1e-6)
    assert (first["eval/return_mean"][:2] <= 50).all()
    programs.close()

    origin = json.loads(Path("whole/init.json").read_text())
    assert origin["run"] == str(Path("source").absolute())
    assert origin["env_steps"] == ppo.restore("source").env_steps
    shutil.copytree("whole", "resumed")
    remove_last_checkpoint("resumed")
    shutil.rmtree("source")
    assert train(config_file, *flags, "--run_dir", "resumed") == 0
    assert_same_bits(final_state("resumed")[0], final_state("whole")[0])
    resumed = ppo.load("resumed").metrics
    np.testing.assert_array_equal(resumed["eval/return_mean"], first["eval/return_mean"])


def test_the_best_agent_keeps_the_statistics_of_its_evaluation(make_config, tmp_path):
    config = make_config(**HARD, total_timesteps=160).replace(
        eval={"num_episodes": 4, "interval": 32},
        checkpoint={"interval": 32, "keep": 100},
        logging={"tensorboard": False},
    )
    run = ppo.train(config, run_dir=tmp_path / "run", quiet=True)
    best = run.best
    same = run.agent(best.env_steps)
    jax.tree.map(np.testing.assert_array_equal, best.state, same.state)
    assert best.state.value_stats.moments.count > 0


def test_training_from_python_starts_from_an_agent_and_resumes_only_with_it(trained, make_config):
    """A learning rate of 0 leaves the parameters unchanged."""
    agent = trained.member(0)
    config = make_config(**HARD).replace(**{"ppo.learning_rate": 0.0})
    result = jax.jit(ppo.make_train(config, init=agent))(jax.random.key(1))
    untouched = {"actor", "actor_torso", "actor_memory", "critic_torso", "critic_memory"}
    for name in untouched:  # PopArt rescales the critic's last layer
        jax.tree.map(
            np.testing.assert_array_equal, result.agent.params[name], agent.state.params[name]
        )
    assert result.agent.value_stats.moments.count > agent.state.value_stats.moments.count
    with pytest.raises(ValueError, match=r"^init: it has 2 agents, and this run trains 1\. Select"):
        ppo.make_train(config, init=trained)


def test_a_sweep_starts_from_one_agent(trained, make_config):
    config = make_config(**HARD)
    members = [config.replace(seed=seed) for seed in (0, 1)]
    setup = replace(resolve(config, members=members), init=trained)
    sentence = (
        "init: it has 2 agents. In a sweep, select one with agent.member(i), where i is 0 to 1."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        warm_start.load(setup, make_parts(config))


def test_a_run_does_not_resume_with_another_agent(trained, make_config, tmp_path):
    config = make_config(**HARD).replace(**{"logging.tensorboard": False})
    small = {"total_timesteps": 16, "eval.num_episodes": 0}
    run = ppo.train(config, run_dir=tmp_path / "run", init=trained.member(0), quiet=True, **small)
    again = ppo.train(config, run_dir=run.run_dir, init=trained.member(0), quiet=True, **small)
    assert again.last.env_steps == run.last.env_steps
    with pytest.raises(ValueError, match=r"^init: \S+run did not start from this agent\."):
        ppo.train(config, run_dir=run.run_dir, init=trained.member(1), quiet=True, **small)
    for path in (run.run_dir / "checkpoints").iterdir():
        path.rename(f"{path}.orbax-checkpoint-tmp")  # as if killed during its first checkpoint
    ppo.train(config, run_dir=run.run_dir, init=trained.member(1), quiet=True, **small)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--init_from nowhere", "init_from = nowhere: run folder not found"),
        ("--init_from .", "not a run folder (config.yaml is missing)"),
        ("--init_from run --init_checkpoint 7", "unknown checkpoint '7'. Checkpoints: best, last"),
        ("--init_from run --init_member 1", "init_member = 1: unknown agent"),
        ("--init_from run --init_parts", "init_parts is empty"),
        ("--init_from run --pretrain.teacher run", "exclude each other"),
        (
            "--init_from run --network.hidden 8",
            "init_from = run: its agent has network.hidden = [16], but this run has [8]. Use",
        ),
        (
            "--init_from run --network.activation relu --ppo.critic popart",
            "has network.activation = tanh, ppo.critic = scalar, but this run has relu, popart.",
        ),
        (
            "--init_from run --env.name gymnax/Acrobot-v1",
            "observation space is Box(shape=(4,), low=-inf, high=inf, dtype='float32', slide=0), "
            "but this run's is Box(shape=(6,)",
        ),
        ("--init_from run --env.name gymnax/Acrobot-v1", "Different settings: env.name."),
    ],
)
def test_an_agent_that_does_not_fit_is_rejected_before_a_run_folder_is_made(
    flags, message, finished_run, config_file, capsys
):
    capsys.readouterr()
    error = rejection(["--config", str(config_file), *flags.split()], capsys)
    assert message in error


@pytest.mark.parametrize("field", ["init_from", "pretrain.teacher"])
def test_clobber_does_not_delete_the_run_that_a_run_starts_from(
    field, finished_run, config_file, capsys
):
    flags = ["--run_dir", finished_run, f"--{field}", finished_run, "--clobber"]
    assert train(config_file, *flags) == 2
    assert "--clobber would delete" in capsys.readouterr().err
    assert ppo.restore(finished_run).env_steps > 0


def test_arrays_that_only_one_network_has_are_rejected(trained, make_config):
    """The file of a custom network may have changed."""
    parts = Programs(setup_of(make_config(**HARD, num_seeds=2))).parts
    warm_start.check_arrays(warm_start.Source(trained, "init"), parts)
    params = trained.state.params
    more = {**params, "extra": {"kernel": np.zeros((2, 2, 3))}}
    less = {name: x for name, x in params.items() if name != "actor"}
    for changed, message in (
        (more, r"the source has an array params\.extra\.kernel, which"),
        (less, r"the source has no array params\.actor\.bias, which"),
    ):
        agent = replace(trained, state=trained.state.replace(params=changed))
        with pytest.raises(ValueError, match=message):
            warm_start.check_arrays(warm_start.Source(agent, "init"), parts)


@pytest.mark.parametrize(
    ("part", "modules"),
    [("policy", {"actor", "actor_torso"}), ("critic", {"critic", "critic_torso"})],
)
def test_init_parts_select_modules_of_policies_with_unusual_names(part, modules, make_config):
    config = make_config(
        env={"name": "particles/tag", "num_envs": 10},
        network={"policies": {"hunter_*": "team.a", "prey_*": "critic"}},
        init_parts=[part],
    )
    state = jax.device_get(Programs(setup_of(config)).init().learned)
    source = warm_start.Source(Agent(config, state), "init")
    names = [name for name, _ in warm_start.chosen_arrays(source, config) if "params" in name]
    chosen = {re.sub(r"^params\.(team\.a|critic)\.", "", name).split(".")[0] for name in names}
    assert chosen == modules


def test_the_first_module_is_not_one_of_an_auxiliary_loss(make_config):
    params = {"terms": {"mine": {}}, "x": {"torso": {}, "critic": {}}, "y": {}}
    agent = Agent(make_config(network={"policies": {"*": "x"}}), AgentState(params, None))
    assert warm_start.first_names(agent) == {"torso", "critic"}


def test_an_agent_in_memory_makes_init_parts_effective(trained, make_config):
    config = make_config(**HARD, init_parts=("policy",))
    assert len(without_effect([config])) == 1
    assert without_effect([warm_start.with_source(resolve(config, init=trained))]) == []


def test_parts_that_a_run_does_not_start_from_may_differ(trained, make_config):
    config = make_config(**HARD)
    critic = config.replace(init_parts=["policy"], **{"ppo.critic": "scalar"})
    warm_start.check_network(warm_start.Source(trained, "init"), critic)
    with pytest.raises(ValueError, match=r"ppo\.critic = popart, but this run has scalar"):
        warm_start.check_network(
            warm_start.Source(trained, "init"), config.replace(**{"ppo.critic": "scalar"})
        )
