"""`modelbudget MODEL`: what is asked of one model, by the options that are given."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from modelbudget.api.chosen_device import ChosenDevice
from modelbudget.api.command import budget, gguf_table, options
from modelbudget.api.model import model_with
from modelbudget.architecture.run_config import Devices
from modelbudget.common.errors import InputError
from modelbudget.files.gguf_formats import gguf_formats

if TYPE_CHECKING:
    from modelbudget.api.command.serve_changes import ServingChange
    from modelbudget.api.serving import Serving


class TrainerOptions(NamedTuple):
    """A trainer, and what it trains with."""

    trainer: Annotated[
        str | None, "A step of TRL's trainer, with all of its models.", "dpo|grpo"
    ] = None
    reference: Annotated[str | None, "With --trainer: a model, copy, or none.", "MODEL"] = None
    reward: Annotated[str | None, "With --trainer grpo: the reward model.", "MODEL"] = None
    answer: Annotated[
        int | None,
        typer.Option("--answer", help="Of --trainer: tokens of a text that are its answer.", min=1),
    ] = None
    engine_share: Annotated[float | None, "Of --trainer grpo: vLLM's, of the card.", "SHARE"] = None
    engine_sleeps: Annotated[bool, "With --engine-share: while others compute."] = False


class RoomOptions(NamedTuple):
    """What a model has to fit or is served on, but for the name of the device."""

    reserve: Annotated[str | None, "With --fit or --serve: bytes kept free, 2GB, …", "SIZE"] = None
    accelerators: Annotated[
        str | None, "With --fit: a file with names and memory of your own.", "FILE"
    ] = None
    devices: Annotated[
        int,
        typer.Option(
            "--devices",
            help="Devices that share the model: training by zero: 3, inference by tensor_parallel.",
            min=1,
        ),
    ] = 1


class FileOptions(NamedTuple):
    """A file that llama.cpp writes of a model."""

    file: Annotated[
        Literal["gguf"] | None, "llama.cpp's file of the model, with --format; also: --fit."
    ] = None
    format: Annotated[str | None, "With --file: Q4_K_M, IQ4_XS, …", "FORMAT"] = None
    imatrix: Annotated[bool, "With --file: quantised with an importance matrix."] = False


@options.expanded
def run(
    name: options.Model,
    *,
    of_run: options.RunOptions,
    train: options.OnlyTraining = False,
    inference: options.OnlyInference = False,
    fit: Annotated[str | None, "Does it fit? h100-80gb, 24GB, …", "ACCELERATOR"] = None,
    serve: Annotated[
        str | None, "How many requests does it serve? h100-80gb, 24GB, …", "ACCELERATOR"
    ] = None,
    draft: Annotated[str | None, "With --serve: a draft model, mtp or eagle3.", "MODEL"] = None,
    mmproj: Annotated[
        str | None, "With --serve: llama.cpp's file of what reads images.", "FILE"
    ] = None,
    of_trainer: TrainerOptions,
    of_room: RoomOptions,
    of_file: FileOptions,
    printed: options.Output,
) -> None:
    """Predict a model's parameters, memory and FLOPs, by component.

    Of a folder or a file with safetensors, or a .gguf file, only the header is read and held
    against the formula: exit code 1 if it differs.
    """
    settings = of_run.settings()
    with_trainer = of_trainer._asdict()
    trainer = with_trainer.pop("trainer")
    of_device = {"reserve": of_room.reserve, "accelerators": of_room.accelerators}
    of_engine = {"draft": draft, "mmproj": mmproj}
    if of_file.file is not None:
        _refuse_with(f"--file {of_file.file}", {**with_trainer, "trainer": trainer, "train": train,
                     "inference": inference})  # fmt: skip
        if of_file.format is None:
            formats = ", ".join(gguf_formats().formats)
            raise InputError([f"--file gguf: no --format; allowed: {formats}"])
        serve, fit = serve or fit, None  # one request fits or not
        if serve is None:
            excluded = {**of_engine, **of_device, "devices": of_room.devices > 1}
            _refuse_with(f"--file {of_file.file}", excluded)
            model = model_with(name, settings, {})
            return gguf_table.show(model, of_file.format, of_file.imatrix, printed)
    else:
        _refuse_alone("file", "file gguf", of_file._asdict())
    if settings.get("adapter", "none") == "none":
        _refuse_alone("adapter", "adapter", {"rank": of_run.rank})
    if serve is not None:
        excluded = {"fit": fit, "train": train, "trainer": trainer, **with_trainer}
        _refuse_with(f"--serve {serve}", excluded)
        return _serve(name, settings, serve, of_engine, of_room, of_file, printed)
    _refuse_alone("engine", "serve", of_engine)
    if trainer is not None:
        from modelbudget.api.command import trainer_table
        from modelbudget.api.command.notes_of_fit import other_than_cuda

        _refuse_with(f"--trainer {trainer}", {"inference": inference})
        if of_room.devices > 1:
            replicas = f"data_parallel={of_room.devices}, gradient_buckets=copied"
            what = f'--devices: shards have no prediction; for replicas write --set "{replicas}"'
            raise InputError([f"--trainer {trainer}: allowed without {what}"])
        model = model_with(name, settings, {})
        trained = model.trainer(trainer, settings, accelerator=fit, **of_device, **with_trainer)
        lines = other_than_cuda(model, [trained], settings)
        return trainer_table.show(trained, lines, printed)
    _refuse_alone("trainer", "trainer", with_trainer)
    if fit is None:
        _refuse_alone("accelerator", "fit", of_device)
    device = None if fit is None else ChosenDevice(fit, **of_room._asdict())
    purposes = budget.Purposes(train and not inference, inference and not train)
    return budget.show(name, settings, purposes, of_room.devices, device, printed)


def _serve(
    name: str, settings: dict[str, Any], accelerator: str, of_engine: dict[str, Any],
    of_room: RoomOptions, of_file: FileOptions, printed: options.Output,
) -> None:  # fmt: skip
    # Imported here, since it brings the parts of all models.
    from modelbudget.api.command import serve_changes, serve_table

    of_devices = Devices.model_fields  # checked as settings of an engine
    of_model = {field: value for field, value in settings.items() if field not in of_devices}
    model = model_with(name, of_model, {})

    def served(change: "ServingChange") -> "Serving":
        return model.serve(
            accelerator, {**settings, **change.settings}, change.devices or of_room.devices,
            of_room.reserve, of_room.accelerators, gguf=change.gguf or of_file.format,
            imatrix=of_file.imatrix, **of_engine,
        )  # fmt: skip

    serve_table.show(served(serve_changes.ServingChange()), printed, served)


def _refuse_with(option: str, excluded: dict[str, Any]) -> None:
    """Raise InputError with the options that are given and mean nothing with this one."""
    if names := [f"--{name}" for name in _given(excluded)]:
        raise InputError([f"{option}: allowed without {', '.join(names)}"])


def _refuse_alone(subject: str, needed: str, excluded: dict[str, Any]) -> None:
    """Raise InputError with the first option that is given and means nothing without another."""
    for name, value in _given(excluded).items():
        said = f"--{name}" if value is True else f"--{name} {value}"
        raise InputError([f"{said}: of no {subject}; allowed: with --{needed}"])


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values by the names of their options, without those that are not given."""
    return {
        name.replace("_", "-"): value
        for name, value in values.items()
        if value is not None and value is not False
    }
