"""Memory and compute of `transformers` classes, traced like our own modules."""

import math
from collections.abc import Set
from typing import Any, NamedTuple, cast

from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.huggingface.construct import config_object
from modelbudget.measurement.build import build_class
from modelbudget.measurement.measured import Values
from modelbudget.measurement.one_model import look
from modelbudget.measurement.step.transformers_step import REPLACED
from modelbudget.sweeps.not_with_quantised_weights import refused
from modelbudget.sweeps.quantity_names import OF_PARAMETERS


class Traced(NamedTuple):
    """Quantities of a class in a run.

    `values` are by quantity, and by component of the class or by phase; `missing` has the reason
    for each quantity that was not measured. `attention` is the implementation that the class has
    used, `replaced` names what was replaced in torch and in the package, and `method` is the
    device.
    """

    class_name: str
    attention: str | None
    replaced: str | None
    method: str
    values: Values
    missing: dict[str, str]


def trace_class(
    class_name: str,
    config: dict[str, Any],
    run: RunConfig,
    quantities: Set[str],
    device: str = "meta",
    limit: float = math.inf,
) -> Traced:
    """Trace training and inference of a class in a run, with the config's keys.

    `quantities` are of `OF_PARAMETERS`, `OF_TRAINING` and `OF_INFERENCE`. What runs more than
    `limit` operations in one phase is missing, and what quantised weights leave undefined: the
    class has none. Raises ValueError if the class rejects its config or cannot have the run's
    dropout.
    """
    model = build_class(class_name, config_object(class_name, config), run, device)
    missing = refused(None, run, quantities)
    counts, values, _ = look(model, run, quantities - missing.keys(), missing, limit)
    for quantity in OF_PARAMETERS - missing.keys():
        values[quantity] = {
            name: getattr(of_component, quantity) for name, of_component in counts.items()
        }
    wanted = {
        quantity: of_component
        for quantity, of_component in values.items()
        if quantity in quantities
    }
    return Traced(class_name, attention_of(model), replaced(run), device, wanted, missing)


def attention_of(model: nn.Module) -> str:
    """Return the attention implementation of a class: `sdpa`, or `eager` if it has no other."""
    config = cast(Any, model).config
    return config.get_text_config(decoder=True)._attn_implementation


def replaced(run: RunConfig) -> str:
    """Name the functions that are replaced for a run."""
    functions = [f"scaled_dot_product_attention ({run.attention_kernel}, {run.backend})"]
    if run.backend == "gpu":
        functions += ["rms_norm (gpu)", "dropout (gpu)"]
    if run.autocast != "none":
        functions += [f"autocast ({run.autocast})"]
    return "; ".join([*functions, *REPLACED])
