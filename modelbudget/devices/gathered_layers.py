"""Shards of FSDP2 (`fully_shard`): parameters are gathered for a layer, and freed after it.

A device has the same number of rows of each parameter tensor, those of its padding included. There
is one group of parameters for each layer, and one, the root's, for all others. Source: torch 2.13,
torch/distributed/fsdp/_fully_shard: `_fsdp_param_group.py`, `_fsdp_collectives.py`,
`_fsdp_state.py`; a function here is named as that which it follows.
"""

from collections.abc import Callable, Iterator
from typing import Any

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import (
    has_part_of_experts,
    rank,
    replicas,
    replicas_of_experts,
    stays_gathered,
)
from modelbudget.devices.parameter_shards import (
    Shard,
    cast_inputs,
    inputs_with_gradient,
    replaced_inputs,
)
from modelbudget.operations.autograd import finish_function, start_node
from modelbudget.operations.collectives import cast_of_all_rows
from modelbudget.operations.part import Part
from modelbudget.operations.tape import Active, Tensor, empty

ROUTED = ("layer.moe.gate", "layer.moe.up", "layer.moe.down")
"""Routed experts, which are a second group of their layer where devices divide them."""


class Sharded:
    """The groups of a model, and what they share while a step runs (`FSDPCommContext`).

    Where the loss is computed in chunks, a group has embedding and its norm, and one final norm and
    head, as in torchtitan's `apply_fsdp_to_decoder`; tied, one has all of them.
    """

    def __init__(self, tied, run: RunConfig):
        self.run_config = run
        self.dtype = "float32" if run.master_weights else run.dtype
        self.reduce_dtype = "float32" if run.reduce_dtype == "float32" else run.dtype
        self.rows_of: dict[Tensor, Tensor] = {}
        """What a device keeps of each parameter, and updates."""
        self.packed: dict[Tensor, Any] = {}
        """Numbers in which quantised matrices are stored."""
        frees = not stays_gathered(run)
        self.root = Group(self, frees_after_forward=False)
        self.of_head = Group(self, frees_after_forward=False)
        self.of_embedding = self.of_head if tied else Group(self, frees)
        self.layers: list[Group] = []
        self.order: list[Group] = []
        """Groups in the order of their forward passes."""
        self.buffer_before: Tensor | None = None
        """What the group before has gathered in the forward pass."""
        self.reduced: list[Tensor] = []
        """Inputs of reduce-scatters that are not yet freed."""

    @property
    def groups(self) -> list["Group"]:
        """Groups as the end of a backward pass sees them: a layer's experts first."""
        firsts = [self.root, self.of_embedding, *self.layers, self.of_head]
        return [group for first in firsts for group in reversed(first.state)]

    @property
    def in_order(self) -> list["Group"]:
        """Groups in the order of the module."""
        firsts = [self.root, self.of_embedding, *self.layers, self.of_head]
        return [group for first in firsts for group in first.state]

    def _in_layers(self, groups: list["Group"]) -> Iterator["Group"]:
        """Yield groups, each while the tape names its layer: no part runs that would."""
        for group in groups:
            Active.tape.layer = group.layer
            yield group
        Active.tape.layer = None

    def around_part(self, part: Part, parameters: list[Tensor]) -> Part:
        """Return a part that gathers its parameters, which become shards, if it has a group."""
        group = self._group_of(part.path)
        if group is None:
            return part
        self._add(group, [p for p in parameters if not self._is_apart(p)])
        if apart := [p for p in parameters if self._is_apart(p)]:
            of_experts = Group(
                self, group.frees_after_forward, replicas_of_experts(self.run_config)
            )
            of_experts.state = group.state
            group.state.append(of_experts)
            self._add(of_experts, apart)
        group.members.add(part.path)
        return Part(part.path, group.around(part, part.path))

    def _is_apart(self, p: Tensor) -> bool:
        """Return whether a parameter is of routed experts that other devices have others of."""
        return has_part_of_experts(self.run_config) and p.name in ROUTED

    def _group_of(self, path: str) -> "Group | None":
        if path.endswith("layer"):
            self.layers.append(Group(self, not stays_gathered(self.run_config)))
            return self.layers[-1]
        if self.run_config.loss_chunks == 1:
            return None
        ends = {"embedding": self.of_embedding, "norm.embedding": self.of_embedding}
        return (ends | {"norm.final": self.of_head, "head": self.of_head}).get(path)

    def around_model(self, model: Any, parameters: list[Tensor]) -> Callable:
        """Return the model, whose other parameters become shards."""
        # Those of a module come after its children's (`_get_managed_modules`): of a projected head.
        self._add(self.root, sorted(parameters, key=lambda p: p.name == "head"))
        self.root.members.add("model")
        gathering = self.root.around(model, "model")
        if self.run_config.loss_chunks > 1:
            vars(gathering)["states"] = self.root.around(model.states, "model")
        return gathering

    def _add(self, group: "Group", parameters: list[Tensor]) -> None:
        run = self.run_config
        place = group.n_device, rank(run) // (replicas(run) // group.n_device)
        shards = [
            Shard(p, (self.packed[p],) if p in self.packed else p.shape, *place, self.dtype, run)
            for p in parameters
            if p not in self.rows_of
        ]
        self.rows_of |= {shard.whole: shard.rows for shard in shards}
        group.shards += shards

    def chunks_of_head(self, chunks: list) -> Iterator:
        """Yield the chunks, during which the head stays gathered; the last reduces its gradients.

        Torchtitan, components/loss.py, `ChunkedLossWrapper`.
        """
        head = self.of_head
        head.frees_after_forward = head.frees_after_backward = head.reduces = False
        head.unshard()
        head.wait_for_unshard(is_forward=False)
        yield from chunks[:-1]
        head.reduces = True
        yield chunks[-1]
        head.frees_after_forward = head.frees_after_backward = True
        head.reshard()

    def force_complete(self, y: Tensor) -> None:
        """End the forward passes of groups of which a part has not run."""
        for group in reversed(self.groups):
            if group.waits_for and group is not self.root:
                group.post_forward(y)
                group.waits_for.clear()

    def accumulate_gradients(self) -> None:
        """Let backward passes leave parameters gathered and gradients whole (stages)."""
        for group in self.groups:
            group.frees_after_backward = group.reduces = False

    def perform_reduce_grad(self) -> None:
        """Reduce the gradients that all microbatches have added up (pipelining/stage.py)."""
        for group in self.in_order:
            group.frees_after_backward = group.reduces = True
        for group in self._in_layers(self.in_order):
            group.post_backward()
        self.root_post_backward()
        self.accumulate_gradients()

    def unshard(self) -> None:
        """Begin to gather all parameters (`FSDPModule.unshard` of each module)."""
        for group in self._in_layers(self.in_order):
            group.unshard()

    def wait_for_unshard(self) -> None:
        for group in self._in_layers(self.in_order):
            group.wait_for_unshard(is_forward=False)

    def reshard(self) -> None:
        for group in self._in_layers(self.groups):
            group.reshard()

    def root_post_backward(self) -> None:
        """Reduce what no hook has: that of the root, and of layers whose input needs no gradient.

        In the end no buffer is left.
        """
        for group in self.groups:
            if not group.is_reduced:
                group.post_backward()
        for group in self.groups:
            group.is_reduced, group.buffer = False, None
            group.waits_for.clear()
            group.places.clear()
        self.order.clear()
        self.reduced.clear()


class Group:
    """Parameters that are gathered together (`FSDPParamGroup`), of shards on `n_device` devices."""

    def __init__(self, sharded: Sharded, frees_after_forward: bool, n_device: int | None = None):
        self.sharded, self.layer = sharded, Active.tape.layer
        self.n_device = replicas(sharded.run_config) if n_device is None else n_device
        self.state: list[Group] = [self]
        """The groups of the same part, in the order in which they are gathered."""
        self.shards: list[Shard] = []
        self.members: set[str] = set()
        """The parts that have its parameters."""
        self.waits_for: set[str] = set()
        """Those that have not run in this forward pass."""
        self.places: list[int] = []
        """Its place in the order of forward passes."""
        self.frees_after_forward = frees_after_forward
        self.frees_after_backward = self.reduces = True
        self.is_gathered = self.is_reduced = self.is_in_forward = False
        self.buffer: Tensor | None = None
        """What all devices have sent, until it is copied into the parameters."""
        self.accumulated: dict[Tensor, Tensor] = {}
        """Gradients that have been cast and are not yet reduced."""

    def around(self, compute: Callable, name: str) -> Callable:
        """Return a function that gathers before it computes, and frees afterwards."""
        sharded = self.sharded

        def call(*args):
            if not self.waits_for:
                self.waits_for |= self.members
            is_first, self.is_in_forward = not self.is_in_forward, True
            for group in self.state:
                group.unshard()
                group.wait_for_unshard(is_forward=True)
                args = cast_inputs(args, sharded.run_config.dtype)
                args = group._registered(args) if is_first else args
            y = compute(*args)
            is_last = self.waits_for == {name}
            self.waits_for.discard(name)
            if is_last:
                self.post_forward(y)
            if self is sharded.root:
                sharded.force_complete(y)
                sharded.buffer_before = None
            return y

        vars(call).update({k: v for k, v in vars(compute).items() if k not in ("path", "forward")})
        return call

    def post_forward(self, y: Tensor) -> None:
        self.is_in_forward = False
        if not self.shards:
            return
        for group in self.state:
            if group.frees_after_forward:
                group.reshard()
            group.places.append(len(self.sharded.order))
            self.sharded.order.append(group)
        if y.node is not None:
            y.node.before.append(self.pre_backward)

    def _registered(self, args: tuple) -> tuple:
        """Return the arguments behind a node that calls `post_backward` (`Register…Function`)."""
        inputs = inputs_with_gradient(args)
        if not inputs or not Active.tape.records_graph:
            return args
        outputs = [x.detach() for x in inputs]

        def gradients(_, *of_outputs):
            self.post_backward()
            return of_outputs

        finish_function(start_node("post_backward", inputs), outputs, gradients)
        return replaced_inputs(args, iter(outputs))

    def unshard(self) -> None:
        """Gather shards into a buffer, unless that has been done (`foreach_all_gather`)."""
        is_done = self.is_gathered or self.buffer is not None
        if is_done or not self.shards or self.n_device == 1:
            return
        Active.tape.operation = "all_gather"
        numbers = sum(shard.n_padded for shard in self.shards)
        dtype = self.sharded.run_config.dtype
        cast = empty((numbers,), dtype) if self.sharded.dtype != dtype else None
        self.buffer = empty((self.n_device * numbers,), dtype)
        del cast

    def wait_for_unshard(self, is_forward: bool) -> None:
        """Copy from the buffer into the parameters; the buffer before lives until that is done."""
        if self.n_device == 1 and not self.is_gathered:
            self._copy_parameters(is_forward)
        if self.buffer is None:
            return
        before, self.sharded.buffer_before = self.sharded.buffer_before, None
        if not is_forward:
            self.sharded.buffer_before = before
        Active.tape.operation = "split_with_sizes_copy"
        for shard in self.shards:
            shard.whole.storage.resize(shard.n_gathered)
        if is_forward:
            self.sharded.buffer_before = self.buffer
        self.buffer, self.is_gathered = None, True

    def _copy_parameters(self, is_forward: bool) -> None:
        """Copy parameters that no other device has, one after the other."""
        if is_forward:
            self.sharded.buffer_before = None
        dtype, cast = self.sharded.run_config.dtype, None
        for shard in self.shards:
            if self.sharded.dtype != dtype:
                cast = empty((shard.n_padded,), dtype)
            shard.whole.storage.resize(shard.n_gathered)
        del cast
        self.is_gathered = True

    def reshard(self) -> None:
        """Free the gathered parameters."""
        for shard in self.shards:
            shard.whole.storage.resize(0)
        self.is_gathered = False

    def pre_backward(self) -> None:
        """Gather what is not, and begin with the group whose forward pass was before."""
        callback = self.sharded.root_post_backward
        if callback not in Active.tape.callbacks:
            Active.tape.callbacks.append(callback)
        for group in self.state:
            group.is_reduced = False
            group.unshard()
            group.wait_for_unshard(is_forward=False)
            group.prefetch()

    def prefetch(self) -> None:
        """Begin with the group before, of several with all those of the part before.

        `_backward_prefetch`: of several groups of a part, the second does so.
        """
        before = self.sharded.order[: self.places.pop()] if self.places else []
        if len(self.state) == 1:
            targets = before[-1:]
        elif self is self.state[1]:
            earlier = [group for group in before if group.state is not self.state]
            targets = [group for group in reversed(earlier) if group.state is earlier[-1].state]
        else:
            targets = []
        for target in targets:
            target.unshard()

    def post_backward(self) -> None:
        """Free the parameters, and give this device's shards their rows of the mean gradient."""
        self.is_reduced, self.is_in_forward = True, False
        for whole in self.accumulated:
            whole.grad = None  # added in place
        if not self.reduces:
            self._accumulate()
            return
        shards, gradients = [], []
        for shard in self.shards:
            gradient = self.accumulated.pop(shard.whole, shard.whole.grad)
            if gradient is not None:
                if Active.tape.divided is not None:
                    gradient = Active.tape.divided.summed(shard.whole, gradient)
                shards.append(shard)
                gradients.append(gradient)
            shard.whole.grad = gradient = None
        if self.frees_after_backward:
            self.reshard()
        if self is self.state[-1]:
            self.sharded.reduced.clear()
        if shards:
            self._foreach_reduce(shards, gradients)

    def _accumulate(self) -> None:
        """Cast gradients to the dtype in which they are reduced (`to_accumulated_grad…`)."""
        for shard in self.shards:
            whole = shard.whole
            if whole.grad is not None and whole.grad.dtype != self.sharded.reduce_dtype:
                gradient, whole.grad = whole.grad, None
                self.accumulated[whole] = cast_of_all_rows(gradient, self.sharded.reduce_dtype)
                gradient = None

    def _foreach_reduce(self, shards: list[Shard], gradients: list) -> None:
        Active.tape.operation = "reduce_scatter"
        sharded = self.sharded
        dtype = sharded.reduce_dtype
        numbers = sum(shard.n_padded for shard in shards)
        is_alone = self.n_device == 1
        last = None if is_alone else gradients[-1]  # named in the loop over them
        source = empty((self.n_device * numbers,), dtype)
        gradients.clear()
        reduced = empty((numbers,), dtype)
        divided = empty(source.shape, dtype) if is_alone else None
        del divided
        reduced = reduced.to(sharded.dtype)
        for shard in shards:
            rows = shard.rows
            if rows.grad is None:  # else it is added in place
                rows.grad = Tensor(rows.shape, rows.strides, rows.dtype, reduced.storage)
        del last
        sharded.reduced.append(source)
