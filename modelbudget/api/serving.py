"""How many requests an accelerator serves, and how long they may be."""

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modelbudget.api.chosen_device import ChosenDevice
from modelbudget.api.chosen_model import ChosenModel, Settings, fields_of
from modelbudget.api.class_answers import WITHOUT_FORMULA, run_of
from modelbudget.api.find import GGUF
from modelbudget.api.frames import Frames
from modelbudget.api.gguf import GgufFile
from modelbudget.api.lines_of_run import IN_LLAMA_CPP, IN_VLLM, line_of_positions
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import first_mistake
from modelbudget.architecture.run_config import RunConfig, ServedCache
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.architecture.run_values import bytes_of, target_tokens
from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.catalogue.memory_margins import Grade
from modelbudget.catalogue.quantised_copies import TAKEN_FOR
from modelbudget.common.byte_sizes import GIB
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show
from modelbudget.files.gguf_formats import OF_TOKENS
from modelbudget.files.gguf_header import read_header
from modelbudget.files.gguf_model import ARCHITECTURE, WHOLE_KEYS
from modelbudget.files.gguf_tensors import layer_of
from modelbudget.huggingface.checkpoint_files import Tensor
from modelbudget.predict.engine_weights import SHARES, with_stored_experts
from modelbudget.predict.layer_split import layer_shares
from modelbudget.predict.serve import Draft, Served, Term, served, without_mtp

EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")
"""In names of the tensors that `--n-cpu-moe` leaves on the host (llama.cpp's common/common.h)."""
LARGE_DEVICE = 70 * GIB
"""Memory from which on vLLM batches more tokens and requests, but on an A100."""
OF_LARGE, OF_SMALL = (
    {"batched_tokens": 8192, "sampled_requests": 1024},
    {"batched_tokens": 2048, "sampled_requests": 256},
)
"""What its server batches by default (`get_batch_defaults` in its engine/arg_utils.py)."""
OF_LLAMA = {
    "cache_layout": "cells", "cache_dtype": "dtype", "dtype": "float16", "utilisation": 100,
    "batched_tokens": 512, "sampled_requests": 4,
}  # fmt: skip
"""Defaults of llama.cpp's server: its cache in f16, all of a device's memory, n_ubatch, slots."""
QUANTIZATION = "quantization_config"
"""Begin of the note on a file whose format has no formula."""
MTP = "mtp"
"""Name of a draft: the model's own layers that predict further tokens."""
EAGLE3 = "eagle3"
"""Name of a draft: a head of EAGLE 3."""
NOT_IN_SERVING = {"pipeline_parallel": 1, "sequence_parallel": False, "zero": 0}
"""Settings that divide a model otherwise, with the only values that are known in serving."""
OF_PLACES = {"length", "target_length", "position", "n_ctx"}
"""Fields on which it depends whether learned positions have a place for each token."""
OF_WEIGHTS = {
    "weights", "weight_group", "weight_block", "weights_of", "kept_in_dtype", "expert_weights",
    "expert_weight_group", "expert_weight_block", "vocabulary_dtype",
}  # fmt: skip
"""Settings of the weights, which a file of llama.cpp has instead."""
READ = {
    *ServedCache.model_fields, *SHARES, *NOT_IN_SERVING, *OF_WEIGHTS, "batch", "length",
    "target_length", "dtype", "attention_kernel", "adapter", "adapter_rank", "adapter_targets",
}  # fmt: skip
"""Settings of a run on which what an engine serves depends."""
OF_OTHER_LAYOUTS = {
    "paged": {"attention_kernel"},
    "cells": {
        "cache_block", "cached_state_dtype", "cached_states", "rope_rows", "sampling_kernel",
    },
}  # fmt: skip
"""Of these, those on which it does not depend in a layout of the cache."""
OF_CACHE = (
    "cache_bytes", "block_bytes", "block_tokens", "blocks", "request_bytes", "request_blocks",
    "shared_bytes",
)  # fmt: skip
"""What a device keeps, under the same names in JSON."""
WITHOUT_MODEL = ("ngram", "suffix")
"""Methods of vLLM's speculative decoding that have no model."""


@dataclass(frozen=True)
class Serving(Frames):
    """Terms of each device's memory, and the requests of all `devices`.

    A model is on `tensor_parallel` devices; further ones are `replicas`.
    """

    model: str
    accelerator: Accelerator
    devices: int
    replicas: int
    run: RunConfig
    of_device: Served
    file: str | None = None
    """The format of a file that llama.cpp serves."""
    notes: tuple[str, ...] = ()
    n_ctx: int | None = None
    """Tokens that the model's positions are for, where those are RoPE's."""

    @property
    def requests(self) -> int:
        """Requests of `length` tokens at once, with each bounded term at its most."""
        return self.replicas * self.of_device.requests

    @property
    def most_requests(self) -> int:
        """The same with each bounded term at its least."""
        return self.replicas * self.of_device.most_requests

    @property
    def grade(self) -> Grade:
        """Whether one request fits, with each bounded term at its most or only at its least."""
        return "fits" if self.requests else "tight" if self.most_requests else "does not fit"

    @property
    def fits(self) -> bool:
        """Whether one request fits."""
        return self.requests > 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        device = self.of_device
        return {
            "purpose": "serve",
            "model": self.model,
            "accelerator": self.accelerator.name,
            "memory": device.memory,
            "memory_source": self.accelerator.source,
            "devices": self.devices,
            "replicas": self.replicas,
            **{name: getattr(self.run, name) for name in SHARES},
            "dtype": self.run.dtype,
            "weights": self.file or self.run.weights,
            "cache_dtype": self.run.cache_dtype,
            "usable": device.usable,
            "terms": [term._asdict() for term in device.terms],
            **{name: getattr(device, name) for name in OF_CACHE},
            "length": self.run.length,
            "target_length": self.run.target_length,
            "requests": self.requests,
            "most_requests": self.most_requests,
            "largest_length": device.largest_length,
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each term of a device's memory, each with the requests that fit."""
        device = self.of_device
        served = {"length": self.run.length, "requests": self.requests,
                  "most_requests": self.most_requests,
                  "largest_length": device.largest_length}  # fmt: skip
        terms = [(term.name, -term.n_bytes, term.how, term.note) for term in device.terms]
        rows = [("usable memory", device.usable, "exact", ""), *terms,
                 ("left for the cache", device.cache_bytes, "bounded", "")]  # fmt: skip
        return [
            {"model": self.model, "accelerator": self.accelerator.name, "term": name,
             "bytes": n_bytes, "how": how, "note": note, **served}
            for name, n_bytes, how, note in rows
        ]  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<Serving of {self.model} on {self.devices} × {self.accelerator.name}: "
            f"{self.requests:,} requests of {self.run.length:,} tokens>"
        )


def serve(
    model: ChosenModel,
    on: ChosenDevice,
    settings: Settings,
    draft: str | None = None,
    file: GgufFile | None = None,
    mmproj: str | Path | None = None,
) -> Serving:
    """Solve for the requests that devices serve; see `Model.serve`. Raises InputError."""
    if model.base.family.name() == WITHOUT_FORMULA:
        no_formula = "no formula covers its class, and serving is known by formula alone"
        traced = f"allowed: `fit({on.name}, training=False)`, by a trace on one device"
        raise InputError([f"{model.name}: {no_formula}; {traced}"])

    device = on.accelerator()
    margin = on.margins_on(device).reserve
    chosen = {**model.chosen, **fields_of(settings)}
    tensors = _tensors(model, file)
    is_file = tensors is not None
    unread = _unread(model, chosen)
    chosen = {name: value for name, value in chosen.items() if name not in unread}
    of_model = {name: value for name, value in model.chosen.items() if name not in unread}
    model = replace(model, chosen=of_model)
    is_llama = is_file or chosen.get("cache_layout") == OF_LLAMA["cache_layout"]
    fields = dict(OF_LLAMA) if is_llama else _settings_of_vllm(model, device)
    if model.base.released_weights and not is_file:
        fields["weights"] = model.base.released_weights
    if any(WHOLE_KEYS in tensor.name for tensor in tensors or ()):
        fields["mla_cache"] = "heads"
    fields |= chosen
    shares = _shares({"tensor_parallel": 1, **fields} if is_file else fields, on.devices)
    n_stages = on.devices // shares["data_parallel"] if is_file else 1
    whole = {name: value for name, value in fields.items() if name not in shares}
    architecture, run = run_of(model, whole)
    run = with_stored_experts(architecture, run).model_copy(update=shares)
    if architecture.reads_all_at_once:
        keeps = f"{architecture.name()} keeps no cache to serve from"
        once = f"its inference is one pass over all tokens: `fit({on.name}, training=False)`"
        raise InputError([f"{model.name}: {keeps}; {once}"])
    _refuse_unknown(model, architecture, run)
    architecture, run = _with_draft(model, architecture, run, draft)
    others = [Term("reserve", margin.bytes, "read", margin.source)]
    if model.base.left_out and not is_file:
        others.insert(0, _left_out(model.base.left_out, run))
    if mmproj is not None:
        others.insert(0, _projector(Path(mmproj), run))
    of_host = [tensor.n_bytes for tensor in tensors or () if is_on_host(tensor.name, run)]
    if of_host and device.platform != "mps":  # ggml-backend.cpp of llama.cpp: splits of a graph
        name, note = "a matrix of the host", "copied for a pass"
        others.insert(0, Term(name, max(of_host), "bounded", note, 0))
    try:
        of_draft = _draft(draft, architecture, run)
        if tensors is None:
            of_device = served(architecture, run, device.bytes, others, of_draft)
        else:
            _check_host(tensors, run)
            if n_stages > 1 and draft:
                raise ValueError(f"draft = {draft}: of a file on one device; allowed: none")
            is_mapped, stages = device.platform == "mps", []
            for part, of_stage, of_part in _stages(architecture, run, tensors, n_stages):
                weights = _of_gguf(*of_part, is_mapped)
                stages.append(served(part, of_stage, device.bytes, others, of_draft, weights))
            of_device = _tightest(stages)
    except ValueError as error:
        raise InputError([f"{model.name}: {error}"]) from None
    is_rotary = getattr(architecture, "position", "") == "rotary"
    return Serving(
        model.label,
        device,
        on.devices,
        on.devices // (run.tensor_parallel * n_stages),
        run,
        of_device,
        file.format if file else GGUF if is_file else None,
        tuple(_notes(model, architecture, run, chosen, unread, is_file)),
        getattr(architecture, "n_ctx", None) if is_rotary else None,
    )


def _unread(model: ChosenModel, chosen: dict[str, Any]) -> Set[str]:
    """Return the settings without effect in serving.

    Raises InputError of those that divide a model as no engine does, or have no such value.
    """
    for name, known in NOT_IN_SERVING.items():
        if (value := chosen.get(name, known)) != known:
            refused = f"{name} = {show(value)}: not known in serving"
            raise InputError([f"{model.name}: {refused}; allowed: {show(known)}"])
    unread = RunConfig.model_fields.keys() & chosen.keys() - READ
    model.with_run({name: chosen[name] for name in unread})
    return unread


def _settings_of_vllm(model: ChosenModel, device: Accelerator) -> dict[str, Any]:
    """Return what vLLM takes where nothing is chosen."""
    is_large = device.bytes >= LARGE_DEVICE and not device.name.startswith("A100")
    is_float16 = _stored_dtype(model) == "float16" or not device.has_flash
    dtype = "float16" if is_float16 else "bfloat16"
    return {"cache_layout": "paged", "dtype": dtype, **(OF_LARGE if is_large else OF_SMALL)}


def _stored_dtype(model: ChosenModel) -> Any:
    return {**model.base.fields, **model.base.derive}.get("dtype")


def _shares(fields: dict[str, Any], devices: int) -> dict[str, int]:
    """Return by how much devices divide a model as vLLM does. Raises InputError.

    `context_parallel` divides the cache among devices of `tensor_parallel`, and `data_parallel`
    experts among replicas.
    """
    shares = {name: fields.get(name, 1) for name in SHARES}
    for name, value in shares.items():
        if type(value) is not int or value < 1:
            raise InputError([f"{name} = {show(value)}: must be a whole number of at least 1"])
    data = shares["data_parallel"]
    if "tensor_parallel" not in fields:
        shares["tensor_parallel"] = max(devices // data, 1)
    tensor = shares["tensor_parallel"]
    of_experts = data * tensor
    allowed = {
        "a tensor_parallel that divides them, times data_parallel": devices % of_experts == 0,
        f"an expert_parallel of 1 or {of_experts}": shares["expert_parallel"] in (1, of_experts),
        "a context_parallel that divides tensor_parallel": tensor % shares["context_parallel"] == 0,
    }
    if not all(allowed.values()):
        of_run = ", ".join(f"{name} = {n}" for name, n in shares.items() if n > 1)
        refused = next(name for name, is_allowed in allowed.items() if not is_allowed)
        raise InputError([f"`devices={devices}`: {of_run}; allowed: {refused}"])
    return shares


def _with_draft(
    model: ChosenModel, architecture: Architecture, run: RunConfig, draft: str | None
) -> tuple[Architecture, RunConfig]:
    """Return a model that drafts with its own layers for further tokens, or a run with a head."""
    n_layer = getattr(architecture, "n_mtp_layer", 0)
    if draft == MTP and not n_layer:
        of_model = "" if run.cache_layout == "cells" else ", or `n_mtp_layer=1`"  # files lack them
        raise InputError([f"{model.name}: draft = {MTP}: n_mtp_layer = 0: no such layers; allowed: "
                          f"the name of a model{of_model}"])  # fmt: skip
    if draft == MTP:
        tokens = {"drafted_tokens": run.drafted_tokens or n_layer}
        return architecture, run.model_copy(update=tokens)
    head = {"draft_head": EAGLE3} if draft == EAGLE3 else {}
    return without_mtp(architecture), run.model_copy(update=head)


def _notes(
    model: ChosenModel, a: Architecture, run: RunConfig, chosen: dict[str, Any],
    unread: Set[str], is_file: bool,
) -> Iterator[str]:  # fmt: skip
    """Yield what a reader must know of what was taken and what is not counted."""
    of_others = OF_OTHER_LAYOUTS.get(run.cache_layout, set()) | (OF_WEIGHTS if is_file else set())
    if ignored := sorted(unread | (of_others & chosen.keys())):
        yield f"without effect in serving: {', '.join(ignored)}"
    is_llama = run.cache_layout == OF_LLAMA["cache_layout"]
    then = IN_LLAMA_CPP if is_llama else IN_VLLM
    yield from line_of_positions({**model.base.fields, **chosen}, run.length, then)
    if getattr(a, "n_encoder_layer", 0):
        target = f"a target of {target_tokens(run):,} (target_length)"
        yield f"a request has a source of {run.length:,} tokens, and {target}"
    if is_file:
        return
    for note in model.base.notes:
        if note.about == "inference" or note.text.startswith(TAKEN_FOR):
            yield note.text
    stored = _stored_dtype(model)
    if stored not in (None, run.dtype) and "dtype" not in chosen and not is_llama:
        yield f"dtype: {run.dtype}, as vLLM serves a file in {stored}; `dtype={stored}`"
    if (released := model.base.released_weights) and "weights" not in chosen:
        yield f"weights: {released}, as released; in {run.dtype}: `weights=dtype`"
    if model.base.left_out:
        yield "weights for images: what an engine keeps and computes for an image is not counted"


def _left_out(n_parameters: int, run: RunConfig) -> Term:
    """Return the weights of what reads images: each device has all of them, or a share."""
    n_bytes = n_parameters * bytes_of(run.dtype)
    is_whole = run.tensor_parallel == 1 and run.weights == "dtype"
    least = None if is_whole else 0
    return Term("weights for images", n_bytes, "exact" if is_whole else "bounded", run.dtype, least)


def _projector(path: Path, run: RunConfig) -> Term:
    """Return the weights of llama.cpp's file of what reads images. Raises InputError."""
    if run.cache_layout != OF_LLAMA["cache_layout"]:
        allowed = "allowed: with a .gguf file, or `gguf=FORMAT`"
        raise InputError([f"`mmproj={path}`: of llama.cpp; {allowed}"])
    header = read_header(path)
    if (architecture := header.metadata.get(ARCHITECTURE)) != "clip":
        read = f"{ARCHITECTURE} = {show(architecture)}"
        raise InputError([f"{path}: {read}: reads no images; allowed: clip"])
    n_bytes = sum(tensor.n_bytes for tensor in header.tensors)
    return Term("what reads images", n_bytes, "exact", "of the file, without a pass over one")


def _tensors(model: ChosenModel, file: GgufFile | None) -> Sequence[Tensor] | None:
    """Return the tensors of a .gguf file: of the one that is the model, or that it would become.

    Without those of layers for further tokens, which llama.cpp loads for drafts alone (`load_mtp`).
    """
    if model.weights is None or not model.weights.name.endswith(GGUF):
        return file.tensors if file else None
    a: Any = model.architecture
    tensors = read_header(model.weights).tensors
    return [tensor for tensor in tensors if (layer_of(tensor.name) or 0) < a.n_layer]


def _stages(
    a: Any, run: RunConfig, tensors: Sequence[Tensor], n_stages: int
) -> Iterator[tuple[Architecture, RunConfig, tuple[Sequence[Tensor], RunConfig, str]]]:
    """Yield what each of several devices computes of a file, in which run, and its tensors."""
    if n_stages == 1:
        yield a, run, (tensors, run, "")
        return
    if not {"mixers", "n_dense_layer"} <= type(a).model_fields.keys():
        raise ValueError(f"{n_stages} devices of a file: known of decoders alone; allowed: 1")
    n_layer = a.n_layer - run.host_layers
    if n_stages > n_layer:
        raise ValueError(f"{n_stages} devices of {n_layer} layers: allowed: at most {n_layer}")
    for share in layer_shares(a.n_layer, n_stages, run.host_layers):
        of_head = {} if share.has_head else {"sampled_requests": 0}
        settings = {"host_layers": 0, "pipeline_parallel": n_stages, **of_head}
        here = [
            tensor
            for tensor in tensors
            if (share.has_head if (i := layer_of(tensor.name)) is None else i in share.layers)
        ]
        of_stage = run.model_copy(update=settings)
        yield share.part_of(a), of_stage, (here, run, f", {share.words}")


def _tightest(stages: list[Served]) -> Served:
    """Return the device with room for the fewest requests, which all have to hold."""
    tightest = min(stages, key=lambda stage: (stage.requests, stage.cache_bytes))
    names = "requests", "most_requests", "largest_length"
    least = {name: min(getattr(stage, name) for stage in stages) for name in names}
    return replace(tightest, **least)


def _check_host(tensors: Sequence[Tensor], run: RunConfig) -> None:
    """Raise ValueError for what a file has not, of which something is to be on the host."""
    if run.tensor_parallel > 1:
        raise ValueError(f"tensor_parallel = {run.tensor_parallel}: of a .gguf file: allowed: 1")
    n_experts, pattern = run.host_expert_layers, run.host_tensors
    with_experts = [layer_of(tensor.name) or 0 for tensor in tensors if EXPERTS.search(tensor.name)]
    if n_experts and not with_experts:
        raise ValueError(f"host_expert_layers = {n_experts}: the file has no experts; allowed: 0")
    if n_experts > (most := 1 + max(with_experts, default=0)):
        raise ValueError(f"host_expert_layers = {n_experts}: allowed: at most {most}")
    if pattern and not any(re.search(pattern, tensor.name) for tensor in tensors):
        raise ValueError(f"host_tensors = {pattern}: is in no name, such as {tensors[-1].name}")


def _of_gguf(tensors: Sequence[Tensor], run: RunConfig, share: str, is_mapped: bool) -> Term:
    """Return the weights of a .gguf file on one device, without the table of tokens.

    llama.cpp looks tokens up on the host, and keeps the first `host_layers` layers there, and the
    experts of the first `host_expert_layers`. `share`: which of several devices has these tensors;
    `is_mapped`: the device maps the file, with the table if others surround it.
    """
    has_head = any(tensor.name == "output.weight" for tensor in tensors)
    on_host = OF_TOKENS if has_head else OF_TOKENS[1:]
    of_tokens = sum(tensor.n_bytes for tensor in tensors if tensor.name in on_host)
    on_device = [tensor for tensor in tensors if not is_on_host(tensor.name, run)]
    n_bytes = sum(tensor.n_bytes for tensor in on_device if tensor.name not in on_host)
    parts = {
        f"{run.host_layers:,} layers": run.host_layers,
        f"experts of {run.host_expert_layers:,} layers": run.host_expert_layers,
        "named tensors": run.host_tensors,
    }
    names = " and ".join(name for name, is_there in parts.items() if is_there)
    note = f"of the file{share}" + (f", {names} on the host" if names else "")
    if is_mapped and of_tokens:
        return Term("weights", n_bytes + of_tokens, "bounded", "tokens mapped", n_bytes)
    return Term("weights", n_bytes, "exact", note)


def is_on_host(name: str, run: RunConfig) -> bool:
    """Return whether a tensor of a .gguf file stays in the host's memory, but for tokens."""
    i = layer_of(name)
    of_experts = run.host_expert_layers if EXPERTS.search(name) else 0
    is_of_layers = i is not None and i < max(run.host_layers, of_experts)
    return is_of_layers or bool(run.host_tensors and re.search(run.host_tensors, name))


def _refuse_unknown(model: ChosenModel, architecture: Architecture, run: RunConfig) -> None:
    is_llama = run.cache_layout == OF_LLAMA["cache_layout"]
    if is_llama and run.attention_kernel == "math" and run.cache_dtype != "dtype":
        needs = "llama.cpp has quantised values with flash attention alone"
        allowed = "allowed: `attention_kernel=flash`, or `cache_dtype=dtype`"
        raise InputError([f"{model.name}: cache_dtype = {run.cache_dtype}: {needs}; {allowed}"])
    of_run = run_constraints(type(architecture))
    of_places = (constraint for constraint in of_run if constraint.names <= OF_PLACES)
    if mistake := first_mistake(of_places, vars(architecture) | vars(run)):
        raise InputError([f"{model.name}: {mistake}"])
    if run.adapter != "none":
        raise InputError([f"{model.name}: adapter = {run.adapter}: not known in serving; allowed: "
                          "adapter: none (served_adapters counts them)"])  # fmt: skip
    if run.weights == "unknown":
        notes = (note.text for note in model.base.notes if note.text.startswith(QUANTIZATION))
        why = next(notes, "weights = unknown: bytes are refused")
        raise InputError([f"{model.name}: {why}; allowed: `weights` with a known format"])


def _draft(name: str | None, of: Any, run: RunConfig) -> Draft | None:
    """Return a draft model in the run's dtype, on the same devices. Raises InputError.

    vLLM refuses one with another vocabulary (`verify_equal_vocab_size_if_draft_model` in its
    config/speculative.py); llama.cpp translates its tokens.
    """
    if name in (None, MTP, EAGLE3):
        return None
    if name in WITHOUT_MODEL:
        keeps = "drafts from tokens, with neither weights nor a cache of its own"
        raise InputError([f"`draft={name}`: {keeps}; allowed: none, and `drafted_tokens=N` for "
                          "the states of a recurrence"])  # fmt: skip
    draft = ChosenModel.of_argument("draft", name)
    kept = ("dtype", "length", "batched_tokens", "cache_dtype", "cache_layout", "cache_block")
    architecture, of_draft = draft.with_run({field: getattr(run, field) for field in kept})
    n_vocab = getattr(architecture, "n_vocab", None)
    if run.cache_layout == "paged" and n_vocab != of.n_vocab:
        raise InputError([f"`draft={name}`: n_vocab = {n_vocab:,}, and the model's {of.n_vocab:,}: "
                          "allowed: a draft with the same vocabulary, as vLLM asks"])  # fmt: skip
    shared = {"tensor_parallel": run.tensor_parallel}
    return Draft(draft.label, without_mtp(architecture), of_draft.model_copy(update=shared))
