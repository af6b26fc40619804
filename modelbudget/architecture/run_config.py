"""How a model runs. The other half of a sweep's point."""

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from modelbudget.architecture.run_adapter import Adapter
from modelbudget.architecture.run_cache import ServedCache
from modelbudget.architecture.run_devices import Devices
from modelbudget.architecture.run_implementation import HowComputed
from modelbudget.architecture.run_step import Step
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import describe, show


class RunConfig(Devices, HowComputed, ServedCache, Adapter, Step):
    """One step of training, or one use, of a model. No field has the name of an architecture's.

    A model completes the fields that are not set: those that it or its source sets, else what a GPU
    runs (`sweeps/device_defaults.py`); `modelbudget.model(name).run(RunConfig(...))` returns them.
    Read alone, such a field has its simplest value: `RunConfig()` is a step in float32, with the
    scores of attention in memory, and AdamW that updates one tensor after another.
    """

    if not TYPE_CHECKING:  # types know the fields

        def __init__(self, *values: Any, **fields: Any):
            """Raise InputError; `model_validate` raises pydantic's ValidationError."""
            if values:
                call = f"RunConfig(): {show(values[0])} has no name"
                raise InputError([f"{call}; allowed: batch=8, length=4096, …"])
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise InputError(describe(error, RunConfig.model_fields)) from None

        __init__.__pydantic_base_init__ = True  # else `model_validate` calls it too
