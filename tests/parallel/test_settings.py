"""Unsupported JAX settings: a one-sentence error that names the variable, before anything runs."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest
from support.children import environment
from support.runs import error_of

import purejaxppo.cli.train as train_command
from purejaxppo import Agent, evaluate, load, make_train

pytestmark = pytest.mark.toy

EVERYWHERE = {
    "jax_enable_x64": True,
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
    "jax_debug_key_reuse": True,
    "jax_transfer_guard": "disallow",
    "jax_transfer_guard_host_to_device": "disallow_explicit",
}


@pytest.fixture
def change():
    """A function that changes a setting of JAX until the test ends."""
    before = {}

    def change(name, value):
        before[name] = getattr(jax.config, name)
        jax.config.update(name, value)

    yield change
    for name, value in before.items():
        jax.config.update(name, value)


def rejection_pattern(name, value):
    """Return a pattern for the start of the error."""
    return rf"^{name.upper()} = {value}: .*\. Unset this environment variable, or change {name} in"


@pytest.mark.parametrize(
    ("name", "value"),
    [*EVERYWHERE.items(), ("jax_disable_jit", True), ("jax_debug_infs", True)],
)
def test_an_unsupported_jax_setting_is_rejected_before_the_run_folder_is_made(
    name, value, change, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    change(name, value)
    assert train_command.main(["--env.name", "dummy/vector", "--run_dir", "run"]) == 2
    assert error_of(capsys).startswith(f"error: {name.upper()} = {value}: ")
    assert not Path("run").exists()


@pytest.mark.parametrize(("name", "value"), [*EVERYWHERE.items(), ("jax_debug_nans", True)])
def test_make_train_rejects_unsupported_jax_settings(name, value, change, make_config):
    change(name, value)
    with pytest.raises(ValueError, match=rejection_pattern(name, value)):
        make_train(make_config())


@pytest.mark.parametrize(("name", "value"), [*EVERYWHERE.items(), ("jax_disable_jit", True)])
def test_evaluate_and_load_reject_unsupported_jax_settings(
    name, value, change, make_config, tmp_path
):
    agent = Agent(make_config(), None)
    change(name, value)
    with pytest.raises(ValueError, match=rejection_pattern(name, value)):
        evaluate(agent, 2)
    if name != "jax_disable_jit":
        with pytest.raises(ValueError, match=rejection_pattern(name, value)):
            load(tmp_path)


def test_a_program_with_64_bits_can_import_the_package_and_the_error_names_the_variable():
    code = (
        "import jax; jax.config.update('jax_enable_x64', True)\n"
        "import purejaxppo\n"
        "for name in purejaxppo.__all__: getattr(purejaxppo, name)\n"
        "try: purejaxppo.make_train(purejaxppo.Config())\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "JAX_ENABLE_X64 = True: purejaxppo computes in 32 bits. Unset this environment variable, "
        "or change jax_enable_x64 in your program.\n"
    )


def test_an_invalid_jax_variable_gets_a_one_sentence_error():
    done = subprocess.run(
        [sys.executable, "-m", "purejaxppo", "train", "--env.name", "dummy/vector"],
        env=environment(JAX_ENABLE_X64="maybe"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "error: invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'. Correct or unset "
        "this variable.\n",
    )


def test_a_process_with_an_unsupported_setting_fails_before_it_connects_to_the_others():
    place = ["--coordinator", "127.0.0.1:9", "--num_processes", "2", "--process_id", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "purejaxppo", "train", "--env.name", "dummy/vector", *place],
        env=environment(JAX_ENABLE_X64="1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: JAX_ENABLE_X64 = True: purejaxppo computes in 32 bits.")
