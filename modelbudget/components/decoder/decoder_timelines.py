"""What surrounds a decoder's layers in time: ends of the passes, neighbours in the optimizer."""

from modelbudget.architecture.arithmetic import largest
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_groups import layer_groups
from modelbudget.architecture.run_values import (
    bytes_of,
    has_part_of_experts,
    is_pipelined,
    is_sharded,
    replicas,
    replicas_of_experts,
)
from modelbudget.components import (
    embedding,
    embedding_step,
    expert_parallel,
    layer,
    loss,
    norm,
    tensor_parallel,
)
from modelbudget.components.layers.layer_fields import BEFORE
from modelbudget.memory import fsdp, parameter_tensors, pipeline_stages, sharded_stage, shards
from modelbudget.memory.parameter_tensors import Tensor
from modelbudget.memory.timeline import Allocation, change, times
from modelbudget.memory.training_peak import Model


def _tensors_of_ends(a: Fields, r: Run) -> list[list[Tensor]]:
    """Return the parameter tensors before and behind the layers: of a pipeline, those of a stage.

    In the order of the module.
    """
    norms = (("norm.embedding", a.embedding_norm), ("norm.final", a.final_norm))
    of_norms = [tensor for end in norms for tensor in norm.tensors(a, *end)]
    ends = [embedding.tensors(a), [*of_norms, *embedding.head_tensors(a)]]
    if is_pipelined(r):
        ends = [[x for x in tensors if pipeline_stages.has(r, x.name)] for tensors in ends]
    return ends


def neighbours(a: Fields, r: Run) -> list[parameter_tensors.Neighbours]:
    """Parameter tensors and the ones before them, in the order of the module.

    Of a model that is sharded, the optimizer sees a device's own rows; of a pipeline, a stage.
    """

    def seen(tensors: list[Tensor]) -> list[Tensor]:
        return [shards.own_tensor(r, tensor) for tensor in tensors] if is_sharded(r) else tensors

    layers = [(group, seen(layer.tensors(a, group))) for group in layer_groups(a)]
    before, behind = (seen(tensors) for tensors in _tensors_of_ends(a, r))
    return parameter_tensors.neighbours_of_model(before, layers, behind, a.n_layer)


def gathered_together(a: Fields, r: Run, is_held=1) -> tuple[fsdp.Layer, fsdp.Layer]:
    """Return the parameters of one layer, and those outside of layers.

    `is_held` 0: autograd does not hold the gradient of the norm that reads the layer's input. Of a
    pipeline, the parameters of a stage.
    """
    # Untied: the gradient of a tied matrix is that of the head, too.
    token = bytes_of(r.dtype) * (1 - a.tied) * embedding.table(a)
    if is_pipelined(r):
        token = token * pipeline_stages.is_first(r)
    summed = tensor_parallel.summed_in_rest(a, r, token)
    outside = [tensor for tensors in _tensors_of_ends(a, r) for tensor in tensors]
    rest = fsdp.group(r, outside, replicas(r), bytes_of(r.dtype), summed)
    return _layer_gathered(a, r, is_held), [rest]


def _layer_gathered(a: Fields, r: Run, is_held) -> fsdp.Layer:
    """Return the groups of one layer, of which routed experts that devices divide are the last."""
    (group,) = layer_groups(a)
    size, tensors = bytes_of(r.dtype), layer.tensors(a, group)
    of_norm = size * int(a.norm_placement in BEFORE) * a.norm_scale * a.d_model
    summed, is_kept = tensor_parallel.summed_in_layer(a, r, of_norm, is_held)
    if not has_part_of_experts(r):
        return [fsdp.group(r, tensors, replicas(r), size, summed, is_kept)]

    def group_of(is_there, is_there_routed, n) -> fsdp.Group:
        """Return the group of some tensors: 1 for those that are there, 0 for others."""
        of_group = [
            tensor._replace(
                is_there=(is_there_routed if tensor.is_routed else is_there) * tensor.is_there
            )
            for tensor in tensors
        ]
        return fsdp.group(
            r,
            of_group,
            n,
            size,
            times(is_there, summed),
            is_there * is_kept,
            largest(is_there, is_there_routed),
        )

    divided = expert_parallel.exchanges(r)
    return [group_of(divided, 0, replicas(r)), group_of(1 - divided, 1, replicas_of_experts(r))]


def sharded_stage_of(
    a: Fields, r: Run, stage: pipeline_stages.Stage, model: Model
) -> sharded_stage.ShardedStage:
    """Return a stage with its shards. `model`: the timelines of one microbatch."""
    of_microbatch, is_last = pipeline_stages.microbatch(r), pipeline_stages.is_last(r)
    ends = ends_of_shards(a, of_microbatch)
    (last,) = model.layers
    after = model.saved_after_layers if is_last else model.states
    in_layer = int(r.recompute != "full") * change(last.forward)
    output = loss.number(r) + stage.logits if is_last else model.states
    return sharded_stage.ShardedStage(
        stage,
        *gathered_together(a, r, is_held=0),
        times(pipeline_stages.is_first(r), ends.embedding),
        -after - in_layer,
        output,
    )


def ends_of_shards(a: Fields, r: Run) -> fsdp.Ends:
    """Return what happens before and after the layers, where the rest of the model is gathered."""
    n_rows = embedding.rows(a)
    shared = Allocation("tables and positions of RoPE", layer.read_by_all(a, r))
    return fsdp.Ends(
        [*embedding_step.forward(a, r), shared], loss.backward(r, n_rows), loss.logits(r, n_rows)
    )


def forward_end(a: Fields, r: Run) -> tuple:
    """Return the bytes live in the loss, at the end of the final norm, and before the head.

    In addition to those live when backward begins.
    """
    others = layer.held_in_forward(a, r) + layer.first_input_held(a, r)
    normed = embedding_step.final_norm(a, r, others)
    of_loss = loss.forward(r, embedding.rows(a))
    return of_loss, normed, embedding_step.gathered_for_head(a, r)
