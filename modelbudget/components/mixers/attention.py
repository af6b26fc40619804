"""Causal attention: query, key, value and output projections, with GQA or MQA if wanted."""

from modelbudget.components.attention.attention_fields import CONSTRAINTS, AttentionFields
from modelbudget.components.attention.attention_parameters import matrices, parameters, tensors
from modelbudget.components.attention.attention_program import program
from modelbudget.components.attention.attention_step import (
    backward,
    cache,
    flops,
    flops_backward,
    forward,
    saved,
)

GROUP = "attention"
SIZES = ()
DIVIDED = ("n_head", "n_kv_head")
FUSES_GRADIENTS = True
FIELDS = AttentionFields
