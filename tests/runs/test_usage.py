"""Help over a config: short, by section, with each field's own default."""

import dataclasses

import pytest

from purejaxppo.commands.train import main as train
from purejaxppo.config.files import flatten
from purejaxppo.config.schema import Config
from purejaxppo.runs import usage
from purejaxppo.sweep.__main__ import main as sweep

pytestmark = pytest.mark.toy


def help_of(command, words, capsys):
    with pytest.raises(SystemExit) as stop:
        command(words)
    out, err = capsys.readouterr()
    assert not stop.value.code and err == ""
    return out


@pytest.mark.parametrize(("command", "name"), [(train, "train"), (sweep, "sweep")])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_fits_two_screens_and_names_every_section(command, name, flag, capsys):
    said = help_of(command, [flag], capsys)
    lines = said.splitlines()
    assert len(lines) <= 60 and lines[0].startswith(f"usage: purejaxppo {name} ")
    assert sum(line.startswith(f"  purejaxppo {name} ") for line in lines) >= 5
    assert all(f"\n  {section} " in said for section in [*usage.sections(), "run", "--config"])


@pytest.mark.parametrize("words", [["--help", "ppo"], ["--help=ppo"], ["-h", "ppo.gamma"]])
def test_help_of_a_section_has_every_field_of_it_and_no_other(words, capsys):
    lines = help_of(train, words, capsys).splitlines()
    found = [line.split()[0].removeprefix("--") for line in lines if line.startswith("--")]
    assert found == [key for key in flatten(Config()) if key.startswith("ppo.")]


def test_help_of_the_run_has_the_fields_that_are_in_no_section(capsys):
    lines = help_of(train, ["--help", "run"], capsys).splitlines()
    found = [line.split()[0].removeprefix("--") for line in lines if line.startswith("--")]
    assert found == [key for key in flatten(Config()) if "." not in key]


def test_a_default_is_the_fields_own_beside_what_the_config_has(capsys):
    said = help_of(train, ["--config", "hopper.yaml", "--help", "network"], capsys)
    assert "--network.hidden INT ...  (default [64, 64]; hopper.yaml has [128, 128])" in said
    assert "--network.rnn none|gru|lstm|mingru  (default none)" in said
    assert "--network.layer_norm | --network.no_layer_norm  (default false)" in said
    assert "--network.policies NAME VALUE ...  (default empty)" in said
    assert "layer of plain ones. Needs network.block = plain." in " ".join(said.split())
    assert "Recurrent cell behind the hidden layers." in said


def test_help_all_has_every_field(capsys):
    said = help_of(train, ["--help", "all"], capsys)
    assert all(f"--{key}" in said for key in flatten(Config()))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--help", "pp"], "--help pp: no such section; did you mean 'ppo'?"),
        (["--help=x"], "--help x: no such section; there are env, network, ppo"),
        (["--config", "no.yaml", "--help"], "--config no.yaml: no such file"),
    ],
)
def test_help_about_nothing_gets_one_sentence(words, sentence, capsys):
    assert train(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {sentence}") and err.count("\n") == 1


def test_a_first_sentence_ends_before_the_second_and_not_at_a_citation():
    assert usage.first_sentence("Clip, as et al. 2017 do. More.") == "Clip, as et al. 2017 do."
    assert usage.first_sentence("A file; empty:\nnone.") == "A file."


def test_descriptions_are_those_under_the_fields_of_a_class_and_its_bases():
    @dataclasses.dataclass
    class Base:
        first: int = 1
        """The first
        number."""

    @dataclasses.dataclass
    class Both(Base):
        second: int = 2
        """The second."""
        third: int = 3

    assert usage.field_docs(Both) == {"first": "The first number.", "second": "The second."}
