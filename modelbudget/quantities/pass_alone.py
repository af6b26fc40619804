"""A forward pass alone: of a policy or its reference, or of the states of a reward model."""

from contextlib import nullcontext

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import is_sharded
from modelbudget.components.preference_loss import Preference
from modelbudget.operations.autocast import Autocast
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import empty, running_on
from modelbudget.quantities.length import of_any_length
from modelbudget.quantities.tape_of_run import make_model, peak_of, tape_of
from modelbudget.quantities.training_step import TrainingStep, check_devices

PHASE = "forward"
MODEL = "model"


def pass_alone(
    program, a, run: RunConfig, leaves_graph: bool, preference: Preference | None
) -> TrainingStep:
    """Return the peak of a pass without the parameters, and what it leaves (`saved`).

    The tokens and their mask are in the first and not in the second. It ends with the
    log-probabilities of a `preference`; without one, with the states that a head would read.
    Raises NoProgramError for a part or a setting without a program.
    """
    check_devices(run)
    if is_sharded(run):
        raise NoProgramError(f"zero: {run.zero} in a pass alone")

    def compute(run: RunConfig, _) -> TrainingStep:
        step = TrainingStep()
        with running_on(tape_of(run, lists_allocations=True)) as tape:
            model = make_model(tape, program, a, run)
            tape.live = tape.live - sum(p.storage.n_bytes for p in tape.parameters)
            before = tape.live
            tokens, mask = (empty((run.batch, run.length), "int64") for _ in range(2))
            inputs = tape.live - before
            tape.restart(PHASE)
            tape.autocast = None if run.autocast == "none" else Autocast(run.autocast)
            with nullcontext() if leaves_graph else tape.without_graph():
                if preference is not None:
                    _left = preference.log_probabilities(model, tokens, mask)
                elif hasattr(model, "states"):
                    _left = model.states(tokens)
                else:
                    raise NoProgramError(f"{a.name()}: states without logits")
            step.peaks[PHASE] = peak_of(tape)
            step.saved[MODEL] = tape.live - inputs
            step.allocations[PHASE] = tape.allocations or []
        return step

    if preference is not None:
        return compute(run, True)
    return of_any_length(compute, a, run, lists_allocations=True)
