"""How a model runs. The other half of a sweep's point."""

from modelbudget.architecture.run_devices import Devices
from modelbudget.architecture.run_implementation import HowComputed
from modelbudget.architecture.run_step import Step


class RunConfig(Devices, HowComputed, Step):
    """One step of training, or one use, of a model. No field has the name of an architecture's.

    A model completes the fields that are not set: those that it or its source sets, else what a GPU
    runs (`sweeps/device_defaults.py`); `modelbudget.model(name).run(RunConfig(...))` returns them.
    Read alone, such a field has its simplest value: `RunConfig()` is a step in float32, with the
    scores of attention in memory, and AdamW that updates one tensor after another.
    """
