"""Samples per second through a CNN's forward and gradient, by form of convolution.

    python benchmarks/convolution.py [--encoder cnn_nature] [--batch 256] [--torch-python PATH]

`scan` takes gradient steps in a `lax.scan`, as PPO's update does; `call` calls a jitted gradient
once for each. Images are 84 x 84 x 4 bytes. Contenders take turns, round after round; medians are
compared. CPU time per sample is the least of all rounds, and says more than samples/s on a busy
machine. `--torch-python` names a Python with PyTorch, which then runs Nature's CNN beside ours,
channels last. Results go to benchmarks/results/convolution.jsonl.
"""

import argparse
import datetime
import functools
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import machine

Times = tuple[float, float]
STEPS = 2
"""Gradient steps in one timed call."""
TORCH = """
import sys, time, torch
from torch import nn
batch, steps = int(sys.argv[1]), int(sys.argv[2])
model = nn.Sequential(
    nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3),
    nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 7),
).to(memory_format=torch.channels_last)
images = torch.randint(0, 256, (batch, 4, 84, 84), dtype=torch.uint8)
images = images.to(memory_format=torch.channels_last)
sgd = torch.optim.SGD(model.parameters(), 1e-3)
for _ in sys.stdin:
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        sgd.zero_grad()
        model(images.float() / 255).square().mean().backward()
        sgd.step()
    print(time.perf_counter() - started, time.process_time() - cpu, flush=True)
"""


def main() -> None:
    """Compiles all contenders, lets them take turns, prints and keeps a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", default="cnn_nature")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--forms", nargs="+", default=["ours", "im2col", "lax"])
    parser.add_argument("--torch-python", help="a Python that has PyTorch")
    args = parser.parse_args()
    contenders: dict[tuple[str, str], Callable[[], Times]] = {}
    for form in args.forms:
        for where, run in our_steps(form, args.encoder, args.batch).items():
            contenders[form, where] = run
    if args.torch_python and args.encoder == "cnn_nature":
        contenders["torch", "call"] = torch_steps(args.torch_python, args.batch)
    for run in contenders.values():
        run()  # compiles and warms up
    times: dict[tuple[str, str], list[Times]] = {name: [] for name in contenders}
    for _ in range(args.repeats):
        for name, run in contenders.items():
            times[name].append(run())
    rows = []
    print(f"{args.encoder}, batch {args.batch}: samples/s of forward and gradient (min .. max)")
    print("form     where   median        rounds          CPU us/sample")
    for (form, where), values in times.items():
        samples = STEPS * args.batch
        speeds = [samples / seconds for seconds, _ in values]
        median = statistics.median(speeds)
        cpu = min(seconds for _, seconds in values) / samples * 1e6
        print(
            f"{form:8} {where:5} {median:8,.0f}   {min(speeds):8,.0f} .. {max(speeds):8,.0f}"
            f"   {cpu:8,.0f}"
        )
        rows.append(
            {
                "encoder": args.encoder,
                "batch": args.batch,
                "form": form,
                "where": where,
                "samples_per_second": median,
                "rounds": [round(speed) for speed in speeds],
                "cpu_us_per_sample": round(cpu),
                "date": datetime.date.today().isoformat(),
                **machine.describe(),
            }
        )
    path = machine.RESULTS / "convolution.jsonl"
    machine.write_rows(path, [*machine.read_rows(path), *rows])


def our_steps(name: str, encoder: str, batch: int) -> dict[str, Callable[[], Times]]:
    """Functions that take STEPS gradient steps with one form."""
    import jax
    import jax.numpy as jnp

    from purejaxppo import spaces
    from purejaxppo.agents import convolutions, networks
    from purejaxppo.config.schema import NetworkConfig

    form = {
        "ours": convolutions.BATCH_LAST,
        "lax": convolutions.LAX,
        "im2col": convolutions.LAX._replace(convolve=im2col),
    }[name]
    convolutions.default = lambda: form
    config = NetworkConfig(hidden=(512,), torso="shared", encoder=encoder)
    network = networks.make_network(
        spaces.Box((84, 84, 4), 0, 255, "uint8"), spaces.Discrete(6), config
    )
    params = jax.jit(network.init)(jax.random.key(0))
    bits = jax.random.bits(jax.random.key(1), (STEPS, batch, 84, 84, 4), jnp.uint8)

    def loss(params: Any, images: Any) -> Any:
        out = network.apply(params, (), images, None)
        return jnp.mean(jnp.square(out.dist_params)) + jnp.mean(jnp.square(out.critic))

    def step(params: Any, images: Any) -> tuple[Any, Any]:
        value, gradient = jax.value_and_grad(loss)(params, images)
        return jax.tree.map(lambda x, g: x - 1e-3 * g, params, gradient), value

    call = jax.jit(step).lower(params, bits[0]).compile()
    scan = jax.jit(lambda params, bits: jax.lax.scan(step, params, bits))
    scan = scan.lower(params, bits).compile()
    batches = list(bits)
    return {
        "scan": functools.partial(timed, lambda: scan(params, bits)),
        "call": functools.partial(timed, lambda: [call(params, x) for x in batches]),
    }


def im2col(x: Any, kernel: Any, bias: Any, stride: int, padding: str) -> Any:
    """The plain patches form, channels last, to compare with."""
    import jax.numpy as jnp

    from purejaxppo.agents.convolutions import same_padding

    k = kernel.shape[0]
    if padding == "SAME":
        pads = [same_padding(size, k, stride) for size in x.shape[1:3]]
        x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    height, width = ((size - k) // stride * stride + 1 for size in x.shape[1:3])
    patches = [
        x[:, i : i + height : stride, j : j + width : stride] for i in range(k) for j in range(k)
    ]
    return jnp.concatenate(patches, -1) @ kernel.reshape(-1, kernel.shape[-1]) + bias


def timed(run: Callable[[], Any]) -> Times:
    """(seconds, seconds of CPU) of a run."""
    import jax

    started, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(run())
    return time.perf_counter() - started, time.process_time() - cpu


def torch_steps(python: str, batch: int) -> Callable[[], Times]:
    """PyTorch's steps, in a process that waits for its turn."""
    worker = subprocess.Popen(
        [python, "-c", TORCH, str(batch), str(STEPS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run() -> Times:
        worker.stdin.write("go\n")
        worker.stdin.flush()
        seconds, cpu = worker.stdout.readline().split()
        return float(seconds), float(cpu)

    return run


if __name__ == "__main__":
    main()
