"""What one of several devices holds that compute one model together, and the time to measure it.

    python benchmarks/once/tensor_parallel.py

Two training steps in bfloat16 with flash attention, four sequences of 1,024 tokens (PaLM: one, with
full activation checkpointing), with and without sequence parallelism. Prints the bytes of
parameters, saved tensors and peak of one device, the largest difference of a prediction, and
processor time.
"""

import time
from pathlib import Path

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.measurement.parallel.rank import of_rank
from modelbudget.sweeps.derive import named_architecture

MODELS = Path(__file__).parent.parent / "configs" / "models"
ONE = {"batch": 4, "recompute": "none"}
CASES = [
    ("gpt-2-355m", 8, ONE),
    ("llama-3-8b", 2, ONE),
    ("llama-3-8b", 8, ONE),
    ("palm-540b", 16, {"batch": 1, "recompute": "full"}),
]
QUANTITIES = ("parameter_bytes", "gradient_bytes", "activation_bytes", "peak_training_bytes")


def main() -> None:
    catalogue = Catalogue(MODELS)
    for name, devices, settings in CASES:
        for sequence in (False, True):
            run = RunConfig(
                length=1024, dtype="bfloat16", attention_kernel="flash",
                tensor_parallel=devices, sequence_parallel=sequence, **settings,
            )  # fmt: skip
            a = named_architecture(catalogue[name]).model_copy(update={"vocab_multiple": 128})
            start = time.process_time()
            _, values = of_rank(a, run, set(QUANTITIES))
            seconds = time.process_time() - start
            predicted = {
                quantity: {key: term.total for key, term in getattr(a, quantity)(a, run).items()}
                for quantity in QUANTITIES
            }
            differences = [
                abs(n - values[quantity].get(key, 0))
                for quantity, terms in predicted.items()
                for key, n in terms.items()
            ]
            parameters, _, saved = (sum(values[quantity].values()) for quantity in QUANTITIES[:3])
            peak = max(values["peak_training_bytes"].values())
            print(
                f"{name:10} {devices:2} {sequence!s:5} {parameters:15,} {saved:15,} {peak:17,} "
                f"difference {max(differences)}  {seconds:4.1f} s"
            )


if __name__ == "__main__":
    main()
