"""Parts of a model that several devices compute together, as torch's `parallelize_module` does.

Each device runs the program of its share (`components/device_share.py`). What surrounds a part is
by its path, as in the plan of `measurement/parallel/divided_model.py`: states are gathered before
attention, MLP and head, and terms are summed after their last product. With sequence parallelism
each device has a part of the length between them.
"""

from collections.abc import Callable
from typing import Any

from modelbudget.architecture.formula_arguments import Fields
from modelbudget.architecture.run_config import RunConfig
from modelbudget.operations.collectives import (
    all_gather,
    all_reduce,
    gathered,
    own_rows,
    part_of,
    reduce_scatter,
    same,
    whole,
)
from modelbudget.operations.collectives import summed as sum_of
from modelbudget.operations.joining import cat
from modelbudget.operations.part import Part
from modelbudget.operations.tape import Active, Tensor, empty
from modelbudget.operations.vocabulary_share import own_rows_of_share, rows_of_share

READ_ALL = ("layer.attention", "layer.mlp", "head")
"""Parts that read the states of all tokens."""
SUMMED = ("layer.attention.output", "layer.mla.output", "layer.mlp.down")
"""Products of which each device has a term."""
HEAD_NORMS = ("layer.attention.query_norm", "layer.attention.key_norm")
INNER_NORMS = ("layer.attention.norm", "layer.mlp.norm")
READ_LATENTS = ("layer.mla.query", "layer.mla.query_up", "layer.mla.kv_up")
"""Products of MLA's heads: what they read is on each device, and its gradient a term."""


SHARED_EXPERTS = "layer.moe.shared"
"""An MLP that is divided where each device has all tokens, as the routed experts are."""


class Length:
    """The length of states, of which each of several devices has a part.

    Batches of one sequence need no copy in the order of the parts where they are summed.
    """

    def __init__(self, n_device: int):
        self.n_device = n_device

    def gather(self, x: Tensor) -> Tensor:
        return all_gather(x, self.n_device, 1)

    def sum(self, gradient: Tensor) -> Tensor:
        if gradient.shape[0] == 1:
            return reduce_scatter(gradient.squeeze(0), self.n_device, 0).unsqueeze(0)
        return reduce_scatter(gradient, self.n_device, 1)


class LengthOfHead(Length):
    """The same, with one buffer for what is gathered (`get_global_memory_buffer`)."""

    buffer: Tensor | None = None

    def gather(self, x: Tensor) -> Tensor:
        n = self.n_device
        if self.buffer is None:
            self.buffer = empty((n * x.shape[0], *x.shape[1:]), x.dtype)
        parts = self.buffer.unflatten(0, (n, x.shape[0])).transpose(0, 1)
        return parts.flatten(1, 2)


class Divided:
    """What surrounds the parts of a share, and the gradients of what each device has."""

    def __init__(self, a: Fields, run: RunConfig):
        self.n_device = run.tensor_parallel
        self.dim = 1 if run.sequence_parallel else None
        """The dimension of states of which each device has a part."""
        self.adds_positions = a.position in ("learned", "sinusoidal")
        self.is_projected = a.d_emb > 0
        self.widths_of_latent = a.kv_lora_rank, a.d_rope
        self.has_whole_keys = a.n_kv_head == 1
        self.qk_norm = a.qk_norm
        self.has_own_rows = run.embedding_gradient == "own_rows"
        self.gathers_again = run.gathered_states == "again" and run.sequence_parallel
        self.of_head = LengthOfHead(self.n_device)
        self.terms: set[Tensor] = set()
        """Parameters of whose gradient each device has a term."""

    def length_of(self, path: str) -> Length | None:
        """Return over what a product gathers its states itself, also in the backward pass."""
        if not self.gathers_again or path in SUMMED:
            return None
        if path == "head":
            return self.of_head
        return Length(self.n_device) if path.startswith(READ_ALL) else None

    def around_part(self, part: Part, parameters: list[Tensor]) -> Part:
        """Return a part with the collectives before and after it."""
        if self._has_terms(part.path):
            self.terms.update(parameters)
        around = self._around(part, parameters)
        if around is None:
            return part
        vars(around).update({k: v for k, v in vars(part).items() if k not in ("path", "forward")})
        return Part(part.path, around)

    def _has_terms(self, path: str) -> bool:
        is_key = path in ("layer.attention.key", "layer.attention.value")
        has_all = self.dim is None or (path == "embedding.projection" and self.adds_positions)
        is_projection = path in ("embedding.projection", "head.projection") and not has_all
        return (is_key and self.has_whole_keys) or is_projection or self._is_norm(path)

    def _is_norm(self, path: str) -> bool:
        """Return whether a part normalises a part of the length, or of the heads; or is xIELU."""
        of_heads = path in HEAD_NORMS and self.qk_norm == "shared"
        return (
            of_heads
            or path == "layer.mlp.activation"
            or (self.dim is not None and path.startswith(("layer.norm.", "norm.")))
        )

    def _around(self, part: Part, parameters: list[Tensor]) -> Callable | None:
        compute: Any = part.forward
        n, dim = self.n_device, self.dim
        if part.path == "layer.mla" and dim is not None:
            return lambda x: compute(whole(x, n, dim))
        if part.path == "layer.mla.kv_down":
            return lambda x: self._with_summed_key(compute(x))
        if part.path in READ_LATENTS:
            return lambda x: compute(gathered(x, n, None))
        is_shared = dim is None and part.path == SHARED_EXPERTS
        if is_shared or (part.path in READ_ALL and not self.gathers_again):
            gathers_logits = part.path == "head" and Active.tape.cache_length is not None
            is_gathered = part.path == "head" and self.is_projected

            def read(x, *arguments):
                y = compute(x if is_gathered else gathered(x, n, dim), *arguments)
                return all_gather(y, n, -1) if gathers_logits else y

            return read
        if part.path == "head.projection":
            return lambda x: gathered(compute(x), n, dim)
        if part.path in SUMMED or (dim is None and part.path == f"{SHARED_EXPERTS}.down"):
            biases = parameters[1:]

            def term(x):
                shares = [empty(bias.shape, bias.dtype) for bias in biases]  # added by each device
                y = compute(x)
                del shares
                return sum_of(y, n, dim)

            return term
        if self._is_norm(part.path):
            return lambda x: compute(same(x))
        of_all_heads = part.path in HEAD_NORMS and self.qk_norm == "joint"
        if of_all_heads or part.path in INNER_NORMS:

            def normalise(x):
                heads = whole(x, n, 2)  # live to the end
                return part_of(compute(heads), n, 2)

            return normalise
        if part.path == "embedding.token":
            rows = own_rows_of_share if self.has_own_rows else rows_of_share
            dim_of_rows = None if self.adds_positions else dim
            return lambda places: rows(part.weight, places, n, dim_of_rows)
        if part.path == "embedding" and self.adds_positions and dim is not None:
            return lambda *tokens: part_of(compute(*tokens), n, dim)
        return None

    def _with_summed_key(self, y: Tensor) -> Tensor:
        """Sum the gradient of MLA's rotary key, of which the heads of each device have a term."""
        latent, key = y.split(self.widths_of_latent)
        return cat((latent, gathered(key, self.n_device, None)))

    def summed(self, p: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of a parameter as it is laid out over devices (`redistribute`)."""
        return all_reduce(gradient) if p in self.terms else own_rows(gradient)
