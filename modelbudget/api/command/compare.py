"""`modelbudget compare A B`: components and totals of several models, side by side."""

from dataclasses import replace
from typing import Annotated, Any

from modelbudget.api.command import options
from modelbudget.api.command.budget_table import as_dict, notes, of_totals, quantities
from modelbudget.api.command.text_table import Table
from modelbudget.api.model import model_with
from modelbudget.api.predictions import Predictions
from modelbudget.common.errors import InputError
from modelbudget.common.number_format import count
from modelbudget.common.validation_messages import show


@options.expanded
def run(
    names: options.Models,
    *,
    of_run: options.RunOptions,
    train: options.OnlyTraining = False,
    inference: options.OnlyInference = False,
    set_a: Annotated[list[str] | None, "A field of the first model alone.", "FIELD=VALUE"] = None,
    set_b: Annotated[list[str] | None, "A field of the second model alone.", "FIELD=VALUE"] = None,
    printed: options.Output,
) -> None:
    """Compare the predictions of two models or more."""
    if len(names) < 2:
        raise InputError([f"compare {' '.join(names)}: one model; allowed: two or more"])
    settings, wanted = of_run.settings(), quantities(train, inference)
    of_both = [options.RunOptions(set=fields).settings() for fields in (set_a, set_b)]
    of_models = [*of_both, *({} for _ in names[2:])]
    models = [
        _predicted(name, settings, of, wanted) for name, of in zip(names, of_models, strict=True)
    ]
    content = {"models": [as_dict(model) for model in models]}
    rows = [row for model in models for row in model.rows()]
    printed.show(content, rows, [_of_components(models), of_totals(models)], notes(*models))


def _predicted(
    name: str, settings: dict[str, Any], of_model: dict[str, Any], wanted: list[str]
) -> Predictions:
    """Predict a model, whose label gets the fields that it alone is given."""
    model = model_with(name, settings | of_model, {})
    shown = (f"{field} {show(value).strip(chr(39))}" for field, value in of_model.items())
    label = ", ".join([model.label, *shown])
    labelled = replace(model, base=model.base._replace(label=label))
    return labelled.predictions(wanted, settings | of_model)


def _of_components(models: list[Predictions]) -> Table:
    """Return the parameters, below the settings of all models, or of each where they differ."""
    lines = {predictions.model.label: predictions.settings for predictions in models}
    settings, *differing = dict.fromkeys(lines.values())
    if differing:
        settings = "; ".join(f"{name}: {line}" for name, line in lines.items())
    known = [
        {part.name: part.value for part in parts["parameters"].components}
        if "parameters" in parts.breakdowns
        else {}
        for parts in models
    ]
    rows = [
        (name, *(count(parts[name]) if name in parts else "" for parts in known))
        for name in dict.fromkeys(name for parts in known for name in parts)
    ]
    return Table(f"Parameters; {settings}", ("component", *(o.model.label for o in models)), rows)
