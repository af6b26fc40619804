"""The tape of a run: its dtype, the format of weights, and what is trained."""

from collections import Counter

from modelbudget.architecture.arithmetic import highest
from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import is_divided, is_sharded, stored
from modelbudget.architecture.stored_formats import file_is_known
from modelbudget.components.adapter import Adapters
from modelbudget.components.parallel.device_share import share
from modelbudget.components.weight_formats import StoredWeights
from modelbudget.devices.divided_parts import Divided
from modelbudget.devices.gathered_layers import Sharded
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import Tape, Tensor, running_on
from modelbudget.quantities.depth import OfPhases


def peak_of(tape: Tape):
    """Return the largest number of bytes live since the phase began."""
    if tape.allocations is None:
        return tape.peak
    return highest(*(x.live for x in tape.allocations))


def finish(result: OfPhases, tape: Tape, phase: str) -> None:
    """Keep the peak of a phase, and its allocations if they are listed."""
    result.peaks[phase] = peak_of(tape)
    if tape.allocations is not None:
        result.allocations[phase] = tape.allocations


def kept_of(tape: Tape, p: Tensor) -> Tensor:
    """Return what a device keeps of a parameter, and updates."""
    return p if tape.sharded is None else tape.sharded.rows_of[p]


def parameters_of(tape: Tape) -> tuple[Counter[str], Counter[str]]:
    """Count the parameters of a model that has been made, and the bytes that a device keeps."""
    numbers: Counter[str] = Counter()
    n_bytes: Counter[str] = Counter()
    for p in tape.parameters:
        storage = kept_of(tape, p).storage
        numbers[p.name] += p.numel() * storage.times
        n_bytes[p.name] += storage.n_bytes * storage.times
    return numbers, n_bytes


def weight_bytes(program, a, run: RunConfig, in_file: bool = False) -> Counter[str]:
    """Return the bytes of a model's quantised weights by component, without those of an adapter.

    Raises NoProgramError.
    """
    if in_file and not file_is_known(run.weights):
        raise NoProgramError(f"weights: {run.weights}: what its library writes is not known")
    with running_on(Tape(run.dtype)) as tape:
        tape.weight_format = StoredWeights(run, in_file=in_file)
        make_model(tape, program, a, run)
        return parameters_of(tape)[1]


def tape_of(run: RunConfig, lists_allocations: bool = False) -> Tape:
    """Return a tape on which a model of a run is made. Raises NoProgramError."""
    tape = Tape(run.dtype, lists_allocations)
    tape.backend = run.backend
    if run.weights == "unknown":
        raise NoProgramError(f"weights: {run.weights}")
    if run.weights != "dtype":
        tape.weight_format = StoredWeights(run)
    if is_partial(run):
        tape.adapter = Adapters(run)
    return tape


def make_model(tape: Tape, program, a, run: RunConfig, is_stage: bool = False):
    """Make a model on a tape, or a stage of one: its forward function."""
    # Shards are cast when they are gathered, and PEFT casts parameters; a buffer stays as it is.
    tape.buffer_dtype = stored(run).dtype
    if run.prepare_for_kbit_training:
        tape.dtype = "float32"
        run = run.model_copy(update={"dtype": "float32"})
    if is_sharded(run):
        tape.sharded = Sharded(a.tied, run)
    if is_divided(run):
        tape.divided = Divided(a, run)
    if tape.adapter is not None:
        tape.adapter.begin(a)
    if tape.weight_format is not None:
        tape.weight_format.begin(a)
    model = program(share(a, run), run)
    if tape.adapter is not None:
        tape.adapter.finish(a)
    if tape.weight_format is not None and not is_stage:
        tape.weight_format.finish()
    if tape.sharded is not None:
        model = tape.sharded.around_model(model, tape.parameters)
    return model
