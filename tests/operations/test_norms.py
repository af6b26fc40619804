"""Norms against torch's kernels, and those written out against the replacements of measurements."""

import pytest
from helpers.one_operation import DENSE, META, UNREPEATED, Case, differences
from torch.nn import functional as F

from modelbudget.measurement.trace import backend
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
WIDE = rms(backend.RMS_NORMS["written_out_wide"]), rms_program(ops.RMS_NORMS["written_out_wide"])

CASES = [
    # On a CPU the gradient of the input is contiguous, and the mean of bfloat16 is in bfloat16.
    *(
        Case(
            f"layer_norm of {shapes}",
            layer_norm,
            layer_norm_program,
            shapes,
            layouts=layouts,
            devices=META,
        )
        for shapes, layouts in (
            ("abc", UNREPEATED),
            ("abc c", DENSE),
            ("abcd", DENSE),
            ("abc c c", DENSE),
        )
    ),
    Case(
        "layer_norm of a CPU",
        layer_norm,
        layer_norm_program,
        "abc c c",
        layouts="",
        dtypes=("float32", "float64"),
        devices=("cpu",),
    ),
    Case(
        "layer_norm of two dimensions",
        lambda x, *affine: F.layer_norm(x, x.shape[-2:], *affine),
        lambda x, *affine: ops.layer_norm(x, 2, *affine),
        "abc bc bc",
        layouts=DENSE,
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
    *(
        Case(
            f"rms_norm composed of {shapes}",
            rms(F.rms_norm),
            rms_program(ops.rms_norm_composed),
            shapes,
        )
        for shapes in ("abc", "abc c")
    ),
    Case("rms_norm written out", *WRITTEN_OUT, "abc"),
    Case("rms_norm written out with a scale", *WRITTEN_OUT, "abc c"),
    Case("rms_norm written out exactly", *EXACT, "abc"),
    Case("rms_norm written out exactly with a scale", *EXACT, "abc c"),
    Case("rms_norm written out in float32", *WIDE, "abc"),
    Case("rms_norm written out in float32 with a scale", *WIDE, "abc c"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_norm_does_what_torch_does(case):
    assert not list(differences(case))
