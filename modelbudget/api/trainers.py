"""Memory of trainers that hold several models: DPO and GRPO, as TRL runs them.

Source: trl at f2cd577, trainer/dpo_trainer.py and grpo_trainer.py. DPO: chosen and rejected texts
are one batch, and the reference computes its logits while the policy's activations are held. GRPO:
answers are generated, then a reference and a reward model run without a graph, then the policy is
trained on all answers. Of an adapter the reference is the policy with the adapter off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from modelbudget.api.chosen_model import ChosenModel, fields_of
from modelbudget.api.fitting import accelerator, reserve_of
from modelbudget.api.frames import JSON_VERSION, Frames, html_table
from modelbudget.api.lines_of_run import line_of_settings
from modelbudget.api.traced_batch import largest_batch
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import bytes_of
from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.catalogue.implementations import OURS
from modelbudget.catalogue.memory_margins import Grade, Margins, memory_margins
from modelbudget.common.errors import InputError
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show
from modelbudget.operations.part import NoProgramError
from modelbudget.predict import of_point
from modelbudget.predict.of_program import pass_of

if TYPE_CHECKING:
    from modelbudget.api.chosen_model import Settings

Trainer = Literal["dpo", "grpo"]
COPY, NONE = "copy", "none"
LOSS = (
    "losses over log-probabilities are counted as the cross-entropy over the same logits, and "
    "all passes as those of our own modules"
)


class Part(NamedTuple):
    """Bytes that are there during all of a step, or (`is_moment`) at one moment of it."""

    name: str
    n_bytes: int
    note: str
    is_moment: bool


@dataclass(frozen=True)
class Trained(Frames):
    """Bytes of all models of a trainer, and whether they fit an accelerator, if one is named."""

    model: str
    trainer: Trainer
    run: RunConfig
    parts: tuple[Part, ...]
    accelerator: Accelerator | None = None
    margins: Margins | None = None
    largest_batch: int | None = None

    @cached_property
    def needed(self) -> int:
        """Bytes at the peak: what is always there, and the largest moment."""
        moments = max(one.n_bytes for one in self.parts if one.is_moment)
        return sum(one.n_bytes for one in self.parts if not one.is_moment) + moments

    @property
    def grade(self) -> Grade | None:
        """Whether it fits with the margins, without them (tight), or not at all."""
        if self.accelerator is None or self.margins is None:
            return None
        return self.margins.grade(self.needed, self.accelerator.bytes)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "version": JSON_VERSION,
            "model": self.model,
            "trainer": self.trainer,
            "settings": line_of_settings(self.run),
            "parts": [one._asdict() for one in self.parts],
            "needed": self.needed,
            "accelerator": self.accelerator and self.accelerator.name,
            "memory": self.accelerator and self.accelerator.bytes,
            "grade": self.grade,
            "largest_batch": self.largest_batch,
            "note": LOSS,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each part, and one for the peak."""
        peak = Part("peak", self.needed, "", False)
        return [{"model": self.model, **one._asdict()} for one in (*self.parts, peak)]

    def __repr__(self) -> str:
        return f"<{self.trainer} of {self.model}: {self.needed:,} bytes>"

    def _repr_html_(self) -> str:
        return html_table(f"{self.trainer} of {self.model}", self.rows())


def trainer(
    model: ChosenModel,
    name: str,
    settings: Settings,
    reference: str | None = None,
    reward: str | None = None,
    device: str | None = None,
    reserve: str | int | None = None,
    accelerators: str | Path | None = None,
) -> Trained:
    """Return the memory of a trainer's models; see `Model.trainer`. Raises InputError."""
    if name not in get_args(Trainer):
        allowed = offered(name, get_args(Trainer), "")
        raise InputError([f"--trainer {name}: unknown{allowed}"])
    if reward is not None and name == "dpo":
        raise InputError([f"--reward {reward}: dpo has no reward model; allowed with grpo"])
    others = _Others(model, name, reference, reward)
    chosen = {"implementation": OURS, **fields_of(settings)}
    run = others.run_of(chosen)
    parts = tuple(others.parts(run))
    if device is None:
        return Trained(model.label, others.trainer, run, parts)
    margins = memory_margins().with_reserve(reserve_of(reserve))
    room = accelerator(device, accelerators)
    found = Trained(model.label, others.trainer, run, parts, room, margins)

    def needed(batch: int) -> int | None:
        try:
            of_batch = others.run_of({**chosen, "batch": batch})
        except InputError:  # more than a batch may be
            return None
        return Trained(model.label, others.trainer, of_batch, tuple(others.parts(of_batch))).needed

    largest = largest_batch({run.batch: found.needed}, needed, room.bytes)
    return replace(found, largest_batch=largest and largest.value)


class _Others:
    """The models of a trainer: the policy, its reference, a reward model."""

    def __init__(self, model: ChosenModel, name: str, reference: str | None, reward: str | None):
        self.policy = model
        self.trainer: Trainer = "dpo" if name == "dpo" else "grpo"
        self.reference = reference or (COPY if name == "dpo" else NONE)
        given = {"reference": reference, "reward": reward}
        self.others = {
            what: ChosenModel.named(one)
            for what, one in given.items()
            if one not in (None, COPY, NONE)
        }

    def run_of(self, chosen: dict[str, Any]) -> RunConfig:
        """Return the run of the policy's step. Raises InputError."""
        run = self.policy.with_run(chosen)[1]
        shared = {"zero": 0, "data_parallel": 1, "tensor_parallel": 1, "pipeline_parallel": 1}
        for field, allowed in shared.items():
            if (value := getattr(run, field)) != allowed:
                raise InputError([f"{self.policy.name}: {field} = {show(value)}: not known with "
                                  f"--trainer {self.trainer}; allowed: {allowed}"])  # fmt: skip
        return run

    def parts(self, run: RunConfig) -> Iterator[Part]:
        """Return what the models need: of DPO, `batch` pairs are twice as many texts."""
        texts = run.batch * (2 if self.trainer == "dpo" else 1)
        run = run.model_copy(update={"batch": texts})
        a = self.policy.with_run()[0]
        held = {one: self._total(one, a, run) for one in ("parameter_bytes", "optimizer_bytes")}
        resident = sum(held.values())
        of_texts = f"{texts:,} × {run.length:,} tokens"
        adapter = "" if run.adapter == NONE else f"with {run.adapter}"
        yield Part("policy: weights", held["parameter_bytes"], adapter, False)
        yield Part("policy: optimizer states", held["optimizer_bytes"], run.optimizer, False)
        of_reference = self._reference(a, run)
        if of_reference:
            n_bytes, note, forward = of_reference
            yield Part("reference: weights", n_bytes, note, False)
        if reward := self.others.get("reward"):
            yield from self._reward(reward, run, of_texts)
        if self.trainer == "grpo":
            peak = self._total("peak_inference_bytes", a, run) - held["parameter_bytes"]
            yield Part("policy: generation", peak, f"{of_texts}, KV cache", True)
        if of_reference and self.trainer == "dpo":
            _, held = self._pass(a, run, leaves_graph=True)
            yield Part("reference: its pass", held + forward, "over the policy's activations", True)
        elif of_reference:
            yield Part("reference: its pass", forward, of_texts, True)
        step = self._total("peak_training_bytes", a, run) - resident
        yield Part("policy: its step", step, of_texts, True)

    def _total(self, quantity: str, a: Any, run: RunConfig) -> int:
        terms, why = of_point.terms_or_reason(quantity, a, run)
        if why:
            raise InputError([f"{self.policy.name}: {quantity}: {why}"])
        return of_model(quantity, terms)

    def _reference(self, a: Any, run: RunConfig) -> tuple[int, str, int] | None:
        """Return the bytes of the weights that it adds, what it is, and the bytes of its pass."""
        if self.reference == NONE:
            return None
        plain = _frozen(run)
        other = self.others.get("reference")
        if other is None and run.adapter != NONE:
            return 0, "the policy, its adapter off", self._pass(a, plain)[0]
        if other is not None:
            a = other.with_run()[0]
        note = "a frozen copy" if other is None else other.label
        return self._total("parameter_bytes", a, plain), note, self._pass(a, plain)[0]

    def _reward(self, model: ChosenModel, run: RunConfig, of_texts: str) -> Iterator[Part]:
        """Return the parts of a model whose head gives one number, without a bias.

        As AutoModelForSequenceClassification with num_labels=1.
        """
        a: Any = model.with_run()[0]
        plain = _frozen(run).model_copy(update={"weights": "dtype"})
        terms, why = of_point.terms_or_reason("parameter_bytes", a, plain)
        if why or not hasattr(a, "d_model"):
            raise InputError([f"--reward {model.name}: {why or 'no hidden size'}"])
        head = sum(term.total for name, term in terms.items() if name == "head")
        n_bytes = of_model("parameter_bytes", terms) - head + bytes_of(run.dtype) * a.d_model
        yield Part("reward: weights", n_bytes, model.label, False)
        yield Part("reward: its pass", self._pass(a, plain, has_loss=False)[0], of_texts, True)

    def _pass(self, a: Any, run: RunConfig, **which: bool) -> tuple[int, int]:
        """Return the bytes of a forward pass, and those that it leaves."""
        try:
            return pass_of(a, run, **which)  # pyright: ignore[reportArgumentType]
        except NoProgramError as error:
            raise InputError([f"{self.policy.name}: a forward pass alone: {error}"]) from None


def _frozen(run: RunConfig) -> RunConfig:
    """Return the run of a model that is not trained, in the same dtype."""
    off = {"adapter": NONE, "trained": "default", "recompute": NONE, "dropout": False,
           "adapter_dropout": False, "modules_to_save": NONE, "master_weights": False}  # fmt: skip
    return run.model_copy(update=off)
