"""Every notebook runs from top to bottom, and is committed without outputs."""

import pytest
from support.paths import ROOT

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

FOLDER = ROOT / "notebooks"
NOTEBOOKS = [
    pytest.param(path, id=path.stem, marks=pytest.mark.xdist_group(f"notebook-{path.stem}"))
    for path in sorted(FOLDER.glob("*.ipynb"))
]


SHORTER = {
    **{"1_000_000": "30_000", "200_000": "20_000", "80_000": "20_000", "40_000": "10_000"},
    **{"-5, -1, 9": "-4, -2, 3", "num_seeds = 8": "num_seeds = 3"},
}
"""Numbers of steps, rates and seeds in tests, enough for the output of every cell."""


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings(
    "default"
)  # warnings of the kernel, which runs in this process, are not ours
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_each_notebook_runs(path, tmp_path, request):
    if path.stem == "oscillator":
        request.getfixturevalue("optimized")  # otherwise the kernel dies
    notebook = nbformat.read(path, as_version=4)
    text = "".join(cell.source for cell in notebook.cells)
    assert any(long in text for long in SHORTER)
    for cell in notebook.cells:
        for long, short in SHORTER.items():
            cell.source = cell.source.replace(long, short)
    client = nbclient.NotebookClient(
        notebook, timeout=540, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()


@pytest.mark.toy
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_each_notebook_is_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    dirty = [
        i
        for i, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count)
    ]
    assert not dirty, f"cells {dirty} of {path.name} have outputs"
