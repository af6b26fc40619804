"""Memory of published models by implementation: our modules, and the classes of transformers.

Prints bytes saved for backward and the largest peak of two training steps of the traced class, each
divided by those of our module, and the difference of the prediction with `implementation:
transformers`.
"""

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.implementations import implementations
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import CONFIGS
from modelbudget.measurement.reference.class_trace import trace_class
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.derive import named_architecture

MODELS = {
    "gpt-2-124m": "flash", "llama-3.2-1b": "flash", "llama-3-8b": "flash",
    "mistral-7b-v0.1": "flash", "qwen-2.5-7b": "flash", "qwen-3-8b": "flash",
    "phi-3-mini": "flash", "gemma-2b": "flash", "gemma-2-2b": "math", "mixtral-8x7b": "flash",
}  # fmt: skip
"""Names in configs/models, and the attention kernel."""
QUANTITIES = ("activation_bytes", "peak_training_bytes")


def predicted(a, run: RunConfig, quantity: str) -> int | None:
    if not a.has_formula_for(quantity, a, run):
        return None
    return of_model(quantity, getattr(a, quantity)(a, run))


def main() -> None:
    catalogue, transformers = Catalogue(CONFIGS / "models"), implementations()["transformers"]
    for name, kernel in MODELS.items():
        base = catalogue[name]
        a, kind = named_architecture(base), base.transformers
        settings = transformers.of_class(kind)
        run = {"batch": 4, "length": 1024, "dtype": "bfloat16", "foreach": True}
        own = RunConfig(**run, attention_kernel=kernel)
        theirs = own.model_copy(update=settings)
        traced = trace_class(kind, class_config(kind, a), own, set(QUANTITIES)).values
        for quantity, total in zip(QUANTITIES, (sum, max), strict=True):
            value = total(traced[quantity].values())
            ours, said = predicted(a, own, quantity), predicted(a, theirs, quantity)
            difference = "no formula" if said is None else f"{said - value:,}"
            print(f"{name:16} {quantity:20} {value:16,} {value / ours:.3f} {difference}")


if __name__ == "__main__":
    main()
