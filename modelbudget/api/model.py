"""A model to ask: predictions by formula, and measurements of its real module."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelbudget.api.arguments import NAME, checked
from modelbudget.api.breakdown import Breakdown
from modelbudget.api.chosen_device import ChosenDevice
from modelbudget.api.chosen_model import ChosenModel, Settings
from modelbudget.api.find import GGUF
from modelbudget.api.frames import html_table
from modelbudget.api.lines_of_run import host_bytes
from modelbudget.api.predictions import (
    QUANTITIES,
    Predictions,
    must_be_known,
    predictions,
    wrong_run,
)
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.errors import InputError
from modelbudget.common.suggestions import offered
from modelbudget.predict import prediction_or_reason

if TYPE_CHECKING:
    import sympy

    from modelbudget.api.checkpoint_tensors import Checkpoint
    from modelbudget.api.conventions import Counts
    from modelbudget.api.fitting import Fit
    from modelbudget.api.measuring import Comparison
    from modelbudget.api.serving import Serving
    from modelbudget.api.trainers import Trained


class Model(ChosenModel):
    """A chosen model, and the questions that have an answer."""

    @checked()
    def why_not(self, quantity: str, settings: Settings = None) -> str | None:
        """Return why a quantity has no prediction for a run, None if it has one."""
        must_be_known([quantity])
        return prediction_or_reason.why_not(quantity, *self.with_run(settings))

    @checked()
    def predict(self, quantity: str, settings: Settings = None) -> Breakdown:
        """Return a quantity, or a count by a convention; see `predictions`.

        Raises InputError with the reason if it has none.
        """
        return self.predictions([quantity], settings)[quantity]

    @checked()
    def predictions(self, quantities: Sequence[str], settings: Settings = None) -> Predictions:
        """Return several quantities; those without a value are `missing`, with the reason.

        They are predicted by formula. Of the class that a config.json names, or of `implementation:
        transformers`, what was compared with that class is predicted, and for all else it is
        traced.
        """
        return predictions(self, quantities, settings)

    def parameters(self) -> Breakdown:
        """Predict the parameters by component."""
        return self.predict("parameters")

    @checked()
    def memory(self, settings: Settings = None) -> Predictions:
        """Predict all memory of training and inference, in bytes."""
        wanted = [quantity for quantity in QUANTITIES if quantity.endswith("_bytes")]
        return self.predictions(wanted, settings)

    @checked()
    def flops(self, settings: Settings = None) -> Predictions:
        """Predict the FLOPs of forward, backward and of one decoded token."""
        return self.predictions([q for q in QUANTITIES if q.startswith("flops")], settings)

    @checked()
    def conventions(self, settings: Settings = None) -> Counts:
        """Count parameters and FLOPs per training token as papers and training code do."""
        from modelbudget.api.conventions import counts

        return counts(self.label, *self.with_run(settings))

    @checked()
    def formula(self, component: str, quantity: str = "parameters") -> sympy.Expr:
        """Return the formula of all instances of a component, over the symbols of the sizes.

        Switches and categories, such as `tied`, have the model's values. Raises InputError if the
        model has no such component.
        """
        from modelbudget.architecture.evaluators import symbols
        from modelbudget.predict.formula import formula

        if why := self.why_not(quantity):
            raise InputError([f"{self.name}: {quantity}: {why}"])
        architecture, run = self.with_run()
        spaces = [symbols.of_values(type(of), of.model_dump()) for of in (architecture, run)]
        terms, _ = formula(type(architecture), quantity, *spaces)
        if component not in terms:
            no_such = f"no such component{offered(component, terms, '')}"
            raise InputError([f"{self.name}: {component}: {no_such}"])
        values = architecture.model_dump() | run.model_dump()
        return symbols.answered(terms[component].total, values)

    @checked()
    def fit(
        self,
        accelerator: str,
        settings: Settings = None,
        devices: int = 1,
        training: bool = True,
        reserve: str | int | None = None,
        accelerators: str | Path | None = None,
    ) -> Fit:
        """Return whether a step fits an accelerator, and the largest batch and length that do.

        `accelerator` is a name (of the file `accelerators`, if there is one of your own), or a size
        such as 24GB or 24GiB. `reserve` are bytes of it that
        hold no tensors, 1343 MiB if they are not given: a run that fits with them and 1.28 times
        the prediction `fits`, one that fits without is `tight` (configs/memory_margins.yaml).
        """
        from modelbudget.api.fitting import fit

        on = ChosenDevice(accelerator, devices, reserve, accelerators)
        return fit(self, on, settings, training)

    @checked()
    def serve(
        self,
        accelerator: str,
        settings: Settings = None,
        devices: int = 1,
        reserve: str | int | None = None,
        accelerators: str | Path | None = None,
        draft: str | None = None,
        gguf: str | None = None,
        imatrix: bool = False,
        mmproj: str | Path | None = None,
    ) -> Serving:
        """Return how many requests of `length` tokens devices serve, with each term of memory.

        `accelerator` and `reserve` are those of `fit`. `draft`: a model that proposes tokens, or
        mtp: the model's own layers that do. The cache is in vLLM's pages unless `cache_layout` is
        set. `gguf`: the format of a file that llama.cpp serves, such as Q4_K_M, and whether it was
        quantised with an importance matrix; `mmproj`: its file of what reads images.
        """
        from modelbudget.api.serving import serve

        file = None
        if gguf is not None:
            from modelbudget.api.gguf import gguf_file

            file = gguf_file(self, gguf, imatrix)
        on = ChosenDevice(accelerator, devices, reserve, accelerators)
        return serve(self, on, settings, draft, file, mmproj)

    @checked(accelerator=NAME.or_none)
    def trainer(
        self,
        name: str,
        settings: Settings = None,
        reference: str | None = None,
        reward: str | None = None,
        accelerator: str | None = None,
        reserve: str | int | None = None,
        accelerators: str | Path | None = None,
        answer: int | None = None,
        engine_share: float | None = None,
        engine_sleeps: bool = False,
    ) -> Trained:
        """Return what the models of a trainer of TRL need together: `dpo` or `grpo`.

        `batch` of the settings: pairs of texts (dpo), or answers in a step (grpo). `reference`: a
        model, `copy` (usual in dpo) or `none` (usual in grpo, and dpo's precomputed
        log-probabilities); `reward`: a model whose head gives one number. `accelerator`, `reserve`
        and `accelerators` are those of `fit`. `answer`: the last tokens of a text, to which
        log-probabilities belong (all but the first). `engine_share` of the accelerator is vLLM's
        (`vllm_gpu_memory_utilization`), which `engine_sleeps` while others compute.
        """
        from modelbudget.api.trainers import Others, trainer

        on = None
        if accelerator is not None:
            on = ChosenDevice(accelerator, 1, reserve, accelerators)
        others = Others(reference, reward, answer, engine_share, engine_sleeps)
        return trainer(self, name, settings, others, on)

    @checked()
    def measure(
        self, settings: Settings = None, quantities: Sequence[str] = ("parameters",)
    ) -> Comparison:
        """Instantiate the model, trace it, and hold it against the formula. Needs torch."""
        from modelbudget.api.measuring import compare_model

        return compare_model(self, settings, quantities)

    @checked()
    def adapter_file(self, settings: Settings) -> int:
        """Return the bytes of the file that PEFT saves of a run's adapter. Raises InputError."""
        from modelbudget.files.adapter_file import adapter_file_bytes

        return adapter_file_bytes(self.base.transformers, *self.with_run(settings))

    @checked()
    def host_bytes(self, settings: Settings) -> int | None:
        """Return what the optimizer of a run keeps in the host's memory. Raises InputError."""
        return host_bytes(*self.with_run(settings))

    def checkpoint(self) -> Checkpoint | None:
        """Hold the tensors of its safetensors or GGUF file against the formula, by headers alone.

        None for a name, a config.json, or a folder without such files. Raises InputError.
        """
        if self.weights is None:
            return None
        if self.weights.name.endswith(GGUF):
            from modelbudget.api.gguf import compare_gguf

            return compare_gguf(self, self.weights)
        from modelbudget.api.checkpoint_tensors import compare_checkpoint

        return compare_checkpoint(self, self.weights)

    def __repr__(self) -> str:
        return f"<Model {self.label}, {self.base.family.name()}>"

    def _repr_html_(self) -> str:
        if self.why_not("parameters"):
            return html_table(repr(self), [self.architecture.model_dump()])
        return self.parameters()._repr_html_()


@checked(name=NAME)
def model(name: str | os.PathLike[str], /, **fields: Any) -> Model:
    """Return a model by name, config.json or folder; `fields` override single sizes.

    Raises InputError with what is allowed; of a series without some of its sizes, its models.
    """
    return Model.named(str(name), **fields)


def model_with(name: str, given: Mapping[str, Any], usual: Mapping[str, Any]) -> Model:
    """Return a model with the sizes among `given` fields; the others must allow it to run.

    `usual`: fields of the run where they are not given. Raises InputError.
    """
    sizes = {field: value for field, value in given.items() if field not in RunConfig.model_fields}
    chosen = model(name, **sizes)
    if mistake := wrong_run(chosen, {**usual, **given}, given):
        raise InputError([f"{name}: {mistake}"])
    return chosen
