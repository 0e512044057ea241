"""Errors for missing and busy devices."""

from types import SimpleNamespace

import jax
import pytest
from support.runs import start

from purejaxppo.runs import devices
from purejaxppo.setup import resolve

GPU = SimpleNamespace(platform="gpu")


def fails_with(message, kind=RuntimeError):
    def fail(*args, **kwargs):
        raise kind(message)

    return fail


def test_a_missing_platform_is_named(config_file, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    _, expected_message = start(config_file).communicate()
    assert "JAX_PLATFORMS=cuda: JAX does not find this device" in expected_message
    assert "Traceback" not in expected_message


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("INTERNAL: all CUDA-capable devices are busy or unavailable", "another program uses it"),
        ("RESOURCE_EXHAUSTED: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "another program uses it"),
        ("Unable to initialize backend 'cuda': no driver", "JAX does not find this device"),
    ],
)
def test_an_unusable_gpu_gets_a_one_sentence_error(message, sentence, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "devices", fails_with(message))
    with pytest.raises(ValueError, match=sentence):
        devices.check_platforms()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_host_simulators_need_jax_on_the_cpu(asynchronous, make_config, monkeypatch):
    config = make_config(env={"name": "gymnax/CartPole-v1"})
    devices.check_cpu(resolve(config), GPU)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "local_devices", fails_with("no cpu"))
    devices.check_cpu(resolve(config), GPU)  # a JAX simulator needs no host calls
    config = make_config(env={"name": "gymnasium/CartPole-v1"}, asynchronous=asynchronous)
    with pytest.raises(ValueError, match="Set JAX_PLATFORMS=cuda,cpu, or unset it"):
        devices.check_cpu(resolve(config), GPU)
    devices.check_cpu(resolve(config), jax.devices("cpu")[0])
