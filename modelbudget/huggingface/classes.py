"""Translation of the configs of Hugging Face's classes, as data: one entry for each class.

An entry serves both directions: from a `config.json` to the fields of a family, and back. To add a
class, add an entry; a test compares its defaults with those of the class, and checks that no key of
its config is missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Fields = Mapping[str, Any]
Choice = Mapping[Any, Fields]


@dataclass(frozen=True)
class Translation:
    """Translation between the config of one `transformers` class and a family."""

    model_type: str
    family: str
    defaults: Fields
    """Every key that can affect counts, with its default. With null (or "auto") the family derives
    the field, such as n_kv_head from n_head."""
    settled: Fields = field(default_factory=dict)
    """Fields with a fixed value in this class."""
    meaning: Mapping[str, str | Choice] = field(default_factory=dict)
    """Keys whose meaning differs from `MEANING`."""
    computed: Mapping[str, str] = field(default_factory=dict)
    """Field → expression of keys, for fields that are not simply the value of a key."""
    inverse: Mapping[str, str] = field(default_factory=dict)
    """Key → expression of fields, for the keys that `computed` uses."""
    requires: tuple[str, ...] = ()
    """Expressions of keys that must be true; otherwise there is no formula."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings → key; dots lead into nested keys."""
    mixers: str = ""
    """Layer pattern of a class with sliding windows, if `layer_types` is missing and
    `sliding_window` is not null."""
    ignored: tuple[str, ...] = ()
    """Keys of this class that do not affect counts, in addition to `IGNORED`."""
    besides: Callable[[Any], Fields] = lambda a: {}
    """Further keys that a config needs, depending on the record."""
    left_out: tuple[str, str] | None = None
    """Number of parameters of the model that the class lacks (negative: has in addition), as an
    expression of fields, and the reason."""


def _switch(*fields: str) -> Choice:
    return {value: dict.fromkeys(fields, value) for value in (False, True)}


def _only(value: Any) -> Choice:
    """Allow only one value of a key, since there is no formula for others."""
    return {value: {}}


def _yes(*fields: str) -> Fields:
    return dict.fromkeys(fields, True)


QKV = ("query_bias", "key_bias", "value_bias")
QKVO = (*QKV, "output_bias")
UP_DOWN = ("up_bias", "down_bias")
LAYER_NORM = {"norm": "layernorm", "norm_bias": True}
ACTIVATION: Choice = {
    "silu": {"activation": "silu"},
    "swish": {"activation": "silu"},
    "gelu": {"activation": "gelu"},
    "gelu_new": {"activation": "gelu"},
    "gelu_fast": {"activation": "gelu"},
    "gelu_pytorch_tanh": {"activation": "gelu"},
    "relu": {"activation": "relu"},
}

MEANING: Mapping[str, str | Choice] = {
    "vocab_size": "n_vocab",
    "hidden_size": "d_model",
    "d_model": "d_model",
    "n_embd": "d_model",
    "intermediate_size": "d_ff",
    "ffn_dim": "d_ff",
    "ffn_hidden_size": "d_ff",
    "n_inner": "d_ff",
    "dff": "d_ff",
    "d_ff": "d_ff",
    "num_hidden_layers": "n_layer",
    "num_layers": "n_layer",
    "n_layer": "n_layer",
    "n_layers": "n_layer",
    "num_attention_heads": "n_head",
    "num_heads": "n_head",
    "n_head": "n_head",
    "n_heads": "n_head",
    "num_key_value_heads": "n_kv_head",
    "head_dim": "d_head",
    "max_position_embeddings": "n_ctx",
    "n_positions": "n_ctx",
    "max_seq_len": "n_ctx",
    "num_local_experts": "n_expert",
    "num_experts": "n_expert",
    "n_routed_experts": "n_expert",
    "num_experts_per_tok": "n_expert_per_token",
    "moe_intermediate_size": "d_expert",
    "shared_expert_intermediate_size": "d_shared",
    "first_k_dense_replace": "n_dense_layer",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "d_nope",
    "qk_rope_head_dim": "d_rope",
    "v_head_dim": "d_value",
    "rotary_dim": "d_rotary",
    "time_step_rank": "d_step",
    "type_vocab_size": "n_segment",
    "position_embedding_type": _only("absolute"),
    "add_cross_attention": _only(False),
    "tie_word_embeddings": _switch("tied"),
    "hidden_act": ACTIVATION,
    "hidden_activation": ACTIVATION,
    "activation_function": ACTIVATION,
    "activation": ACTIVATION,
    "afn": ACTIVATION,
    "attention_bias": _switch(*QKVO),
    "mlp_bias": _switch(*UP_DOWN),
    "use_qkv_bias": _switch(*QKV),
    "qkv_bias": _switch(*QKV),
    "bias": _switch(*QKVO, *UP_DOWN),
    "enable_bias": _switch(*QKVO, *UP_DOWN),
    "use_bias": _switch(*QKVO, *UP_DOWN, "norm_bias"),
    "decoder_sparse_step": {
        1: {"mlps": "experts"},
        2: {"mlps": "mlp experts"},
        3: {"mlps": "mlp mlp experts"},
        4: {"mlps": "mlp mlp mlp experts"},
    },
}
"""Key → field, or key → value → fields: the common meaning of keys in all classes."""

IGNORED = (
    # computation and initialisation
    r"\w*dropout\w*", r"\w*drop(_rate)?", r"layerdrop", r"\w*_eps(ilon)?", r"initializer_\w+",
    r"init_(std|device|method\w*)", r"rope_\w+", r"rotary_(emb_base|pct)", r"layer_types",
    r"\w*sliding_window\w*", r"max_window_layers", r"local_attention", r"global_(attn|rope)\w*",
    r"local_rope_theta", r"\w*softcap\w*", r"query_pre_attn_scalar", r"\w*logits?_scal\w+",
    r"\w*_jitter_noise", r"\w*router_aux\w*", r"norm_topk_prob", r"routed_scaling_factor",
    r"scoring_func", r"topk_(group|method)", r"n_group", r"seq_aux", r"aux_loss_alpha", r"ep_size",
    r"clip_qkv", r"scale_attn\w*", r"reorder_and_upcast_attn", r"\w*bidirectional_attention",
    r"is_decoder", r"is_encoder_decoder", r"original_max_position_embeddings", r"head_dim_scale",
    # tokens, dtype, versions, private keys
    r"\w*token_(id|index)\w*", r"torch_dtype", r"dtype", r"\w*transformers_version", r"_\w+",
    r"use_\w*cache", r"cache_\w+", r"return_dict\w*", r"output_\w+", r"id2label", r"label2id",
    r"num_labels", r"problem_type", r"task_specific_params", r"summary_\w+",
    r"pretraining_tp",
    r"gradient_checkpointing", r"quantization_config", r"finetuning_task", r"tokenizer_class",
    r"prefix", r"auto_map", r"trust_remote_code", r"tie_encoder_decoder",
    r"chunk_size_feed_forward",
    r"(do_sample|early_stopping|num_beams|max_length|min_length|temperature|top_[kp]|\w+_penalty)",
)  # fmt: skip
"""Regular expressions of keys that do not affect counts in any class."""

_GPT = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_ROTARY = {
    "computed": {
        "d_rotary": "floor(partial_rotary_factor"
        " * (head_dim or hidden_size / num_attention_heads))",
    },
    "inverse": {"partial_rotary_factor": "(d_rotary or d_head) / d_head"},
    "aliases": {
        "rope_parameters.partial_rotary_factor": "partial_rotary_factor",
        "rotary_pct": "partial_rotary_factor",
    },
}
_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_LLAMA_WITHOUT_HEADS = {
    key: value for key, value in _LLAMA.items() if key not in ("num_key_value_heads", "head_dim")
}
_LLAMA_LIKE = {"position": "rotary", "norm": "rmsnorm", "gated": True}
_GEMMA = {k: v for k, v in _LLAMA.items() if k != "hidden_act"} | {
    "vocab_size": 256000,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
_SMALL_GEMMA = _GEMMA | {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
    "layer_types": None,
}
_LATENT = {
    "settled": {**_LLAMA_LIKE, "mixers": "latent", "mlps": "experts"},
    "computed": {
        "q_lora_rank": "q_lora_rank or 0",
        "d_shared": "n_shared_experts * moe_intermediate_size",
    },
    "inverse": {"n_shared_experts": "d_shared / d_expert", "q_lora_rank": "q_lora_rank or None"},
    "ignored": ("num_key_value_heads", "head_dim", "qk_head_dim", r"num_(nextn_predict|mtp)\w+"),
}

_BERT = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_SECOND_BIAS = ("(tied - 1) * n_vocab", "untied, the class holds the head's bias twice")
_BERT_LIKE = LAYER_NORM | _yes(*UP_DOWN, "head_bias")
_SCAN = {
    "state_size": "d_state",
    "conv_kernel": "d_convolution",
    "use_bias": _only(False),
    "use_conv_bias": _only(True),
}
_MAMBA = {
    "vocab_size": 50280,
    "hidden_size": 768,
    "num_hidden_layers": 32,
    "state_size": 16,
    "expand": 2,
    "conv_kernel": 4,
    "time_step_rank": "auto",
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": True,
}
_MAMBA_LIKE = {
    "meaning": _SCAN,
    "computed": {"d_inner": "expand * hidden_size"},
    "inverse": {"expand": "d_inner / d_model"},
    "ignored": (
        "intermediate_size",
        r"time_step_(scale|min|max|init_scheme|floor)",
        "residual_in_fp32",
        "rescale_prenorm_residual",
        "use_mambapy",
        "use_associative_scan",
        "hidden_act",
        "d_model",
        "d_inner",
        "n_layer",
        "fused_add_norm",
        "rms_norm",
        "ssm_cfg",
        "pad_vocab_size_multiple",
        "use_falcon_mambapy",
    ),
}

TRANSLATIONS: Mapping[str, Translation] = {
    "OpenAIGPTLMHeadModel": Translation(
        "openai-gpt",
        "decoder",
        {
            "vocab_size": 40478,
            "n_positions": 512,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "afn": "gelu",
            "tie_word_embeddings": True,
        },
        LAYER_NORM
        | _yes(*QKVO, *UP_DOWN)
        | {"position": "learned", "norm_placement": "post", "final_norm": False},
        {"afn": {name: ACTIVATION[name] for name in ("gelu", "relu", "silu", "swish")}},
        aliases=_GPT,
    ),
    "GPT2LMHeadModel": Translation(
        "gpt2",
        "decoder",
        {
            "vocab_size": 50257,
            "n_positions": 1024,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_inner": None,
            "activation_function": "gelu_new",
            "add_cross_attention": False,
            "tie_word_embeddings": True,
        },
        LAYER_NORM | _yes(*QKVO, *UP_DOWN) | {"position": "learned"},
        aliases=_GPT,
        ignored=("n_ctx",),
    ),
    "GPTJForCausalLM": Translation(
        "gptj",
        "decoder",
        {
            "vocab_size": 50400,
            "n_positions": 2048,
            "n_embd": 4096,
            "n_layer": 28,
            "n_head": 16,
            "n_inner": None,
            "rotary_dim": 64,
            "activation_function": "gelu_new",
            "tie_word_embeddings": False,
        },
        LAYER_NORM | _yes(*UP_DOWN, "head_bias", "parallel") | {"position": "rotary"},
        aliases=_GPT,
        ignored=("rotary",),
    ),
    "GPTNeoForCausalLM": Translation(
        "gpt_neo",
        "decoder",
        {
            "vocab_size": 50257,
            "max_position_embeddings": 2048,
            "hidden_size": 2048,
            "num_layers": 24,
            "num_heads": 16,
            "intermediate_size": None,
            "activation_function": "gelu_new",
            "tie_word_embeddings": True,
        },
        LAYER_NORM | _yes("output_bias", *UP_DOWN) | {"position": "learned"},
        aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
        ignored=("attention_types", "attention_layers", "window_size"),
        besides=lambda a: {"attention_types": [[["global"], a.n_layer]]},
    ),
    "GPTNeoXForCausalLM": Translation(
        "gpt_neox",
        "decoder",
        {
            "vocab_size": 50432,
            "hidden_size": 6144,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "intermediate_size": 24576,
            "max_position_embeddings": 2048,
            "hidden_act": "gelu",
            "use_parallel_residual": True,
            "attention_bias": True,
            "partial_rotary_factor": 0.25,
            "tie_word_embeddings": False,
        },
        LAYER_NORM | _yes(*UP_DOWN) | {"position": "rotary", "shared_norm": False},
        {"use_parallel_residual": _switch("parallel")},
        **_ROTARY,
    ),
    "OPTForCausalLM": Translation(
        "opt",
        "decoder",
        {
            "vocab_size": 50272,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "ffn_dim": 3072,
            "max_position_embeddings": 2048,
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "word_embed_proj_dim": None,
            "activation_function": "relu",
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "tie_word_embeddings": True,
        },
        {"position": "learned", "position_offset": 2, "norm": "layernorm"},
        {
            "do_layer_norm_before": {
                True: {"norm_placement": "pre"},
                False: {"norm_placement": "post"},
            },
            "layer_norm_elementwise_affine": _switch("norm_scale", "norm_bias"),
        },
        computed={
            "d_emb": "((word_embed_proj_dim or hidden_size) != hidden_size)"
            " * (word_embed_proj_dim or 0)",
            "final_norm": "do_layer_norm_before and not _remove_final_layer_norm",
        },
        inverse={
            "word_embed_proj_dim": "d_emb or d_model",
            "_remove_final_layer_norm": "not final_norm",
        },
    ),
    "BloomForCausalLM": Translation(
        "bloom",
        "decoder",
        {
            "vocab_size": 250880,
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 8,
            "tie_word_embeddings": True,
        },
        LAYER_NORM
        | _yes(*QKVO, *UP_DOWN, "embedding_norm")
        | {"position": "alibi", "activation": "gelu"},
        aliases={
            "n_embed": "hidden_size",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
        },
        ignored=(
            "apply_residual_connection_post_layernorm", "slow_but_exact", "skip_bias_\\w+",
            "masked_softmax_fusion", "bias_dropout_fusion", "seq_length", "unk_token_id",
            "attention_softmax_in_fp32", "offset_alibi",
        ),
    ),
    "CTRLLMHeadModel": Translation(
        "ctrl",
        "decoder",
        {
            "vocab_size": 246534,
            "n_positions": 256,
            "n_embd": 1280,
            "dff": 8192,
            "n_layer": 48,
            "n_head": 16,
            "tie_word_embeddings": True,
        },
        LAYER_NORM
        | _yes(*QKVO, *UP_DOWN, "head_bias")
        | {"position": "sinusoidal", "activation": "relu"},
        aliases=_GPT,
        ignored=("n_ctx", "from_tf", "num_labels"),
    ),
    "LlamaForCausalLM": Translation(
        "llama", "decoder", _LLAMA | {"attention_bias": False, "mlp_bias": False}, _LLAMA_LIKE
    ),
    "MistralForCausalLM": Translation(
        "mistral",
        "decoder",
        _LLAMA
        | {
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        _LLAMA_LIKE,
        mixers="local",
    ),
    "MixtralForCausalLM": Translation(
        "mixtral",
        "decoder",
        _LLAMA
        | {
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        {**_LLAMA_LIKE, "mlps": "experts"},
        {"intermediate_size": "d_expert"},
        aliases={"num_experts": "num_local_experts"},
    ),
    "FalconForCausalLM": Translation(
        "falcon",
        "decoder",
        {
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "num_kv_heads": None,
            "ffn_hidden_size": None,
            "max_position_embeddings": 2048,
            "num_ln_in_parallel_attn": None,
            "new_decoder_architecture": False,
            "multi_query": True,
            "parallel_attn": True,
            "alibi": False,
            "bias": False,
            "activation": "gelu",
            "tie_word_embeddings": True,
        },
        LAYER_NORM,
        {
            "alibi": {False: {"position": "rotary"}, True: {"position": "alibi"}},
            "parallel_attn": _switch("parallel"),
        },
        computed={
            "n_kv_head": "(multi_query and not new_decoder_architecture and 1)"
            " or (new_decoder_architecture and num_kv_heads) or num_attention_heads",
            "shared_norm": "(num_ln_in_parallel_attn or 1 + new_decoder_architecture) != 2",
        },
        inverse={
            "new_decoder_architecture": "1 < n_kv_head and n_kv_head < n_head",
            "multi_query": "n_kv_head == 1",
            "num_kv_heads": "n_kv_head",
            "num_ln_in_parallel_attn": "2 - shared_norm",
        },
        requires=("parallel_attn or not new_decoder_architecture",),
        aliases={"n_embed": "hidden_size"},
    ),
    "MptForCausalLM": Translation(
        "mpt",
        "decoder",
        {
            "vocab_size": 50368,
            "d_model": 2048,
            "n_heads": 16,
            "n_layers": 24,
            "expansion_ratio": 4,
            "max_seq_len": 2048,
            "no_bias": True,
            "attn_config.alibi": True,
            "attn_config.qk_ln": False,
            "attn_config.attn_type": "multihead_attention",
            "tie_word_embeddings": True,
        },
        {"position": "alibi", "norm": "layernorm", "activation": "gelu"},
        {
            "no_bias": _only(True),
            "expansion_ratio": _only(4),  # the class takes 4 whatever it says
            "attn_config.alibi": _only(True),
            "attn_config.qk_ln": _only(False),
            "attn_config.attn_type": _only("multihead_attention"),
        },
        aliases={
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
        ignored=("attn_config", "learned_pos_emb", "norm_type", "embedding_fraction", "verbose"),
    ),
    "GemmaForCausalLM": Translation(
        "gemma",
        "decoder",
        _GEMMA
        | {
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "max_position_embeddings": 8192,
            "hidden_act": "gelu_pytorch_tanh",
        },
        _LLAMA_LIKE,
        ignored=("hidden_activation",),
    ),
    "Gemma2ForCausalLM": Translation(
        "gemma2", "decoder", _SMALL_GEMMA, {**_LLAMA_LIKE, "norm_placement": "both"},
        mixers="local attention", ignored=("hidden_act",),
    ),
    "Gemma3ForCausalLM": Translation(
        "gemma3_text",
        "decoder",
        _SMALL_GEMMA | {"vocab_size": 262208, "max_position_embeddings": 131072},
        {**_LLAMA_LIKE, "norm_placement": "both", "qk_norm": "shared"},
        mixers="local local local local local attention",
    ),
    "Qwen2ForCausalLM": Translation(
        "qwen2",
        "decoder",
        _LLAMA
        | {
            "vocab_size": 151936,
            "intermediate_size": 22016,
            "num_key_value_heads": 32,
            "max_position_embeddings": 32768,
        },
        {**_LLAMA_LIKE, **_yes(*QKV)},
        ignored=("use_mrope",),
    ),
    "Qwen2MoeForCausalLM": Translation(
        "qwen2_moe",
        "decoder",
        _LLAMA
        | {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "max_position_embeddings": 32768,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
            "qkv_bias": True,
        },
        {**_LLAMA_LIKE, "shared_gate": True},
        {"mlp_only_layers": _only(None) | _only(())},
    ),
    "Qwen3ForCausalLM": Translation(
        "qwen3",
        "decoder",
        _LLAMA
        | {
            "vocab_size": 151936,
            "intermediate_size": 22016,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "attention_bias": False,
        },
        {**_LLAMA_LIKE, "qk_norm": "shared"},
    ),
    "Qwen3MoeForCausalLM": Translation(
        "qwen3_moe",
        "decoder",
        _LLAMA
        | {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "num_local_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
            "attention_bias": False,
        },
        {**_LLAMA_LIKE, "qk_norm": "shared"},
        {"mlp_only_layers": _only(None) | _only(())},
        aliases={"num_experts": "num_local_experts"},
    ),
    "DeepseekV2ForCausalLM": Translation(
        "deepseek_v2",
        "decoder",
        _LLAMA_WITHOUT_HEADS
        | {
            "vocab_size": 102400,
            "moe_intermediate_size": 1407,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": None,
            "first_k_dense_replace": 0,
            "moe_layer_freq": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "attention_bias": False,
            "mlp_bias": False,
        },
        meaning={
            "moe_layer_freq": _only(1),
            "attention_bias": _only(False),
            "mlp_bias": _only(False),
        },
        **_LATENT,
    ),
    "DeepseekV3ForCausalLM": Translation(
        "deepseek_v3",
        "decoder",
        _LLAMA_WITHOUT_HEADS
        | {
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "max_position_embeddings": 4096,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "moe_layer_freq": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "attention_bias": False,
        },
        meaning={"moe_layer_freq": _only(1), "attention_bias": _only(False)},
        left_out=(
            "n_expert * (n_layer - n_dense_layer)",
            "the router's bias is a buffer there, not a parameter",
        ),
        **_LATENT | {"settled": _LATENT["settled"] | {"router_bias": "selection"}},
    ),
    "PhiForCausalLM": Translation(
        "phi",
        "decoder",
        _LLAMA
        | {
            "vocab_size": 51200,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "hidden_act": "gelu_new",
            "qk_layernorm": False,
            "partial_rotary_factor": 0.5,
        },
        LAYER_NORM | _yes(*QKVO, *UP_DOWN, "head_bias", "parallel") | {"position": "rotary"},
        {"qk_layernorm": _only(False)},
        **_ROTARY,
    ),
    "Phi3ForCausalLM": Translation(
        "phi3",
        "decoder",
        _LLAMA
        | {
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "partial_rotary_factor": 1.0,
        },
        _LLAMA_LIKE,
        ignored=("attention_bias",),
        **_ROTARY,
    ),
    "OlmoForCausalLM": Translation(
        "olmo",
        "decoder",
        _LLAMA | {"vocab_size": 50304, "attention_bias": False},
        {"position": "rotary", "norm": "layernorm", "norm_scale": False, "gated": True},
    ),
    "Olmo2ForCausalLM": Translation(
        "olmo2",
        "decoder",
        _LLAMA | {"vocab_size": 50304, "attention_bias": False},
        {**_LLAMA_LIKE, "norm_placement": "output", "qk_norm": "joint"},
    ),
    "OlmoeForCausalLM": Translation(
        "olmoe",
        "decoder",
        _LLAMA
        | {
            "vocab_size": 50304,
            "hidden_size": 2048,
            "intermediate_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "max_position_embeddings": 4096,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "attention_bias": False,
        },
        {**_LLAMA_LIKE, "mlps": "experts", "qk_norm": "joint"},
        {"intermediate_size": "d_expert"},
        requires=("not head_dim or head_dim * num_attention_heads == hidden_size",),
        aliases={"num_local_experts": "num_experts"},
    ),
    "StableLmForCausalLM": Translation(
        "stablelm",
        "decoder",
        {key: value for key, value in _LLAMA.items() if key != "head_dim"}
        | {
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "use_qkv_bias": False,
            "qk_layernorm": False,
            "use_parallel_residual": False,
            "partial_rotary_factor": 0.25,
        },
        LAYER_NORM | {"position": "rotary", "gated": True},
        {
            "qk_layernorm": {False: {"qk_norm": "none"}, True: {"qk_norm": "separate"}},
            "use_parallel_residual": _switch("parallel"),
        },
        **_ROTARY,
    ),
    "GptOssForCausalLM": Translation(
        "gpt_oss",
        "decoder",
        _LLAMA
        | {
            "vocab_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "attention_bias": True,
            "sliding_window": 128,
            "layer_types": None,
        },
        {**_LLAMA_LIKE, **_yes("sinks", *UP_DOWN), "mlps": "experts", "router_bias": "logit"},
        {"intermediate_size": "d_expert"},
        aliases={"num_experts": "num_local_experts"},
        mixers="local attention",
        ignored=("swiglu_\\w+", "experts_per_token", "initial_context_length"),
    ),
    "CohereForCausalLM": Translation(
        "cohere",
        "decoder",
        _LLAMA
        | {
            "vocab_size": 256000,
            "hidden_size": 8192,
            "intermediate_size": 22528,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "max_position_embeddings": 8192,
            "use_qk_norm": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
        {"position": "rotary", "norm": "layernorm", "gated": True, "parallel": True},
        {"use_qk_norm": {False: {"qk_norm": "none"}, True: {"qk_norm": "separate"}}},
    ),
    "BertForPreTraining": Translation(
        "bert",
        "encoder",
        _BERT,
        {**_BERT_LIKE, **_yes("pooler", "next_sentence")},
        left_out=_SECOND_BIAS,
    ),
    "BertForMaskedLM": Translation("bert", "encoder", _BERT, _BERT_LIKE, left_out=_SECOND_BIAS),
    "RobertaForMaskedLM": Translation(
        "roberta",
        "encoder",
        _BERT | {"vocab_size": 50265},
        {**_BERT_LIKE, "position_offset": 2},
        # Positions start after the row of padding, and the config gives the number of rows.
        computed={"n_ctx": "max_position_embeddings - 2"},
        inverse={"max_position_embeddings": "n_ctx + 2"},
        left_out=_SECOND_BIAS,
    ),
    "AlbertForPreTraining": Translation(
        "albert",
        "encoder",
        _BERT
        | {
            "vocab_size": 30000,
            "embedding_size": 128,
            "hidden_size": 4096,
            "num_attention_heads": 64,
            "intermediate_size": 16384,
            "num_hidden_groups": 1,
            "inner_group_num": 1,
            "hidden_act": "gelu_new",
        },
        {**_BERT_LIKE, **_yes("pooler", "next_sentence")},
        {
            "embedding_size": "d_emb",
            "num_hidden_groups": "n_distinct",
            "inner_group_num": _only(1),
        },
        left_out=_SECOND_BIAS,
        ignored=("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"),
    ),
    "ModernBertForMaskedLM": Translation(
        "modernbert",
        "encoder",
        {
            "vocab_size": 50368,
            "hidden_size": 768,
            "intermediate_size": 1152,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "max_position_embeddings": 8192,
            "hidden_activation": "gelu",
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
            "decoder_bias": True,
            "tie_word_embeddings": True,
        },
        {
            "position": "rotary",
            "norm": "layernorm",
            "gated": True,
            "norm_placement": "pre",
            "first_norm": False,
            "final_norm": True,
            "transform_bias": False,
        },
        {
            "norm_bias": _switch("norm_bias"),
            "attention_bias": _switch("attention_bias"),
            "mlp_bias": _switch(*UP_DOWN),
            "decoder_bias": _switch("head_bias"),
        },
        ignored=(
            "initializer_cutoff_factor", "classifier_\\w+", "sparse_pred\\w+", "reference_compile",
            "repad_logits_with_grad", "deterministic_flash_attn", "position_embedding_type",
        ),
    ),
    "T5ForConditionalGeneration": Translation(
        "t5",
        "encoder-decoder",
        {
            "vocab_size": 32128,
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 2048,
            "num_layers": 6,
            "num_decoder_layers": None,
            "num_heads": 8,
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
            "feed_forward_proj": "relu",
            "tie_word_embeddings": True,
        },
        {
            "position": "buckets",
            "norm": "rmsnorm",
            "norm_placement": "pre",
            "final_norm": True,
            "attention_bias": False,
        },
        {
            "d_kv": "d_head",
            "num_layers": "n_encoder_layer",
            "relative_attention_num_buckets": "n_bucket",
            "relative_attention_max_distance": "max_distance",
            "feed_forward_proj": {
                "relu": {"gated": False, "activation": "relu"},
                "gated-gelu": {"gated": True, "activation": "gelu"},
                "gated-silu": {"gated": True, "activation": "silu"},
                "gelu": {"gated": False, "activation": "gelu"},
            },
        },
        computed={"n_decoder_layer": "num_decoder_layers or num_layers"},
        inverse={"num_decoder_layers": "n_decoder_layer"},
        aliases={
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "head_dim": "d_kv",
        },
        ignored=(
            "dense_act_fn", "is_gated_act", "scale_decoder_outputs", "initializer_factor",
            "n_positions",
        ),
        left_out=(
            "(1 - tied) * n_vocab * d_model",
            "the class ties the head whatever the config says",
        ),
    ),
    "MambaForCausalLM": Translation(
        "mamba", "selective-scan", _MAMBA, {"norm": "rmsnorm"}, **_MAMBA_LIKE
    ),
    "FalconMambaForCausalLM": Translation(
        "falcon_mamba",
        "selective-scan",
        _MAMBA,
        {"norm": "rmsnorm", "inner_norm": True},
        **_MAMBA_LIKE,
    ),
    "Mamba2ForCausalLM": Translation(
        "mamba2",
        "state-space-dual",
        {
            "vocab_size": 32768,
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "num_heads": 128,
            "head_dim": 64,
            "state_size": 128,
            "expand": 2,
            "conv_kernel": 4,
            "n_groups": 8,
            "use_bias": False,
            "use_conv_bias": True,
            "tie_word_embeddings": False,
        },
        {"norm": "rmsnorm"},
        _SCAN | {"n_groups": "n_group"},
        computed={"d_inner": "expand * hidden_size"},
        inverse={"expand": "d_inner / d_model"},
        ignored=("time_step_\\w+", "residual_in_fp32", "rescale_prenorm_residual", "chunk_size",
                 "hidden_act", "rms_norm", "norm_before_gate"),
    ),
    "RwkvForCausalLM": Translation(
        "rwkv",
        "rwkv",
        {
            "vocab_size": 50277,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "attention_hidden_size": None,
            "intermediate_size": None,
            "tie_word_embeddings": False,
        },
        LAYER_NORM,
        requires=("(attention_hidden_size or hidden_size) == hidden_size",),
        ignored=("context_length", "max_position_embeddings", "rescale_every"),
    ),
}  # fmt: skip
"""Every class with a formula, by its name in transformers."""
