"""Packages that simulators only need for rendering are imported at the first rendering."""

import subprocess
import sys

import pytest

from purejaxppo.envs.adapters.late_imports import LazyModule, lazy_imports

pytestmark = pytest.mark.toy


@pytest.fixture
def drawing(tmp_path, monkeypatch):
    """The packages `drawing` with `colors`, and the simulator `played`, which imports both."""
    (tmp_path / "drawing").mkdir()
    (tmp_path / "drawing/__init__.py").write_text("width = 3\n")
    (tmp_path / "drawing/colors.py").write_text("red = 255\n")
    (tmp_path / "played.py").write_text("import drawing.colors as c\nfrom drawing import colors\n")
    (tmp_path / "curious.py").write_text("from drawing import width\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("drawing", "drawing.colors", "played", "curious"):
        sys.modules.pop(name, None)


def test_a_package_is_imported_when_it_is_first_used(drawing):
    with lazy_imports("drawing", "drawing.colors"):
        import played
    assert not {"drawing", "drawing.colors"} & set(sys.modules)
    assert type(played.c) is LazyModule and not hasattr(played.c, "__path__")
    assert played.c.red == played.colors.red == 255
    assert type(sys.modules["drawing.colors"]) is not LazyModule
    with pytest.raises(AttributeError, match="blue"):
        _ = played.c.blue


def test_names_used_during_the_import_are_imported_immediately(drawing):
    with lazy_imports("drawing", "drawing.colors"):
        import curious
    assert curious.width == 3
    assert type(sys.modules["drawing"]) is not LazyModule


def test_packages_imported_before_are_reused(drawing):
    import drawing.colors

    with lazy_imports("drawing", "drawing.colors"):
        import played
    assert played.c is drawing.colors is sys.modules["drawing.colors"]


def test_gymnax_is_imported_without_its_plotting_packages_and_still_renders():
    pytest.importorskip("gymnax")
    program = (
        "import sys\n"
        "from purejaxppo.envs import gymnax\n"
        "assert 'CartPole-v1' in gymnax.task_names()\n"
        "assert not {'matplotlib', 'seaborn', 'pandas'} & set(sys.modules)\n"
        "from gymnax.environments.misc import pong\n"
        "assert callable(pong.plt.subplots) and callable(pong.sns.heatmap)\n"
        "assert callable(pong.colors.to_rgb) and 'seaborn' in sys.modules\n"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
