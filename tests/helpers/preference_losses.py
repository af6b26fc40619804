"""Losses over log-probabilities of tokens, as TRL computes them: DPO and GRPO.

Source: huggingface/trl at f2cd577, trainer/utils.py (`selective_log_softmax`,
`entropy_from_logits`), dpo_trainer.py and grpo_trainer.py (`_compute_loss`), with their defaults
(`loss_type` sigmoid and dapo, entropies without a gradient). A step also logs entropies and the
mean logits of the answers, which take memory before the backward pass begins. Masks are all ones:
an answer has `n_answer` tokens at the end of a text.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F

ROWS = 128
"""Tokens whose entropies are computed at once."""


def log_probabilities(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each label; logits (batch, length, n_vocab).

    One text after another: of float32 a logit less the logarithm of a sum, else a log-softmax.
    """
    places = labels.unsqueeze(-1)
    if logits.dtype in (torch.float32, torch.float64):
        of_label = torch.gather(logits, -1, places)
        sums = torch.stack([torch.logsumexp(text, -1) for text in logits])
        chosen = of_label - sums.unsqueeze(-1)
    else:
        chosen = []
        for text, place in zip(logits, places, strict=True):
            logarithms = F.log_softmax(text, -1)
            of_text = logarithms.gather(-1, place)
            chosen.append(of_text)
        chosen = torch.stack(chosen)
    return chosen.squeeze(-1)


def entropies(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each token's distribution, `ROWS` tokens at a time."""
    rows = logits.reshape(-1, logits.shape[-1])
    found = []
    for some in rows.split(ROWS):
        logarithms = F.log_softmax(some, -1)
        of_rows = -(torch.exp(logarithms) * logarithms).sum(-1)
        found.append(of_rows)
    found = torch.cat(found)
    return found.reshape(logits.shape[:-1])


def sums_of_answers(
    logits: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each token, and of each answer."""
    logits, labels, mask = logits[..., :-1, :], tokens[..., 1:], mask[..., 1:]
    of_tokens = log_probabilities(logits, labels)
    of_tokens[mask == 0] = 0.0
    return of_tokens, of_tokens.sum(1)


def dpo(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    mask: torch.Tensor,
    n_answer: int,
    reference: torch.Tensor | Callable[[], torch.Tensor],
) -> torch.Tensor:
    """Return the loss of pairs: chosen texts, then rejected ones (batch, length).

    `reference` returns its logits, or is log-probabilities of the texts that were computed before.
    """
    _held, sums = sums_of_answers(logits, tokens, mask)
    of_policy = sums.chunk(2)
    if isinstance(reference, torch.Tensor):
        sums = reference
    else:
        with torch.no_grad():
            other_logits = reference()
            _others, sums = sums_of_answers(other_logits, tokens, mask)
    chosen, rejected = (x - y for x, y in zip(of_policy, sums.chunk(2), strict=True))
    difference = chosen - rejected
    of_pairs = -F.logsigmoid(0.1 * difference)
    loss = 0.0 + of_pairs.mean() * 1.0
    shifted = logits[..., :-1, :].detach()
    entropies(shifted)
    for half in shifted.chunk(2):  # the mean logits of the answers
        places = torch.zeros(len(half) * n_answer, 2, dtype=torch.long, device=tokens.device)
        _mean = half[places[:, 0], places[:, 1]].mean(-1).sum()
    return loss


def grpo(
    logits: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor, n_answer: int, reference
) -> torch.Tensor:
    """Return the loss of answers (batch, length); logits of their tokens and the one before.

    `reference`: the log-probabilities that it has computed before, (batch, n_answer), or None.
    """
    of_tokens, _entropies = of_answers(logits, tokens, n_answer)
    del logits
    mask, advantages = mask[:, -n_answer:], torch.zeros(len(tokens), 1, device=mask.device)
    ratio = torch.exp(of_tokens - of_tokens.detach())
    if reference is not None:
        divergence = torch.exp(reference - of_tokens) - (reference - of_tokens) - 1
    clipped = torch.clamp(ratio, 0.8, 1.2)
    losses = -torch.min(ratio * advantages, clipped * advantages)
    if reference is not None:
        losses = losses + 0.04 * divergence
    return (losses * mask).sum() / torch.ones((), device=mask.device).clamp(min=1.0)


def of_answers(
    logits: torch.Tensor, tokens: torch.Tensor, n_answer: int, has_entropies: bool = True
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-probability of each token of the answers, and its entropy."""
    logits = logits[:, :-1, :]
    logits = logits[:, -n_answer:, :]
    logits.div_(1.0)
    of_tokens, entropy = [log_probabilities(logits, tokens[:, -n_answer:])], None
    if has_entropies:
        with torch.no_grad():
            entropy = [entropies(logits)]
        entropy = torch.cat(entropy)
    return torch.cat(of_tokens), entropy
