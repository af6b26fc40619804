"""Training steps and inference of `transformers` classes, as the package's own loops use them.

Importing this module does not import transformers.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import target_tokens
from modelbudget.measurement.build import input_of, reads_speech
from modelbudget.measurement.step.operations_of_step import is_transformers_class, operations
from modelbudget.measurement.trace.module_trace import Trace

CACHES = ("past_key_values", "cache_params", "state", "mems")
"""Names of the cache among the arguments and outputs of classes."""
LANGUAGE_MODELING = ("ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", None)
"""Losses of `transformers.loss` by `loss_type`; a class whose name has none of them uses the first.
"""
TEXTS, ANSWERS = "ForSequenceClassification", "ForQuestionAnswering"
OF_CLASSIFIERS = (TEXTS, "ForTokenClassification", ANSWERS)
"""Others, of classifiers: of a text, of each token, and of the first and last token of an answer.
"""
OF_VALUES = re.compile("register_meta|meta tensor")
"""In the messages of torch about `nonzero`, `item` and the like."""
READS_VALUES = "its code reads values of tensors, which a trace without storage does not have"
OF_CODES = re.compile(r"\bu?int8\b.*can't be cast|can't be cast.*\bu?int8\b|of Int8 is a view")
"""In the messages of torch about writing into codes of quantised matrices, or into products."""
WRITES_CODES = (
    "its code writes into quantised matrices, or their products, which torch refuses; allowed: "
    "weights: dtype"
)
POSITIONS = re.compile(
    r"(^|\.)(wpe|pos_emb|embed_positions|positions_embed|position_embed(ding|dings|s_layer))$"
)
"""At the end of the paths of tables with a row for each position of a text."""
KEEPS_NONE = "keeps no cache: its inference is one pass over all tokens"
REPLACED = {
    "check for packed sequences": "masking_utils.find_packed_sequence_indices",
    "warning of padding": "modeling_utils.PreTrainedModel.warn_if_padding_and_no_attention_mask",
    "check that a mask hides nothing": "masking_utils.fast_all",
}
"""Functions of the package that read values of tokens, which meta does not have. Ones that find
nothing stand in for them, and nothing hidden in a mask (BART's decoder makes one of ones);
`operations` replaces functions of torch.
"""
ISFINITE, MAX = torch.isfinite, torch.max
BIDIRECTIONAL = "masking_utils._ignore_bidirectional_mask_sdpa"
"""Another one, of which `_is_whole` has what remains."""


def loss_of(
    model: nn.Module,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the loss that the class computes from labels, as `Trainer.compute_loss` does.

    There is no cache (`TrainingArguments.use_cache`), the number of labels is an argument (a number
    here, a tensor of 8 bytes there), and all other outputs are freed. Raises ValueError if the
    class computes another loss than those of a language model or a classifier of texts.
    """
    is_classifier = model.loss_type in OF_CLASSIFIERS
    if not is_classifier and model.loss_type not in LANGUAGE_MODELING:
        raise ValueError(
            f"{type(model).__name__} is trained by a loss {model.loss_type}; a language model has "
            "logits (batch, length, n_vocab)"
        )
    _name_first_token(model)
    arguments: dict[str, Any] = {"labels": targets, "use_cache": False}
    if model.loss_type == ANSWERS:
        arguments = {"start_positions": targets[0], "end_positions": targets[1]}
    if mask is not None:
        arguments["attention_mask"] = mask
    if _accepts_number_of_labels(model):
        arguments["num_items_in_batch"] = targets.numel()
    output = output_of(model, tokens, **arguments)
    if not is_classifier:
        _logits(output)
    if output.get("loss") is None:
        raise ValueError(f"{type(model).__name__} computes no loss: it takes no labels")
    return output["loss"]


def labels_of(model: nn.Module, tokens: torch.Tensor, n_target: int) -> torch.Tensor:
    """Return labels of zeros: (batch, n_target), or what a classifier of texts learns.

    That is (batch,) of texts, float32 where it is a number (a single label is a regression), and
    (2, batch) of answers.
    """
    n_text = len(tokens)
    loss_type: Any = getattr(model, "loss_type", None)
    is_number = loss_type == TEXTS and cast(Any, model).config.num_labels == 1
    shapes = {TEXTS: (n_text,), ANSWERS: (2, n_text)}
    shape = shapes.get(loss_type, (n_text, n_target))
    return tokens.new_zeros(shape, dtype=torch.float32 if is_number else torch.long)


def _name_first_token(model: nn.Module) -> None:
    """Give the config of a class the first token of its decoder, whose number affects no size.

    transformers 5 writes it into a model's generation_config.json and not into its config.json.
    """
    config: Any = getattr(model, "config", None)
    if _has_encoder(model) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0


def _has_encoder(model: nn.Module) -> bool:
    """Whether a class is an encoder with a decoder."""
    return getattr(getattr(model, "config", None), "is_encoder_decoder", False)


def _check_target(model: nn.Module, run: RunConfig) -> None:
    """Raise ValueError for a target of its own length where there is no source."""
    if run.target_length and not _has_encoder(model):
        raise ValueError(
            f"target_length = {run.target_length:,}: {type(model).__name__} is no encoder with a "
            "decoder; allowed: 0"
        )


def _accepts_number_of_labels(model: nn.Module) -> bool:
    """Whether Trainer gives the class `num_items_in_batch`; see `Trainer.__init__`."""
    parameters = inspect.signature(model.forward).parameters.values()
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return bool(getattr(model, "accepts_loss_kwargs", takes_all))


def checkpoint(model: nn.Module, run: RunConfig) -> None:
    """Set activation checkpointing of the class. Raises ValueError if it lacks the run's."""
    _check_target(model, run)
    if run.recompute not in ("none", "full"):
        raise ValueError(
            f"recompute = {run.recompute!r}: {type(model).__name__} has no such option; allowed: "
            "none, full"
        )
    if run.recompute == "full":
        cast(Any, model).activation_checkpointing_enable()


def infer_class(
    model: nn.Module,
    run: RunConfig,
    trace: Trace,
    quantities: Set[str],
    computing: Callable = operations,
) -> dict[str, dict[str, int]]:
    """Measure `cache_bytes`, `flops_decode` and `peak_inference_bytes`, by component or phase.

    Runs the whole prompt, and then its last token with the cache of the others, unless only the
    cache is asked for. The cache of all layers is one component. Raises ValueError if the class
    returns no cache.

    The loop of `transformers` (`GenerationMixin._sample`) holds the logits of one token, from which
    it chose the next, while that is computed; the loop around other modules is not known.

    An encoder runs once, over a source of `length` tokens. Its outputs are held to the end, as in
    `GenerationMixin.generate`, and the prompt is the first token of a target.
    """
    is_class = is_transformers_class(model)
    has_encoder = is_class and _has_encoder(model)
    if is_class:
        _check_target(model, run)
    if has_encoder and not cast(Any, model).can_generate():
        raise ValueError("an encoder and a decoder: inference is traced of what generates text")
    device = next(model.parameters()).device
    with torch.no_grad(), computing(model, run):
        with trace.watching("setup"):
            tokens = input_of(model, run.batch, run.length)
            last = tokens[:, -1:]
            if has_encoder:
                last = torch.zeros(run.batch, 1, dtype=torch.long, device=device)
            mask = torch.ones_like(tokens) if run.padding else None
            peaks = {"setup": trace.peak}
        with trace.watching("prefill"):
            states = None
            if has_encoder:
                source = {} if mask is None else {"attention_mask": mask}
                with _without_checks(has_encoder, **source):
                    states = cast(Any, model).get_encoder()(tokens, return_dict=True, **source)
            logits, cache = _next(model, last if has_encoder else tokens, {}, states, mask)
        peaks["prefill"] = trace.peak
        n_bytes = _bytes_of(cache)
        if quantities <= {"cache_bytes"} and not has_encoder:
            return {"cache_bytes": {"cache": n_bytes}}
        if not is_class:
            del logits
        del cache
        with trace.watching("all but the last token"):  # at once, which caches as much
            before = tokens[:, :-1]
            n_before = target_tokens(run) - 1
            if has_encoder:
                before = last.expand(-1, max(n_before, 1))
            seen = mask if mask is None or has_encoder else mask[:, :-1]
            cache = _next(model, before, {}, states, seen)[1] if before.numel() else {}
            if has_encoder and not n_before:
                cache = _of_source(cache)
        with trace.watching("decode"):
            cache = _next(model, last, cache, states, mask)[1]
        peaks["decode"] = trace.peak
        if has_encoder:
            n_bytes = _bytes_of(cache)
    return {
        "cache_bytes": {"cache": n_bytes},
        "flops_decode": dict(trace.flops["decode"]),
        "peak_inference_bytes": peaks,
    }


def _of_source(cache: dict) -> dict:
    """Return a cache with the keys of a source, and none of the target's first token."""
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    of_texts = cache["past_key_values"]
    empty = EncoderDecoderCache(DynamicCache(), of_texts.cross_attention_cache)
    return cache | {"past_key_values": empty}


def _bytes_of(cache: dict) -> int:
    storages = [tensor.untyped_storage() for tensor in _tensors(list(cache.values()))]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def generates_no_text(model: nn.Module) -> bool:
    """Whether a class of `transformers` is neither an encoder-decoder nor generates tokens."""
    if not is_transformers_class(model) or cast(Any, model).can_generate():
        return False
    return not _has_encoder(model)


def _next(
    model: nn.Module,
    tokens: torch.Tensor,
    cache: dict,
    states: Any = None,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict]:
    """Return the last token's logits in float32, and the cache of all tokens by argument name.

    As `GenerationMixin._sample`: a class that can compute only the last logits does so, and they
    are copied before its outputs are freed. `states`: outputs of an encoder, if there is one.
    `mask`: of padding, of all tokens so far or of the source.
    """
    more = {} if states is None else {"encoder_outputs": states}
    more |= {} if mask is None else {"attention_mask": mask}
    output = output_of(model, tokens, use_cache=True, logits_to_keep=1, **cache, **more)
    caches = {name: getattr(output, name, None) for name in CACHES}
    caches = {name: cache for name, cache in caches.items() if cache is not None}
    if not caches:
        raise ValueError(
            f"{type(model).__name__} returns no cache: none of {', '.join(CACHES)} in its output"
        )
    return _logits(output)[:, -1].to(torch.float32, copy=True), caches


def output_of(model: nn.Module, tokens: torch.Tensor, **arguments):
    """Call the model without the arguments that its class does not have.

    Raises ValueError if it reads no tokens, or on meta if it reads values of tensors.
    """
    reads = getattr(model, "main_input_name", "input_ids")
    if reads != "input_ids" and not reads_speech(model):
        raise ValueError(
            f"{type(model).__name__} reads {reads}; a language model reads tokens (input_ids)"
        )
    _check_positions(model, tokens, arguments.get("labels"))
    known = inspect.signature(model.forward).parameters
    accepted = {n: v for n, v in arguments.items() if n in known or n == "num_items_in_batch"}
    is_class = is_transformers_class(model)
    positional = (tokens,)
    if "encoder_outputs" in accepted:
        positional, accepted["decoder_input_ids"] = (), tokens
    try:
        with _without_checks(_has_encoder(model), **accepted) if is_class else nullcontext():
            return model(*positional, **accepted)
    except RuntimeError as error:
        if OF_VALUES.search(str(error)):
            raise ValueError(READS_VALUES) from error
        if OF_CODES.search(str(error)):
            raise ValueError(WRITES_CODES) from error
        raise


def _logits(output) -> torch.Tensor:
    logits = getattr(output, "logits", None)
    if logits is None or logits.dim() != 3:
        shape = "no logits" if logits is None else f"logits of shape {tuple(logits.shape)}"
        raise ValueError(
            f"{type(output).__name__} has {shape}; a language model has (batch, length, n_vocab)"
        )
    return logits


@contextmanager
def _without_checks(has_encoder: bool, **arguments: Any) -> Iterator[None]:
    """Replace checks of values; a mask among the arguments of a call hides tokens of its text.

    Of an encoder with a decoder that is the source, which both stacks attend without causal mask.
    """
    has_padding = arguments.get("attention_mask") is not None
    with ExitStack() as stack:
        for path in REPLACED.values():
            result = has_encoder or not has_padding if path.endswith("fast_all") else None
            stack.enter_context(patch(f"transformers.{path}", lambda *_, r=result, **__: r))
        is_whole = partial(_is_whole, has_padding)
        stack.enter_context(patch(f"transformers.{BIDIRECTIONAL}", is_whole))
        stack.enter_context(patch("torch.isfinite", _AllFinite))
        stack.enter_context(patch("torch.max", _max))
        yield


def _check_positions(
    model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor | None = None
) -> None:
    """Raise ValueError for a text with more tokens than a table has positions.

    Also where dynamic RoPE makes other frequencies, from values of positions. A decoder behind an
    encoder reads the labels.
    """
    has_encoder = _has_encoder(model)
    for path, table in model.named_modules():
        if not isinstance(table, nn.Embedding) or not POSITIONS.search(path):
            continue
        is_target = has_encoder and "decoder" in path.split(".")
        text = labels if is_target else tokens
        of_padding = 0 if table.padding_idx is None else table.padding_idx + 1
        offset: Any = getattr(table, "offset", of_padding)
        most = table.num_embeddings - offset
        if text is not None and text.dim() == 2 and text.shape[1] > most:
            raise ValueError(
                f"{'target_length' if is_target else 'length'} = {text.shape[1]:,}: "
                f"{type(model).__name__} has positions for {most:,} tokens ({path}); allowed: at "
                f"most {most:,}"
            )
    config: Any = getattr(model, "config", None)
    most = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = (rope, *(of_layers for of_layers in rope.values() if isinstance(of_layers, dict)))
    is_dynamic = any(of_layers.get("rope_type") == "dynamic" for of_layers in kinds)
    if is_dynamic and tokens.is_meta and most and tokens.shape[-1] > most:
        raise ValueError(
            f"length = {tokens.shape[-1]:,}: dynamic RoPE grows from max_position_embeddings = "
            f"{most:,} on, which is not traced"
        )


class _Position(torch.Tensor):
    """The largest position on meta: one for which dynamic RoPE has its frequencies."""

    def __bool__(self) -> bool:
        """Whether these must change."""
        return False


def _max(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    largest = MAX(x, *args, **kwargs)
    is_position = x.is_meta and x.dtype == torch.long and not (args or kwargs)
    return largest.as_subclass(_Position) if is_position else largest


class _AllFinite:
    """Which numbers are finite; a class that asks for all of them (BART in float16) has yes."""

    def __init__(self, x: torch.Tensor):
        self.of_numbers = ISFINITE(x)

    def all(self) -> bool:
        self.of_numbers.all()
        return True


def _is_whole(
    has_padding: bool,
    mask: torch.Tensor | None,
    kv_length: int,
    local_attention_size: int | None = None,
) -> bool:
    """Return whether attention in both directions needs no mask: not of padding or a window.

    One that a class makes itself hides nothing (BigBird).
    """
    is_padded = has_padding and mask is not None
    return not is_padded and (local_attention_size is None or kv_length < local_attention_size)


def _tensors(value) -> Iterator[torch.Tensor]:
    """Yield all tensors in a cache: an object, or nested lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif type(value).__module__.startswith("transformers.") and hasattr(value, "__dict__"):
        yield from _tensors(vars(value))
