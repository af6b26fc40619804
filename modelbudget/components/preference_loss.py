"""Losses over log-probabilities of tokens, as TRL computes them: DPO and GRPO.

Source: huggingface/trl at f2cd577, trainer/utils.py (`selective_log_softmax`,
`entropy_from_logits`), dpo_trainer.py and grpo_trainer.py (`_compute_loss`), with their defaults.
Logits are in memory up to five times: as the head gives them, a log-softmax of each text, a copy
for the entropies that a step logs, and those of a reference. In the backward pass the gradients of
all texts are stacked, and written into one of all tokens.
"""

from typing import Literal, NamedTuple

from modelbudget.operations.autograd import with_node
from modelbudget.operations.elementwise import compare, log_sigmoid, maximum
from modelbudget.operations.joining import cat, gather, stack
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.reductions import log_softmax
from modelbudget.operations.tape import Active, Tensor, empty, view_of

ROWS = 128
"""Tokens whose entropies are computed at once."""


class Preference(NamedTuple):
    """The loss of a trainer: its texts end with answers of `n_answer` tokens.

    `reference`: its logits are computed next to the policy's (dpo), or its log-probabilities
    before (grpo).
    """

    trainer: Literal["dpo", "grpo"]
    n_answer: int
    has_reference: bool = False
    is_float32: bool = False
    """Whether the loss reads a float32 copy of the logits, as accelerate makes under autocast."""

    def logits(self, model, tokens: Tensor) -> Tensor:
        """Return the logits that the loss reads: of all tokens, or (grpo) of the answers alone."""
        if self.trainer == "dpo":
            logits = model(tokens)
        elif getattr(model, "states", None) is None:
            raise NoProgramError("logits of the answers alone are known of decoders; allowed: dpo")
        else:
            logits = model.head(model.states(tokens).narrow(1, self.n_answer + 1, is_first=False))
        Active.tape.autocast = None  # accelerate casts around the model alone
        return logits.to(at_least_float32(logits.dtype)) if self.is_float32 else logits

    def log_probabilities(self, model, tokens: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return what is held when the reference's pass begins: logits and what they give."""
        logits = self.logits(model, tokens)
        if self.trainer == "dpo":
            return logits, *_sums_of_answers(logits, tokens, mask)
        return (cat([_of_answers(logits, tokens, self.n_answer)[0]], 0),)

    def loss(self, model, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the loss of texts (batch, length), of dpo the chosen ones first."""
        compute = _dpo if self.trainer == "dpo" else _grpo
        n_text = tokens.shape[0]
        shape = (n_text,) if self.trainer == "dpo" else (n_text, self.n_answer)
        has_input = self.has_reference == (self.trainer == "grpo")
        dtype = "float32" if self.is_float32 else Active.tape.dtype
        inputs = empty(shape, dtype) if has_input else None
        return compute(self, self.logits(model, tokens), tokens, mask, inputs)


def _dpo(p: Preference, logits: Tensor, tokens: Tensor, mask: Tensor, of_reference) -> Tensor:
    n_text = tokens.shape[0]
    _held, sums = _sums_of_answers(logits, tokens, mask)
    of_policy = sums.chunk(2, 0)
    if of_reference is None:
        other_logits = empty(logits.shape, logits.dtype)
        with Active.tape.without_graph():
            _others, of_reference = _sums_of_answers(other_logits, tokens, mask)
    chosen, rejected = (x - y for x, y in zip(of_policy, of_reference.chunk(2, 0), strict=True))
    difference = chosen - rejected
    of_pairs = -log_sigmoid(difference * 0.1)
    loss = of_pairs.mean([0]) * 1.0 + 0.0
    with Active.tape.without_graph():
        shifted = logits.detach().narrow(1, logits.shape[1] - 1)
        entropy = _entropies(shifted)
        del entropy
        for half in shifted.chunk(2, 0):  # the mean logits of chosen and rejected answers
            places = empty((n_text // 2 * p.n_answer, 2), "int64")
            shape = (places.shape[0], half.shape[-1])
            _mean_logits = empty(shape, half.dtype).mean([-1]).sum([0])
    return loss


def _sums_of_answers(logits: Tensor, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each token, and of each answer."""
    length = tokens.shape[1] - 1
    shifted = logits.narrow(1, length)
    labels, mask = (x.narrow(1, length, is_first=False) for x in (tokens, mask))
    of_tokens = _filled(_selected(shifted, labels), compare(mask))
    return of_tokens, of_tokens.sum([1])


def _grpo(p: Preference, logits: Tensor, tokens: Tensor, mask: Tensor, reference) -> Tensor:
    n_text = tokens.shape[0]
    of_tokens, _entropy = _of_answers(logits, tokens, p.n_answer, has_entropies=True)
    del logits
    mask, advantages = mask.narrow(1, p.n_answer, is_first=False), empty((n_text, 1), "float32")
    ratio = (of_tokens - of_tokens.detach()).exp()
    divergence = None
    if reference is not None:
        divergence = (reference - of_tokens).exp() - (reference - of_tokens) - 1.0
    clipped = ratio.clamp(n_bound=2)
    # The gradients of the smaller are those of the larger.
    losses = -maximum(ratio * advantages, clipped * advantages)
    if divergence is not None:
        losses = losses + divergence * 0.04
    total = (losses * mask).sum([0, 1])
    return total / empty((), "float32").clamp()


def _of_answers(
    logits: Tensor, tokens: Tensor, n_answer: int, has_entropies: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the log-probability of each token of the answers, and its entropy."""
    answers = logits.narrow(1, n_answer)
    answers = _over(logits, answers, [], lambda _, g: g / 1.0)  # by the temperature
    of_tokens = _selected(answers, tokens.narrow(1, n_answer, is_first=False))
    entropy = None
    if has_entropies:
        with Active.tape.without_graph():
            entropy = cat([_entropies(answers)], 0)
    return cat([of_tokens.squeeze(-1)], 0), entropy


def _selected(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each label (batch, length, 1), one text after another."""
    places = labels.unsqueeze(-1)
    if logits.dtype in ("float32", "float64"):
        of_label = gather(logits, places)
        sums = stack([text.logsumexp() for text in logits.unbind()])
        return of_label - sums.unsqueeze(-1)
    chosen = []
    for text, place in zip(logits.unbind(), places.unbind(), strict=True):
        logarithms = log_softmax(text)
        chosen.append(gather(logarithms, place))
    return stack(chosen)


def _entropies(logits: Tensor) -> Tensor:
    """Return the entropy of each token; of several texts it copies the logits."""
    rows = logits.flatten(0, 1)
    n = rows.shape[0]
    entropies = []
    for some in rows.split([min(ROWS, n - start) for start in range(0, n, ROWS)], 0):
        logarithms = log_softmax(some)
        entropies.append(-(logarithms.exp() * logarithms).sum([-1]))
    return cat(entropies, 0).reshape(logits.shape[:-1])


def _filled(stacked: Tensor, is_outside: Tensor) -> Tensor:
    """Write 0 over what is not of an answer: (batch, length), a view of (batch, length, 1)."""

    def gradients(saved, g):
        zero = empty((), g.dtype)
        return empty(g.shape, g.dtype)

    zero = empty((), stacked.dtype)
    return _over(stacked, stacked.squeeze(-1), [is_outside], gradients)


def _over(base: Tensor, part: Tensor, saves: list[Tensor], gradients) -> Tensor:
    """Return a part of a tensor after an operation in place on it.

    Backward writes the part's gradient into zeros of all of it, and copies these and the part
    (torch/csrc/autograd/functions/tensor.cpp, `CopySlices`).
    """
    shape, dtype = part.shape, base.dtype

    def of_all(saved, g):
        result = empty(base_shape, dtype)
        copy = empty(shape, dtype)
        gradients(saved, copy)
        return result

    base_shape = base.shape
    whole = view_of(base, base.shape, base.strides)
    whole = with_node("copy_slices", whole, [base], of_all, saves)
    written = view_of(whole, part.shape, part.strides)
    return with_node("as_strided", written, [whole], lambda _, g: empty(base_shape, dtype))
