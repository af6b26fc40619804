"""Norms against torch's kernels, and those written out against the replacements of measurements."""

import pytest
from helpers.one_operation import FLOATS, LAYOUTS, META, Case, differences
from torch.nn import functional as F

from modelbudget.measurement import backend
from modelbudget.operations import norms as ops


def layer_norm(x, *affine):
    return F.layer_norm(x, x.shape[-1:], *affine)


def layer_norm_program(x, weight=None, bias=None):
    return ops.layer_norm(x, 1, weight, bias)


def rms(function):
    return lambda x, *weight: function(x, x.shape[-1:], *weight)


def rms_program(function):
    return lambda x, weight=None: function(x, 1, weight)


WRITTEN_OUT = rms(backend.rms_norm_written_out), rms_program(ops.rms_norm_written_out)
EXACT = rms(backend.rms_norm_exact), rms_program(ops.rms_norm_written_out_exact)

CASES = [
    *(
        Case(
            f"layer_norm of {shapes} on {devices[0]}",
            layer_norm,
            layer_norm_program,
            shapes,
            dtypes=dtypes,
            devices=devices,
            layouts=layouts,
        )
        for shapes in ("abc", "abc c", "abc c c")
        for devices, dtypes, layouts in (
            (META, FLOATS, ""),  # in another layout a decomposition has not that of a device
            (("cpu",), ("float32", "float64"), LAYOUTS),  # of bfloat16 a CPU keeps the mean in it
        )
    ),
    Case(
        "layer_norm of two dimensions",
        lambda x, *affine: F.layer_norm(x, x.shape[-2:], *affine),
        lambda x, *affine: ops.layer_norm(x, 2, *affine),
        "abc bc bc",
        layouts="",
        devices=META,
    ),
    Case("rms_norm", rms(backend.rms_norm), rms_program(ops.rms_norm), "abc", devices=META),
    Case(
        "rms_norm with a scale",
        rms(backend.rms_norm),
        rms_program(ops.rms_norm),
        "abc c",
        devices=META,
    ),
    Case("rms_norm written out", *WRITTEN_OUT, "abc"),
    Case("rms_norm written out with a scale", *WRITTEN_OUT, "abc c"),
    Case("rms_norm written out exactly", *EXACT, "abc"),
    Case("rms_norm written out exactly with a scale", *EXACT, "abc c"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_norm_does_what_torch_does(case):
    assert not list(differences(case))
