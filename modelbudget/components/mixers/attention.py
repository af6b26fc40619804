"""Causal attention: query, key, value and output projections, with GQA or MQA if wanted."""

from modelbudget.components.attention.attention_backward import backward
from modelbudget.components.attention.attention_fields import CONSTRAINTS, AttentionFields
from modelbudget.components.attention.attention_flops import flops, flops_backward
from modelbudget.components.attention.attention_forward import forward
from modelbudget.components.attention.attention_parameters import matrices, parameters, tensors
from modelbudget.components.attention.attention_program import program
from modelbudget.components.attention.attention_saved import cache, saved

GROUP = "attention"
SIZES = ()
DIVIDED = ("n_head", "n_kv_head")
FUSES_GRADIENTS = True
FIELDS = AttentionFields
