"""The command `purejaxppo export --run runs/hopper-s0 --to policy.onnx`."""

import sys

from purejaxppo.cli import begin_process, start

if __name__ == "__main__":  # before JAX is imported
    begin_process()
    sys.exit(start("export", sys.argv[1:]))

from collections.abc import Sequence
from pathlib import Path

from purejaxppo.cli import parser
from purejaxppo.cli.flags import ExportFlags
from purejaxppo.config.hints import short_path
from purejaxppo.export.files import CHECKED, Written, check_target, export
from purejaxppo.export.player import Port
from purejaxppo.parallel.settings import check_settings
from purejaxppo.parallel.shards import use_compilation_cache
from purejaxppo.runs.checkpoint import restore
from purejaxppo.runs.folder import imports


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return parser.run(lambda words: run(parser.parse(ExportFlags, words)), args)


def run(command: ExportFlags) -> int:
    """Export a policy and print a summary."""
    if not command.run:
        raise ValueError("--run is missing. Give a run folder, as in --run runs/hopper-s0.")
    if not command.to:
        raise ValueError("--to is missing. Give the file to write, as in --to policy.onnx.")
    check_target(command.to, force=command.force)
    check_settings()
    use_compilation_cache()
    for line in imports(command.run):
        print(line, flush=True)
    target = Path(command.to).absolute()  # custom code may change the current folder
    agent = restore(command.run, command.checkpoint)
    if command.member != -1:
        agent = agent.member(command.member)
    agent.check_single("--to", command.run)
    written = export(agent, target, batch=command.batch, force=command.force)
    print(describe(written))
    return 0


def describe(written: Written) -> str:
    """Describe a written file in a few lines."""
    program, info = written.program, written.program.metadata
    size = written.path.stat().st_size / 1024
    lines = [
        f"{short_path(written.path)}: {size:,.0f} KB, {info['env']} after "
        f"{info['training_steps']:,} steps",
        *(f"  in   {_line(port)}" for port in program.inputs),
        *(f"  out  {_line(port)}" for port in program.outputs),
        f"verified with {written.player} on {CHECKED} random observations: the largest difference "
        f"from the checkpoint's actions is {written.difference:.1e}",
    ]
    return "\n".join(lines)


def _line(port: Port) -> str:
    return f"{port.name:<16} {port.dtype} {list(port.shape)}"
