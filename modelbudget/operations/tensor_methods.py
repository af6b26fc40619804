"""Operations as operators and methods of tensors, with torch's names: programs read as modules."""

from modelbudget.operations import elementwise, products, reductions, views
from modelbudget.operations.tape import Tensor

OPERATORS = {
    "add": elementwise.add, "radd": elementwise.add, "sub": elementwise.sub,
    "rsub": lambda x, _: elementwise.one_minus(x),  # any number less x has as many bytes
    "mul": elementwise.mul,
    "rmul": elementwise.mul, "truediv": elementwise.div, "pow": elementwise.power,
    "neg": elementwise.neg, "matmul": products.matmul,
}  # fmt: skip
METHODS = (
    elementwise.absolute, elementwise.clamp, elementwise.clone, elementwise.contiguous,
    elementwise.cos, elementwise.exp, elementwise.expm1, elementwise.masked_fill, elementwise.relu,
    elementwise.rsqrt, elementwise.sigmoid, elementwise.sin, elementwise.sqrt, elementwise.tanh,
    elementwise.to, reductions.amax, reductions.cumsum, reductions.logsumexp, reductions.mean,
    reductions.prod, reductions.sum_over, reductions.topk, views.chunk, views.expand, views.flatten,
    views.narrow, views.permute, views.reshape, views.select, views.split, views.squeeze, views.t,
    views.transpose, views.unbind, views.unflatten, views.unsqueeze, views.view,
)  # fmt: skip
NAMES = {"absolute": "abs", "sum_over": "sum"}
"""Where torch's name is one of Python's own functions."""

for name, function in OPERATORS.items():
    setattr(Tensor, f"__{name}__", function)
for function in METHODS:
    name = function.__name__
    setattr(Tensor, NAMES.get(name, name), function)
