"""Five closed forms that are written by hand, against programs: what a paper or a page can print.

b sequences of s tokens, N = b·s; e bytes a number; d channels, h = n_head·d_head and k =
n_kv_head·d_head of them of queries and of keys.
"""

import pytest

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.quantities.inference_step import inference
from modelbudget.quantities.training_step import training_step

E, BATCH, LENGTH = 2, 3, 512
N = BATCH * LENGTH
RUN = RunConfig(batch=BATCH, length=LENGTH, dtype="bfloat16", attention_kernel="flash")
MODELS = {"gpt-2-124m": 4, "llama-3-8b": 4, "palm-8b": 4}


def shallow(name: str):
    """The architecture with fewer layers: what is compared grows with each by the same."""
    model = mb.model(name).architecture
    return model.model_copy(update={"n_layer": MODELS[name]})


@pytest.fixture(scope="module", params=MODELS)
def step(request):
    a = shallow(request.param)
    return a, training_step(type(a).program(), a, RUN)


def of_layers(values) -> int:
    return sum(n for name, n in values.items() if name.startswith("layer."))


def test_saved_bytes_of_a_layer(step):
    """Korthikanti et al. 2022, §4.1 has 34 bytes a state for a GPT-2 layer with dropout.

    FlashAttention leaves the log of a sum for each query and 24 bytes of its random state. A norm
    saves its input and one (RMSNorm) or two (LayerNorm) float32 numbers for each token; each
    product its input; queries, keys, values and the result of attention are saved once, and a copy
    of that with the heads of a token together.
    """
    a, found = step
    d, h, k, ff = a.d_model, a.n_head * a.d_head, a.n_kv_head * a.d_head, a.d_ff
    statistics = 4 * N * (1 if a.norm == "rmsnorm" else 2)
    of_attention = 4 * BATCH * a.n_head * LENGTH + 24
    # Without RoPE the result is laid out as the projections are, and needs no copy.
    copies = 1 if a.position == "rotary" else 0
    tables = 2 * E * LENGTH * a.d_head if a.position == "rotary" else 0
    of_mlp = 4 * ff if a.gated else 2 * ff
    n_norm = 1 if a.parallel else 2
    states = 2 * n_norm * d + (2 + copies) * h + 2 * k + of_mlp
    layer = E * N * states + n_norm * statistics + of_attention + tables
    assert of_layers(found.saved) == a.n_layer * layer


def test_flops_are_six_for_each_weight_and_token_and_those_of_attention(step):
    """2·N for each weight forward and 4·N backward; attention's two products, causal or not.

    FlashAttention's backward pass computes the scores again: five products for two.
    """
    a, found = step
    h, k, ff = a.n_head * a.d_head, a.n_kv_head * a.d_head, a.d_ff
    weights = a.n_layer * (a.d_model * (2 * h + 2 * k) + (3 if a.gated else 2) * a.d_model * ff)
    weights += a.n_vocab * a.d_model
    attention = a.n_layer * 4 * BATCH * LENGTH**2 * h
    assert sum(found.flops_forward.values()) == 2 * N * weights + attention
    assert sum(found.flops_backward.values()) == 4 * N * weights + 5 * attention // 2


def test_adamw_keeps_two_moments_and_a_counter(step):
    """Two numbers for each parameter in its dtype, and four bytes for each tensor."""
    a, found = step
    per_norm = 2 if a.norm == "layernorm" and a.norm_bias else 1
    biases = sum(getattr(a, f"{name}_bias") for name in ("query", "key", "value", "output"))
    biases += a.down_bias + (2 if a.gated else 1) * a.up_bias
    of_layer = 4 + (3 if a.gated else 2) + biases + per_norm * (1 if a.parallel else 2)
    ends = 2 - a.tied + (a.position == "learned") + per_norm
    states = 2 * E * sum(found.parameters.values()) + 4 * (a.n_layer * of_layer + ends)
    assert sum(found.optimizer_bytes.values()) == states


@pytest.mark.parametrize("name", MODELS)
def test_the_kv_cache(name):
    """Keys and values of each layer and token (Shazeer 2019; Pope et al. 2022, §2.1)."""
    a = shallow(name)
    found = inference(type(a).program(), a, RUN)
    k = a.n_kv_head * a.d_head
    assert sum(found.caches.values()) == 2 * E * N * k * a.n_layer
