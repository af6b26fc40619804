"""`modelbudget MODEL`: where the parameters, memory and FLOPs of one model go."""

from itertools import chain
from typing import Any

import typer

from modelbudget.api.breakdown import FORMULA
from modelbudget.api.changes import Change
from modelbudget.api.command import gguf_table, options, output
from modelbudget.api.command.checkpoint_table import of_differences, summary
from modelbudget.api.command.notes_of_fit import below_capability_8, served_in_fewer_bits
from modelbudget.api.command.output import DIFFERS
from modelbudget.api.command.text_table import Table
from modelbudget.api.fitting import Fit, accelerator, settings_on, sharing
from modelbudget.api.fitting import fit as fit_to
from modelbudget.api.layouts_that_fit import Layouts
from modelbudget.api.lines_of_run import line_of_settings
from modelbudget.api.model import model_with
from modelbudget.api.predictions import (
    OF_INFERENCE,
    OF_TRAINING,
    OF_WEIGHTS,
    QUANTITIES,
    Predictions,
)
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import division
from modelbudget.catalogue.implementations import OURS, TRANSFORMERS
from modelbudget.common.byte_sizes import GIVEN
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show
from modelbudget.report.charts.format import (
    UNITS,
    capitalized,
    count,
    in_words,
    percent,
    short,
    si_bytes,
    si_flops,
)

MODULES = "modelbudget's modules"
OF_ONE = {"length": " of batch 1"}
SEGMENTS = "  expandable_segments:True"
"""What PYTORCH_CUDA_ALLOC_CONF may say, below the largest batch or length."""
MOST_CHANGES = 8
"""Changes that are shown, and characters of what they set."""
OF_CHANGES = {
    "training": ("", "trains something else, or other weights"),
    "inference": (" in inference", "other weights"),
}
"""Purpose → what the title of its changes says of it, and of those with a star."""


def run(
    name: options.Model,
    batch: options.Batch = None,
    length: options.Length = None,
    dtype: options.Dtype = None,
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
    implementation: options.Implementation = None,
    weights: options.Weights = None,
    adapter: options.Adapter = None,
    rank: options.Rank = None,
    optimizer: options.Optimizer = None,
    file: options.FileOf = None,
    format_name: options.FormatOf = None,
    imatrix: options.HasImatrix = False,
    given: options.Given = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    as_markdown: options.AsMarkdown = False,
) -> None:
    """Predict a model's parameters, memory and FLOPs, by component.

    Of a folder or a file with safetensors, or a .gguf file, only the header is read and held
    against the formula: exit code 1 if it differs.
    """
    settings = options.settings(
        given, batch, length, dtype, implementation, weights, adapter, rank, optimizer
    )
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
        gguf_table.show(
            model_with(name, settings, {}), format_name, imatrix, as_json, as_csv, as_markdown
        )
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
        of_one = {field: value for field, value in settings.items() if field not in of_devices}
        model = model_with(name, of_one, {})
        serving = model.serve(
            serve, settings, devices, reserve, accelerators, draft, format_name, imatrix
        )
        released = model.base.model and model.base.model.released_weights
        serve_table.show(serving, released, as_json, as_csv, as_markdown)
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
            as_json, as_csv, as_markdown,
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
    on_device = settings_on(accelerator(fit, accelerators), model, settings) if fit else settings
    predicted = model.predictions(quantities(of_training, inference), shared | on_device)
    fits, refusals = [], []
    for training in (True, False):
        if fit and not (inference if training else train):
            try:
                known = predicted if devices == 1 else None
                fits.append(
                    fit_to(model, fit, settings, devices, training, reserve, accelerators, known)
                )
            except InputError as error:
                others = {"not known": f"; of an engine: --serve {fit} --devices {devices}",
                          "keeps no cache": f"; its training: --fit {fit} --train"}  # fmt: skip
                more = [*others.items()][: 0 if training else 1 + inference]
                refusals += [
                    line + "".join(text for part, text in more if part in line)
                    for line in error.mistakes
                ]
    refusals += served_in_fewer_bits(model, fits, fit or "", settings, reserve, accelerators)
    if refusals and not fits:
        raise InputError([*dict.fromkeys(refusals)])
    stored = model.checkpoint()
    if as_json:
        rooms = [f.as_dict() | {"of_class": class_in_room(f, predicted)} for f in fits]
        of_fit = {"fit": rooms} if fit else {}
        of_checkpoint = {"checkpoint": stored.rows(), "tensors": stored.names()} if stored else {}
        output.print_json(as_dict(predicted) | of_fit | of_checkpoint)
    elif as_csv:
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
        output.print_tables(tables, as_markdown)
        notes(predicted)
    if of_training and not (train or fit):
        refusals.append(f"training on {count(devices)} devices by zero: 3; also: --inference")
    for line in (
        *refusals,
        *below_capability_8(model, fits, settings),
        *(f"{_not_solved(fit)}: {fit.why}" for fit in fits if fit.why),
    ):
        output.print_note(line)
    if stored:
        output.print_note(summary(stored))
        if not stored.agrees:
            raise typer.Exit(DIFFERS)


def _refuse_with(option: str, others: dict[str, Any]) -> None:
    """Raise InputError with the options that are given and mean nothing with this one."""
    if names := [
        f"--{name}" for name, value in others.items() if value is not None and value is not False
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
        row = [name, _instances(part), count(part.value) if part else ""]
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


def _instances(part) -> str:
    return f"{count(part.instances)} × {count(part.each)}" if part and part.instances > 1 else ""


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
    of_one = (
        "; bytes and FLOPs of one device"
        if any(division(predictions.run) for predictions in several)
        else ""
    )
    return Table(f"Totals, for the implementation {whose}{of_one}", ("quantity", *names), rows)


def _total(predicted: Predictions, quantity: str) -> str:
    if quantity in predicted.missing:
        return "none"
    value, source = predicted[quantity].total, predicted[quantity].source
    text = {"bytes": si_bytes, "FLOPs": si_flops}.get(UNITS[quantity].split()[0], short)
    how = "" if source == FORMULA else ", traced"
    rounded, whole = text(value), count(value)
    return f"{rounded if whole in rounded else f'{rounded} ({whole})'}{how}"


def class_in_room(fit: Fit, predicted: Predictions) -> dict[str, Any] | None:
    """Return whether the class fits that leads the answer, as plain values; None without one."""
    quantity = f"peak_{fit.purpose}_bytes"
    if predicted.run.implementation != TRANSFORMERS or quantity not in predicted.breakdowns:
        return None
    needed = predicted[quantity].total
    return {
        "implementation": predicted.whose,
        "needed": needed,
        "fits": needed <= fit.accelerator.bytes,
        "grade": fit.margins.grade(needed, fit.accelerator.bytes),
    }


def _not_solved(fit: Fit) -> str:
    if fit.largest:
        return "the largest batch was found by traces, and no length"
    return "largest batch and length are not solved"


def of_fits(fits: list[Fit], predicted: Predictions) -> Table:
    """Return what an accelerator has room for, and whether the class fits that leads the answer.

    The largest values are solved by the formulas of our modules, or traced, as title and rows say.
    """
    rows = []
    leads = any(class_in_room(fit, predicted) for fit in fits)
    has_class = leads or any(fit.largest_of_class for fit in fits)
    whose = f", {OURS}" if has_class else ""
    for fit in fits:
        of = f"of {si_bytes(fit.accelerator.bytes)}"
        of_class = class_in_room(fit, predicted)
        if of_class is not None:
            room = f"{si_bytes(of_class['needed'])} {of}"
            rows.append((f"{fit.purpose}, {TRANSFORMERS}", of_class["grade"], room))
        if fit.why is None:
            ours = f"{fit.purpose}{whose}" if leads else fit.purpose
            rows.append((ours, fit.grade, f"{si_bytes(fit.needed)} {of}"))
        for name, solution in fit.largest.items():
            largest = f"{fit.purpose}: largest {name}"
            with_margins = fit.largest_with_margins[name].value
            rows.append((largest, count(solution.value), f"{count(with_margins)} with margins"))
            growing = fit.largest_with_expandable_segments.get(name)
            if growing and growing.value > with_margins:
                rows.append((SEGMENTS, "", f"{count(growing.value)} with margins"))
            if largest_of_class := fit.largest_of_class.get(name):
                rows.append(("  as the class", count(largest_of_class.value), ""))
    first = fits[0]
    device, reserve, worst = first.accelerator, first.margins.reserve, first.margins.worst_ratio
    given_by = GIVEN if reserve.source == GIVEN else "memory_margins.yaml"
    rows += [
        ("memory", si_bytes(device.bytes), "its driver" if device.driver_gib else device.source),
        ("margins: reserve", si_bytes(reserve.bytes), given_by),
        ("margins: worst reading", f"{worst.value} ×", "the prediction"),
    ]
    by = "; ".join(
        f"{fit.purpose} by {', '.join(f'{name}: {value}' for name, value in fit.sharing.items())}"
        for fit in fits
        if fit.sharing
    )
    shared = f", each of {count(first.devices)}: {by}" if by else ""
    whose = f"; {OURS}: its own modules, {TRANSFORMERS}: the class" if has_class else ""
    heading = "" if has_class else MODULES
    return Table(f"{first.accelerator.name}{shared}{whose}", ("", heading, ""), rows)


def of_changes(fit: Fit) -> Table:
    """Return the changes by which a run needs less, each alone, and several together."""
    rows = [_change(change, fit.run) for change in fit.changes[:MOST_CHANGES]]
    of, star = OF_CHANGES[fit.purpose]
    notes = f"{si_bytes(fit.needed)} now; * {star}"
    if (all_of := fit.together) is not None:
        grade = fit.margins.grade(all_of.needed, fit.accelerator.bytes)
        rows.append((f"together: {grade}", "", si_bytes(all_of.needed), si_bytes(all_of.saves)))
        rows += [(f"  {text}", "", "", "") for text in all_of.text.split(", ")]
        limits = (all_of.largest or {}).items()
        rows += [
            (f"  largest {name}{OF_ONE.get(name, '')}", "", count(n), "") for name, n in limits
        ]
    return Table(f"What needs less{of}: {notes}", ("change", "--set", "peak", "less"), rows,
                 before_names=("less",), texts=("--set",))  # fmt: skip


def _change(change: Change, run: RunConfig) -> tuple[str, str, str, str]:
    """Return the cells of a change; without what the run has anyhow, and no other field changes."""
    follows = RunConfig.derivations()
    fields = ", ".join(
        f"{name}={show(value).strip(chr(39))}"
        for name, value in change.fields.items()
        if name in follows or getattr(run, name) != value
    )
    star = "*" if change.alters else ""
    return f"{change.text}{star}", fields, si_bytes(change.needed), si_bytes(change.saves)


def of_layouts(layouts: Layouts, whose: str) -> list[Table]:
    """Return the layouts of all devices that fit, and the least bytes by number of devices.

    `whose`: the implementation whose memory it is.
    """
    grades = layouts.of_all["grade"]
    fitting, tight = (int((grades == name).sum()) for name in ("fits", "tight"))
    unknown = grades.null_count()
    without = f"; {count(unknown)} were not computed" if unknown else ""
    title = (
        f"{count(layouts.devices)} devices of {si_bytes(layouts.accelerator.bytes)}: "
        f"of {count(len(grades))} layouts, {count(fitting)} fit with this batch on each replica, "
        f"and {count(tight)} are tight, for the implementation {whose}{without}"
    )
    columns = ("layout", "recompute", "grade", "bytes per device", "margin", "largest batch",
               "length")  # fmt: skip
    rows = [
        (in_words(row), row["recompute"], row["grade"], si_bytes(row["bytes"]),
         si_bytes(row["margin"]),
         count(row["largest_batch"]), count(row["largest_length"]))
        for row in layouts.offered
    ]  # fmt: skip
    least = ", ".join(f"{name} from {count(n)} on" for name, n in layouts.fewest.items())
    none = "none fits" if layouts.table["bytes"].count() else "no layout was computed"
    front = [
        (count(row["devices"]), in_words(row), row["recompute"], si_bytes(row["bytes"]),
         row["grade"])
        for row in layouts.pareto.iter_rows(named=True)
    ]  # fmt: skip
    return [
        Table(title, columns if rows else ("",), rows, texts=("recompute", "grade")),
        Table(
            f"Least bytes per device, by number of devices: {least or none}",
            ("devices", "layout", "recompute", "bytes per device", "grade"),
            front,
            texts=("layout", "recompute", "grade"),
        ),
    ]


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
