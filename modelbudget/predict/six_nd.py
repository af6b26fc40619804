"""6·N·D, the common estimate of training FLOPs.

Python integers throughout: 6 × 540 billion parameters × 10¹² tokens is 3·10²⁴, which exceeds 64
bits, where NumPy and Polars wrap silently.
"""

from fractions import Fraction

from modelbudget.architecture.terms import Terms


def six_n_d(parameters: int, tokens: int) -> int:
    """Estimate training FLOPs (Kaplan et al. 2020, §2.1).

    For each parameter and token, 2 in the forward and 4 in the backward pass.
    """
    return 6 * parameters * tokens


def without_embeddings(parameters: Terms) -> int:
    """Count parameters without token and position embeddings, as Kaplan et al. 2020 do.

    An untied head is counted; a tied one is part of the embedding.
    """
    return sum(term.total for name, term in parameters.items() if not name.startswith("embedding."))


def error(estimate: int, exact: int) -> float:
    """Return the relative error of an estimate."""
    return float(Fraction(estimate - exact, exact))


def over(operations: int, tokens: int, all_tokens: int) -> int:
    """Scale the FLOPs of a step of `tokens` tokens to `all_tokens` tokens, rounded."""
    return round(Fraction(operations * all_tokens, tokens))
