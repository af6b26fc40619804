"""Parts of Megatron-Core, traced within our modules, against `implementation: megatron`.

Needs a checkout of Megatron-LM in PYTHONPATH. Its vocabulary cross-entropy takes the place of our
loss, and its SwiGLU that of our fused gate. Its transformer layers need CUDA and Transformer Engine
and are not run; Triton, which these parts do not use, is replaced by a stub. Uncompiled, its SwiGLU
allocates temporary tensors that its compiled kernel does not have: only what it saves is compared.

Prints, for each run, saved bytes and the largest peak of two training steps, both divided by those
of our modules without the settings, and the difference of the prediction in all phases.
"""

import sys
from contextlib import contextmanager
from unittest.mock import MagicMock, patch

import torch

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.implementations import implementations
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import CONFIGS
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel.fake_process_group import fake_process_group
from modelbudget.measurement.step.train import train
from modelbudget.modules import in_place_loss
from modelbudget.modules.feed_forward import mlp
from modelbudget.modules.initialise import uninitialised
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.sweeps.derive import named_architecture

sys.modules |= {name: MagicMock(__version__="3.4.0") for name in ("triton", "triton.language")}

with patch.object(torch, "compile", lambda function, **_: function):
    from megatron.core.fusions.fused_bias_swiglu import bias_swiglu_impl
    from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy

QUANTITIES = ("activation_bytes", "peak_training_bytes")
MODELS = {"llama-3.2-1b": "LlamaForCausalLM", "gpt-2-124m": "GPT2LMHeadModel"}
RUN = {"length": 4096, "attention_kernel": "flash", "dtype": "bfloat16", "foreach": True}
OWN = {"gpt-2-124m": {"length": 1024, "batch": 4}}
PRECISIONS = [{}, {"master_weights": True, "gradient_casts": "accumulated"}]


def cross_entropy(logits, targets, _copies):
    group = torch.distributed.group.WORLD
    losses = vocab_parallel_cross_entropy(logits.flatten(0, 1), targets.flatten(), 0.0, group)
    return losses.mean()


def swiglu(gate_and_up, _activation):
    return bias_swiglu_impl(gate_and_up, None)


@contextmanager
def megatron_parts(gates: bool):
    """Replace the loss, and the fused gate if `gates`, by those of Megatron-Core."""
    gate = swiglu if gates else mlp.fused_gate
    with (
        patch.object(in_place_loss, "loss_of", cross_entropy),
        patch.object(mlp, "fused_gate", gate),
        fake_process_group(0, 1),
    ):
        yield


def traced(a, run: RunConfig) -> dict:
    with uninitialised():
        model = build(a, "meta", run.dtype)
    return train(model, run, set(QUANTITIES))


def main() -> None:
    catalogue, megatron = Catalogue(CONFIGS / "models"), implementations()["megatron"]
    for name, kind in MODELS.items():
        a = named_architecture(catalogue[name])
        for precision in PRECISIONS:
            own = RunConfig.model_validate(RUN | OWN.get(name, {}) | precision)
            run = own.model_copy(update=megatron.of_class(kind))
            saved, peak = QUANTITIES
            with megatron_parts(gates=True):
                value = sum(traced(a, run)[saved].values())
            with megatron_parts(gates=False):
                found = traced(a, run)[peak]
            print(name, precision)
            for quantity, theirs in ((saved, value), (peak, max(found.values()))):
                ours, expected = (
                    of_model(quantity, predicted(quantity, a, one)) for one in (own, run)
                )
                print(f"  {quantity:20} {theirs:16,} {theirs / ours:.3f} {expected - theirs:,}")
            phases = predicted(peak, a, run).items()
            print("  phases", {phase: term.total - found[phase] for phase, term in phases})


if __name__ == "__main__":
    main()
