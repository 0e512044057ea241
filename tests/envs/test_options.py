"""Options of environments: the checks that follow from their declarations."""

import pytest

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import families
from purejaxppo.envs.families import Family
from purejaxppo.envs.options import Option, checked, from_values, of_task, split, with_defaults

pytestmark = pytest.mark.toy


def even(name, value):
    if value % 2:
        raise ValueError(f"{name} = {value}: must be even")
    return value // 2


OPTIONS = {
    "size": Option(3, "", low=1),
    "rate": Option(0.5, "", above=0),
    "share": Option(0.1, "", low=0, high=1),
    "kind": Option("a", "", choices=("a", "b")),
    "file": Option(None, "", kind=str),
    "half": Option(None, "", parse=even),
    "slots.NAME": Option(None, "", kind=int, low=1),
    "maps": Option(False, "", tasks=("grid-*", "maze")),
}


def test_options_are_converted_to_their_declared_types():
    given = {"size": 4.0, "rate": 2, "half": 8, "slots.red.1": 3, "file": "x"}
    values = checked("toy/task", given, OPTIONS)
    assert values == {"size": 4, "rate": 2, "half": 4, "slots.red.1": 3, "file": "x"}
    assert type(values["size"]) is int


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("size", 0, "env.options.size = 0: must be at least 1"),
        ("size", 1.5, "env.options.size = 1.5: must be a whole number"),
        ("rate", 0.0, "env.options.rate = 0.0: must be above 0"),
        ("rate", float("nan"), "env.options.rate = nan: must be above 0"),
        ("share", 1.5, "env.options.share = 1.5: must be between 0 and 1"),
        ("share", float("nan"), "env.options.share = nan: must be between 0 and 1"),
        ("kind", "c", "env.options.kind = 'c': must be one of a, b"),
        ("kind", 2, "env.options.kind = 2: must be one of a, b"),
        ("file", 3, "env.options.file = 3: must be a string"),
        ("half", 3, "env.options.half = 3: must be even"),
        ("slots.red", 0, "env.options.slots.red = 0: must be at least 1"),
        ("slots.", 1, "env.options.slots.: toy/task has no such option. Did you mean"),
        ("sise", 1, "env.options.sise: toy/task has no such option. Did you mean 'size'?"),
        ("zzz", 1, "env.options.zzz: toy/task has no such option. It has size, rate, share"),
    ],
)
def test_a_wrong_option_is_an_error_with_its_name_value_and_range(name, value, problem):
    with pytest.raises(ValueError) as error:
        checked("toy/task", {name: value}, OPTIONS)
    assert str(error.value).startswith(problem)


def test_a_task_has_the_options_whose_patterns_match_its_name():
    assert "maps" in of_task(OPTIONS, "grid-3") and "maps" in of_task(OPTIONS, "maze")
    assert "maps" not in of_task(OPTIONS, "mazes")


def test_missing_options_get_their_defaults():
    assert with_defaults({"size": 7}, from_values({"size": 3, "rate": 0.5})) == {
        "size": 7,
        "rate": 0.5,
    }


def test_options_of_the_simulator_are_passed_to_the_adapter():
    assert split({"size": 3, "wind": 2}, OPTIONS) == ({"size": 3}, {"wind": 2})
    family = Family(about="", tasks=list, options=OPTIONS, more_options="wind")
    config = EnvConfig("toy/task", options={"wind": "strong", "size": 2.0})
    assert families.with_checked_options(family, "task", config).options == {
        "size": 2,
        "wind": "strong",
    }
    with pytest.raises(ValueError, match="size = 0: must be at least 1"):
        families.with_checked_options(family, "task", EnvConfig("toy/task", options={"size": 0}))


def test_an_option_that_is_a_config_field_names_that_field():
    family = Family(about="", tasks=list, not_options={"steps": "use env.max_episode_steps"})
    with pytest.raises(ValueError, match=r"^env.options.steps: use env.max_episode_steps$"):
        families.with_checked_options(family, "task", EnvConfig("a/b", options={"steps": 1}))


def test_every_declared_default_is_a_valid_value():
    for name in families.ADAPTERS:
        for option, one in families.load(name).options.items():
            if one.default is not None:
                assert one.read(f"env.options.{option}", one.default) == one.default
            assert one.help.endswith("."), (name, option)
