"""Lines of an answer about its run: its settings, what is trained, how weights are read."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from modelbudget.api.breakdown import Breakdown
from modelbudget.architecture.adapter_methods import (
    ALL_LINEAR,
    OF_LAYERS,
    adapter_dtype_of,
    method_of,
)
from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.optimizers import ON_HOST, kernel_of, optimizer_named
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import (
    gradient_number,
    has_part_of_states,
    is_sharded,
    replicas,
    replicas_of_experts,
    target_tokens,
)
from modelbudget.architecture.stored_formats import FORMATS, Library
from modelbudget.architecture.terms import is_peak, of_model, total
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.common.validation_messages import show
from modelbudget.components.mixers import mixers
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.peft_classes import peft_classes
from modelbudget.measurement.reference.class_run import why_not_trained
from modelbudget.operations.tape import BYTES
from modelbudget.predict import prediction_or_reason
from modelbudget.predict.by_program import trained_parameters

SETTINGS = ("batch", "length", "dtype", "optimizer", "foreach", "attention_kernel",
            "implementation")  # fmt: skip
"""Run settings that are always shown; others if they differ from their default."""

SHARDED = {"parameter_bytes", "gradient_bytes", "peak_training_bytes"}
"""Quantities in which the padding of shards is counted."""

IN_VLLM = "; vLLM refuses it unless RoPE is scaled"
IN_LLAMA_CPP = "; llama.cpp's server ends texts there unless RoPE is scaled"


def line_of_settings(run: RunConfig, family: type[Architecture]) -> str:
    """Return the run settings as text: `batch 1, length 2,048, dtype float32, …`.

    Of a class of `transformers`, without those that it computes by its code, and without a kernel
    of attention where the family has none.
    """
    fields = type(run).model_fields
    of_code = set[str]()
    if run.implementation == TRANSFORMERS:
        of_code |= {*implementations()[TRANSFORMERS].of_our_modules} - {"implementation"}
    if family.has_formula and "n_head" not in family.model_fields:
        of_code.add("attention_kernel")
    shown = [
        name
        for name in fields
        if name in SETTINGS or getattr(run, name) != fields[name].default
        if name not in of_code
        if name not in ("cached_state_dtype", "rope_rows") or run.cache_layout == "paged"
    ]
    values = {name: getattr(run, name) for name in shown}
    return ", ".join(
        f"{name} {f'{value:,}' if type(value) is int else show(value).strip(chr(39))}"
        for name, value in values.items()
    )


def line_of_positions(fields: Mapping[str, Any], length: int, then: str) -> Iterator[str]:
    """Say that sequences are longer than a model's RoPE is for, and what an engine does `then`.

    `fields`: those that are set.
    """
    n_ctx = fields.get("n_ctx")
    if fields.get("position") == "rotary" and isinstance(n_ctx, int) and length > n_ctx:
        more = f"more than n_ctx = {n_ctx:,}, which its positions (RoPE) are for"
        yield f"length {length:,}: {more}{then}"


def line_of_recurrence(a: Architecture, quantities: Collection[str]) -> Iterator[str]:
    """Say that a recurrence is computed without the kernels that most people train with."""
    in_memory = any(name == "activation_bytes" or is_peak(name) for name in quantities)
    names = {*vars(a).get("mixers", "").split()}
    parts = [type(a), *(mixers().get(name) for name in names)]
    if in_memory and any(getattr(part, "LOOPS_OVER_TOKENS", False) for part in parts):
        yield (
            "recurrence: by operations of torch, with what each token computes in memory; kernels "
            "that do without (mamba-ssm, flash-linear-attention, cuDNN) have no formula, and need "
            "less"
        )


def lines_of_run(
    a: Architecture, run: RunConfig, breakdowns: Mapping[str, Breakdown], class_: str | None
) -> Iterator[str]:
    """Yield what a reader must know of a run of our modules; `class_`: the model's class."""
    if "gradient_bytes" in breakdowns:
        yield from _of_adapter(a, run)
    yield from lines_of_adapted_matrices(a, run, class_)
    yield from lines_of_optimizer(run, breakdowns)
    if "flops_decode" in breakdowns:
        yield from _of_latents(breakdowns["flops_decode"])
    if "peak_inference_bytes" in breakdowns and getattr(a, "n_encoder_layer", 0):
        target = f"a target of {target_tokens(run):,} (target_length)"
        yield (
            f"inference: a source of {run.length:,} tokens, and {target}; the encoder's pass and "
            "the target's first token, then its last with both caches"
        )
    if breakdowns.keys() & SHARDED:
        yield from _of_padded_experts(a, run)
    if "optimizer_bytes" in breakdowns and (n_bytes := host_bytes(a, run)) is not None:
        yield f"memory of the host: {n_bytes:,} bytes, of the optimizer"
    yield from lines_of_weights(a, run, breakdowns, class_)


def _of_adapter(a: Architecture, run: RunConfig) -> Iterator[str]:
    """Say how many parameters are trained with an adapter."""
    if run.adapter == "none":
        return
    has_others = run.trained != "default" or run.modules_to_save != "none"
    in_dtype = "" if has_others else f" in {adapter_dtype_of(run)}"
    yield (
        f"adapter {run.adapter}: {trained_parameters(a, run):,} parameters{in_dtype} are trained "
        f"(adapter_rank {run.adapter_rank}, adapter_targets {run.adapter_targets})"
    )


def numbers_of_gradients(run: RunConfig, breakdowns: Mapping[str, Breakdown]) -> int:
    """Count the parameters whose gradients stay after a backward pass."""
    is_of_adapter = run.adapter != "none" and adapter_dtype_of(run) == "float32"
    size = BYTES["float32"] if is_of_adapter else gradient_number(run)
    return breakdowns["gradient_bytes"].total // size


def lines_of_adapted_matrices(a: Architecture, run: RunConfig, class_: str | None) -> Iterator[str]:
    """Say where PEFT adapts other matrices of a model's class, and which settings count those."""
    if run.adapter not in OF_LAYERS or class_ not in translations():
        return
    model_type, of_peft = translations()[class_].model_type, peft_classes()
    packed, given = of_peft.settings_of(model_type), run.adapter_targets.split()
    targets, is_all = of_peft.targets_of(model_type, given), ALL_LINEAR in given
    is_said = {
        "packed": any(getattr(run, name) == "separate" for name in packed),
        "divided": model_type in of_peft.divided_otherwise,
        "targets": _is_moe(a) and method_of(run.adapter).of_experts and targets != given,
        "one_stack": _is_moe(a) and of_peft.has_no_setting(model_type, given),
        "router": is_all and model_type in of_peft.routers_refused,
        "mixer": is_all and model_type in of_peft.mixers_refused,
        "step": model_type in of_peft.steps_unread
        and run.weights == "dtype"
        and bool({ALL_LINEAR, "step"} & {*given}),
    }
    words = {
        "class_": class_,
        "settings": ", ".join(f"{name}={value}" for name, value in packed.items()),
        "targets": " ".join(targets),
        "traced": "" if why_not_trained(class_, run) else ": `implementation=transformers`",
    }
    for name, text in of_peft.lines.items():
        if is_said[name]:
            yield f"adapter {run.adapter}: {text.format(**words)}"


def _is_moe(a: Architecture) -> bool:
    return "moe" in vars(a).get("mlps", "")


def lines_of_optimizer(run: RunConfig, breakdowns: Mapping[str, Breakdown]) -> Iterator[str]:
    """Name the optimizer and its bytes a parameter, and say where its step is not known.

    Not of the default, but where it does not train.
    """
    default = RunConfig.model_fields["optimizer"].default
    if not {"optimizer_bytes", "gradient_bytes"} <= breakdowns.keys():
        return
    trained = run.dtype if run.adapter == "none" else adapter_dtype_of(run)
    if run.optimizer == default:
        if trained == "float16" and not run.master_weights:
            yield (
                f"optimizer {default}: divides by zero where parameters are float16, in which its "
                "epsilon of 1e-8 is 0; trainers' fp16 is `dtype=float32` `autocast=float16`"
            )
        return
    optimizer, n_bytes = optimizer_named(run.optimizer), breakdowns["optimizer_bytes"].total
    line = f"optimizer {run.optimizer} ({optimizer.title}; {optimizer.library}): "
    n_trained = numbers_of_gradients(run, breakdowns)
    if run.modules_to_save == "none" and n_trained:  # else of two dtypes, or freed at once
        line += f"{n_bytes / n_trained:.3g} bytes a parameter that is trained"
    else:
        line += f"{n_bytes:,} bytes"
    if has_part_of_states(run) and optimizer.is_of_matrices:
        line += "; zero 1 makes one row of all parameters, in which it has no matrices"
    is_known = optimizer.has_kernel(kernel_of(run))
    if not is_known and any(is_peak(quantity) for quantity in breakdowns):
        line += (
            "; the temporary tensors of its step were not traced: the peak is that of forward and "
            "backward pass alone"
        )
    yield line
    least = optimizer.refuses_bfloat16_below * gradient_number(run)
    parts = breakdowns["gradient_bytes"].components if trained == "bfloat16" else ()
    small = next((part.name for part in parts if 0 < part.each < least), None)
    if small is not None:
        refused = f"raises an error on a GPU for {small}, in bfloat16 with fewer than"
        numbers = f"{optimizer.refuses_bfloat16_below:,} numbers"
        yield f"optimizer {run.optimizer}: {refused} {numbers}; allowed: `dtype=float32`"


def _of_latents(flops_decode: Breakdown) -> Iterator[str]:
    """Say what decoding with MLA computes again (DeepSeek-AI 2024, §2.1.2)."""
    parts = flops_decode.components
    if again := sum(part.value for part in parts if part.name.endswith("mla.kv_up")):
        yield (
            f"flops_decode: {again:,} are for keys and values of all cached tokens, computed again "
            "from latents (kv_up); engines that absorb kv_up in query and output do not compute "
            "them"
        )


def _of_padded_experts(a: Architecture, run: RunConfig) -> Iterator[str]:
    """Say that FSDP2 pads stacked experts whose number its devices do not divide."""
    if not is_sharded(run) or not _is_moe(a):
        return
    n_local = vars(a)["n_expert"] // run.expert_parallel
    n_device = replicas(run) if run.expert_parallel == 1 else replicas_of_experts(run)
    n_each = ceil_div(n_local, n_device)
    if n_each * n_device != n_local:
        yield (
            f"zero {run.zero}: FSDP2 pads the {n_local:,} stacked experts of a layer to "
            f"{n_each * n_device:,}, of which each of {n_device:,} devices has {n_each:,}; more "
            "devices can need more memory, since padding is gathered too"
        )


def host_bytes(a: Architecture, run: RunConfig) -> int | None:
    """Return what the optimizer of a run keeps in the host's memory, if it keeps anything there."""
    if optimizer_named(run.optimizer).host is None:
        return None
    hosted = run.model_copy(update={"optimizer": f"{run.optimizer}{ON_HOST}"})
    return of_model("optimizer_bytes", prediction_or_reason.predicted("optimizer_bytes", a, hosted))


def _of_experts_in_dtype(a: Architecture, run: RunConfig) -> Iterator[str]:
    """Say that routed experts are in no format, where its library does not convert stacks."""
    library = FORMATS[run.weights].library
    is_chosen = run.weights_of != "library" or run.expert_weights != "weights"
    if _is_moe(a) and not is_chosen and "experts" not in library.converts:
        yield (
            f"weights {run.weights}: routed experts are in {_dtype_left(run)}: transformers "
            f"has those of a layer in one stack, which {library.library} does not convert; counted "
            f"in it, too: `expert_weights={run.weights}`"
        )


PRODUCTS = {
    "copy": "each product reads a copy of its matrix in {dtype}, freed after it, as {library} "
    "makes it",
    "stored": "each product is counted with a copy of its matrix in {dtype}, freed after it; the "
    "kernels of {library} read the stored matrix and need up to the largest copy less",
    "int8": "the states of each product are quantised to int8, as {library} does it; it keeps them "
    "until the loss is freed, also under activation checkpointing",
    "unknown": "each product is counted with a copy of its matrix in {dtype}, freed after it; what "
    "kernels for {library} copy is not known",
}
"""How a product with quantised weights is counted, by what its library's kernels do."""


def _dtype_left(run: RunConfig) -> str:
    """Return the dtype of matrices that have no format."""
    return "float32" if run.prepare_for_kbit_training else run.dtype


OTHER_LAYERS = {
    "GPT2LMHeadModel": "Conv1D", "OpenAIGPTLMHeadModel": "Conv1D",
    "FalconForCausalLM": "FalconLinear",
}  # fmt: skip
"""Classes whose linear layers are of a class of transformers, not torch's."""


def _left_in_dtype(class_: str | None, library: Library) -> str | None:
    """Return what the linear layers of a class are, if a library converts none of them.

    bitsandbytes takes those whose class is torch's, others subclasses too, as `FalconLinear` is.
    """
    layers = OTHER_LAYERS.get(class_ or "")
    if layers == "Conv1D":
        return None if "conv1d" in library.converts else layers
    return layers if library.quant_method == "bitsandbytes" else None


def lines_of_weights(
    a: Architecture, run: RunConfig, breakdowns: Mapping[str, Breakdown], class_: str | None
) -> Iterator[str]:
    """Say where the bytes of quantised weights come from, and how products read them."""
    if run.weights not in FORMATS:
        return
    if run.prepare_for_kbit_training and "gradient_bytes" in breakdowns:
        yield (
            "prepare_for_kbit_training: embedding, head, norms and what layers hand on are in "
            f"float32, as PEFT's function makes them, and recompute is {run.recompute}; false: all "
            "stays in the dtype"
        )
    known, line = FORMATS[run.weights], f"weights {run.weights}: "
    library = known.library
    if "parameter_bytes" in breakdowns:
        yield from _of_experts_in_dtype(a, run)
    if layers := _left_in_dtype(class_, library):
        is_class = run.implementation == TRANSFORMERS
        of_ours = "" if is_class else "of our linear layers; "
        yield (
            f"{line}{of_ours}{library.library} converts no {layers}, so that transformers leaves "
            f"{class_} in {_dtype_left(run)}"
        )
        if is_class:
            return
    if "parameter_bytes" in breakdowns:
        if not known.is_witnessed:
            yield (
                f"{line}bytes from source, not witnessed: nothing that packs them was run "
                f"({library.source.strip()})"
            )
        terms, why = prediction_or_reason.terms_or_reason("file_bytes", a, run)
        if not why and (n_bytes := total(terms)) != breakdowns["parameter_bytes"].total:
            yield (
                f"{line}the tensors of a file are not all those in memory: {n_bytes:,} bytes "
                "(file_bytes)"
            )
    if any(is_peak(quantity) for quantity in breakdowns):
        text = PRODUCTS["int8" if known.format.product == "int8" else library.product]
        yield line + text.format(dtype=run.dtype, library=library.library)
