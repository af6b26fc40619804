"""Time to build a model under FSDP2 and to trace two training steps of one of many devices.

    python benchmarks/once/fsdp.py

In bfloat16, one sequence of 1,024 tokens on each device; full activation checkpointing but for
GPT-2. Prints the bytes of the parameters' shard, the peak of both steps, and processor time.
"""

import time
from pathlib import Path

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.measurement.parallel.rank import of_rank
from modelbudget.sweeps.derive import named_architecture

MODELS = Path(__file__).parent.parent / "configs" / "models"
CASES = [
    ("gpt-2-124m", 8, "none"),
    ("gpt-2-124m", 1024, "none"),
    ("llama-3-8b", 64, "full"),
    ("llama-3-8b", 4096, "full"),
    ("palm-540b", 6144, "full"),
]


def main() -> None:
    catalogue = Catalogue(MODELS)
    for name, devices, recompute in CASES:
        run = RunConfig(
            length=1024, dtype="bfloat16", attention_kernel="flash", recompute=recompute,
            zero=3, data_parallel=devices,
        )  # fmt: skip
        start = time.process_time()
        _, values = of_rank(named_architecture(catalogue[name]), run, {"peak_training_bytes"})
        seconds = time.process_time() - start
        shard = sum(values["parameter_bytes"].values())
        peak = max(values["peak_training_bytes"].values())
        print(f"{name:11} {devices:5,} devices  {shard:13,} {peak:15,} bytes  {seconds:5.1f} s")


if __name__ == "__main__":
    main()
