"""How an implementation computes: fused or written out, held or freed, in which dtype."""

from typing import Any, ClassVar, Literal

from modelbudget.architecture.constraint import Check
from modelbudget.architecture.record import Count, Record
from modelbudget.architecture.run_rules import rules
from modelbudget.common.files import yaml_files
from modelbudget.common.paths import CONFIGS

IMPLEMENTATIONS = {path.stem: path for path in yaml_files(CONFIGS / "implementations")}
"""Files of implementations, by name (`modelbudget/catalogue/implementations.py`)."""

Implementation: Any = Literal[*IMPLEMENTATIONS]


class HowComputed(Record):
    """Settings that an `implementation` sets; each can be set alone."""

    softmax_dtype: Literal["float32", "dtype"] = "float32"
    mask_argument: Literal["held", "saved"] = "held"
    score_cap: Literal["none", "tanh"] = "none"
    logit_cap: Literal["none", "tanh"] = "none"
    implementation: Implementation = "modelbudget"  # pyright: ignore[reportInvalidTypeForm]
    norm_kernel: Literal["fused", "written_out", "written_out_exact", "written_out_wide"] = "fused"
    activation_kernel: Literal["fused", "written_out", "written_out_factored", "fused_gate"] = (
        "fused"
    )
    projections: Literal["separate", "packed", "copied", "sliced"] = "separate"
    gate_and_up: Literal["separate", "packed"] = "separate"
    expert_kernel: Literal["scattered", "gathered"] = "scattered"
    rope_tables: Literal["layer", "model", "complex"] = "layer"
    rope_layout: Literal["token", "head"] = "token"
    rope_dtype: Literal["dtype", "float32"] = "dtype"
    embedding_scale: Literal["none", "buffer"] = "none"
    embeddings: Literal["freed", "held"] = "freed"
    loss_dtype: Literal["logits", "float32"] = "logits"
    loss_kernel: Literal["torch", "in_place", "fused_linear"] = "torch"
    gradient_accumulation_fusion: bool = False
    gathered_states: Literal["saved", "again"] = "saved"
    embedding_gradient: Literal["whole", "own_rows"] = "whole"
    state_dtype: Literal["dtype", "float32"] = "dtype"
    targets: Literal["given", "shifted"] = "given"
    outputs: Literal["freed", "kept"] = "freed"
    loss_chunks: Count = 1

    constraints: ClassVar[tuple[Check, ...]] = (*rules("implementation"),)
