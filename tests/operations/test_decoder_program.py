"""Programs of decoders against traces of the torch modules: every allocation, in order."""

from helpers.allocations import first_difference, programmed, traced
from helpers.strategies import decoders_that_run
from helpers.tiers import examples
from hypothesis import given, settings
from hypothesis.strategies import fixed_dictionaries, integers, just, lists, sampled_from

from modelbudget.architecture.run_config import RunConfig
from modelbudget.components.decoder.decoder_program import program
from modelbudget.families.decoder import Decoder
from modelbudget.operations.part import NoProgramError
from modelbudget.quantities.depth import of_any_depth
from modelbudget.quantities.inference_step import inference
from modelbudget.quantities.training_step import training_step

LAYERS = [("attention", "mlp"), ("sliding_attention", "mlp"), ("attention", "moe")]
RUNS = fixed_dictionaries(
    {
        "attention_kernel": sampled_from(["flash", "math"]),
        "recompute": sampled_from(["none", "full"]),
        "foreach": sampled_from([True, False]),
        "data_parallel": just(2),
        "zero": sampled_from([0, 3]),
    }
)


@settings(max_examples=examples(40), deadline=None)
@given(decoders_that_run())
def test_every_allocation_of_a_program_is_the_traces(decoder_and_run):
    """A sum may be right by accident; a thousand allocations in order, with live bytes, cannot."""
    a, run = decoder_and_run
    assert not first_difference(programmed(a, run), traced(a, run)), (a, run)


@settings(max_examples=examples(25), deadline=None)
@given(decoders_that_run(), integers(6, 14))
def test_a_shallow_run_is_a_deep_one(decoder_and_run, n_layer):
    """Catches a period that is cut at the wrong layer, and a peak in the middle of the model."""
    a, run = decoder_and_run
    a = a.model_copy(update={"n_layer": n_layer})
    for reader, n_end in ((training_step, 2), (inference, 1)):
        try:
            whole = reader(program, a, run)
        except NoProgramError:
            continue
        n_layers = []

        def shallow(a, run=run, reader=reader, n_layers=n_layers):
            n_layers.append(a.n_layer)
            return reader(program, a, run)

        assert of_any_depth(shallow, a, n_end) == whole
        assert len(n_layers) == 1 or max(n_layers) < n_layer


@settings(max_examples=examples(6), deadline=None)
@given(
    lists(sampled_from(LAYERS), min_size=1, max_size=8),
    lists(sampled_from(LAYERS), max_size=3),
    integers(0, 5),
    integers(12, 24),
    RUNS,
)
def test_layers_in_any_order_are_few_of_them(layers, last, n_dense, n_layer, changes):
    """Catches equal layers in a row of which three do not stand for all, inside of a period too.

    `last`: layers at the end, which may be none of a period.
    """
    period, layers = len(layers), (n_layer * layers)[: n_layer - len(last)] + last
    mixers, mlps = (" ".join(names) for names in zip(*layers, strict=True))
    sizes = {"n_vocab": 9, "d_model": 8, "n_head": 2, "n_kv_head": 1, "d_head": 4, "d_ff": 24}
    if "moe" in mlps:
        sizes |= {"n_expert": 4, "n_expert_per_token": 2, "d_expert": 12}
    window = 4 if "sliding_attention" in mixers else 0
    pattern = {"n_layer": n_layer, "n_dense_layer": n_dense, "mixers": mixers, "mlps": mlps}
    a = Decoder(**sizes, **pattern, n_ctx=16, window=window, tied=False)
    run = RunConfig(batch=2, length=16, dtype="bfloat16", **changes)
    n_layers = []

    def few(a):
        n_layers.append(a.n_layer)
        return training_step(program, a, run)

    assert of_any_depth(few, a) == training_step(program, a, run)
    assert len(n_layers) == 1
    assert n_layers[0] <= min(n_layer, n_dense + 2 * period + 1 + len(last))


def test_a_peak_in_a_layer_between_the_first_and_the_last():
    """Only here is the peak in a layer that a shallow run leaves out: in the second.

    Gradients of MLPs add up backwards, and the first layer's attention, being frozen, needs none.
    """
    sizes = {"n_vocab": 5, "d_model": 8, "n_head": 2, "n_kv_head": 2, "d_head": 8, "d_ff": 64}
    a = Decoder(**sizes, n_layer=12, n_ctx=16, tied=False)
    run = RunConfig(length=16, trained="mlp", recompute="full", attention_kernel="math")
    of_few = of_any_depth(lambda a: training_step(program, a, run), a)
    assert of_few.peaks == training_step(program, a, run).peaks
