"""Peaks of a real step on a CPU with and without a TorchDispatchMode, which traces are made with.

While one is active, as for tensors on meta, autograd adds two gradients out of place where it
would add the second to the first, if nothing else holds that (torch 2.13,
autograd/input_buffer.cpp, `accumulate`; ATen/TensorSubclassLikeUtils.h, `isTensorSubclassLike`),
and so does attention with its mask in `math`. The peak with a mode is thus never the lower one.

    python benchmarks/once/without_dispatch_mode.py [SEED [N]]

Prints the peaks of a first forward and backward pass that torch's profiler sees, and that of a
trace, for some models; and of N random small ones how many have a lower peak without a mode, and
the lowest ratio.
"""

import random
import sys
from contextlib import nullcontext

from torch.utils._python_dispatch import TorchDispatchMode

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import CONFIGS
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.process.allocator import of_cpu
from modelbudget.measurement.process.device import use_one_core
from modelbudget.measurement.step.train import train
from modelbudget.modules.initialise import uninitialised
from modelbudget.sweeps.derive import named_architecture

NAMED = [("gpt-2-124m", 1, 512), ("gpt-2-124m", 4, 64), ("qwen-3-0.6b", 1, 128)]
PHASE = "first.forward_backward"


class Nothing(TorchDispatchMode):
    """A mode that runs each operation as it is."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def peaks(a: Architecture, run: RunConfig) -> list[int]:
    """Return the peak of requested bytes without a mode, and with one."""
    found = []
    for mode in (nullcontext(), Nothing()):
        with mode:
            found.append(of_cpu(a, run)["peak_requested_bytes"][PHASE])
    return found


def traced(a: Architecture, run: RunConfig) -> int:
    with uninitialised():
        model = build(a, "meta", run.dtype)
    return train(model, run, {"gradient_bytes"})["peak_training_bytes"][PHASE]


def random_case(draw: random.Random) -> tuple[Decoder, RunConfig]:
    group, n_kv_head = draw.choice([1, 2, 4]), draw.choice([1, 2, 3])
    a = Decoder(
        n_vocab=draw.choice([11, 64, 300]), d_model=draw.choice([8, 24, 80]), n_ctx=64,
        n_layer=draw.choice([1, 2, 5]), n_head=n_kv_head * group, n_kv_head=n_kv_head,
        d_head=draw.choice([8, 24]), d_ff=draw.choice([8, 40, 96]), gated=draw.random() < 0.5,
        activation=draw.choice(["gelu", "relu", "silu"]), tied=draw.random() < 0.5,
        norm=draw.choice(["layernorm", "rmsnorm"]), parallel=draw.random() < 0.5,
        position=draw.choice(["none", "learned", "rotary"]),
    )  # fmt: skip
    run = RunConfig(
        batch=draw.choice([1, 2, 5]), length=draw.choice([2, 16, 64]), backend="cpu",
        attention_kernel=draw.choice(["math", "flash"]), recompute=draw.choice(["none", "full"]),
        optimizer="sgd",
    )  # fmt: skip
    return a, run


def main(seed: int = 0, n_case: int = 200) -> None:
    models = Catalogue(CONFIGS / "models")
    for name, batch, length in NAMED:
        a = named_architecture(models[name])
        for kernel in ("math", "flash"):
            settings = {"attention_kernel": kernel, "backend": "cpu", "optimizer": "sgd"}
            run = RunConfig.model_validate({"batch": batch, "length": length} | settings)
            without, with_one = peaks(a, run)
            print(
                f"{name:12} {batch} × {length:4} {kernel:5} without a mode {without:15,}, with one "
                f"{with_one:15,}, traced {traced(a, run):15,}",
                flush=True,
            )
    draw = random.Random(seed)
    pairs = [peaks(*random_case(draw)) for _ in range(n_case)]
    lower = sum(without < with_one for without, with_one in pairs)
    higher = sum(without > with_one for without, with_one in pairs)
    least = min(without / with_one for without, with_one in pairs)
    print(f"{n_case} random: {lower} lower, {higher} higher; the lowest ratio is {least:.4f}")


if __name__ == "__main__":
    use_one_core()
    main(*map(int, sys.argv[1:]))
