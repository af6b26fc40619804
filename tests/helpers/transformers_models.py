"""Classes of transformers that are not decoders, with the sizes of our architectures."""

import torch
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForPreTraining,
    FalconMambaConfig,
    FalconMambaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MarianConfig,
    MarianMTModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
    RwkvConfig,
    RwkvForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)


def bert(a):
    return BertForPreTraining(BertConfig(**encoder(a), type_vocab_size=a.n_segment))


def roberta(a):
    n_rows = a.n_ctx + a.position_offset
    return RobertaForMaskedLM(
        RobertaConfig(
            **encoder(a) | {"max_position_embeddings": n_rows, "type_vocab_size": a.n_segment}
        )
    )


def albert(a):
    return AlbertForPreTraining(
        AlbertConfig(
            **encoder(a),
            hidden_act="gelu",
            embedding_size=a.d_emb,
            num_hidden_groups=a.n_distinct,
            type_vocab_size=a.n_segment,
        )
    )


def encoder(a) -> dict:
    return {
        "vocab_size": a.n_vocab, "hidden_size": a.d_model, "num_hidden_layers": a.n_layer,
        "num_attention_heads": a.n_head, "intermediate_size": a.d_ff,
        "max_position_embeddings": a.n_ctx, "layer_norm_eps": 1e-5, "pad_token_id": 0,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip


def modernbert(a):
    rotary = {"rope_type": "default", "rope_theta": 10_000.0}
    return ModernBertForMaskedLM(
        ModernBertConfig(
            vocab_size=a.n_vocab, hidden_size=a.d_model, num_hidden_layers=a.n_layer,
            num_attention_heads=a.n_head, intermediate_size=a.d_ff, local_attention=a.window,
            global_attn_every_n_layers=a.global_every, pad_token_id=0,
            rope_parameters={"full_attention": rotary, "sliding_attention": rotary},
        )
    )  # fmt: skip


def t5(a):
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=a.n_vocab, d_model=a.d_model, d_kv=a.d_head, d_ff=a.d_ff,
            num_layers=a.n_encoder_layer, num_decoder_layers=a.n_decoder_layer,
            num_heads=a.n_head, relative_attention_num_buckets=a.n_bucket,
            relative_attention_max_distance=a.max_distance, dropout_rate=0.0,
            feed_forward_proj="gated-" * a.gated + a.activation,
            layer_norm_epsilon=torch.finfo(torch.float32).eps,
        )
    )  # fmt: skip


def stacks(a) -> dict:
    return {
        "vocab_size": a.n_vocab, "d_model": a.d_model, "max_position_embeddings": a.n_ctx,
        "encoder_layers": a.n_encoder_layer, "encoder_attention_heads": a.n_head,
        "encoder_ffn_dim": a.d_ff, "decoder_layers": a.n_decoder_layer,
        "decoder_attention_heads": a.n_head, "decoder_ffn_dim": a.d_ff,
        "activation_function": a.activation, "dropout": 0.0, "pad_token_id": 0,
    }  # fmt: skip


def bart(a):
    return BartForConditionalGeneration(BartConfig(**stacks(a)))


def marian(a):
    return MarianMTModel(MarianConfig(**stacks(a), scale_embedding=True))


def mamba(a):
    kind, config = MambaForCausalLM, MambaConfig
    if a.inner_norm:
        kind, config = FalconMambaForCausalLM, FalconMambaConfig
    return kind(
        config(
            vocab_size=a.n_vocab, hidden_size=a.d_model, num_hidden_layers=a.n_layer,
            state_size=a.d_state, expand=a.d_inner // a.d_model, conv_kernel=a.d_convolution,
            time_step_rank=a.d_step, tie_word_embeddings=a.tied,
            layer_norm_epsilon=torch.finfo(torch.float32).eps,
        )
    )  # fmt: skip


def mamba2(a):
    return Mamba2ForCausalLM(
        Mamba2Config(
            vocab_size=a.n_vocab, hidden_size=a.d_model, num_hidden_layers=a.n_layer,
            num_heads=a.n_head, head_dim=a.d_head, state_size=a.d_state, n_groups=a.n_group,
            expand=a.d_inner // a.d_model, conv_kernel=a.d_convolution,
            tie_word_embeddings=a.tied, chunk_size=4,
            layer_norm_epsilon=torch.finfo(torch.float32).eps,
        )
    )  # fmt: skip


def rwkv(a):
    return RwkvForCausalLM(
        RwkvConfig(
            vocab_size=a.n_vocab, hidden_size=a.d_model, num_hidden_layers=a.n_layer,
            intermediate_size=a.d_ff, tie_word_embeddings=a.tied, rescale_every=0,
        )
    )  # fmt: skip
