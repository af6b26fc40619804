"""Mixers of hybrids and sparse attention in decoders; decoders without their encoder."""

import pytest
import torch
from helpers.inference import logits_at_once_and_in_turn, measured_inference, predicted_inference
from helpers.training import PREDICTED, measured, predicted, without_zeros

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.families.decoder import Decoder
from modelbudget.families.encoder_decoder import EncoderDecoder
from modelbudget.measurement.build import build
from modelbudget.measurement.count import count
from modelbudget.modules.initialise import initialise
from modelbudget.modules.mixers import kimi_delta, lightning_attention, mlstm, rg_lru, slstm

SIZES = {
    "n_vocab": 19, "d_model": 16, "n_layer": 4, "n_head": 2, "n_kv_head": 1, "d_head": 8,
    "d_ff": 24, "norm": "rmsnorm", "position": "rotary", "gated": True, "activation": "silu",
}  # fmt: skip
MAMBA = {
    "n_mamba_head": 4, "d_mamba_head": 6, "n_mamba_group": 2, "d_mamba_state": 5,
    "d_mamba_convolution": 4,
}  # fmt: skip
GRIFFIN = {
    "n_lru_block": 3, "d_lru_block": 4, "d_lru_convolution": 4, "window": 5, "output_bias": True,
    "up_bias": True, "down_bias": True,
}  # fmt: skip
MLSTM = {"n_mlstm_head": 2, "d_mlstm_key": 3, "d_mlstm_value": 6}
SLSTM = {"n_slstm_head": 4, "d_slstm_head": 4, "d_slstm_convolution": 3}
KIMI = {
    "n_linear_head": 2, "d_linear_key": 5, "d_linear_convolution": 4, "kv_lora_rank": 6,
    "d_nope": 4, "d_rope": 2, "d_value": 6,
}  # fmt: skip
SCAN = {"d_scan": 6, "d_scan_state": 5, "d_scan_step": 3, "d_scan_convolution": 4}
KINDS = {
    "jamba": SIZES | SCAN | {"mixers": "selective_scan attention"},
    "griffin": SIZES | GRIFFIN | {"mixers": "rg_lru rg_lru sliding_attention"},
    "bamba": SIZES | MAMBA | {"mixers": "mamba2 mamba2 attention"},
    "falcon-h1": SIZES | MAMBA | {"mixers": "attention_and_mamba2", "mamba_norm": False},
    "xlstm": SIZES | MLSTM | {"mixers": "mlstm", "position": "none"},
    "slstm": SIZES | SLSTM | {"mixers": "slstm", "position": "none"},
    "kimi": SIZES | KIMI | {"mixers": "kimi_delta mla"},
    "minimax": SIZES | {"mixers": "lightning_attention attention"},
    "lfm2": SIZES | {"mixers": "short_convolution attention", "d_short_convolution": 3},
}


@pytest.mark.parametrize("kind", KINDS)
def test_counts_and_cache(kind):
    a, run = Decoder(**KINDS[kind]), RunConfig(batch=2, length=9)
    counted = count(build(a, "meta", "float32"))
    predicted_counts = {n: t.total for n, t in a.parameters(a).items() if t.total}
    assert {n: c.parameters for n, c in counted.items() if c.parameters} == predicted_counts
    found = measured_inference(a, run)
    assert predicted_inference(a, run, "cache_bytes") == without_zeros(found["cache_bytes"])
    assert predicted_inference(a, run, "flops_decode") == without_zeros(found["flops_decode"])


@pytest.mark.parametrize("kind", ["lfm2", "xlstm", "slstm", "kimi", "minimax"])
def test_a_training_step(kind):
    a, run = Decoder(**KINDS[kind]), RunConfig(batch=2, length=9)
    found, expected = measured(a, run, quantities=PREDICTED), predicted(a, run)
    for quantity in PREDICTED:
        assert without_zeros(expected[quantity]) == without_zeros(found[quantity]), quantity


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 2, "length": 9},
        {"length": 13, "dtype": "bfloat16", "recompute": "selective"},
        {"length": 1, "dtype": "float64", "backend": "cpu", "recompute": "full"},
    ],
)
@pytest.mark.parametrize("kind", ["griffin", "falcon-h1"])
def test_training_with_recurrent_blocks(kind, settings):
    a, run = Decoder(**KINDS[kind]), RunConfig(**settings)
    found, expected = measured(a, run, quantities=PREDICTED), predicted(a, run)
    for quantity in PREDICTED:
        assert without_zeros(expected[quantity]) == without_zeros(found[quantity]), quantity


def test_a_recurrent_block_computes_what_its_class_computes():
    """Theirs takes the first token of a text without √(1 − a²): it is given later positions."""
    from transformers.models.recurrent_gemma import modeling_recurrent_gemma as theirs

    settings = theirs.RecurrentGemmaConfig(
        hidden_size=12, num_attention_heads=3, lru_width=24, conv1d_width=4, num_hidden_layers=3,
        vocab_size=19, intermediate_size=48, pad_token_id=0,
    )  # fmt: skip
    sizes = {"n_lru_block": 3, "d_lru_block": 8, "d_lru_convolution": 4}
    ours = rg_lru.make(Decoder(**SIZES | sizes | {"d_model": 12, "mixers": "rg_lru"}))
    block = theirs.RecurrentGemmaRecurrentBlock(settings, 0)
    torch.manual_seed(0)
    names = {
        "gate": block.linear_y, "input": block.linear_x, "output": block.linear_out,
        "convolution": block.conv_1d,
    }  # fmt: skip
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.3)
        for name, module in names.items():
            ours.get_submodule(name).load_state_dict(module.state_dict())
        for ours_, theirs_ in (("input", "input"), ("recurrence", "recurrent")):
            for kind in ("weight", "bias"):
                value = getattr(block.rg_lru, f"{theirs_}_gate_{kind}")
                ours.get_parameter(f"{ours_}_gate.{kind}").copy_(value)
        ours.decay.copy_(block.rg_lru.recurrent_param)
        x = torch.randn(2, 7, 12)
        expected, _ = block(x, torch.arange(1, 8).unsqueeze(0), None, use_cache=False)
        torch.testing.assert_close(ours(x), expected)


def test_mlstm_computes_what_its_class_computes():
    from transformers.models.xlstm import modeling_xlstm as theirs

    settings = theirs.xLSTMConfig(
        hidden_size=16, num_heads=2, qk_dim_factor=0.375, v_dim_factor=0.75, num_hidden_layers=1,
        chunk_size=8,
    )  # fmt: skip
    block = theirs.xLSTMLayer(settings).train()
    ours = mlstm.make(Decoder(**KINDS["xlstm"]))
    torch.manual_seed(0)
    names = {
        "query": "q", "key": "k", "value": "v", "input_gate": "igate_preact", "output": "out_proj",
        "forget_gate": "fgate_preact", "gate": "ogate_preact", "norm": "multihead_norm",
    }  # fmt: skip
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.5)
        for name, other in names.items():
            ours.get_submodule(name).load_state_dict(block.get_submodule(other).state_dict())
        x = torch.randn(2, 8, 16)
        torch.testing.assert_close(ours(x), block(x)[0], atol=1e-4, rtol=1e-3)


def test_slstm_has_the_parameters_of_the_authors_code():
    """Worked out from NX-AI/xlstm (slstm/layer.py and cell.py): 512 channels, 4 heads, its sizes.

    A convolution of 4 tokens with bias; four gates of 4 · 128 · 128 numbers each, with no bias; the
    recurrent kernel (4, 128, 4 · 128) and its bias (4, 4, 128); a norm without bias.
    """
    sizes = {"n_slstm_head": 4, "d_slstm_head": 128, "d_slstm_convolution": 4, "mixers": "slstm"}
    block = slstm.make(Decoder(**SIZES | sizes | {"d_model": 512}))
    parts = [512 * 4 + 512, 4 * 4 * 128 * 128, 4 * 128 * 4 * 128, 4 * 4 * 128, 512]
    assert sum(p.numel() for p in block.parameters()) == sum(parts) == 529_408


def test_slstm_computes_its_equations():
    """Beck et al. 2024, eq. 8 to 14, without the stabiliser, of which outputs are independent."""
    torch.manual_seed(0)
    ours = slstm.make(Decoder(**KINDS["slstm"])).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.5)
        x = torch.randn(1, 6, 16, dtype=torch.double)
        convolved = torch.nn.functional.silu(ours.convolution(x))[0]
        hidden = cell = normaliser = torch.zeros(16, dtype=torch.double)
        outputs = []
        of_token = (ours.input_gate, ours.forget_gate, ours.cell_input, ours.output_gate)
        for t in range(6):
            read = [convolved[t], convolved[t], x[0, t], x[0, t]]
            gates = []
            for i, (one, matrix) in enumerate(zip(read, of_token, strict=True)):
                columns = slice(4 * i, 4 * i + 4)
                heads = [
                    one[4 * h : 4 * h + 4] @ matrix.weight[h]
                    + hidden[4 * h : 4 * h + 4] @ ours.hidden.weight[h, :, columns]
                    for h in range(4)
                ]
                gates.append(torch.cat(heads) + ours.bias[i])
            write, keep, new, out = gates
            cell = keep.sigmoid() * cell + write.exp() * new.tanh()
            normaliser = keep.sigmoid() * normaliser + write.exp()
            hidden = out.sigmoid() * cell / normaliser
            outputs.append(hidden.view(4, 4))
        expected = torch.nn.functional.layer_norm(torch.stack(outputs), (4,)).flatten(1)
        torch.testing.assert_close(ours(x)[0], expected * ours.norm.weight)


def test_kimi_delta_attention_computes_what_its_class_computes():
    from transformers.models.kimi_linear import modeling_kimi_linear as theirs

    settings = theirs.KimiLinearConfig(
        hidden_size=16, linear_num_heads=2, linear_head_dim=5, num_hidden_layers=1,
        layer_types=["linear_attention"], rms_norm_eps=torch.finfo(torch.float32).eps,
    )  # fmt: skip
    block, ours = (
        theirs.KimiLinearDeltaAttention(settings, 0),
        kimi_delta.make(Decoder(**KINDS["kimi"])),
    )
    torch.manual_seed(0)
    names = {
        "query": "q_proj", "key": "k_proj", "value": "v_proj", "beta": "b_proj", "norm": "o_norm",
        "decay_down": "forget_gate.f_a_proj", "decay_up": "forget_gate.f_b_proj",
        "gate_down": "g_a_proj", "gate_up": "g_b_proj", "output": "o_proj", "convolution": "conv1d",
    }  # fmt: skip
    names = {f"{name}.weight": f"{other}.weight" for name, other in names.items()}
    names |= {"rate": "forget_gate.A_log", "step": "forget_gate.dt_bias"}
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.5)
        for name, other in names.items():
            parameter = ours.get_parameter(name)
            parameter.copy_(block.get_parameter(other).reshape(parameter.shape))
        x = torch.randn(2, 7, 16)
        torch.testing.assert_close(ours(x), block(x), atol=1e-5, rtol=1e-4)


def test_lightning_attention_computes_what_its_class_computes():
    from transformers.models.minimax import modeling_minimax as theirs

    settings = theirs.MiniMaxConfig(
        hidden_size=16, num_attention_heads=2, head_dim=8, num_hidden_layers=1, block_size=3,
        layer_types=["linear_attention"],
    )  # fmt: skip
    block = theirs.MiniMaxLightningAttention(settings, 0)
    ours = lightning_attention.make(Decoder(**KINDS["minimax"]))
    torch.manual_seed(0)
    names = {
        "query_key_value": "qkv_proj", "gate": "output_gate", "norm": "norm", "output": "out_proj",
    }  # fmt: skip
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.5)
        for name, other in names.items():
            ours.get_submodule(name).load_state_dict(block.get_submodule(other).state_dict())
        x = torch.randn(2, 7, 16)
        torch.testing.assert_close(ours(x), block(x, None, None)[0], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_at_a_time_gives_what_all_at_once_give(kind):
    at_once, in_turn = logits_at_once_and_in_turn(Decoder(**KINDS[kind]))
    torch.testing.assert_close(in_turn, at_once)


def test_a_decoder_without_its_encoder():
    a = EncoderDecoder(
        n_vocab=19, d_model=16, n_head=2, d_head=8, d_value=8, d_ff=24, n_ctx=9,
        n_encoder_layer=0, n_decoder_layer=2, position="learned", embedding_norm=True,
    )  # fmt: skip
    model = build(a, "meta", "float32")
    assert sum(c.parameters for c in count(model).values()) == total(a.parameters(a))
    assert model(torch.zeros((2, 9), dtype=torch.long, device="meta")).shape == (2, 9, 19)


SPARSE = SIZES | {
    "mixers": "mla", "q_lora_rank": 6, "kv_lora_rank": 4, "d_nope": 6, "d_rope": 2,
    "d_value": 8, "n_index_head": 3, "d_index": 4,
}  # fmt: skip


def test_an_indexer_gets_no_gradient():
    """Only this sees its closed formula, of all parameters."""
    a, run = Decoder(**SPARSE, n_selected=2), RunConfig(batch=1, length=5)
    known = ("gradient_bytes", "optimizer_bytes")
    found, expected = predicted(a, run, known), measured(a, run, quantities=known)
    for quantity in known:
        assert without_zeros(found[quantity]) == without_zeros(expected[quantity]), quantity


def test_an_indexer_that_selects_all_tokens_changes_nothing():
    """Otherwise a token attends `n_selected` tokens: others before it have no influence."""
    torch.manual_seed(0)
    dense, every, one = (
        build(Decoder(**SPARSE | changed), "cpu", "float64").eval()
        for changed in (
            {"n_index_head": 0, "d_index": 0},
            {"n_selected": 7},
            {"n_selected": 1},
        )
    )
    initialise(every)
    for other in (dense, one):
        other.load_state_dict(every.state_dict(), strict=False)
    tokens = torch.randint(19, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(every(tokens), dense(tokens))
        assert not torch.allclose(one(tokens), dense(tokens))
    a = Decoder(**SPARSE, n_selected=7)
    assert sum(c.parameters for c in count(every).values()) == total(a.parameters(a))
