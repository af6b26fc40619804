"""6·N·D, the estimate that everybody uses, for the operations of training.

Operations times tokens outgrow 64 bits (540 billion parameters × 10¹² tokens × 6 is 3·10²⁴), where
NumPy and Polars wrap silently: all this is in Python's integers.
"""

from fractions import Fraction

from modelbudget.architecture.terms import Terms


def six_n_d(parameters: int, tokens: int) -> int:
    """Operations of training on so many tokens (Kaplan et al. 2020, §2.1): 2 a parameter and token
    forward, 4 backward.
    """
    return 6 * parameters * tokens


def without_embeddings(parameters: Terms) -> int:
    """N as Kaplan et al. count it: without the tables of words and positions. A head that has its
    own matrix stays, one that is tied goes with the table.
    """
    return sum(term.total for name, term in parameters.items() if not name.startswith("embedding."))


def error(estimate: int, exact: int) -> float:
    """How far an estimate is off, as a share of what is exact."""
    return float(Fraction(estimate - exact, exact))


def over(operations: int, tokens: int, all_tokens: int) -> int:
    """Operations of steps that together read `all_tokens`, where one reads `tokens`; rounded."""
    return round(Fraction(operations * all_tokens, tokens))
