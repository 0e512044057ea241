"""Generated pages, and pages that must be complete."""

import dataclasses
import importlib.util
import re

import pytest
from support.paths import ROOT

import purejaxppo
from purejaxppo.config.checks import settings
from purejaxppo.config.files import from_dict
from purejaxppo.config.schema import TUNABLE, Config
from purejaxppo.parts import make_parts
from purejaxppo.runs.rows import COLUMNS, MEMBER_COLUMNS, SUCCESS

SCRIPTS = [ROOT / "docs" / f"make_{name}.py" for name in ("config_reference", "names", "walk")]

TUTORIALS = [path.stem for path in (ROOT / "docs").glob("tutorial_*.md")]

pytestmark = pytest.mark.toy


def fields(config, prefix=""):
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{field.name}.")
        else:
            yield prefix + field.name


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_generated_pages_are_up_to_date(path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr("sys.argv", [str(path), "--check"])
    assert script.main() == 0, capsys.readouterr().err


def test_every_config_field_is_documented():
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8").splitlines()

    free = {name for name, metadata, _ in settings(Config()) if metadata["free"]}

    def about(name):
        mark = " *" if name in TUNABLE else " +" if name in free else ""
        (row,) = [line for line in page if line.startswith(f"| `{name}`{mark} |")]
        return row.split(" | ")[-1].strip(" |")

    names = list(fields(Config()))
    assert len(names) > 50 and 10 < len(free) < len(names) / 2
    assert [name for name in names if len(about(name)) <= len("short")] == []


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_metric_column_is_documented():
    """`all_kinds` has every part that adds metrics."""
    all_kinds = {
        "env": {"name": "dummy/vector", "num_envs": 2},
        "intrinsic": {"kind": "rnd"},
        "ppo": {"critic": "hl_gauss", "learning_rate_schedule": "adaptive", "num_minibatches": 1},
    }
    extras = make_parts(from_dict(all_kinds)).metric_names
    own = (
        "eval/return_mean/NAME",
        "losses/NAME",
        "population/NAME",
        "population/parent",
        "population/copied",
    )
    columns = {*COLUMNS, *MEMBER_COLUMNS, SUCCESS, *extras, *own}
    rows = re.findall(r"^\| `(\S+)` \|", page("docs/metrics.md"), re.MULTILINE)
    assert sorted(rows) == sorted(columns)


@pytest.mark.parametrize("name", ["metrics", "tips", "troubleshooting", *TUTORIALS])
def test_settings_named_on_pages_exist(name):
    known = set(fields(Config()))
    sections = "|".join({field.partition(".")[0] for field in known if "." in field})
    found = set(re.findall(rf"[`-]((?:{sections})\.\w+)(?![\w(])", page(f"docs/{name}.md")))
    assert found and found <= known


def test_every_public_name_is_on_the_api_page():
    named = re.findall(r"^::: (\S+)$", page("docs/api.md"), re.MULTILINE)
    defined = [
        f"{getattr(purejaxppo, name).__module__}.{name}" for name in sorted(purejaxppo.__all__)
    ]
    assert sorted(named) == sorted(defined)


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": (\w+\.md)$", page("mkdocs.yml"), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize(
    "name", ["README.md", "docs/index.md", "docs/quickstart.md", "docs/api.md"]
)
def test_public_names_in_examples_exist(name):
    blocks = re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)
    assert blocks
    for text in blocks:
        for found in re.findall(r"\bppo\.(\w+)\(", text):
            assert found in purejaxppo.__all__
        compile(text, name, "exec")
