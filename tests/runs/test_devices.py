"""Devices that are missing, taken or too small are answered in a sentence."""

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


def test_a_platform_that_is_not_there_is_named(config_file, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    _, said = start(config_file).communicate()
    assert "JAX_PLATFORMS=cuda: JAX finds no such device" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("INTERNAL: all CUDA-capable devices are busy or unavailable", "has taken it"),
        ("RESOURCE_EXHAUSTED: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "has taken it"),
        ("Unable to initialize backend 'cuda': no driver", "finds no such device"),
    ],
)
def test_a_card_that_cannot_be_used_is_one_sentence(message, sentence, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "devices", fails_with(message))
    with pytest.raises(ValueError, match=sentence):
        devices.found()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_host_is_called_through_jax_on_the_cpu(asynchronous, make_config, monkeypatch):
    config = make_config(env={"name": "gymnax/CartPole-v1"})
    devices.check_cpu(resolve(config), GPU)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "local_devices", fails_with("no cpu"))
    devices.check_cpu(resolve(config), GPU)  # which calls nothing
    config = make_config(env={"name": "gymnasium/CartPole-v1"}, asynchronous=asynchronous)
    with pytest.raises(ValueError, match="Set JAX_PLATFORMS=cuda,cpu, or unset it"):
        devices.check_cpu(resolve(config), GPU)
    devices.check_cpu(resolve(config), jax.devices("cpu")[0])
