"""The Llama 3 of torchtitan, traced, against our modules and `implementation: torchtitan`.

Needs a checkout of torchtitan in PYTHONPATH and the packages spmd-types and tyro. Its kernels of
expert parallelism need Triton and are replaced by a stub: Llama has no experts. Attention is
torch's, where torchtitan has FlexAttention or varlen attention.

Prints, for each run, saved bytes and the largest peak of two training steps, both divided by those
of our modules without the settings, and the largest difference of the prediction in all phases.
"""

import sys
from dataclasses import dataclass
from unittest.mock import MagicMock

import torch
from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.implementations import implementations
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import CONFIGS
from modelbudget.measurement.step.train import train
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.sweeps.derive import named_architecture

sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = MagicMock()

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (  # noqa: E402
    checkpoint_wrapper,
)
from torchtitan.components.loss import ChunkedLossWrapper  # noqa: E402
from torchtitan.models.common import Embedding, Linear, RMSNorm  # noqa: E402
from torchtitan.models.common.attention import (  # noqa: E402
    FusedQKVLinear,
    GQAttention,
    ScaledDotProductAttention,
)
from torchtitan.models.common.feed_forward import FeedForward  # noqa: E402
from torchtitan.models.common.rope import ComplexRoPE  # noqa: E402
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock  # noqa: E402

QUANTITIES = ("activation_bytes", "peak_training_bytes")
RUNS = [
    {"dtype": "bfloat16", "attention_kernel": "flash"},
    {"dtype": "bfloat16", "attention_kernel": "flash", "recompute": "full"},
    {"dtype": "float32", "attention_kernel": "efficient"},
]


class OneSequence(ScaledDotProductAttention):
    """Torchtitan's attention by torch, of (tokens, heads, channels)."""

    @dataclass(kw_only=True, slots=True)
    class Config(ScaledDotProductAttention.Config):
        pass

    def forward(self, q, k, v, **options):
        return super().forward(*(x.unsqueeze(0) for x in (q, k, v)), **options).squeeze(0)


def linear(d_in: int, d_out: int) -> Linear.Config:
    return Linear.Config(in_features=d_in, out_features=d_out)


def layer(a, length: int) -> Llama3TransformerBlock.Config:
    query, norm = a.n_head * a.d_head, RMSNorm.Config(normalized_shape=a.d_model)
    joined = linear(a.d_model, query + 2 * a.n_kv_head * a.d_head)
    heads = {"n_heads": a.n_head, "n_kv_heads": a.n_kv_head, "head_dim": a.d_head}
    attention = GQAttention.Config(
        **heads, dim=a.d_model, wo=linear(query, a.d_model), inner_attention=OneSequence.Config(),
        qkv_linear=FusedQKVLinear.Config(**heads, wqkv=joined),
        rope=ComplexRoPE.Config(dim=a.d_head, max_context_length=length),
    )  # fmt: skip
    up, down = linear(a.d_model, a.d_ff), linear(a.d_ff, a.d_model)
    mlp = FeedForward.Config(w1=up, w2=down, w3=up)
    return Llama3TransformerBlock.Config(
        attention=attention, feed_forward=mlp, attention_norm=norm, ffn_norm=norm
    )


class Step(nn.Module):
    """Model and loss as torchtitan's trainer calls them, with positions made in each pass."""

    def __init__(self, a, run: RunConfig):
        super().__init__()
        rows = {"num_embeddings": a.n_vocab, "embedding_dim": a.d_model}
        self.model = Llama3Model.Config(
            dim=a.d_model, vocab_size=a.n_vocab, enable_weight_tying=a.tied,
            tok_embeddings=Embedding.Config(**rows), lm_head=linear(a.d_model, a.n_vocab),
            norm=RMSNorm.Config(normalized_shape=a.d_model),
            layers=[layer(a, run.length) for _ in range(a.n_layer)],
        ).build()  # fmt: skip
        self.loss = ChunkedLossWrapper.Config(num_chunks=run.loss_chunks).build()
        self.loss.set_lm_head(self.model.lm_head)
        self.model._skip_lm_head = True
        if run.recompute == "full":
            for name, one in list(self.model.layers.named_children()):
                self.model.layers.register_module(name, checkpoint_wrapper(one, early_stop=False))

    def forward(self, tokens, targets):
        states = self.states(tokens.flatten())
        return self.loss(states, targets.flatten(), targets.numel())[0]

    def states(self, tokens):
        return self.model(tokens, positions=torch.arange(len(tokens), device=tokens.device))


def made(a, run: RunConfig) -> Step:
    """Build the step on meta, in the run's dtype."""
    torch.set_default_dtype(getattr(torch, run.dtype))
    try:
        with torch.device("meta"):
            return Step(a, run)
    finally:
        torch.set_default_dtype(torch.float32)


def main() -> None:
    a = named_architecture(Catalogue(CONFIGS / "models")["llama-3.2-1b"])
    settings = implementations()["torchtitan"].settings
    for given in RUNS:
        own = RunConfig.model_validate({"length": 4096, "foreach": True} | given)
        theirs = own.model_copy(update=settings)
        traced = train(made(a, theirs), theirs, set(QUANTITIES))
        print(given)
        for quantity, largest in zip(QUANTITIES, (sum, max), strict=True):
            value = largest(traced[quantity].values())
            ours = of_model(quantity, predicted(quantity, a, own))
            difference = of_model(quantity, predicted(quantity, a, theirs)) - value
            print(f"  {quantity:20} {value:16,} {value / ours:.3f} {difference:,}")
        phases = predicted("peak_training_bytes", a, theirs).items()
        found = traced["peak_training_bytes"]
        print("  phases", {name: term.total - found[name] for name, term in phases})


if __name__ == "__main__":
    main()
