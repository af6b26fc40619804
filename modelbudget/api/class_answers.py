"""Answers about a model's class in `transformers`: by formula where compared, else by its trace."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

from modelbudget.api.breakdown import Breakdown, of_terms, of_values
from modelbudget.api.chosen_model import ChosenModel
from modelbudget.api.lines_of_run import lines_of_optimizer, lines_of_weights
from modelbudget.architecture.adapter_methods import adapter_dtype_of
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import first_mistake
from modelbudget.architecture.optimizers import optimizer_named
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import bytes_of
from modelbudget.architecture.terms import Term, is_peak
from modelbudget.catalogue.implementations import OURS, TRANSFORMERS, implementations
from modelbudget.common.errors import InputError
from modelbudget.huggingface.classes import KnownDifference, known_difference, translations
from modelbudget.huggingface.components import components_of_class
from modelbudget.measurement.reference.class_run import LIMIT, ClassRun, class_run, why_not_traced
from modelbudget.predict import prediction_or_reason
from modelbudget.sweeps.check_quantities import of_any_code, undefined_of_class
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.compared import not_compared
from modelbudget.sweeps.not_with_quantised_weights import refused
from modelbudget.sweeps.quantity_names import OF_INFERENCE

OF_STEP = {"optimizer_bytes", "peak_training_bytes"}
"""Quantities that need a step of the optimizer."""
CLASS_ALONE = "of the class alone"
"""What a class has in addition to the components of our model."""
TIMEOUT_S = 300
"""Seconds after which a trace is given up."""
INSTALL = "to trace it, install torch and transformers: pip install 'modelbudget[measure]'"
OF_TWO_TASKS = "ForPreTraining"
"""End of the names of classes that learn two tasks at once, of which no step is traced."""
BESIDE_LOOP = 400
"""Operations of a layer beside its loop over tokens, at most."""
WITHOUT_FORMULA = "hugging-face"
"""The family of classes that have no formula, not even of their parameters."""


class OfClass(NamedTuple):
    """A model as its class: the keys from which it is built (None without a formula), and its run.

    `chosen` are the fields that were set.
    """

    model: ChosenModel
    class_name: str
    config: dict[str, Any] | None
    architecture: Architecture
    run: RunConfig
    chosen: Mapping[str, Any]

    @property
    def known_difference(self) -> KnownDifference | None:
        """How its parameters are known to differ from those of our model; None if they do not."""
        return known_difference(self.class_name, self.architecture)


def line_of_refused(model: ChosenModel, why: object) -> str:
    """Say that an answer is about our own modules, although the model has a class, and why."""
    return f"about modelbudget's own modules, not {class_of(model)}: {why}"


def class_of(model: ChosenModel) -> str | None:
    """Return the class of a model; None if it has none."""
    if model.base.family.name() == WITHOUT_FORMULA:
        return str(model.base.fields["kind"])
    return model.base.transformers


def leads(model: ChosenModel, chosen: Mapping[str, Any]) -> bool:
    """Whether an answer is about the class: a setting or a file names it, or it has no formula."""
    is_of_file = model.base.model is None and model.base.config is not None
    is_class = is_of_file or model.base.family.name() == WITHOUT_FORMULA
    return chosen.get("implementation", TRANSFORMERS if is_class else OURS) == TRANSFORMERS


def wrong_run(model: ChosenModel, chosen: Mapping[str, Any], names: Collection[str]) -> str | None:
    """Return why the class cannot run so, if it is because of a field among `names`."""
    try:
        of_class = as_class(model, chosen)
    except (ValueError, InputError):
        return None  # the answer says why
    values = vars(of_class.architecture) | vars(of_class.run)
    checks = of_any_code(type(of_class.architecture))
    return first_mistake((check for check in checks if check.names & set(names)), values)


def run_of(model: ChosenModel, chosen: Mapping[str, Any]) -> tuple[Architecture, RunConfig]:
    """Return the architecture and the run, also of a class with which no formula was compared.

    Its run has the settings of our own modules, and its implementation. Raises InputError.
    """
    fields = {**model.chosen, **chosen}
    is_compared = model.base.transformers in implementations()[TRANSFORMERS].classes
    if fields.get("implementation") != TRANSFORMERS or is_compared or class_of(model) is None:
        return model.with_run(chosen)
    of_class = as_class(model, fields)
    return of_class.architecture, of_class.run


def as_class(model: ChosenModel, chosen: Mapping[str, Any]) -> OfClass:
    """Return the model as its class. Raises InputError, or ValueError if it is no class."""
    class_name = class_of(model)
    settings = {name: value for name, value in chosen.items() if name != "implementation"}
    compared = implementations()[TRANSFORMERS].classes
    if class_name is None or model.base.transformers in compared:
        implementations()[TRANSFORMERS].of_class(class_name)  # refused without a class
        a, run = model.with_run(settings | {"implementation": TRANSFORMERS})
    else:
        a, run = model.with_run(settings | {"implementation": OURS})
        run = run.model_copy(update={"implementation": TRANSFORMERS})
    assert class_name is not None
    config = None
    if model.base.family.name() != WITHOUT_FORMULA:
        config = class_config(class_name, a, model.base.config)
    return OfClass(model, class_name, config, a, run, settings)


def line_of_ours(
    model: ChosenModel,
    chosen: Mapping[str, Any],
    a: Architecture,
    run: RunConfig,
    quantities: Collection[str],
) -> tuple[str, ...]:
    """Say that an answer is not about the class of a model, where nobody has said so."""
    name = class_of(model)
    if name is None or "implementation" in chosen:
        return ()
    of_two_tasks = name.endswith(OF_TWO_TASKS)
    if of_two_tasks and not OF_INFERENCE & {*quantities} and any(map(is_peak, quantities)):
        why = "it learns two tasks at once, of which no step is traced"
        return (line_of_refused(model, why),)
    of_inference = " `training=False`" * of_two_tasks
    offered = f": `implementation=transformers`{of_inference}"
    of_token = translations()[name].token_operations if name in translations() else 0
    is_compared = not not_compared("activation_bytes", name, {}, a, run)
    if not is_compared and (why := why_not_traced(name, run)):
        return (line_of_refused(model, why),)
    n_layer = getattr(a, "n_layer", 0)
    if of_token and (of_token * run.length + BESIDE_LOOP) * n_layer > LIMIT:
        offered = (
            f", of which there is no trace: it loops over {run.length:,} tokens, more than "
            f"{LIMIT:,} operations"
        )
    return (f"about modelbudget's own modules; {name} may need more{offered}",)


def answer(
    model: ChosenModel, quantities: Sequence[str], chosen: Mapping[str, Any]
) -> tuple[RunConfig, dict[str, Breakdown], dict[str, str], tuple[str, ...]] | str | None:
    """Return what the class of a model has; None where neither a setting nor a file names it.

    That are its run, quantities, reasons of those without a value, and lines for the reader.
    Of a class that only a file names there may be a line alone, that the answer is ours. Raises
    InputError if a setting names the class and there is no answer.
    """
    if not leads(model, chosen):
        return None
    is_named = chosen.get("implementation") == TRANSFORMERS
    try:
        of_class = as_class(model, chosen)
    except InputError as error:  # the run of the class is refused; another mistake is ours too
        if is_named:
            raise
        lines = (line.removeprefix(f"{model.name}: ") for line in error.mistakes)
        return line_of_refused(model, "; ".join(lines))
    except ValueError as error:
        if is_named:
            raise InputError([f"{model.name}: {error}"]) from None
        return line_of_refused(model, str(error))
    a, run = of_class.architecture, of_class.run
    untraceable = _not_traceable(of_class)
    refusals = {} if untraceable else refused(None, run, {*quantities})
    undefined = {
        q: why for q in quantities if (why := refusals.get(q) or undefined_of_class(q, a, run))
    }
    not_by_formula = {q: _not_by_formula(of_class, q) for q in quantities if q not in undefined}
    to_trace = {q: why for q, why in not_by_formula.items() if why}
    traced: dict[str, Breakdown] = {}
    missing: dict[str, str] = {}
    as_traced = of_class
    if to_trace and untraceable:
        as_traced = of_class._replace(run=run.model_copy(update={"weights": "dtype"}))
        is_counted = of_class.config is None and not _not_traceable(as_traced)
        counted = {"parameters"} if is_counted else set()  # so in any format
        if not (is_named or counted & to_trace.keys()):
            return line_of_refused(model, untraceable)
        missing = {q: f"{why}; {untraceable}" for q, why in to_trace.items() if q not in counted}
    elif OF_STEP & to_trace.keys() and (not_stepped := _not_stepped(run)):
        if of_class.config is not None and not is_named:
            return line_of_refused(model, not_stepped)
        missing = {q: f"{why}; {not_stepped}" for q, why in to_trace.items() if q in OF_STEP}
    if wanted := [q for q in to_trace if q not in missing]:
        traced, lost = _traced(as_traced, wanted)
        if not (traced or is_named or of_class.config is None):
            return line_of_refused(model, next(iter(lost.values())))
        missing |= lost
    by_formula = (q for q in not_by_formula if q not in to_trace)
    breakdowns = {q: _predicted(of_class, q) for q in by_formula} | traced
    ordered = {q: breakdowns[q] for q in quantities if q in breakdowns}
    notes = (
        *_notes(of_class, traced, missing),
        *_line_of_adapter(of_class, ordered),
        *lines_of_weights(a, run, ordered, of_class.class_name),
        *lines_of_optimizer(run, ordered),
    )
    reasons = undefined | missing
    return run, ordered, {q: reasons[q] for q in quantities if q in reasons}, notes


def _not_traceable(of_class: OfClass) -> str | None:
    """Return why the class cannot be traced in its run, or here; None if it can."""
    is_installed = all(find_spec(name) for name in ("torch", "transformers"))
    why = why_not_traced(of_class.class_name, of_class.run)
    return why or (None if is_installed else INSTALL)


def _not_stepped(run: RunConfig) -> str | None:
    """Return why nothing takes a step of a run's optimizer here; None if its library does."""
    optimizer = optimizer_named(run.optimizer)
    if optimizer.call is None:
        return f"optimizer = {run.optimizer}: nothing steps it here"
    if find_spec(optimizer.call.partition(".")[0]):
        return None
    return f"optimizer = {run.optimizer}: {optimizer.library} is not installed here"


def _not_by_formula(of_class: OfClass, quantity: str) -> str | None:
    """Return why a quantity of the class is not predicted by formula; None if it is."""
    if of_class.config is None:
        return f"no formula covers {of_class.class_name}"
    return not_compared(
        quantity, of_class.class_name, of_class.config, of_class.architecture, of_class.run
    ) or prediction_or_reason.why_not(quantity, of_class.architecture, of_class.run)


def by_formula(of_class: OfClass, quantity: str) -> Breakdown | None:
    """Return a quantity of a class by formula; None where no formula was compared with it."""
    return None if _not_by_formula(of_class, quantity) else _predicted(of_class, quantity)


def _predicted(of_class: OfClass, quantity: str) -> Breakdown:
    terms = prediction_or_reason.predicted(quantity, of_class.architecture, of_class.run)
    return of_terms(of_class.model.label, quantity, terms | _of_class_alone(of_class, quantity))


def _of_class_alone(of_class: OfClass, quantity: str) -> dict[str, Term]:
    """Return the parameters that the class has and our model has not."""
    known = of_class.known_difference
    if known is None or known.parameters < 0 or quantity not in ("parameters", "parameter_bytes"):
        return {}
    each = bytes_of(of_class.run.dtype) if quantity == "parameter_bytes" else 1
    return {CLASS_ALONE: Term(each * known.parameters)}


def _traced(
    of_class: OfClass, quantities: Sequence[str]
) -> tuple[dict[str, Breakdown], dict[str, str]]:
    """Trace the class on meta, in a process of bounded time and memory."""
    from modelbudget.common.workers import Failure, for_readers
    from modelbudget.huggingface.construct import import_class

    import_class(of_class.class_name)  # before a process is forked for each trace
    run = class_run(of_class.class_name, of_class.run)
    if of_class.config is None:
        from modelbudget.api.measuring import measure_models

        outcome = measure_models([(of_class.architecture, run)], quantities)[0]
    else:
        from modelbudget.measurement.reference.class_trace import begin_traces

        wanted = ClassRun(of_class.class_name, of_class.config, run, frozenset(quantities))
        ((_, outcome),) = begin_traces([wanted], 1, TIMEOUT_S, 0)()
        if isinstance(outcome, Failure):
            return {}, dict.fromkeys(
                quantities, f"{of_class.class_name} was not traced: {for_readers(outcome.reason)}"
            )
    source, a = f"traced: {of_class.class_name}", of_class.architecture
    names = prediction_or_reason.predicted("parameters", a, run) if a.has_formula else ()
    values = {
        quantity: of_values(
            of_class.model.label, quantity, source, _by_component(quantity, values, names)
        )
        for quantity in quantities
        if (values := outcome.values.get(quantity)) is not None
    }
    missing = {
        q: f"{of_class.class_name} was not traced: {for_readers(why)}"
        for q, why in outcome.missing.items()
    }
    return values, missing


def _by_component(
    quantity: str, values: Mapping[str, int], names: Collection[str]
) -> dict[str, int]:
    """Return values by our components, where one corresponds to a part of a class.

    `names`: the components of our model, if it has a formula.
    """
    if is_peak(quantity):
        return {phase: value for phase, value in values.items() if phase != "setup"}
    by_component: dict[str, int] = {}
    for part, value in values.items():
        components = components_of_class(part) or (part,)
        component = next((name for name in components if name in names), components[0])
        by_component[component] = by_component.get(component, 0) + value
    return by_component


def _notes(
    of_class: OfClass, traced: Mapping[str, Breakdown], missing: Mapping[str, str]
) -> tuple[str, ...]:
    """Say what was traced, and by how much our own modules differ from it."""
    lines = []
    if traced:
        package = f"transformers {version('transformers')}"
        lines.append(f"{of_class.class_name} of {package}, traced without storage")
    if of_class.config is None:
        return tuple(lines)
    if ratios := _ratios(of_class, traced):
        lines.append(f"modelbudget's own modules have {ratios} of the class's")
    if known := of_class.known_difference:
        counted = f", counted as {CLASS_ALONE!r}" if known.parameters > 0 else ", counted here"
        lines.append(
            f"{of_class.class_name} has another number of parameters{counted}: {known.text}"
        )
    if missing:
        lines.append("`implementation=modelbudget` answers for modelbudget's own modules")
    return tuple(lines)


def _line_of_adapter(of_class: OfClass, quantities: Collection[str]) -> Iterator[str]:
    """Say where the adapter of a class that trains is, and in which dtype."""
    run = of_class.run
    if run.adapter != "none" and "gradient_bytes" in quantities:
        yield (
            f"adapter {run.adapter}: as PEFT wraps {of_class.class_name}, in "
            f"{adapter_dtype_of(run)} (adapter_rank {run.adapter_rank}, adapter_targets "
            f"{run.adapter_targets})"
        )


def _ratios(model_class: OfClass, traced: Mapping[str, Breakdown]) -> str:
    a, run = model_class.model.with_run({**model_class.chosen, "implementation": OURS})
    ratios = {}
    for quantity, of_class in traced.items():
        terms, why = prediction_or_reason.terms_or_reason(quantity, a, run)
        if of_class.total and not why:
            ratios[quantity] = of_terms("", quantity, terms).total / of_class.total
    return ", ".join(
        f"{quantity} {ratio:.2f} ×"
        for quantity, ratio in ratios.items()
        if f"{ratio:.2f}" != "1.00"
    )
