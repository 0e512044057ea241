"""Help of commands with flags: short, by section, with the default of each field."""

import subprocess
import sys

import pytest

from purejaxppo.__main__ import main
from purejaxppo.cli import usage
from purejaxppo.cli.flags import FLAGS, SweepFlags
from purejaxppo.config.schema import HINTS, flat_hints

pytestmark = pytest.mark.toy


def help_of(words, capsys):
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("name", ["train", "sweep"])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_fits_two_screens_and_names_every_section(name, flag, capsys):
    message = help_of([name, flag], capsys)
    lines = message.splitlines()
    assert len(lines) <= 65 and lines[0].startswith(f"usage: purejaxppo {name} ")
    assert sum(line.startswith(f"  purejaxppo {name} ") for line in lines) >= 5
    assert all(f"\n  {section} " in message for section in [*usage.sections(), "run", "--config"])


@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_of_a_command_has_its_default_and_a_description(name, capsys):
    lines = help_of([name, "--help"], capsys).splitlines()
    for flag in flat_hints(FLAGS[name]):
        (place,) = (i for i, line in enumerate(lines) if line.startswith(f"  --{flag} "))
        assert "  (default " in lines[place] and len(lines[place + 1].split()) > 1


@pytest.mark.parametrize("words", [["--help", "ppo"], ["--help=ppo"], ["-h", "ppo.gamma"]])
def test_help_of_a_section_lists_its_fields_and_no_others(words, capsys):
    lines = help_of(["train", *words], capsys).splitlines()
    found = [line.split()[0].removeprefix("--") for line in lines if line.startswith("  --")]
    assert found == [key for key in HINTS if key.startswith("ppo.")]


def test_help_run_lists_the_fields_outside_of_sections(capsys):
    lines = help_of(["train", "--help", "run"], capsys).splitlines()
    found = [line.split()[0].removeprefix("--") for line in lines if line.startswith("  --")]
    assert found == [key for key in HINTS if "." not in key]


def test_help_shows_the_default_and_the_value_in_the_config(capsys):
    message = help_of(["train", "--config", "hopper.yaml", "--help", "network"], capsys)
    assert "--network.hidden INT ...  (default [64, 64]; hopper.yaml has [128, 128])" in message
    assert "--network.rnn none|gru|lstm|mingru  (default none)" in message
    layer_norm = "--network.layer_norm | --network.no_layer_norm"
    assert f"{layer_norm}  (default false; hopper.yaml has true)" in message
    assert "--network.policies NAME VALUE ...  (default empty)" in message
    assert "each hidden layer. Requires network.block = plain." in " ".join(message.split())
    assert "Recurrent cell after the hidden layers, for" in message
    message = help_of(["train", "--config", "cartpole.yaml", "--help", "run"], capsys)
    assert (
        "--gpu NAME VALUE ...  (default empty; cartpole.yaml has {env.num_envs: 4096, " in message
    )


@pytest.mark.parametrize("name", ["train", "sweep"])
def test_help_all_has_every_field(name, capsys):
    lines = help_of([name, "--help", "all"], capsys).splitlines()
    found = [line.split()[0].removeprefix("--") for line in lines if line.strip()[:2] == "--"]
    assert sorted(found) == sorted([*flat_hints(FLAGS[name]), *HINTS])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--help", "pp"], "--help pp: unknown section. Did you mean 'ppo'?"),
        (["--help=x"], "--help x: unknown section. Sections: env, network, ppo"),
        (["--config", "no.yaml", "--help"], "--config no.yaml: no such file"),
    ],
)
def test_help_for_an_unknown_topic_gets_a_one_sentence_error(words, sentence, capsys):
    assert main(["train", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {sentence}") and err.count("\n") == 1


@pytest.mark.parametrize("name", FLAGS)
def test_help_is_printed_without_jax(name):
    code = (
        f"import sys; from purejaxppo.__main__ import main; assert main(['{name}', '--help']) == 0;"
        "assert not {'jax', 'rich', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_first_sentence_ends_before_the_second_and_not_at_a_citation():
    assert usage.first_sentence("Clip, as et al. 2017 do. More.") == "Clip, as et al. 2017 do."
    assert usage.first_sentence("A file; empty:\nnone. Or two.") == "A file; empty: none."


def test_descriptions_are_the_docstrings_under_the_fields():
    docs = usage.field_docs(SweepFlags)
    assert docs.keys() == flat_hints(SweepFlags).keys()
    assert docs["memory_gb"].endswith("0: four fifths of the free memory.")
