"""Named decoders against the classes of Hugging Face transformers, built on the meta device."""

import pytest
import torch
import transformers
from helpers.catalogue import CATALOGUE
from helpers.transformers_decoders import config

from modelbudget.architecture.terms import total
from modelbudget.modules.initialise import uninitialised
from modelbudget.sweeps.derive import named_architecture

BASES = [
    base
    for base in CATALOGUE.bases.values()
    if base.family.name() == "decoder" and base.model
    if base.model.transformers or base.model.stand_in
]


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_equal_to_the_class(base):
    a = named_architecture(base)
    name = base.model.transformers or base.model.stand_in
    with torch.device("meta"), uninitialised():
        kind = name.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
        model = getattr(transformers, name)(config(kind, a))
    # The biases that select experts are parameters here and in ERNIE 4.5, buffers in the others.
    names = ("correction_bias", "expert_bias")
    biases = sum(b.numel() for name, b in model.named_buffers() if name.endswith(names))
    assert total(a.parameters(a)) == count(model) + biases
