"""`modelbudget MODEL`: where the parameters, memory and FLOPs of one model go."""

from itertools import chain
from typing import Any

import typer

from modelbudget.api.breakdown import FORMULA
from modelbudget.api.command import gguf_table, options, output
from modelbudget.api.command.checkpoint_table import of_differences, summary
from modelbudget.api.command.notes_of_fit import other_than_cuda, served_by_engine
from modelbudget.api.command.output import DIFFERS
from modelbudget.api.command.tables_of_fit import (
    class_in_room,
    not_solved,
    of_changes,
    of_fits,
    of_layouts,
)
from modelbudget.api.command.text_table import Table
from modelbudget.api.fitting import accelerator, settings_on, sharing
from modelbudget.api.fitting import fit as fit_to
from modelbudget.api.lines_of_run import line_of_settings
from modelbudget.api.model import model_with
from modelbudget.api.predictions import (
    OF_INFERENCE,
    OF_TRAINING,
    OF_WEIGHTS,
    QUANTITIES,
    Predictions,
    merged,
)
from modelbudget.architecture.run_values import division
from modelbudget.catalogue.implementations import OURS
from modelbudget.common.errors import InputError
from modelbudget.common.number_format import capitalized, count, percent, short, si_bytes, si_flops
from modelbudget.sweeps.fields_in_words import UNITS


@options.expanded
def run(
    name: options.Model,
    *,
    of_run: options.RunOptions,
    train: options.OnlyTraining = False,
    inference: options.OnlyInference = False,
    fit: options.FitTo = None,
    serve: options.ServeOn = None,
    draft: options.DraftOf = None,
    trainer: options.TrainerOf = None,
    reference: options.ReferenceOf = None,
    reward: options.RewardOf = None,
    answer: options.AnswerOf = None,
    engine_share: options.EngineShare = None,
    engine_sleeps: options.EngineSleeps = False,
    reserve: options.Reserved = None,
    accelerators: options.OwnFile = None,
    devices: options.Devices = 1,
    file: options.FileOf = None,
    format_name: options.FormatOf = None,
    imatrix: options.HasImatrix = False,
    printed: options.Output,
) -> None:
    """Predict a model's parameters, memory and FLOPs, by component.

    Of a folder or a file with safetensors, or a .gguf file, only the header is read and held
    against the formula: exit code 1 if it differs.
    """
    settings, rank = of_run.settings(), of_run.rank
    of_trainer = {"reference": reference, "reward": reward, "answer": answer,
                  "engine-share": engine_share, "engine-sleeps": engine_sleeps or None}  # fmt: skip
    if file is None and (format_name is not None or imatrix):
        raise InputError(["--format, --imatrix: of no file; allowed: with --file gguf"])
    if file is not None:
        _refuse_with(f"--file {file}", {**of_trainer, "trainer": trainer, "train": train,
            "inference": inference, "devices": devices > 1})  # fmt: skip
        if format_name is None:
            from modelbudget.files.gguf_formats import gguf_formats

            formats = ", ".join(gguf_formats().formats)
            raise InputError([f"--file gguf: no --format; allowed: {formats}"])
        serve, fit = serve or fit, None  # one request fits or not
    if format_name is not None and serve is None:
        _refuse_with(f"--file {file}", {"draft": draft, "reserve": reserve,
            "accelerators": accelerators})  # fmt: skip
        gguf_table.show(model_with(name, settings, {}), format_name, imatrix, printed)
        return
    if rank is not None and settings.get("adapter", "none") == "none":
        raise InputError([f"--rank {rank}: of no adapter; allowed: with --adapter"])
    if draft is not None and serve is None:
        raise InputError([f"--draft {draft}: of no engine; allowed: with --serve"])
    if serve is not None:
        _refuse_with(
            f"--serve {serve}", {"fit": fit, "train": train, "trainer": trainer, **of_trainer}
        )
        from modelbudget.api.command import serve_table  # and the parts of all models with it

        of_devices = ("tensor_parallel", "expert_parallel")  # checked as settings of an engine
        of_model = {field: value for field, value in settings.items() if field not in of_devices}
        model = model_with(name, of_model, {})
        serving = model.serve(
            serve, settings, devices, reserve, accelerators, draft, format_name, imatrix
        )
        serve_table.show(serving, printed)
        return
    for option, value in of_trainer.items():
        if value is not None and trainer is None:
            raise InputError([f"--{option} {value}: of no trainer; allowed: with --trainer"])
    if trainer is not None:
        from modelbudget.api.command import trainer_table

        _refuse_with(f"--trainer {trainer}", {"devices": devices > 1, "inference": inference})
        trainer_table.show(
            model_with(name, settings, {}).trainer(
                trainer, settings, reference, reward, fit, reserve, accelerators,
                answer, engine_share, engine_sleeps,
            ),
            printed,
        )  # fmt: skip
        return
    for option, value in (("reserve", reserve), ("accelerators", accelerators)):
        if value is not None and fit is None:
            raise InputError([f"--{option} {value}: of no accelerator; allowed: with --fit"])
    is_tuned = settings.get("adapter", "none") != "none" and fit is not None
    train = train or (is_tuned and not inference)
    shared = sharing(devices, training=not inference)
    model = model_with(name, settings, shared)
    of_training = train or (devices > 1 and not inference)
    device = accelerator(fit, accelerators) if fit else None
    trained, used = (
        settings_on(device, model, settings, training) if device else settings
        for training in (True, False)
    )
    asked = quantities(of_training, inference)
    if trained == used or of_training or inference:
        predicted = model.predictions(asked, shared | (used if inference else trained))
        by_purpose = predicted, predicted
    else:  # torch has other kernels for training than for inference there
        used_alone = [quantity for quantity in asked if quantity not in quantities(True, False)]
        by_purpose = (
            model.predictions(used_alone, used),
            model.predictions(quantities(True, False), trained),
        )
        predicted = merged(by_purpose[True], by_purpose[False])
    fits, refusals = [], []
    for training in (True, False):
        if fit and not (inference if training else train):
            try:
                known = by_purpose[training] if devices == 1 else None
                fits.append(
                    fit_to(model, fit, settings, devices, training, reserve, accelerators, known)
                )
            except InputError as error:
                same = {"devices": devices, "reserve": reserve, "accelerators": accelerators}
                served = options.repeated(settings, serve=fit, **same)
                more = "" if training else f"; of an engine:{served}"
                refusals += [
                    line + (more if "not known" in line else "") for line in error.mistakes
                ]
    refusals += served_by_engine(model, fits, fit or "", settings, reserve, accelerators)
    if refusals and not fits:
        raise InputError([*dict.fromkeys(refusals)])
    stored = model.checkpoint()
    if printed.as_json:
        rooms = [f.as_dict() | {"of_class": class_in_room(f, predicted)} for f in fits]
        of_fit = {"fit": rooms} if fit else {}
        of_checkpoint = {"checkpoint": stored.rows(), "tensors": stored.names()} if stored else {}
        output.print_json(as_dict(predicted) | of_fit | of_checkpoint)
    elif printed.as_csv:
        output.print_csv(predicted.rows())
    elif not predicted.breakdowns:
        raise InputError([f"{name}: {why}" for why in dict.fromkeys(predicted.missing.values())])
    else:
        components, totals = of_components(predicted), of_totals([predicted])
        if fits:  # the answer first, in the place of components
            whose, room = settings.get("implementation", OURS), of_fits(fits, predicted)
            tables = [room._replace(title=f"{components.title}; on {room.title}")]
            tables += [of_changes(fit) for fit in fits if fit.changes]
            of_all = [of_layouts(fit.layouts, whose) for fit in fits if fit.layouts]
            tables += [*chain.from_iterable(of_all), totals]
        else:
            tables = [components, totals]
        tables += of_differences(stored) if stored else []
        output.print_tables(tables, printed.as_markdown)
        notes(predicted)
    if of_training and not (train or fit):
        refusals.append(f"training on {count(devices)} devices by zero: 3; also: --inference")
    for line in (
        *refusals,
        *other_than_cuda(model, fits, settings),
        *(f"{not_solved(fit)}: {fit.why}" for fit in fits if fit.why),
    ):
        output.print_note(line)
    if stored:
        output.print_note(summary(stored))
        if not stored.agrees:
            raise typer.Exit(DIFFERS)


def _refuse_with(option: str, excluded: dict[str, Any]) -> None:
    """Raise InputError with the options that are given and mean nothing with this one."""
    if names := [
        f"--{name}" for name, value in excluded.items() if value is not None and value is not False
    ]:
        raise InputError([f"{option}: allowed without {', '.join(names)}"])


def quantities(train: bool, inference: bool) -> list[str]:
    """Return the quantities of training, of inference, or of both."""
    wanted = set(OF_WEIGHTS)
    wanted |= set(OF_TRAINING) if train or not inference else set()
    wanted |= set(OF_INFERENCE) if inference or not train else set()
    return [quantity for quantity in QUANTITIES if quantity in wanted]


def as_dict(predicted: Predictions) -> dict:
    """Return plain values with exact numbers, for JSON."""
    architecture, run = predicted.model.with_run(predicted.run)
    return {
        "model": predicted.model.name,
        "label": predicted.model.label,
        "family": architecture.name(),
        "implementation": predicted.whose,
        "source": "; ".join(
            dict.fromkeys(breakdown.source for breakdown in predicted.breakdowns.values())
        ),
        "architecture": architecture.model_dump(),
        "run": run.model_dump(),
        "quantities": {
            quantity: {
                "total": breakdown.total,
                "source": breakdown.source,
                "components": {part.name: part.value for part in breakdown.components},
            }
            for quantity, breakdown in predicted.breakdowns.items()
        },
        "missing": predicted.missing,
        "notes": [*predicted.notes, *predicted.notes_of_file],
    }


def of_components(predicted: Predictions) -> Table:
    """Return the table of parameters, and of FLOPs where they are known, by component."""
    title = f"{predicted.model.label}: {line_of_settings(predicted.run)}; {predicted.how}"
    if "parameters" not in predicted.breakdowns:
        return Table(title, ("component",), [(f"parameters: {predicted.missing['parameters']}",)])
    parameters = predicted["parameters"]
    flops = predicted.breakdowns.get("flops_forward")
    of_flops = {part.name: part for part in flops.components} if flops else {}
    names = [part.name for part in parameters.components]
    known = {part.name: part for part in parameters.components}
    rows, shares = [], []
    for name in [*names, *(name for name in of_flops if name not in known)]:
        part, work = known.get(name), of_flops.get(name)
        row = [name, "", count(part.value) if part else ""]
        if part and part.instances > 1:
            row[1] = f"{count(part.instances)} × {count(part.each)}"
        row.append(percent(parameters.share(part)) if part else "")
        if flops:
            row += [si_flops(work.value), percent(flops.share(work))] if work else ["", ""]
        rows.append(tuple(row))
        shares.append(parameters.share(part) if part else 0.0)
    total = ["total", "", count(parameters.total), "100 %"]
    rows.append(tuple(total + ([si_flops(flops.total), "100 %"] if flops else [])))
    columns = ("component", "instances × each", "parameters", "share")
    columns += ("forward FLOPs", "share") if flops else ()
    return Table(title, columns, rows, tuple(shares), first_to_go=("share", "instances × each"))


def of_totals(several: list[Predictions]) -> Table:
    """Return the totals of one model or of several, one column each."""
    wanted = list(
        dict.fromkeys(
            q for predictions in several for q in (*predictions.breakdowns, *predictions.missing)
        )
    )
    rows = [
        (capitalized(UNITS[quantity]), *(_total(predictions, quantity) for predictions in several))
        for quantity in (q for q in QUANTITIES if q in wanted)
    ]
    names = [predictions.model.label for predictions in several] if len(several) > 1 else ["value"]
    whose = ", ".join(dict.fromkeys(predictions.whose for predictions in several))
    of_device = (
        "; bytes and FLOPs of one device"
        if any(division(predictions.run) for predictions in several)
        else ""
    )
    return Table(f"Totals, for the implementation {whose}{of_device}", ("quantity", *names), rows)


def _total(predicted: Predictions, quantity: str) -> str:
    if quantity in predicted.missing:
        return "none"
    value, source = predicted[quantity].total, predicted[quantity].source
    text = {"bytes": si_bytes, "FLOPs": si_flops}.get(UNITS[quantity].split()[0], short)
    how = "" if source == FORMULA else ", traced"
    rounded, whole = text(value), count(value)
    return f"{rounded if whole in rounded else f'{rounded} ({whole})'}{how}"


def notes(*several: Predictions) -> None:
    """Print on stderr what a reader must know: reasons for gaps, and keys that are not used."""
    lines = []
    for predicted in several:
        for why in dict.fromkeys(predicted.missing.values()):
            names = [quantity for quantity, reason in predicted.missing.items() if reason == why]
            lines.append(f"{', '.join(names)}: {why}")
        about = (*predicted.notes, *predicted.notes_of_file)
        lines += [f"{predicted.model.name}: {note}" for note in about]
    for line in dict.fromkeys(lines):
        output.print_note(line)
