"""How a model runs. The other half of a sweep's point."""

from modelbudget.architecture.run_devices import Devices
from modelbudget.architecture.run_implementation import HowComputed
from modelbudget.architecture.run_step import Step


class RunConfig(Devices, HowComputed, Step):
    """One step of training, or one use, of a model. No field has the name of an architecture's."""
