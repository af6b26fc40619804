"""Memory of trainers that hold several models: DPO and GRPO, as TRL runs them.

Source: trl at f2cd577, trainer/dpo_trainer.py and grpo_trainer.py. DPO: chosen and rejected texts
are one batch, and the reference computes its logits while the policy's activations are held, for
each microbatch. GRPO: all answers are generated, then a reward model runs over all and a reference
over those of each microbatch, without a graph, then the policy is trained. Of an adapter the
reference is the policy with the adapter off. Of replicas each holds the same, in buckets of DDP
(`gradient_buckets`) a copy of all gradients too. vLLM on the same card takes its share of the
card's memory, and gives it back only where it sleeps (level 2). Source of that:
generation/vllm_generation.py.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast, get_args

from modelbudget.api.changes import MemoryChange, Step, changes
from modelbudget.api.chosen_device import ChosenDevice, settings_on
from modelbudget.api.chosen_model import ChosenModel, Settings, fields_of
from modelbudget.api.class_answers import class_of
from modelbudget.api.frames import Frames
from modelbudget.api.lines_of_run import line_of_settings
from modelbudget.api.predictions import predictions
from modelbudget.api.traced_batch import Peaks, largest_batch
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import INDEX, accumulates, bytes_of, has_buckets
from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.catalogue.implementations import OURS
from modelbudget.catalogue.memory_margins import Grade, Margins
from modelbudget.common.errors import InputError
from modelbudget.common.number_format import si_bytes
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show
from modelbudget.components.preference_loss import Preference
from modelbudget.operations.part import NoProgramError
from modelbudget.predict import prediction_or_reason
from modelbudget.predict.by_program import pass_of, peak_of_step

Trainer = Literal["dpo", "grpo"]
COPY, NONE = "copy", "none"
MOST_AHEAD = 4
"""Where the optimizer's step is the peak of a trainer's step, a line through small batches leads
much too far.
"""
LOSS = (
    "losses, and what a step logs, are those of TRL (f2cd577) with its defaults; all passes are "
    "those of our own modules"
)


class Part(NamedTuple):
    """Bytes that are there during all of a step, or (`is_moment`) at one moment of it."""

    name: str
    n_bytes: int
    note: str
    is_moment: bool


def peak_of(parts: Iterable[Part]) -> int:
    """Return the bytes at the peak: what is always there, and the largest moment."""
    whole, moments = 0, [0]
    for part in parts:
        whole += part.n_bytes
        moments += [part.n_bytes] * part.is_moment
    return whole - sum(moments) + max(moments)


@dataclass(frozen=True)
class Trained(Frames):
    """Bytes of all models of a trainer, and whether they fit an accelerator, if one is named."""

    model: str
    trainer: Trainer
    run: RunConfig
    family: type[Architecture]
    parts: tuple[Part, ...]
    notes: tuple[str, ...]
    accelerator: Accelerator | None = None
    margins: Margins | None = None
    largest_batch: int | None = None
    changes: tuple[MemoryChange, ...] = ()
    together: MemoryChange | None = None
    purpose: Literal["training"] = "training"

    @cached_property
    def needed(self) -> int:
        """Bytes at the peak."""
        return peak_of(self.parts)

    @property
    def settings(self) -> str:
        """The settings of the policy's run as text."""
        return line_of_settings(self.run, self.family)

    @property
    def note(self) -> str:
        """Whose losses and whose passes are counted."""
        name = self.run.implementation
        settings = f" with the settings of {name}, which were not compared in a trainer"
        return LOSS + (settings if name != OURS else "")

    @property
    def grade(self) -> Grade | None:
        """Whether it fits with the margins, without them (tight), or not at all."""
        if self.accelerator is None or self.margins is None:
            return None
        return self.margins.grade(self.needed, self.accelerator.bytes)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "model": self.model,
            "trainer": self.trainer,
            "settings": self.settings,
            "parts": [part._asdict() for part in self.parts],
            "needed": self.needed,
            "accelerator": self.accelerator and self.accelerator.name,
            "memory": self.accelerator and self.accelerator.bytes,
            "grade": self.grade,
            "largest_batch": self.largest_batch,
            "changes": [change._asdict() for change in self.changes],
            "together": self.together and self.together._asdict(),
            "note": self.note,
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each part, and one for the peak."""
        peak = Part("peak", self.needed, "", False)
        return [{"model": self.model, **part._asdict()} for part in (*self.parts, peak)]

    def __repr__(self) -> str:
        return f"<{self.trainer} of {self.model}: {self.needed:,} bytes>"


class Others(NamedTuple):
    """What a trainer has next to the policy, as `Model.trainer` describes it."""

    reference: str | None
    reward: str | None
    answer: int | None
    engine_share: float | None
    engine_sleeps: bool


def trainer(
    model: ChosenModel, name: str, settings: Settings, others: Others, device: ChosenDevice | None
) -> Trained:
    """Return the memory of a trainer's models; see `Model.trainer`. Raises InputError."""
    if name not in get_args(Trainer):
        if name == "sft":
            raise InputError(
                ["`trainer(sft)`: has one model; allowed: `training=True`, with `adapter`"]
            )
        allowed = offered(name, get_args(Trainer), "")
        raise InputError([f"`trainer({name})`: unknown{allowed}"])
    if others.reward is not None and name == "dpo":
        raise InputError([f"`reward={others.reward}`: dpo has no reward model; allowed with grpo"])
    share = others.engine_share
    if share is None:
        if others.engine_sleeps:
            raise InputError(["`engine_sleeps`: of no engine; allowed: with `engine_share`"])
    elif name == "dpo" or device is None:
        raise InputError(
            [f"`engine_share={share}`: allowed with `trainer(grpo)` and `accelerator`"]
        )
    given = {"implementation": OURS, **fields_of(settings)}
    room = device.accelerator_with(model, fields_of(settings)) if device else None
    step = _Step(model, name, others, room)
    run = step.pair(given)[1]
    try:
        parts = tuple(step.parts(run))
    except NoProgramError as error:
        raise InputError([f"{model.name}: `trainer({name})`: {error}"]) from None
    notes = tuple(step.notes(given, parts))
    trained = Trained(model.label, step.trainer, run, model.base.family, parts, notes)
    if device is None or room is None:
        return trained
    margins = device.margins_on(room)
    trained = replace(trained, accelerator=room, margins=margins)
    helpful, together = [], None
    if trained.grade != "fits":
        with_margins = margins.room(room.bytes)
        helpful, together = changes(model, step, given, room, with_margins)
    return replace(
        trained,
        largest_batch=step.largest(given, room.bytes).get("batch"),
        changes=tuple(helpful),
        together=together,
    )


class _Step(Step):
    """A step of a trainer's models: the policy, its reference, a reward model, an engine.

    By the fields of the policy's run, on a device if there is one.
    """

    def __init__(self, model: ChosenModel, name: str, others: Others, device: Accelerator | None):
        super().__init__(self._pair, "training")
        self.policy, self.others, self.device = model, others, device
        self.trainer: Trainer = "dpo" if name == "dpo" else "grpo"
        self.texts_of_item = 2 if name == "dpo" else 1
        self.reference = others.reference or (COPY if name == "dpo" else NONE)
        models = {"reference": others.reference, "reward": others.reward}
        no_model = {"reference": f"; or {COPY}, {NONE}"}
        self.further = {
            argument: ChosenModel.of_argument(argument, model, no_model.get(argument, ""))
            for argument, model in models.items()
            if model not in (None, COPY, NONE)
        }
        self._refuse_others(name)

    def _refuse_others(self, trainer: str) -> None:
        """Raise InputError for a model that is only traced, or that generates no text."""
        for argument, model in {f"trainer({trainer})": self.policy, **self.further}.items():
            family = model.base.family
            if not family.has_formula:
                why = f"{class_of(model)} is only traced, and a trainer's passes are computed"
            elif model.architecture.reads_all_at_once or not family.has_cache:
                why = f"{family.name()} generates no text"
            else:
                continue
            head = ", whose head one number replaces" if argument == "reward" else ""
            raise InputError(
                [f"`{argument}`: {model.name}: {why}; allowed: a language model{head}"]
            )

    def needed(self, fields: Mapping[str, Any]) -> int | None:
        pair = self.allowed_pair(fields)
        try:
            return pair and peak_of(self.parts(pair[1]))
        except (InputError, NoProgramError):
            return None

    def largest(self, fields: Mapping[str, Any], room: int) -> dict[str, int]:
        """Return the largest batch alone, in steps in which microbatches have whole texts."""
        run = self.pair(fields)[1]
        step = run.n_microbatch // math.gcd(run.n_microbatch, self.texts_of_item)

        def peaks(batch: int) -> Peaks | None:
            n_bytes = self.needed({**fields, "batch": batch})
            return None if n_bytes is None else {"step": n_bytes}

        first = {run.batch // step: cast(Peaks, peaks(run.batch))}
        solution = largest_batch(first, lambda n: peaks(step * n), room, MOST_AHEAD)
        return {"batch": step * solution.value} if solution else {}

    def _on_device(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields with what torch takes on the device by default."""
        if self.device is None:
            return dict(fields)
        return settings_on(self.device, self.policy, dict(fields), training=True)

    def _pair(self, fields: Mapping[str, Any]) -> tuple[Architecture, RunConfig]:
        """Return the policy's architecture and run. Raises InputError."""
        run = self.policy.with_run(self._on_device(fields))[1]
        shared = {"zero": 0, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1,
                  "expert_parallel": 1, "loss_chunks": 1, "loss_kernel": "torch"}  # fmt: skip
        for field, allowed in shared.items():
            if (value := getattr(run, field)) != allowed:
                raise InputError([f"{self.policy.name}: {field} = {show(value)}: not known with "
                                  f"`trainer({self.trainer})`; allowed: {allowed}"])  # fmt: skip
        if not 1 <= ((answer := self.others.answer) or 1) < run.length:
            most = f"1 to {run.length - 1:,}, with `length={run.length}`"
            raise InputError([f"`answer={answer}`: no tokens of a text; allowed: {most}"])
        return self.policy.architecture, run

    def parts(self, run: RunConfig) -> Iterator[Part]:
        """Return what the models need: of DPO, `batch` pairs are twice as many texts."""
        texts = run.batch * self.texts_of_item
        run = run.model_copy(update={"batch": texts})
        one_microbatch = {"batch": texts // run.n_microbatch, "n_microbatch": 1}
        of_microbatch = run.model_copy(update=one_microbatch)
        a = self.policy.with_run()[0]
        of_texts = f"{texts:,} × {run.length:,} tokens"
        weights, *_ = resident = [*self._resident(a, run)]
        yield from resident
        preference = Preference(
            self.trainer,
            self.others.answer or run.length - 1,
            self.reference != NONE,
            run.autocast != "none" or run.loss_dtype == "float32",
        )
        # What a device holds of the texts of other microbatches: tokens and masks.
        n_other = texts - of_microbatch.batch
        waiting = 2 * INDEX * n_other * run.length
        of_reference, forward = self._reference(a, of_microbatch, preference)
        if of_reference:
            yield of_reference
        if reward := self.further.get("reward"):
            yield from self._reward(reward, run, of_texts)
        if (share := self.others.engine_share) and self.device:
            yield from self._engine(share, self.device.bytes, a, run)
        elif self.trainer == "grpo":
            generating = run.model_copy(update={"gradient_buckets": NONE})
            peak = self._total("peak_inference_bytes", a, generating) - weights.n_bytes
            yield Part("policy: generation", peak, f"{of_texts}, KV cache", True)
        if of_reference and self.trainer == "dpo":
            _, kept = pass_of(a, of_microbatch, preference, True)
            note = "over the policy's activations"
            if run.n_microbatch > 1:
                kept += waiting
                if not (accumulates(run) or has_buckets(run)):
                    note += ", and gradients"
                    kept += self._total("gradient_bytes", a, run)
            yield Part("reference: its pass", kept + forward, note, True)
        step = peak_of_step(a, run, preference)
        step -= sum(part.n_bytes for part in resident)
        if of_reference and self.trainer == "grpo":
            of_answers = n_other * preference.n_answer
            of_answers *= bytes_of("float32" if preference.is_float32 else run.dtype)
            yield Part("reference: its pass", forward + waiting + of_answers, of_texts, True)
            step += of_answers
        yield Part("policy: its step", step, of_texts, True)

    def notes(self, fields: Mapping[str, Any], parts: Iterable[Part]) -> Iterator[str]:
        """Yield what a reader must know of the policy's run and of its reference."""
        chosen = self._on_device(fields) | {"implementation": OURS}
        yield from predictions(self.policy, ["gradient_bytes", "optimizer_bytes"], chosen).notes
        reference = self.further.get("reference")
        if reference is None or chosen.get("adapter", NONE) == NONE:
            return
        identities = {(model.name, model.architecture) for model in (self.policy, reference)}
        if len(identities) == 1:
            n_bytes = next(part.n_bytes for part in parts if part.name == "reference: weights")
            yield (
                "reference: the policy with its adapter off is the same model: `reference=copy` "
                f"needs {si_bytes(n_bytes)} less"
            )

    def _resident(self, a: Any, run: RunConfig) -> Iterator[Part]:
        """Yield what is there of the policy during all of a step."""
        adapter = "" if run.adapter == NONE else f"with {run.adapter}"
        weights = self._total("parameter_bytes", a, run)
        states = self._total("optimizer_bytes", a, run)
        yield Part("policy: weights", weights, adapter, False)
        yield Part("policy: optimizer states", states, run.optimizer, False)
        if accumulates(run) or has_buckets(run):
            of_buffer = "a buffer in float32" if accumulates(run) else "in buckets of DDP"
            gradients = self._total("gradient_bytes", a, run)
            yield Part("policy: gradients", gradients, of_buffer, False)

    def _total(self, quantity: str, a: Any, run: RunConfig) -> int:
        terms, why = prediction_or_reason.terms_or_reason(quantity, a, run)
        if why:
            raise InputError([f"{self.policy.name}: {quantity}: {why}"])
        return of_model(quantity, terms)

    def _reference(self, a: Any, run: RunConfig, preference: Preference) -> tuple[Part | None, int]:
        """Return the weights that it adds, and the bytes of its pass; None and 0 without one."""
        if self.reference == NONE:
            return None, 0
        plain = _frozen(run)
        reference = self.further.get("reference")
        if reference is None and run.adapter != NONE:
            weights = Part("reference: weights", 0, "the policy, its adapter off", False)
            return weights, pass_of(a, plain, preference)[0]
        if reference is not None:
            a = reference.with_run()[0]
        note = "a frozen copy" if reference is None else reference.label
        n_bytes = self._total("parameter_bytes", a, plain)
        weights = Part("reference: weights", n_bytes, note, False)
        return weights, pass_of(a, plain, preference)[0]

    def _engine(self, share: float, memory: int, a: Any, run: RunConfig) -> Iterator[Part]:
        """Yield the parts of vLLM on the same card, which loads its own copy of the weights."""
        of_engine = _frozen(run)
        if run.dtype == "float32":
            of_engine = of_engine.model_copy(update={"dtype": "bfloat16", "autocast": NONE})
        weights = self._total("parameter_bytes", a, of_engine)
        n_bytes = int(share * memory)
        if n_bytes <= weights:
            least = f"more than {weights / memory:.3f}, its weights"
            raise InputError([f"`engine_share={share}`: too little; allowed: {least}"])
        text = self._total("cache_bytes", a, of_engine.model_copy(update={"batch": 1}))
        most = f"{share:g} of the card; at most {(n_bytes - weights) // text:,} texts"
        if self.others.engine_sleeps:
            yield Part("engine: generation", n_bytes, f"{most}; asleep in a step", True)
            return
        form = of_engine.dtype if of_engine.weights == "dtype" else of_engine.weights
        yield Part("engine: weights", weights, f"a copy in {form}", False)
        yield Part("engine: cache, activations", n_bytes - weights, most, False)

    def _reward(self, model: ChosenModel, run: RunConfig, of_texts: str) -> Iterator[Part]:
        """Return the parts of a model whose head gives one number, without a bias.

        As AutoModelForSequenceClassification with num_labels=1.
        """
        a: Any = model.with_run()[0]
        plain = _frozen(run).model_copy(update={"weights": "dtype"})
        terms, why = prediction_or_reason.terms_or_reason("parameter_bytes", a, plain)
        if why or not hasattr(a, "d_model"):
            raise InputError([f"`reward={model.name}`: {why or 'no hidden size'}"])
        head = sum(term.total for name, term in terms.items() if name == "head")
        n_bytes = of_model("parameter_bytes", terms) - head + bytes_of(run.dtype) * a.d_model
        yield Part("reward: weights", n_bytes, model.label, False)
        yield Part("reward: its pass", pass_of(a, plain)[0], of_texts, True)


def _frozen(run: RunConfig) -> RunConfig:
    """Return the run of a model that is not trained, in the same dtype."""
    off = {"adapter": NONE, "trained": "default", "recompute": NONE, "dropout": False,
           "adapter_dropout": False, "modules_to_save": NONE, "master_weights": False}  # fmt: skip
    return run.model_copy(update=off)
