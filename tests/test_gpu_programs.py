"""Programs for a GPU: compiled without one, they launch no more kernels than they did."""

import copy
import importlib.util
import json
import os
import subprocess
import sys

import pytest
from support.paths import ROOT

FOLDER = ROOT / "benchmarks"
COMPILER = ROOT / ".gpu-compiler"
ROWS = FOLDER / "results" / "gpu_programs.jsonl"
GROWTH = 1.10
"""Launches of a gradient step, at most, over those of the row that was kept."""
QUICK = {
    "cartpole": ["init", "train", "evaluate"],
    "cartpole, 4 cards": ["train"],
}
"""One card and several; memories, images and simulators are slow."""

HLO = """HloModule jit_f, is_scheduled=true

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %dot.1 = f32[4]{0} dot(%p, %p)
}

%body (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %arg = (s32[], f32[4]{0}) parameter(0)
  %x = f32[4]{0} get-tuple-element(%arg), index=1
  %product = f32[4]{0} fusion(%x), kind=kCustom, calls=%fused
  %sum = f32[4]{0} all-reduce-start(%product), to_apply=%add
  %inner = (s32[], f32[4]{0}) while(%arg), condition=%c, body=%deep, TRIPS:{"n":"5"}
  ROOT %out = (s32[], f32[4]{0}) tuple(%x, %sum)
}

%deep (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %arg = (s32[], f32[4]{0}) parameter(0)
  %copy.1 = f32[4]{0} copy(%arg)
  ROOT %out = (s32[], f32[4]{0}) tuple(%copy.1)
}

%c (arg: (s32[], f32[4])) -> pred[] {
  %arg = (s32[], f32[4]{0}) parameter(0)
  ROOT %less = pred[] fusion(%arg), kind=kLoop, calls=%fused
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %first = f32[4]{0} copy(%p)
  %known = (s32[], f32[4]{0}) while(%p), condition=%c, body=%body, TRIPS:{"n":"3"}
  ROOT %unknown = (s32[], f32[4]{0}) while(%p), condition=%c, body=%body
}
""".replace("TRIPS", '"known_trip_count"')


def load_script(name):
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


@pytest.mark.toy
def test_loops_count_as_often_as_they_run():
    program = load_script("launches").Program(HLO)
    turn = 1 + 1 + 5  # a product, a sum over cards, and five copies in the loop inside
    assert program.turn(3) == program.turn(0) == turn
    assert program.turn(3, 5) == 1
    assert program.total.kernels == 1 + 3 * turn + (turn + 1)  # and the unknown one's condition
    assert (program.total.products, program.total.collectives, program.total.reads) == (5, 4, 1)


@pytest.mark.toy
def test_rows_that_were_kept_are_of_cases_that_there_are():
    script = load_script("gpu_programs")
    kept = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    assert {row["case"] for row in kept} <= set(script.CASES)
    assert set(QUICK) <= {row["case"] for row in kept}


def compiled(case, programs, tmp_path):
    """The new row of a case, and the kept one."""
    if not (COMPILER / "jax_plugins").is_dir():
        pytest.skip("there is no compiler for GPUs: make gpu-compiler")
    found = tmp_path / "rows.jsonl"
    done = subprocess.run(
        [
            *(sys.executable, FOLDER / "gpu_programs.py", "--results", found),
            *("--cases", case, "--only", *programs),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GPU_COMPILER": str(COMPILER)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kept = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    now = json.loads(found.read_text(encoding="utf-8"))
    before = [row for row in kept if row["case"] == case]
    if not before:
        pytest.skip(f"it compiles, and no launches of {case} were kept")
    return now, before[0]


def check_growth(now, before):
    if now["jax"] != before["jax"]:
        pytest.skip(f"the kept launches are those of JAX {before['jax']}: run gpu_programs.py")
    assert now["gradient_step"] <= GROWTH * before["gradient_step"]
    assert now["train"]["kernels"] <= GROWTH * before["train"]["kernels"]
    assert now["train"]["collectives"] <= GROWTH * before["train"]["collectives"]


@pytest.mark.toy
@pytest.mark.parametrize("where", ["gradient_step", "kernels", "collectives"])
def test_growth_by_more_than_a_tenth_is_found(where):
    before = {"jax": "1", "gradient_step": 100, "train": {"kernels": 100, "collectives": 100}}
    most, more = copy.deepcopy(before), copy.deepcopy(before)
    for row, number in ((most, 110), (more, 111)):
        (row if where in row else row["train"])[where] = number
    check_growth(most, before)
    with pytest.raises(AssertionError):
        check_growth(more, before)


@pytest.mark.toy
def test_the_log_of_a_compiler_says_where_its_time_went():
    log = """\
I1123 x] Running HLO pass pipeline on module jit_f: fusion
I1123 x] HLO pass: priority-fusion time: 4.5 s (4500000 us) (cumulative: 7 s, #called: 1)
I1123 x] GpuCompiler::RunHloPasses for jit_f time: 6 s (6000000 us) (cumulative: 6 s)
I1123 x] NVPTXCompiler::CompileTargetBinary - CompileToPtx for jit_f time: 1 s (1000000 us)
I1123 x] NVPTXCompiler::CompileTargetBinary - PtxToCubin for jit_f time: 2 s (2000000 us)
I1123 x] NVPTXCompiler::CompileTargetBinary - PtxToCubin for jit_f time: 500 ms (500000 us)
"""
    spent = load_script("gpu_programs").stages(log.splitlines())
    assert spent == {
        "jit_f": {"passes": 6.0, "fusion": 4.5, "llvm": 1.0, "ptxas": 2.5, "modules": 2}
    }


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", QUICK)
def test_a_gradient_step_launches_no_more_kernels(case, tmp_path):
    check_growth(*compiled(case, QUICK[case], tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", [x for x in load_script("gpu_programs").CASES if x not in QUICK])
def test_every_case_launches_no_more_kernels(case, tmp_path):
    check_growth(*compiled(case, ["init", "train", "evaluate"], tmp_path))


@pytest.mark.toy
def test_what_was_counted_keeps_what_it_was_made_for():
    rows = {
        row["case"]: row for row in map(json.loads, ROWS.read_text(encoding="utf-8").splitlines())
    }
    assert rows["cartpole"]["gradient_step"] <= 35
    assert rows["gru"]["train"]["kernels"] <= 198_139 / 2.5
    assert rows["lstm"]["gradient_step"] <= 0.7 * 1185
    # A run that is too small to be divided is the same program on four cards.
    assert rows["hopper, 4 cards"]["train"]["kernels"] <= rows["hopper"]["train"]["kernels"]
    assert rows["cartpole, 4 seeds on 4 cards"]["train"]["collectives"] == 0
