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
from modelbudget.architecture.run_config import INDEX, bytes_of, one_token, tokens
from modelbudget.architecture.terms import Terms, merged, part, scaled, total
from modelbudget.components import dropout, embedding, layer, norm
from modelbudget.components.contract import Part, Values
from modelbudget.components.embedding import FactorisedFields, HeadFields, PositionFields
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.layer import LayerFields
from modelbudget.components.mixers import mixers
from modelbudget.memory import adamw_temporaries, inference, optimizer, training
from modelbudget.memory.inference import Step

PartFields: Any = layer.fields_of_parts()
Mixers, MLPs = pattern(*mixers(), "none"), pattern(*feed_forward(), "none")


def _constraints_of_parts() -> Iterator[Check]:
    """Yield the constraints of all parts.

    The sizes of a part are set where a pattern names the part, and only there. Then come the part's
    own constraints.
    """
    for field, parts in (("mixers", mixers()), ("mlps", feed_forward())):
        for word, one in parts.items():
            present = f"'{word}' in {field}"
            for size in one.SIZES:
                missing = f"{size} = 0: {word} in {field} needs at least 1"
                yield Constraint(size, missing, when=present)
                yield Constraint(present, f"{size} = {{{size}}} needs {word} in {field}", when=size)
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

    switches_of_run: ClassVar[tuple[str, ...]] = ("dropout", "recompute")
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
        """1 where all parts of the layers provide the formula, else 0."""
        return layer.has_formula(quantity, a, r)

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
    def gradient_bytes(cls, a: Fields, r: Run) -> Terms:
        """One number in the run's dtype for each parameter that gets a gradient."""
        return scaled(cls.trained_parameters(a), bytes_of(r.dtype))

    @classmethod
    def optimizer_bytes(cls, a: Fields, r: Run) -> Terms:
        """Count the bytes of the optimizer states of all parameters that get a gradient."""
        ends = adamw_temporaries.counts([*embedding.tensors(a), *embedding.head_tensors(a)])
        held = {
            word: adamw_temporaries.counts(one.tensors(a)) for word, one in layer.parts(a).items()
        }
        of_norm = sum(adamw_temporaries.counts(norm.tensors(a, "norm")).values())
        tensors = _assembled(a, ends, held, of_norm)
        return optimizer.states(r, cls.trained_parameters(a), tensors)

    @staticmethod
    def activation_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass."""
        ends = embedding.saved(a, r) | {"dropout": dropout.saved(a, r)}
        if r.recompute == "full":
            inputs = {"layer": bytes_of(r.dtype) * tokens(r) * a.d_model}
            in_layers = part("", inputs, a.n_layer)
        else:
            in_layers = layer.saved(a, r)
        return _around_layers(a, ends, norm.saved(a, r)) | in_layers

    @staticmethod
    def flops_forward(a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        held = {word: one.flops(a, r) for word, one in layer.parts(a).items()}
        return _assembled(a, embedding.flops(a, r), held)

    @staticmethod
    def flops_backward(a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients, and of what checkpointing repeats."""
        held = {}
        for word, one in layer.parts(a).items():
            again = one.flops_recomputed(a, r)
            of_part = one.flops_backward(a, r)
            held[word] = {leaf: n + again.get(leaf, 0) for leaf, n in of_part.items()}
        ends = {name: 2 * n for name, n in embedding.flops(a, r).items()}
        return _assembled(a, ends, held)

    @classmethod
    def peak_training_bytes(cls, a: Fields, r: Run) -> Terms:
        """Return the largest number of bytes live at once, for each phase of two steps."""
        trained, states = total(cls.trained_parameters(a)), total(cls.optimizer_bytes(a, r))
        of_parameters = total(cls.parameter_bytes(a, r))
        saved = of_parameters + total(cls.activation_bytes(a, r)) + bytes_of(r.dtype)
        model = cls.timelines(a, r)
        return optimizer.phases(
            r,
            trained,
            of_parameters,
            states,
            optimizer.temporaries(r, trained, _neighbours(a)),
            lambda held: training.forward_backward(model, r, saved + held),
        )

    @staticmethod
    def timelines(a: Fields, r: Run) -> training.Model:
        """Return the timelines from which the peak of training is computed."""
        return training.Model(
            embedding.head_backward(a, r),
            layer.training(a, r),
            embedding.backward(a, r),
            a.n_layer,
            embedding.saved_after_layers(a, r),
            bytes_of(r.dtype) * tokens(r) * a.d_model,
        )

    @staticmethod
    def cache_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the parts keep of `length` tokens."""
        n_layer = layer.n_layers(a)
        held = {
            word: part(f"layer.{layer.name_of(word)}", one.cache(a, r), n_layer[word])
            for word, one in layer.parts(a).items()
        }
        return merged(*held.values())

    @classmethod
    def peak_inference_bytes(cls, a: Fields, r: Run) -> Terms:
        """Return the largest number of bytes live at once in `prefill` and in `decode`.

        `prefill` processes the prompt; `decode` computes the next token.
        """
        held = total(cls.parameter_bytes(a, r)) + total(cls.cache_bytes(a, r)) + INDEX * tokens(r)
        peaks = {
            phase: held + inference.peak(_steps(a, r, new))
            for phase, new in (("prefill", r.length), ("decode", 1))
        }
        return part("", peaks)

    @staticmethod
    def flops_decode(a: Fields, r: Run) -> Terms:
        """FLOPs of one more token for each sequence, after `length` tokens."""
        held = {word: one.flops_decode(a, r) for word, one in layer.parts(a).items()}
        return _assembled(a, embedding.flops(a, one_token(r)), held)

    def build(self):
        from modelbudget.modules.decoder import DecoderModel

        return DecoderModel(self)


def _parameters(a: Fields, of_part: Callable[[Part], Values]) -> Terms:
    ends = {"embedding.position": embedding.position(a), **embedding.factorised(a)}
    held = {word: of_part(one) for word, one in layer.parts(a).items()}
    return _assembled(a, ends, held, norm.parameters(a))


def _assembled(a: Fields, ends: Values, held: dict[str, Values], one_norm=0) -> Terms:
    """Combine the terms of all layers with those of both ends of the model.

    `held`: the values of each part of a layer, by word; `ends`: those of embedding and head.
    """
    return _around_layers(a, ends, one_norm) | layer.in_layers(a, held, one_norm)


def _around_layers(a: Fields, ends: Values, one_norm) -> Terms:
    """Return the terms of embedding and head, and of the norms between them and the layers."""
    norms = {"embedding": a.embedding_norm * one_norm, "final": a.final_norm * one_norm}
    return part("", ends) | part("norm", norms)


def _neighbours(a: Fields) -> list[adamw_temporaries.Neighbours]:
    """Parameter tensors and the ones before them, in the order of the module."""
    layers = [(group, layer.tensors(a, group)) for group in layer_groups(a)]
    head = [
        *norm.tensors(a, "norm.embedding", a.embedding_norm),
        *norm.tensors(a, "norm.final", a.final_norm),
        *embedding.head_tensors(a),
    ]
    return adamw_temporaries.neighbours_of_model(embedding.tensors(a), layers, head, a.n_layer)


def _steps(a: Fields, r: Run, new) -> list[Step]:
    """Return the steps of a forward pass of `new` tokens, up to the logits of the last one."""
    states = bytes_of(r.dtype) * r.batch * new * a.d_model
    ends = [Step(embedding.inference(a, r, new)), Step(embedding.head_inference(a, r, new), states)]
    return ends + layer.inference(a, r, new)
