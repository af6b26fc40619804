"""What surrounds a decoder's layers in time: ends of the passes, neighbours in the optimizer."""

from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.layer_groups import layer_groups
from modelbudget.architecture.run_values import bytes_of, is_pipelined, is_sharded
from modelbudget.components import embedding, layer, loss, norm, tensor_parallel
from modelbudget.components.layers.fields import BEFORE
from modelbudget.memory import adamw_temporaries, fsdp, pipeline, sharded_stage, shards
from modelbudget.memory.adamw_temporaries import Tensor
from modelbudget.memory.inference import Step
from modelbudget.memory.timeline import Allocation, change, times
from modelbudget.memory.training import Model


def _rest_tensors(a: Fields) -> list[Tensor]:
    """Parameter tensors behind the layers, in the order of the module."""
    return [
        *norm.tensors(a, "norm.embedding", a.embedding_norm),
        *norm.tensors(a, "norm.final", a.final_norm),
        *embedding.head_tensors(a),
    ]


def neighbours(a: Fields, r: Run) -> list[adamw_temporaries.Neighbours]:
    """Parameter tensors and the ones before them, in the order of the module.

    Of a model that is sharded, the optimizer sees a device's own rows; of a pipeline, a stage.
    """

    def seen(found: list[Tensor]) -> list[Tensor]:
        return [shards.own_tensor(r, one) for one in found] if is_sharded(r) else found

    layers = [(group, seen(layer.tensors(a, r, group))) for group in layer_groups(a)]
    ends = [seen(found) for found in (embedding.tensors(a), _rest_tensors(a))]
    if is_pipelined(r):
        ends = [[one for one in found if pipeline.has(r, one.name)] for found in ends]
    return adamw_temporaries.neighbours_of_model(ends[0], layers, ends[1], a.n_layer)


def gathered_together(a: Fields, r: Run, is_held=1) -> tuple[fsdp.Group, fsdp.Group]:
    """Return the parameters of one layer, and those outside of layers.

    The last gradient of a layer is that of the norm which reads its input; of the rest, that of
    the token embedding, unless it is added to the head's. `is_held` 0: autograd holds neither.
    Of a pipeline, the parameters of a stage.
    """
    (group,) = layer_groups(a)
    rest = [*embedding.tensors(a), *_rest_tensors(a)]
    of_norm = bytes_of(r.dtype) * int(a.norm_placement in BEFORE) * a.norm_scale * a.d_model
    in_layer, held = tensor_parallel.summed_in_layer(a, r, of_norm, is_held)
    of_layer = fsdp.group(r, layer.tensors(a, r, group), is_held * of_norm, in_layer, held)
    token, in_rest = _token_gradient(a, r), tensor_parallel.summed_in_rest
    if is_pipelined(r):
        rest = [one for one in rest if pipeline.has(r, one.name)]
        token = token * pipeline.is_first(r)
    return of_layer, fsdp.group(r, rest, is_held * token, in_rest(a, r, token))


def _token_gradient(a: Fields, r: Run):
    """Bytes of the gradient of an untied token embedding."""
    return bytes_of(r.dtype) * (1 - a.tied) * embedding.table(a)


def sharded_stage_of(
    a: Fields, r: Run, stage: pipeline.Stage, model: Model
) -> sharded_stage.ShardedStage:
    """Return a stage with its shards. `model`: the timelines of one microbatch."""
    one, is_last = pipeline.microbatch(r), pipeline.is_last(r)
    ends = ends_of_shards(a, one)
    (last,) = model.layers
    after = model.saved_after_layers if is_last else model.states
    in_layer = int(r.recompute != "full") * change(last.forward)
    freed = int(r.outputs == "freed")
    output = loss.number(r) + freed * stage.logits if is_last else model.states
    return sharded_stage.ShardedStage(
        stage,
        *gathered_together(a, r, is_held=0),
        times(pipeline.is_first(r), ends.embedding),
        -after - in_layer,
        output,
    )


def ends_of_shards(a: Fields, r: Run) -> fsdp.Ends:
    """Return what happens before and after the layers, where the rest of the model is gathered."""
    n_rows = embedding.rows(a)
    shared = Allocation("tables and positions of RoPE", layer.read_by_all(a, r))
    return fsdp.Ends(
        [*embedding.inference(a, r, r.length), *embedding.dropped(a, r), shared],
        loss.backward(r, n_rows),
        loss.logits(r, n_rows),
    )


def forward_end(a: Fields, r: Run) -> tuple:
    """Return the bytes live in the loss, at the end of the final norm, and before the head.

    In addition to those live when backward begins.
    """
    others = layer.held_in_forward(a, r) + layer.first_input_held(a, r)
    normed = embedding.final_norm(a, r, others)
    return *embedding.forward_end(a, r), normed, embedding.gathered_for_head(a, r)


def buffers(a: Fields, r: Run):
    """Bytes of the model's buffers."""
    return layer.buffers(a, r) + embedding.scale(r)


def inference_steps(a: Fields, r: Run, new) -> list[Step]:
    """Return the steps of a forward pass of `new` tokens, up to the logits of the last one."""
    states = bytes_of(r.dtype) * r.batch * new * a.d_model
    head = embedding.head_inference(a, r, new, layer.shared_inference(a, r, new))
    ends = [Step(embedding.inference(a, r, new)), Step(head, states)]
    return ends + layer.inference(a, r, new)
