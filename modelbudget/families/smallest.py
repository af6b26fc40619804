"""The smallest language models: words, an MLP or nothing between, and a head. What a step takes."""

from typing import ClassVar

from modelbudget.architecture.operations import largest
from modelbudget.architecture.run_config import bytes_of, tokens
from modelbudget.architecture.terms import Terms, part, scaled, total
from modelbudget.components import embedding, mlp
from modelbudget.components.embedding import HeadFields, TokenFields
from modelbudget.memory import adamw_temporaries, optimizer
from modelbudget.memory.timeline import times, watched


class SmallestLM(HeadFields, TokenFields):
    """Every formula of training holds for every run that such a model allows."""

    has_mlp: ClassVar[bool] = False

    @staticmethod
    def covered(quantity, a, r):
        return int(quantity in TRAINING)

    @classmethod
    def parameters(cls, a) -> Terms:
        return cls._parts(
            {"embedding.token": embedding.token(a), "head": embedding.head(a)}, mlp.parameters, a
        )

    @classmethod
    def gradient_bytes(cls, a, r) -> Terms:
        return scaled(cls.parameters(a), bytes_of(r.dtype))

    @classmethod
    def optimizer_bytes(cls, a, r) -> Terms:
        ends = {"embedding.token": 1, "head": 1 - a.tied + a.head_bias}
        return optimizer.states(r, cls.parameters(a), cls._parts(ends, mlp.tensors, a))

    @classmethod
    def activation_bytes(cls, a, r) -> Terms:
        """Bytes that the forward pass and the loss keep for the backward pass."""
        return cls._parts(embedding.saved_by_ends(a, r, a.d_model), mlp.saved, a, r)

    @classmethod
    def flops_forward(cls, a, r) -> Terms:
        """Operations of matrix products, two for a product and a sum."""
        return cls._parts({"head": 2 * tokens(r) * embedding.token(a)}, mlp.flops, a, r)

    @classmethod
    def flops_backward(cls, a, r) -> Terms:
        """Each product again twice, for the gradients of both its factors."""
        return scaled(cls.flops_forward(a, r), 2)

    @classmethod
    def peak_training_bytes(cls, a, r) -> Terms:
        """The largest number of bytes that live at once, in each phase of two steps."""
        trained, states = total(cls.parameters(a)), total(cls.optimizer_bytes(a, r))
        held = bytes_of(r.dtype) * trained
        saved = total(cls.activation_bytes(a, r)) + bytes_of(r.dtype)
        in_order = adamw_temporaries.neighbours_of(cls._in_order(a))
        return optimizer.phases(
            r,
            trained,
            held,
            states,
            optimizer.root(r, trained, in_order),
            lambda before: cls._forward_backward(a, r, before + held + saved),
        )

    @classmethod
    def _forward_backward(cls, a, r, before):
        """The head's matrix and what it read; the MLP; the words' table, and its sum with a tied
        head's.
        """
        size, table = bytes_of(r.dtype), bytes_of(r.dtype) * embedding.token(a)
        states, logits = (size * tokens(r) * n for n in (a.d_model, embedding.rows(a)))
        head = (table + size * a.head_bias * embedding.rows(a) + states, logits + states)
        nodes = [
            head,
            *(mlp.backward(a, r, states) if cls.has_mlp else []),
            (table, states),
            *times(a.tied, [(table, 2 * table)]),
        ]
        return largest(before + 2 * logits, *watched(before, nodes)[0])

    @classmethod
    def _in_order(cls, a) -> adamw_temporaries.Tensors:
        """As modules hold them."""
        words = embedding.token(a)
        between = adamw_temporaries.of_mlp(a, a.d_ff) if cls.has_mlp else []
        return [(words, 1), *between, (words, 1 - a.tied), (embedding.rows(a), a.head_bias)]

    @classmethod
    def _parts(cls, ends: dict, of_mlp, *settings) -> Terms:
        return part("", ends) | (part("mlp", of_mlp(*settings)) if cls.has_mlp else {})


TRAINING = frozenset(vars(SmallestLM)) & {
    "gradient_bytes", "optimizer_bytes", "activation_bytes", "flops_forward", "flops_backward",
    "peak_training_bytes",
}  # fmt: skip
