"""The composable decoder: GPT-2, Llama, PaLM, DeepSeek and relatives as options of one record."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from modelbudget.architecture.base import Depth, Size
from modelbudget.architecture.constraint import Check, Constraint
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.layer_groups import layer_groups
from modelbudget.architecture.layer_pattern import pattern
from modelbudget.architecture.operations import largest, positive
from modelbudget.architecture.run_config import (
    INDEX,
    accumulates,
    bytes_of,
    casts,
    computed_again,
    divides,
    is_divided,
    is_pipelined,
    is_sharded,
    of_states,
    one_token,
    stored,
    tokens,
)
from modelbudget.architecture.terms import Terms, merged, part, plus, scaled, total
from modelbudget.components import (
    dropout,
    embedding,
    layer,
    loss,
    norm,
    pipeline_stage,
    tensor_parallel,
)
from modelbudget.components.contract import Part, Values
from modelbudget.components.embedding import FactorisedFields, HeadFields, PositionFields
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.layer import LayerFields
from modelbudget.components.mixers import mixers
from modelbudget.components.tensor_parallel import share
from modelbudget.components.weight_formats import by_format
from modelbudget.memory import (
    adamw_temporaries,
    fsdp,
    inference,
    optimizer,
    pipeline,
    shards,
    training,
)
from modelbudget.memory.adamw_temporaries import Tensor
from modelbudget.memory.inference import Step
from modelbudget.memory.timeline import Allocation, is_nothing

SHARDED = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "peak_training_bytes")
"""Quantities of which a device holds only its shard, and what it gathers."""
OF_ONE_DEVICE = (
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "activation_bytes",
    "flops_forward",
    "flops_backward",
    "peak_training_bytes",
)
"""Quantities of one stage of a pipeline, or of one of several devices that compute one model."""
PartFields: Any = layer.fields_of_parts()
Mixers, MLPs = pattern(*mixers(), "none"), pattern(*feed_forward(), "none")


def _constraints_of_parts() -> Iterator[Check]:
    """Yield the constraints of all parts.

    The sizes of a part are set where a pattern names the part, and only there. Then come the part's
    own constraints.
    """
    for field, parts in (("mixers", mixers()), ("mlps", feed_forward())):
        for name, one in parts.items():
            present = f"'{name}' in {field}"
            for size in one.SIZES:
                missing = f"{size} = 0: {name} in {field} needs at least 1"
                yield Constraint(size, missing, when=present)
                yield Constraint(present, f"{size} = {{{size}}} needs {name} in {field}", when=size)
            yield from getattr(one, "CONSTRAINTS", ())


def empty_layer(values: Mapping[str, Any]) -> str | None:
    """Name the first layer without mixer and feed-forward part.

    Not an expression: it compares two patterns layer by layer.
    """
    if "none" not in (mixers := values["mixers"].split()):
        return None
    if "none" not in (mlps := values["mlps"].split()):
        return None
    n_dense_layer, period = values["n_dense_layer"], math.lcm(len(mixers), len(mlps))
    for i in range(min(values["n_layer"] - n_dense_layer, period)):
        if mixers[(n_dense_layer + i) % len(mixers)] == mlps[i % len(mlps)] == "none":
            return f"layer {n_dense_layer + i + 1} is empty: none in mixers and in mlps"
    return None


class Decoder(HeadFields, PositionFields, PartFields, LayerFields, FactorisedFields):
    """A decoder-only language model.

    Embedding, n_layer layers of a mixer and a feed-forward part, final norm, head.
    """

    switches_of_run: ClassVar[tuple[str, ...]] = (
        "dropout",
        "recompute",
        "norm_kernel",
        "activation_kernel",
        "projections",
        "gate_and_up",
        "expert_kernel",
        "rope_tables",
        "embedding_scale",
        "embeddings",
        "attention_kernel",
        "logit_cap",
        "state_dtype",
        "loss_chunks",
        "zero",
        "pipeline_schedule",
        "tensor_parallel",
    )
    constraints_of_run: ClassVar[tuple[Constraint, ...]] = tuple(tensor_parallel.constraints())
    also_with_autocast: ClassVar[tuple[str, ...]] = ("activation_bytes", "peak_training_bytes")
    has_cache: ClassVar[bool] = True

    n_layer: Depth = Field(description="layers, each one mixer and one MLP")
    # Types made from the files of a folder, which no type checker can read.
    mixers: Mixers = Field(  # pyright: ignore[reportInvalidTypeForm]
        "attention", description="the mixer of each layer, repeated over the layers"
    )
    mlps: MLPs = Field(  # pyright: ignore[reportInvalidTypeForm]
        "mlp", description="the feed-forward part of each layer, repeated over the layers"
    )
    n_dense_layer: Size = Field(0, description="first layers with a plain MLP, whatever mlps says")
    embedding_norm: bool = Field(False, description="a norm between embedding and first layer")
    final_norm: bool = Field(True, description="a norm between the last layer and the head")

    constraints: ClassVar[tuple[Check, ...]] = (
        *_constraints_of_parts(),
        Constraint(
            "n_dense_layer <= n_layer",
            "n_dense_layer = {n_dense_layer} is more than n_layer = {n_layer}",
        ),
        Constraint(
            "'none' not in mixers and 'none' not in mlps",
            "parallel = true needs a mixer and an MLP in each layer, not none",
            when="parallel",
        ),
        empty_layer,
    )

    @classmethod
    def _holds(cls, quantity: str, a: Fields, r: Run):
        """1 where all parts of the layers provide the formula, else 0.

        With autocast, states are in float32 only if no projection makes them from the embedding.
        Its peaks hold where a chunk of the loss has more than one token, since the bias gradient of
        one is not summed; and under full checkpointing where the layers' forward pass, in which
        casts of all their weights are live, surely needs less than something else does.
        """
        a = share(a, r)
        holds = layer.has_formula(quantity, a, r)
        if is_divided(r):
            of_peak = quantity == "peak_training_bytes"
            known = tensor_parallel.known_peak(a, r) if of_peak else quantity in OF_ONE_DEVICE
            holds = holds * (1 - divides(r) * (1 - known))
        if casts(r) and quantity in cls.also_with_autocast:
            holds = holds * (1 - positive(a.d_emb))
        if casts(r) and quantity == "peak_training_bytes":
            holds = holds * positive(tokens(r) - r.loss_chunks)
            if computed_again(r) and not is_nothing(holds):
                holds = holds * training.forward_of_layers_is_lower(cls.timelines(a, r), r)
        if is_pipelined(r) and not _is_of_stages(quantity, a):
            return 0
        return holds * (_knows_shards(quantity, a, r) if is_sharded(r) else 1)

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """All parameters: those of every expert."""
        return _parameters(a, lambda one: one.parameters(a))

    @staticmethod
    def active_parameters(a: Fields) -> Terms:
        """Count the parameters that one token uses: of the routed experts, only the selected ones.

        The input embedding counts in full, as in Mixtral's and Qwen 3's figures; DeepSeek's and
        gpt-oss's leave it out.
        """
        return _parameters(a, lambda one: getattr(one, "active_parameters", one.parameters)(a))

    @staticmethod
    def trained_parameters(a: Fields) -> Terms:
        """Count the parameters that get a gradient."""
        return _parameters(a, lambda one: getattr(one, "trained_parameters", one.parameters)(a))

    @classmethod
    @pipeline.by_stage
    def parameter_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes of the parameters in the run's dtype, and of quantised matrices in their format."""
        if is_sharded(r):
            return scaled(_shards(a, r), bytes_of(stored(r).dtype))
        a = share(a, r)
        dense = super().parameter_bytes(a, r)
        if not cls.can_quantise(a, r.weights):
            return dense
        n_layer = layer.n_layers(a)
        change = merged(
            *(
                part(
                    f"layer.{layer.component_name(name)}",
                    by_format(one.matrices(a), r),
                    n_layer[name],
                )
                for name, one in layer.parts(a).items()
            )
        )
        return dense | {name: plus(dense[name], term) for name, term in change.items()}

    def can_quantise(self: Fields, weights: str) -> bool:
        """Whether the format has a formula and all parts list their matrices."""
        known = all(hasattr(one, "matrices") for one in layer.parts(self).values())
        return known and weights not in ("dtype", "unknown")

    @classmethod
    @pipeline.by_stage
    def gradient_bytes(cls, a: Fields, r: Run) -> Terms:
        if is_sharded(r):
            return scaled(_shards(a, r), bytes_of(stored(r).dtype))
        a = share(a, r)
        found = layer.packed(r, super().gradient_bytes(a, r))
        return tensor_parallel.with_whole_embedding(a, r, found) if is_divided(r) else found

    @classmethod
    @pipeline.by_stage
    def optimizer_bytes(cls, a: Fields, r: Run) -> Terms:
        if is_sharded(r):
            return optimizer.states(stored(r), _own(a, r), cls.trained_tensors(a))
        a = share(a, r)
        tensors = layer.packed(r, cls.trained_tensors(a), largest)
        found = optimizer.states(r, layer.packed(r, cls.trained_parameters(a)), tensors)
        # A momentum begins as a copy of the gradient; AdamW's moments, as zeros like the parameter.
        is_copy = is_divided(r) and r.optimizer == "momentum"
        return tensor_parallel.with_whole_embedding(a, r, found) if is_copy else found

    @staticmethod
    def trained_tensors(a: Fields) -> Terms:
        return _of_tensors(a, lambda tensor: 1)

    @staticmethod
    def activation_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass."""
        if is_pipelined(r):
            one, alone = pipeline.stage(a, r)
            of_microbatch = Decoder.activation_bytes(one, pipeline.microbatch(alone))
            return pipeline.activations(r, of_microbatch)
        a, s = share(a, r), of_states(r)
        ends = embedding.saved(a, r) | {"dropout": dropout.of_embedding(r) * dropout.mask(a, s)}
        if r.recompute == "full":
            inputs = {"layer": bytes_of(r.dtype) * tokens(s) * a.d_model}
            in_layers = part("", inputs, a.n_layer)
        else:
            in_layers = layer.saved(a, r)
        return layer.packed(r, _around_layers(a, ends, norm.saved(a, s)) | in_layers)

    @staticmethod
    @pipeline.by_stage
    def flops_forward(a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        a = share(a, r)
        held = {name: one.flops(a, r) for name, one in layer.parts(a).items()}
        return layer.packed(r, _assembled(a, embedding.flops(a, r), held))

    @staticmethod
    @pipeline.by_stage
    def flops_backward(a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients, and of what checkpointing repeats."""
        a = share(a, r)
        held = {}
        for name, one in layer.parts(a).items():
            again = one.flops_recomputed(a, r)
            of_part = one.flops_backward(a, r)
            held[name] = {leaf: n + again.get(leaf, 0) for leaf, n in of_part.items()}
        ends = {name: 2 * n for name, n in embedding.flops(a, r).items()}
        return layer.packed(r, _assembled(a, ends, held))

    @classmethod
    def peak_training_bytes(cls, a: Fields, r: Run) -> Terms:
        """Return the largest number of bytes live at once, for each phase of two steps."""
        if is_pipelined(r):
            return cls._peaks_of_stage(a, r)
        a = share(a, r)
        sharded, states = is_sharded(r), total(cls.optimizer_bytes(a, r))
        trained = total(_shards(a, r) if sharded else cls.trained_parameters(a))
        own = total(_own(a, r)) if sharded else trained
        if is_divided(r):
            trained = total(tensor_parallel.with_whole_embedding(a, r, cls.trained_parameters(a)))
        of_parameters = total(cls.parameter_bytes(a, r)) + _buffers(a, r)
        saved = of_parameters + total(cls.activation_bytes(a, r)) - embedding.scale(r)
        saved = saved + embedding.held(a, r) + layer.held(a, r)
        model, temporaries = cls.timelines(a, r), _neighbours(a, r)
        start = of_parameters + 2 * INDEX * tokens(r)

        def forward_backward(held):
            if not sharded:
                return training.forward_backward(model, r, saved + held)
            groups = _gathered_together(a, r)
            return fsdp.forward_backward(model, *groups, _ends(a, r), r, start + held, saved + held)

        return optimizer.phases(
            stored(r),
            trained,
            start,
            states,
            optimizer.temporaries(stored(r), own, temporaries),
            forward_backward,
        )

    @classmethod
    def _peaks_of_stage(cls, a: Fields, r: Run) -> Terms:
        """Return the largest number of bytes live at once in one stage, for the same phases."""
        layers, alone = pipeline.stage(a, r)
        stage = pipeline_stage.stage(layers, alone, cls.timelines, cls.activation_bytes)
        trained = total(pipeline.without_ends(r, cls.trained_parameters(layers)))
        gradients = (1 - accumulates(r)) * bytes_of(r.dtype) * trained
        held = total(cls.parameter_bytes(a, r)) + pipeline.texts(r)
        held = held + pipeline.received(r, stage.states)
        return optimizer.phases(
            r,
            trained,
            held + pipeline.outputs(r, stage.logits),
            total(cls.optimizer_bytes(a, r)),
            optimizer.temporaries(r, trained, _neighbours(layers, r)),
            lambda states: pipeline.forward_backward(stage, r, held + states, gradients),
        )

    @staticmethod
    def timelines(a: Fields, r: Run) -> training.Model:
        """Return the timelines from which the peak of training is computed."""
        model = training.Model(
            embedding.head_backward(a, r),
            layer.training(a, r),
            embedding.backward(a, r),
            a.n_layer,
            embedding.saved_after_layers(a, r),
            bytes_of(r.dtype) * tokens(of_states(r)) * a.d_model,
            _forward_end(a, r),
        )
        return training.with_gradient_buffer(model) if accumulates(r) else model

    @staticmethod
    def cache_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the parts keep of `length` tokens."""
        n_layer = layer.n_layers(a)
        held = {
            name: part(f"layer.{layer.component_name(name)}", one.cache(a, r), n_layer[name])
            for name, one in layer.parts(a).items()
        }
        return merged(*held.values())

    @classmethod
    def peak_inference_bytes(cls, a: Fields, r: Run) -> Terms:
        """Return the largest number of bytes live at once in `prefill` and in `decode`.

        `prefill` processes the prompt; `decode` computes the next token.
        """
        held = total(cls.parameter_bytes(a, r)) + _buffers(a, r)
        held = held + total(cls.cache_bytes(a, r)) + INDEX * tokens(r)
        peaks = {
            phase: held + inference.peak(_steps(a, r, new))
            for phase, new in (("prefill", r.length), ("decode", 1))
        }
        return part("", peaks)

    @staticmethod
    def flops_decode(a: Fields, r: Run) -> Terms:
        """FLOPs of one more token for each sequence, after `length` tokens."""
        held = {name: one.flops_decode(a, r) for name, one in layer.parts(a).items()}
        return layer.packed(r, _assembled(a, embedding.flops(a, one_token(r)), held))

    def build(self):
        from modelbudget.modules.decoder import DecoderModel

        return DecoderModel(self)


def _parameters(a: Fields, of_part: Callable[[Part], Values]) -> Terms:
    ends = {"embedding.position": embedding.position(a), **embedding.factorised(a)}
    held = {name: of_part(one) for name, one in layer.parts(a).items()}
    return _assembled(a, ends, held, norm.parameters(a))


def _assembled(a: Fields, ends: Values, held: dict[str, Values], one_norm=0) -> Terms:
    """Combine the terms of all layers with those of both ends of the model.

    `held`: the values of each part of a layer, by name; `ends`: those of embedding and head.
    """
    return _around_layers(a, ends, one_norm) | layer.in_layers(a, held, one_norm)


def _around_layers(a: Fields, ends: Values, one_norm) -> Terms:
    """Return the terms of embedding and head, and of the norms between them and the layers."""
    norms = {"embedding": a.embedding_norm * one_norm, "final": a.final_norm * one_norm}
    return part("", ends) | part("norm", norms)


def _of_tensors(a: Fields, value: Callable[[Tensor], Any]) -> Terms:
    """Sum a value of each parameter tensor that gets a gradient, by component."""
    ends = adamw_temporaries.sums([*embedding.tensors(a), *embedding.head_tensors(a)], value)
    held = {
        name: adamw_temporaries.sums(one.tensors(a), value) for name, one in layer.parts(a).items()
    }
    one_norm = sum(adamw_temporaries.sums(norm.tensors(a, ""), value).values())
    return _assembled(a, ends, held, one_norm)


def _shards(a: Fields, r: Run) -> Terms:
    """Count the numbers of a device's shards, with their padding."""
    return _of_tensors(a, lambda tensor: shards.with_padding(r, tensor))


def _own(a: Fields, r: Run) -> Terms:
    """Count the numbers of a device's own rows."""
    return _of_tensors(a, lambda tensor: shards.own(r, tensor))


def _knows_shards(quantity: str, a: Fields, r: Run):
    """1 where a quantity of a device's shards has a formula, else 0.

    The rows of each tensor are known; the peak, where all layers are of one group and there are at
    least two.
    """
    if quantity not in SHARDED:
        return 1
    tensors = [tensor for one in layer.parts(a).values() for tensor in one.tensors(a)]
    known = shards.are_known([*embedding.tensors(a), *tensors, *embedding.head_tensors(a)])
    if quantity == "peak_training_bytes":
        return int(known and len(layer_groups(a)) == 1) * positive(a.n_layer - 1)
    return int(known) * layer.has_formula("parameter_bytes", a, r)


def _is_of_stages(quantity: str, a: Fields) -> bool:
    """Whether a quantity of one stage has a formula: all layers are of one group.

    The peak, where a norm and no matrix product is the last that reads a layer's input: the buffer
    in which the first layer finds it is not freed with it.
    """
    is_peak = quantity == "peak_training_bytes"
    known = not is_peak or a.norm_placement in layer.BEFORE
    return quantity in OF_ONE_DEVICE and known and len(layer_groups(a)) == 1


def _rest_tensors(a: Fields) -> list[Tensor]:
    """Parameter tensors behind the layers, in the order of the module."""
    return [
        *norm.tensors(a, "norm.embedding", a.embedding_norm),
        *norm.tensors(a, "norm.final", a.final_norm),
        *embedding.head_tensors(a),
    ]


def _neighbours(a: Fields, r: Run) -> list[adamw_temporaries.Neighbours]:
    """Parameter tensors and the ones before them, in the order of the module.

    Of a model that is sharded, the optimizer sees a device's own rows; of a pipeline, a stage.
    """

    def seen(found: list[Tensor]) -> list[Tensor]:
        return [shards.own_tensor(r, one) for one in found] if is_sharded(r) else found

    layers = [(group, seen(layer.tensors(a, r, group))) for group in layer_groups(a)]
    ends = [seen(found) for found in (embedding.tensors(a), _rest_tensors(a))]
    if is_pipelined(r):
        ends = [[one for one in found if pipeline.has(r, one.name)] for found in ends]
    return adamw_temporaries.neighbours_of_model(ends[0], layers, ends[1], a.n_layer)


def _gathered_together(a: Fields, r: Run) -> tuple[fsdp.Group, fsdp.Group]:
    """Return the parameters of one layer, and those outside of layers."""
    (group,) = layer_groups(a)
    rest = [*embedding.tensors(a), *_rest_tensors(a)]
    return fsdp.group(r, layer.tensors(a, r, group)), fsdp.group(r, rest)


def _ends(a: Fields, r: Run) -> fsdp.Ends:
    """Return what happens before and after the layers, where the rest of the model is gathered."""
    n_rows = embedding.rows(a)
    shared = Allocation("tables and positions of RoPE", layer.read_by_all(a, r))
    return fsdp.Ends(
        [*embedding.inference(a, r, r.length), *embedding.dropped(a, r), shared],
        loss.backward(r, n_rows),
        loss.logits(r, n_rows),
        bytes_of(r.dtype) * (1 - a.tied) * embedding.token(a, embedding.width(a)),
    )


def _forward_end(a: Fields, r: Run) -> tuple:
    """Return the bytes live in the loss, at the end of the final norm, and before the head.

    In addition to those live when backward begins.
    """
    others = layer.held_in_forward(a, r) + layer.first_input_held(a, r)
    normed = embedding.final_norm(a, r, others)
    return *embedding.forward_end(a, r), normed, embedding.gathered_for_head(a, r)


def _buffers(a: Fields, r: Run):
    """Bytes of the model's buffers."""
    return layer.buffers(a, r) + embedding.scale(r)


def _steps(a: Fields, r: Run, new) -> list[Step]:
    """Return the steps of a forward pass of `new` tokens, up to the logits of the last one."""
    states = bytes_of(r.dtype) * r.batch * new * a.d_model
    head = embedding.head_inference(a, r, new, layer.shared_inference(a, r, new))
    ends = [Step(embedding.inference(a, r, new)), Step(head, states)]
    return ends + layer.inference(a, r, new)
