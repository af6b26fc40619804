"""The smallest language models: token embedding, an MLP or nothing, and a head."""

from collections.abc import Callable
from typing import ClassVar

from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.operations import largest
from modelbudget.architecture.run_values import INDEX, accumulates, bytes_of, tokens
from modelbudget.architecture.terms import Terms, part, scaled, total
from modelbudget.components import embedding, loss
from modelbudget.components.contract import Place, Values
from modelbudget.components.embedding import HeadFields, TokenFields
from modelbudget.components.feed_forward import mlp
from modelbudget.memory import optimizer
from modelbudget.memory.parameter_tensors import Tensor, counts, matrix, neighbours, vector
from modelbudget.memory.timeline import Allocation, added_to_buffer, live_bytes, times


class SmallestLM(HeadFields, TokenFields):
    """Every formula of training holds for every run that such a model allows."""

    has_mlp: ClassVar[bool] = False

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        ends = {"embedding.token": embedding.token(a), "head": embedding.head(a)}
        return cls._parts(ends, lambda: mlp.parameters(a))

    @classmethod
    def trained_tensors(cls, a: Fields) -> Terms:
        ends = counts([*_embedding_tensors(a), *_head_tensors(a)])
        return cls._parts(ends, lambda: counts(mlp.tensors(a)))

    @classmethod
    def activation_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass."""
        return cls._parts(embedding.saved_by_ends(a, r, a.d_model), lambda: mlp.saved(a, r))

    @classmethod
    def flops_forward(cls, a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        return cls._parts({"head": 2 * tokens(r) * embedding.token(a)}, lambda: mlp.flops(a, r))

    @classmethod
    def flops_backward(cls, a: Fields, r: Run) -> Terms:
        """Each product twice, for the gradients of both its factors."""
        return scaled(cls.flops_forward(a, r), 2)

    @classmethod
    def peak_training_bytes(cls, a: Fields, r: Run) -> Terms:
        """Return the largest number of bytes live at once, for each phase of two steps."""
        trained, states = total(cls.parameters(a)), total(cls.optimizer_bytes(a, r))
        held = bytes_of(r.dtype) * trained
        saved = total(cls.activation_bytes(a, r)) + loss.held(r, embedding.rows(a))
        between = mlp.tensors(a) if cls.has_mlp else []
        in_order = neighbours([*_embedding_tensors(a), *between, *_head_tensors(a)])
        return optimizer.phases(
            r,
            trained,
            held + 2 * INDEX * tokens(r),
            states,
            optimizer.temporaries(r, trained, in_order),
            lambda before: cls._forward_backward(a, r, before + held + saved),
        )

    @classmethod
    def _forward_backward(cls, a: Fields, r: Run, before):
        """Loss and head; the MLP; the token embedding, and its sum with a tied head's gradient."""
        size, table = bytes_of(r.dtype), bytes_of(r.dtype) * embedding.token(a)
        states, logits = (size * tokens(r) * n for n in (a.d_model, embedding.rows(a)))
        of_head = table + size * a.head_bias * embedding.rows(a)
        own = of_head - a.tied * table
        timeline = [
            *loss.backward(r, embedding.rows(a)),
            Allocation("head gradients", of_head + states, logits + states, gradients=own),
            *(mlp.backward(a, r, Place(given=states)) if cls.has_mlp else []),
            Allocation("token embedding gradient", table, states, gradients=(1 - a.tied) * table),
            *times(
                a.tied,
                [Allocation("sum with the head's gradient", table, 2 * table, gradients=table)],
            ),
        ]
        if accumulates(r):
            timeline = added_to_buffer(timeline)
        at_end = before + loss.forward(r, embedding.rows(a))
        return largest(at_end, *live_bytes(before, timeline))

    @classmethod
    def _parts(cls, ends: Values, of_mlp: Callable[[], Values]) -> Terms:
        return part("", ends) | (part("mlp", of_mlp()) if cls.has_mlp else {})


def _embedding_tensors(a: Fields) -> list[Tensor]:
    return [matrix("embedding.token", embedding.rows(a), a.d_model)]


def _head_tensors(a: Fields) -> list[Tensor]:
    return [
        matrix("head", embedding.rows(a), a.d_model, 1 - a.tied),
        vector("head", embedding.rows(a), a.head_bias),
    ]
