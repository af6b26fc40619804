"""`modelbudget MODEL`: what is asked of one model, by the options that are given."""

from typing import TYPE_CHECKING, Any

from modelbudget.api.chosen_device import ChosenDevice
from modelbudget.api.command import budget, gguf_table, options
from modelbudget.api.model import model_with
from modelbudget.common.errors import InputError

if TYPE_CHECKING:
    from modelbudget.api.serving import Serving


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
    settings = of_run.settings()
    of_trainer = {"reference": reference, "reward": reward, "answer": answer,
                  "engine-share": engine_share, "engine-sleeps": engine_sleeps}  # fmt: skip
    of_room = {"reserve": reserve, "accelerators": accelerators}
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
        _refuse_with(f"--file {file}", {"draft": draft, **of_room})
        gguf_table.show(model_with(name, settings, {}), format_name, imatrix, printed)
        return
    if settings.get("adapter", "none") == "none":
        _refuse_alone("adapter", "adapter", {"rank": of_run.rank})
    if serve is not None:
        _refuse_with(
            f"--serve {serve}", {"fit": fit, "train": train, "trainer": trainer, **of_trainer}
        )
        # Imported here, since they bring the parts of all models.
        from modelbudget.api.command import serve_changes, serve_table
        from modelbudget.architecture.run_config import Devices

        of_devices = Devices.model_fields  # checked as settings of an engine
        of_model = {field: value for field, value in settings.items() if field not in of_devices}
        model = model_with(name, of_model, {})

        def served(change: serve_changes.Change) -> "Serving":
            return model.serve(
                serve, {**settings, **change.settings}, change.devices or devices, reserve,
                accelerators, draft, change.gguf or format_name, imatrix,
            )  # fmt: skip

        serve_table.show(served(serve_changes.Change()), printed, served)
        return
    _refuse_alone("engine", "serve", {"draft": draft})
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
    _refuse_alone("trainer", "trainer", of_trainer)
    if fit is None:
        _refuse_alone("accelerator", "fit", of_room)
        device = None
    else:
        device = ChosenDevice(fit, devices, reserve, accelerators)
    purposes = budget.Purposes(train, inference)
    budget.show(name, settings, purposes, devices, device, printed)


def _refuse_with(option: str, excluded: dict[str, Any]) -> None:
    """Raise InputError with the options that are given and mean nothing with this one."""
    if names := [
        f"--{name}" for name, value in excluded.items() if value is not None and value is not False
    ]:
        raise InputError([f"{option}: allowed without {', '.join(names)}"])


def _refuse_alone(subject: str, needed: str, excluded: dict[str, Any]) -> None:
    """Raise InputError with the first option that is given and means nothing without another."""
    for name, value in excluded.items():
        if value is not None and value is not False:
            said = f"--{name}" if value is True else f"--{name} {value}"
            raise InputError([f"{said}: of no {subject}; allowed: with --{needed}"])
