"""Classes of transformers without a formula, in training and in inference: measured, or the class's
own error is the reason.
"""

import json

import pytest

import modelbudget as mb
from modelbudget.common.workers import Failure
from modelbudget.compare.comparison import compare, verdict
from modelbudget.measurement.measured_table import failures, measured_table
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.measurement.reference.cached_classes import traced_table
from modelbudget.predict.predict import predict
from modelbudget.sweeps.points_table import points_table

JAMBA = {
    "model_type": "jamba", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "num_experts": 2,
    "use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4, "mamba_proj_bias": True,
    "attn_layer_period": 4, "attn_layer_offset": 2,
}  # fmt: skip
XLNET = {
    "model_type": "xlnet", "architectures": ["XLNetLMHeadModel"], "vocab_size": 100, "d_model": 32,
    "n_layer": 2, "n_head": 4, "d_inner": 48,
}  # fmt: skip
JAPANESE = {
    "model_type": "gpt_neox_japanese", "vocab_size": 100, "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
T5 = {
    "model_type": "t5", "architectures": ["T5Model"], "vocab_size": 100, "d_model": 32, "d_kv": 8,
    "d_ff": 48, "num_layers": 2, "num_heads": 4,
}  # fmt: skip
BERT = {
    "model_type": "distilbert", "architectures": ["DistilBertModel"], "vocab_size": 100, "dim": 32,
    "n_layers": 2, "n_heads": 4, "hidden_dim": 48,
}  # fmt: skip
VIT = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32,
}  # fmt: skip
WHISPER = {
    "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": 32,
    "vocab_size": 100, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 10,
    "max_source_positions": 20, "max_target_positions": 16, "pad_token_id": 0,
}  # fmt: skip
TRAINING = {"flops_forward", "gradient_bytes", "optimizer_bytes", "peak_training_bytes"}
INFERENCE = {"cache_bytes", "flops_decode", "peak_inference_bytes"}
OF_STEP, OF_CACHE = TRAINING - {"flops_forward"}, INFERENCE - {"peak_inference_bytes"}
SWEEP = """
base: config.json
fixed: {{batch: 2, length: 16, dtype: {dtype}}}
points: [{{}}]
measure: {{device: meta, quantities: [parameters, parameter_bytes, {quantities}]}}
"""


@pytest.fixture
def measured(tmp_path, sweep):
    """The comparison's rows with a value, by quantity and component; reasons by quantity."""

    def of(config: dict, dtype: str) -> tuple[dict, dict]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        names = ", ".join(sorted(TRAINING | INFERENCE))
        expanded = sweep(SWEEP.format(dtype=dtype, quantities=names))
        measure, points = expanded.sweep.measure, points_table(expanded.points)
        found = measure_all([(p.architecture, p.run) for p in expanded.points], measure, 1)
        predicted = predict(points, measure.quantities)
        table = measured_table(found, measure.quantities)
        compared = compare(points, predicted, table, [], failures(found))
        assert verdict(compared)["compared"] == 0
        assert verdict(compared)["points_without_formula"] == 1
        assert compared["agrees"].null_count() == compared.height
        return found[0].values, found[0].missing

    return of


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        (JAMBA, "bfloat16"),
        (XLNET, "float32"),
        (XLNET, "bfloat16"),
        (JAPANESE, "float32"),
        (JAPANESE, "bfloat16"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["model_type"],
)
def test_a_class_trains_and_is_used(measured, config, dtype):
    values, missing = measured(config, dtype)
    assert missing == {}
    n_parameters = sum(values["parameters"].values())
    n_bytes = sum(values["parameter_bytes"].values())
    assert n_bytes == n_parameters * {"float32": 4, "bfloat16": 2}[dtype]
    assert 0 < sum(values["gradient_bytes"].values()) <= n_bytes
    assert max(values["peak_training_bytes"].values()) > 4 * n_bytes * 0.9
    # XLNet computes the keys of all tokens again.
    assert sum(values["flops_decode"].values()) < sum(values["flops_forward"].values()) / 3
    assert values["peak_inference_bytes"].keys() == {"setup", "prefill", "decode"}


def test_sizes_by_hand(measured):
    """Keys and values of four heads of 8 in two layers, of two sequences of 16 tokens; six matrices
    a token, and attention.
    """
    values, _ = measured(JAPANESE, "float32")
    assert values["cache_bytes"] == {"cache": 2 * 2 * 2 * 16 * 32 * 4}
    layer = 32 * 3 * 32 + 32 * 32 + 2 * 32 * 4 * 32
    decoded = 2 * 2 * (2 * layer + 32 * 100) + 2 * 4 * 2 * 16 * 32
    assert sum(values["flops_decode"].values()) == decoded
    forward = 2 * 32 * (2 * layer + 32 * 100) + 2 * 4 * 2 * 16 * 16 * 32
    assert sum(values["flops_forward"].values()) == forward


def test_mems_are_a_cache_too(measured):
    values, _ = measured(XLNET, "bfloat16")
    assert values["cache_bytes"] == {"cache": 2 * 2 * 16 * 32 * 2}


def test_an_encoder_has_one_pass_without_gradients(measured):
    """By hand, where scores are in memory: a state, its query, key and value (32 channels each),
    scores and their softmax (4 × 16 for each token).
    """
    values, _ = measured(BERT, "float32")
    matrices = 2 * (4 * 32 * 32 + 2 * 32 * 48)
    forward = 2 * 32 * matrices + 2 * 4 * 2 * 16 * 16 * 32
    assert sum(values["flops_forward"].values()) == forward
    held = sum(values["parameter_bytes"].values()) + 8 * 2 * 16
    of_attention = 2 * 16 * (4 * 32 + 2 * 4 * 16) * 4
    assert values["peak_inference_bytes"] == {"forward": held + of_attention}


@pytest.mark.parametrize(
    ("kind", "keys", "labels", "forward"),
    [
        ("SequenceClassification", {}, 2 * 8, 2 * (32 * 32 + 32 * 2)),
        ("SequenceClassification", {"num_labels": 1}, 2 * 4, 2 * (32 * 32 + 32 * 1)),
        ("TokenClassification", {"num_labels": 5}, 2 * 16 * 8, 2 * 16 * 32 * 5),
        ("QuestionAnswering", {}, 2 * 2 * 8, 2 * 16 * 32 * 2),
    ],
    ids=["texts", "number", "tokens", "answers"],
)
def test_a_classifier_trains_by_hand(measured, kind, keys, labels, forward):
    """A label of each text or token, or two of a text, and products of the classifier.

    In the step of AdamW there are weights, gradients, two states and their counts, and a temporary
    number of each; and the tokens, the labels and the numbers of 512 positions.
    """
    config = BERT | {"architectures": [f"DistilBertFor{kind}"], "dropout": 0, **keys}
    values, missing = measured(config, "float32")
    assert missing.keys() == OF_CACHE
    of_encoder = 2 * 32 * 2 * (4 * 32 * 32 + 2 * 32 * 48) + 2 * 4 * 2 * 16 * 16 * 32
    assert sum(values["flops_forward"].values()) == of_encoder + 2 * forward
    n_bytes = sum(values["parameter_bytes"].values())
    assert sum(values["gradient_bytes"].values()) == n_bytes
    of_counts = sum(values["optimizer_bytes"].values()) - 2 * n_bytes
    peak = 5 * n_bytes + of_counts + 2 * 16 * 8 + labels + 512 * 8
    assert values["peak_training_bytes"]["second.optimizer"] == peak


def test_a_class_that_reads_speech_by_hand(measured):
    """Whisper: 40 frames of 10 mel bins are 20 positions of a source; a target has 16 tokens.

    Only this trains and runs a class whose input are no tokens.
    """
    values, missing = measured(WHISPER, "float32")
    assert missing == {}
    convolutions = 40 * 3 * 10 * 32 + 20 * 3 * 32 * 32
    attention, mlp = 4 * 32 * 32, 2 * 32 * 48
    of_source = convolutions + 2 * 20 * (attention + mlp + 2 * 20 * 32 + 2 * 32 * 32)
    of_target = 16 * (2 * (2 * attention + mlp + 2 * 16 * 32 + 2 * 20 * 32 - 2 * 32 * 32) + 3200)
    assert sum(values["flops_forward"].values()) == 2 * 2 * (of_source + of_target)
    assert values["cache_bytes"] == {"cache": 2 * 2 * 2 * (16 + 20) * 32 * 4}
    sinusoids = 20 * 32 * 4  # are parameters without a gradient
    n_bytes = sum(values["parameter_bytes"].values())
    assert sum(values["gradient_bytes"].values()) == n_bytes - sinusoids
    features = 2 * 10 * 40 * 4
    assert values["peak_inference_bytes"]["setup"] == n_bytes + features + 2 * 8


REFUSED = [
    (T5, TRAINING, "ValueError: You must specify exactly one of input_ids"),
    (
        T5,
        INFERENCE,
        "ValueError: an encoder and a decoder: inference is traced of what generates text",
    ),
    (BERT, OF_STEP, "has no logits; a language model has (batch, length, n_vocab)"),
    (BERT, OF_CACHE, "DistilBertModel keeps no cache: its inference is one pass over all tokens"),
    (
        VIT,
        INFERENCE,
        "ViTForImageClassification reads pixel_values; a language model reads tokens (input_ids)",
    ),
    (VIT, OF_STEP, "ViTForImageClassification is trained by a loss ForImageClassification"),
]


@pytest.mark.parametrize(("config", "quantities", "reason"), REFUSED)
def test_a_class_that_cannot_gives_its_reason_and_is_counted(measured, config, quantities, reason):
    values, missing = measured(config, "float32")
    assert all(reason in missing[quantity] for quantity in quantities)
    is_encoder = config["model_type"] == "distilbert"
    assert missing.keys() == (OF_STEP | OF_CACHE if is_encoder else TRAINING | INFERENCE)
    assert sum(values["parameters"].values()) > 0


def test_a_reader_sees_the_reason_without_the_name_of_the_error(tmp_path):
    """Tables of classes had Python's name of an error before the message of somebody's class."""
    (tmp_path / "config.json").write_text(json.dumps(T5))
    shown = mb.model(tmp_path).predictions(["peak_training_bytes", "cache_bytes"])
    assert "T5Model was not traced: You must" in shown.missing["peak_training_bytes"]
    assert "not traced: an encoder and a decoder" in shown.missing["cache_bytes"]
    table = traced_table("T5Model", ["cache_bytes"], Failure("ValueError: no cache"))
    assert table["refusal"].to_list() == ["no cache"]
    kept = traced_table("T5Model", ["cache_bytes"], Failure("RuntimeError: no cache"))
    assert kept["refusal"].to_list() == ["RuntimeError: no cache"]


@pytest.mark.parametrize(
    ("keys", "length"),
    [({"model_type": "umt5"}, 1024), ({"model_type": "rembert"}, 512),
     ({"model_type": "rembert", "max_position_embeddings": 64}, 64)],
)  # fmt: skip
def test_the_length_where_a_file_names_no_longest_one(tmp_path, keys, length):
    """That of the class if it has learned positions; it was one token."""
    (tmp_path / "config.json").write_text(json.dumps(keys))
    assert mb.model(tmp_path).with_run()[1].length == length
