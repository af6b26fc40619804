"""Layers that were not constructed are what their constructor gives."""

import pytest
import torch
from helpers.strategies import decoders
from helpers.tiers import examples
from hypothesis import given, settings

from modelbudget.families.decoder import Decoder
from modelbudget.modules.initialise import initialise
from modelbudget.modules.layer import Layer
from modelbudget.modules.replicate import twin_of, twins


def described(module):
    return [
        (name, p.shape, p.dtype, p.device, p.requires_grad, type(p))
        for name, p in module.named_parameters()
    ]


@settings(max_examples=examples(60))
@given(a=decoders())
def test_a_twin_is_what_the_constructor_gives(a: Decoder):
    kind = a.mixers.split()[0], a.mlps.split()[0]
    layer = Layer(a, *kind)
    twin = twin_of(layer)()
    assert repr(twin) == repr(layer)
    assert described(twin) == described(Layer(a, *kind))
    initialise(layer)
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(2, 4, a.d_model)
    torch.testing.assert_close(twin(x), layer(x))


def small(n: int):
    return Decoder(
        n_vocab=5, d_model=8, n_layer=n, n_head=2, n_kv_head=2, d_head=4, d_ff=16, n_ctx=4
    )


def layers(n: int = 3):
    a = small(n)
    return twins([("attention", "mlp")] * n, lambda kind: Layer(a, *kind))


def test_a_mixer_without_a_module_is_not_left_out():
    """A new part whose module was missing was compared as a layer without it."""
    with pytest.raises(FileNotFoundError, match=r"modules/mixers/unwritten\.py"):
        Layer(small(1), "unwritten", "mlp")


def test_twins_hold_no_tensor_in_common():
    stack = layers()
    storages = {p.untyped_storage()._cdata for p in stack.parameters()}
    assert len(storages) == len(list(stack.parameters())) == 3 * len(list(stack[0].parameters()))


def test_a_hook_on_one_is_on_no_other():
    first, second, third = layers()
    called = []
    second.mlp.up.register_forward_hook(lambda *_: called.append("second"))
    for layer in (first, third):
        layer(torch.zeros(1, 2, 8))
    assert called == []
    second(torch.zeros(1, 2, 8))
    assert called == ["second"]


def test_what_is_set_on_one_is_set_on_no_other():
    first, second, _ = layers()
    second.recompute = True
    second.mlp.up.weight.requires_grad_(False)
    assert not first.recompute
    assert first.mlp.up.weight.requires_grad
