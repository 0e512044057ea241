"""Every notebook runs from top to bottom, and is committed with the outputs of one run."""

import ast
import json
import re

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
    **{"1_000_000": "30_000", "200_000": "8_192", "80_000": "8_192"},
    **{"-5, -1, 9": "-4, -2, 3", "num_seeds = 8": "num_seeds = 3", "episodes=100": "episodes=8"},
}
"""Numbers of steps, rates, seeds and episodes in tests, enough for the output of every cell."""


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings(
    "default"
)  # warnings of the kernel, which runs in this process, are not ours
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            *x.values,
            id=x.id,
            marks=[*x.marks, pytest.mark.slow if x.id == "oscillator" else pytest.mark.full],
        )
        for x in NOTEBOOKS
    ],
)
def test_each_notebook_runs(path, tmp_path, request):
    if path.stem == "oscillator":
        request.getfixturevalue("optimized")  # otherwise the kernel dies
    notebook = nbformat.read(path, as_version=4)
    text = "".join(cell.source for cell in notebook.cells)
    assert any(long in text for long in SHORTER) or path.stem == "gpu"
    for cell in notebook.cells:
        for long, short in SHORTER.items():
            cell.source = cell.source.replace(long, short)
    (tmp_path / "benchmarks").symlink_to(FOLDER.parent / "benchmarks")
    (tmp_path / "notebooks").mkdir()
    client = nbclient.NotebookClient(
        notebook,
        timeout=540,
        kernel_name="python3",
        resources={"metadata": {"path": tmp_path / "notebooks"}},
    )
    client.execute()


def code_cells(path):
    """Return the code cells of a notebook."""
    notebook = nbformat.read(path, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.toy
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_each_notebook_is_committed_with_the_outputs_of_one_run(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell.outputs for cell in cells)
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    assert path.stat().st_size <= 300_000


@pytest.mark.toy
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_outputs_have_no_terminal_codes_or_warnings(path):
    outputs = [output for cell in code_cells(path) for output in cell.outputs]
    text = json.dumps([remove_images(output) for output in outputs])
    assert "\\u001b" not in text
    assert not re.search(r"Warning|\bnan\b", text)
    assert not any(output.get("name") == "stderr" for output in outputs)


def remove_images(output):
    """Return an output without its images and videos, whose letters are random."""
    data = output.get("data", {})
    text = {kind: value for kind, value in data.items() if kind.startswith("text/")}
    return re.sub(r"base64,[\w+/=]+", "", json.dumps({**output, "data": text}))


@pytest.mark.toy
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebooks_import_only_the_public_interface(path):
    source = "\n".join(
        re.sub("%pip.*", "pass", line)
        for cell in code_cells(path)
        for line in cell.source.splitlines()
    )
    tree = ast.parse(source)
    modules = [
        *(
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for name in node.names
        ),
        *(node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)),
    ]
    internal = {name for name in modules if name.startswith("purejaxppo.")}
    # Its page documents this model of neurons.
    assert internal <= {"purejaxppo.envs.adapters.oscillator"}
