"""A matrix that is the product, number by number, of two products of low rank (FedPara, LoHa).

Source: `HadaWeight` of peft 0.21.2 (tuners/loha/layer.py), a torch.autograd.Function.
"""

from modelbudget.operations.autograd import finish_function, start_node
from modelbudget.operations.tape import Active, Tensor, empty


def hadamard_product(w1_a: Tensor, w1_b: Tensor, w2_a: Tensor, w2_b: Tensor) -> Tensor:
    """Return (w1_a w1_b) ⊙ (w2_a w2_b) times a number, which is a tensor."""
    scale = empty((), "float32")
    node = start_node("hadamard", [w1_a, w1_b, w2_a, w2_b, None], [w1_a, w1_b, w2_a, w2_b, scale])
    with Active.tape.without_graph():
        y = ((w1_a @ w1_b) * (w2_a @ w2_b) * scale).detach()

    def gradients(saved, g):
        w1_a, w1_b, w2_a, w2_b, scale = saved
        g = g * scale
        inner = g * (w2_a @ w2_b)
        of_w1_a, of_w1_b = inner @ w1_b.t(), w1_a.t() @ inner
        inner = g * (w1_a @ w1_b)
        of_w2_a, of_w2_b = inner @ w2_b.t(), w2_a.t() @ inner
        del inner
        return of_w1_a, of_w1_b, of_w2_a, of_w2_b, None

    return finish_function(node, y, gradients)
