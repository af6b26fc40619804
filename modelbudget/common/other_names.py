"""Names of fields in other tools: Hugging Face, Megatron-LM, nanoGPT, papers.

Used to suggest the name of this project for an unknown one.
"""

from collections.abc import Mapping

from modelbudget.huggingface.classes import shared_keys

_OTHERS: Mapping[str, tuple[str, ...]] = {
    "n_vocab": ("vocabulary", "vocabulary_size", "padded_vocab_size", "num_tokens"),
    "vocab_multiple": ("make_vocab_size_divisible_by", "pad_vocab_size_multiple"),
    "d_model": ("hidden", "width", "dim", "model_dim", "embed_dim", "n_embed", "embedding_size"),
    "n_layer": ("layers", "depth", "num_blocks", "n_block", "num_decoder_layers"),
    "n_encoder_layer": ("encoder_layers", "num_encoder_layers", "encoder_num_layers"),
    "n_decoder_layer": ("decoder_layers", "num_decoder_layers", "decoder_num_layers"),
    "n_head": ("heads", "attention_heads", "nhead"),
    "n_kv_head": ("kv_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "num_query_groups",
                  "num_key_value_groups", "multi_query_group_num"),
    "d_head": ("head_size", "d_kv", "kv_channels", "size_per_head"),
    "d_ff": ("ffn_size", "mlp_size", "ff_dim", "hidden_dim", "ffn_hidden", "dim_feedforward",
             "feed_forward_size", "inner_size"),
    "n_ctx": ("context", "context_length", "block_size", "max_seq_length", "max_length",
              "max_sequence_length", "max_context_length", "seq_len"),
    "length": ("seq_length", "sequence_length", "tokens", "n_tokens", "prompt_length"),
    "batch": ("batch_size", "micro_batch_size", "global_batch_size", "n_batch", "bs"),
    "dtype": ("torch_dtype", "params_dtype", "precision", "bf16", "fp16"),
    "tied": ("tie_word_embeddings", "tie_embeddings", "tie_weights", "tied_embeddings",
             "weight_tying", "shared_embeddings", "untie_embeddings_and_output_weights"),
    "norm": ("normalization", "norm_type", "layer_norm_type"),
    "activation": ("hidden_act", "act", "act_fn", "activation_function", "hidden_activation",
                   "nonlinearity"),
    "gated": ("swiglu", "glu", "geglu", "is_gated_act", "gated_mlp", "gated_linear_unit"),
    "position": ("position_embedding_type", "pos_emb", "positional_encoding", "pe"),
    "n_expert": ("experts", "moe_num_experts"),
    "n_expert_per_token": ("top_k", "moe_router_topk", "moe_top_k", "num_selected_experts"),
    "window": ("sliding_window", "attention_window", "window_size", "local_window"),
    "mixers": ("layer_types", "attention_types", "layers_block_type"),
    "optimizer": ("optim", "optimiser"),
    "dropout": ("hidden_dropout", "attention_dropout", "resid_pdrop", "dropout_rate"),
    "recompute": ("gradient_checkpointing", "activation_checkpointing", "checkpointing",
                  "recompute_granularity"),
    "attention_kernel": ("attention", "attn_implementation", "use_flash_attn",
                         "flash_attention", "sdpa"),
    "backend": ("kernels",),
    "up_bias": ("mlp_bias", "add_bias_linear"),
    "query_bias": ("qkv_bias", "attention_bias", "add_qkv_bias"),
    "d_state": ("state_size", "ssm_state_size"),
    "parameters": ("params", "n_params", "num_parameters", "parameter_count"),
    "flops_forward": ("flops", "forward_flops"),
    "peak_training_bytes": ("peak_memory", "training_memory", "memory"),
    "cache_bytes": ("kv_cache", "kv_cache_bytes"),
    "activation_bytes": ("saved_bytes", "activation_memory"),
    "unsupported_ops": ("uncounted_calls",),
}  # fmt: skip
"""Name here → names elsewhere, without the keys of Hugging Face configs (`keys.yaml` has those)."""


def meanings(name: str) -> frozenset[str]:
    """Return the names here that a plain name may stand for, itself included."""
    return _BY_NAME.get(name, frozenset()) | {name}


def plain(name: str) -> str:
    """Remove case and punctuation from a name."""
    return "".join(filter(str.isalnum, name.casefold()))


def _by_name() -> dict[str, frozenset[str]]:
    pairs = list(shared_keys().sizes.items())
    pairs += [(other, field) for field, others in _OTHERS.items() for other in others]
    found: dict[str, set[str]] = {}
    for other, field in pairs:
        found.setdefault(plain(other), set()).add(plain(field))
    return {other: frozenset(fields) for other, fields in found.items()}


_BY_NAME = _by_name()
