"""Programs for a GPU, compiled without one: they launch no more kernels than before."""

import importlib
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
"""The largest ratio of launches of a gradient step to those of the stored row."""
QUICK = ("cartpole", "cartpole, 4 cards")
"""Cases with one and with several GPUs; recurrent cells, images and simulators are slow."""

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
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.toy
def test_kernels_in_loops_are_counted_per_iteration():
    program = load_script("launches").Program(HLO)
    turn = 1 + 1 + 5  # a product, a sum over GPUs, and five copies in the inner loop
    assert program.turn(3) == program.turn(0) == turn
    assert program.turn(3, 5) == 1
    assert program.total.kernels == 1 + 3 * turn + (
        turn + 1
    )  # and the condition of the unknown one
    assert (program.total.products, program.total.collectives, program.total.reads) == (5, 4, 1)


JOINED = """HloModule jit_f

%fused (p: f32[4,64], q: f32[2]) -> f32[66] {
  %p = f32[4,64]{1,0} parameter(0)
  %q = f32[2]{0} parameter(1)
  %sum = f32[64]{0} reduce(%p), dimensions={0}, metadata={op_name="transpose(jvp())/bias"}
  %all = f32[66]{0} concatenate(%sum, %q), dimensions={0}
  ROOT %half = f32[66]{0} divide(%all, %all)
}

%other (p: f32[2,64], q: f32[2,64]) -> f32[64] {
  %p = f32[2,64]{1,0} parameter(0)
  %both = f32[4,64]{1,0} concatenate(%p, %p), dimensions={0}
  ROOT %sum = f32[64]{0} reduce(%both), dimensions={0}, metadata={op_name="transpose(jvp())/bias"}
}

ENTRY %main (p: f32[4,64], q: f32[2]) -> f32[66] {
  %p = f32[4,64]{1,0} parameter(0)
  %q = f32[2]{0} parameter(1)
  %x = f32[64]{0} fusion(%p, %p), kind=kInput, calls=%other
  ROOT %y = f32[66]{0} fusion(%p, %q), kind=kInput, calls=%fused
}
"""


@pytest.mark.toy
def test_sums_of_a_loss_inside_a_concatenation_are_counted():
    launches = load_script("launches")
    assert launches.Program(JOINED).joined_sums() == 1
    assert launches.Program(JOINED.replace("transpose(jvp())", "vmap()")).joined_sums() == 0
    assert launches.Program(JOINED.replace("calls=%fused", "calls=%other")).joined_sums() == 0


@pytest.mark.toy
def test_stored_rows_belong_to_existing_cases():
    script = load_script("gpu_programs")
    kept = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    assert {row["case"] for row in kept} <= set(script.CASES)
    assert set(QUICK) <= {row["case"] for row in kept}


def compile_case(case, tmp_path):
    """Return the new and the stored row of a case."""
    if not (COMPILER / "jax_plugins").is_dir():
        pytest.skip("there is no compiler for GPUs: make gpu-compiler")
    found = tmp_path / "rows.jsonl"
    done = subprocess.run(
        [
            *(sys.executable, FOLDER / "gpu.py", "--results", found),
            *("--programs", case),
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
    assert now["joined_sums"] == 0
    if now["jax"] != before["jax"]:
        pytest.skip(f"the kept launches are those of JAX {before['jax']}: run gpu.py --programs")
    assert now["gradient_step"] <= GROWTH * before["gradient_step"]
    assert now["train"]["kernels"] <= GROWTH * before["train"]["kernels"]
    assert now["train"]["collectives"] <= GROWTH * before["train"]["collectives"]


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", QUICK)
def test_a_gradient_step_launches_no_more_kernels_than_stored(case, tmp_path):
    check_growth(*compile_case(case, tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", [x for x in load_script("gpu_programs").CASES if x not in QUICK])
def test_every_case_launches_no_more_kernels_than_stored(case, tmp_path):
    check_growth(*compile_case(case, tmp_path))


@pytest.mark.toy
def test_stored_counts_have_the_intended_reductions():
    rows = {
        row["case"]: row for row in map(json.loads, ROWS.read_text(encoding="utf-8").splitlines())
    }
    assert rows["cartpole"]["gradient_step"] <= 42
    assert rows["gru"]["train"]["kernels"] <= 198_139 / 2.5
    assert rows["lstm"]["gradient_step"] <= 0.7 * 1185
    # A run that is too small to be divided is the same program on four GPUs.
    assert rows["hopper, 4 cards"]["train"]["kernels"] <= rows["hopper"]["train"]["kernels"]
    assert rows["cartpole, 4 seeds on 4 cards"]["train"]["collectives"] == 0
