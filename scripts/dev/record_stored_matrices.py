"""Record what libraries of quantisation hold for one linear layer, and what they write to a file.

    pip install bitsandbytes==0.50.2 torchao==0.18.0 hqq==0.2.8 optimum-quanto==0.2.7 \
        compressed-tensors==0.20.0
    python scripts/dev/record_stored_matrices.py > tests/golden/stored_matrices.csv

Each row is a layer without a bias, in bfloat16, quantised on a CPU or built on meta: bytes of its
tensors by dtype, or the refusal of the library. `where` is memory or file (state_dict).
"""

import csv
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

SHAPES = (
    (1024, 4096), (256, 128), (257, 96), (100, 65), (96, 320), (130, 260), (1, 1), (2, 4097),
    (65, 64), (64, 64), (32, 2048),
)  # fmt: skip
Tensors = dict[str, torch.Tensor]
Case = tuple[str, int, int, str, Callable[[int, int], Tensors]]
"""Format, block, group, where, and what makes the tensors of rows by columns."""


def linear(rows: int, columns: int, device: str = "cpu") -> nn.Linear:
    return nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16, device=device)


def parts(tensor: torch.Tensor, name: str = "weight") -> Tensors:
    """Return the plain tensors inside of a tensor subclass."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return {name: tensor}
    names = tensor.__tensor_flatten__()[0]
    return {k: v for one in names for k, v in parts(getattr(tensor, one), f"{name}.{one}").items()}


def of_bitsandbytes() -> Iterator[Case]:
    import bitsandbytes as bnb

    def four_bits(block: int, double: bool, quant_type: str):
        def make(rows: int, columns: int) -> Any:
            layer = bnb.nn.Linear4bit(
                columns, rows, bias=False, compress_statistics=double, quant_type=quant_type
            ).to(torch.bfloat16)
            layer.weight.blocksize = block
            return layer.to("cpu")

        def held(rows: int, columns: int) -> Tensors:
            weight = make(rows, columns).weight
            state = weight.quant_state
            found = {"weight": weight, "absmax": state.absmax, "code": state.code}
            if state.nested:
                inner = state.state2
                found |= {"nested": inner.absmax, "table": inner.code, "offset": state.offset}
            return found

        return held, lambda rows, columns: dict(make(rows, columns).state_dict())

    for block in (32, 64, 128, 256, 512, 1024, 2048, 4096):
        for word, double in (("bnb-4bit", False), ("bnb-4bit-double", True)):
            held, written = four_bits(block, double, "nf4")
            yield word, block, 0, "memory", held
            yield word, block, 0, "file", written
    yield "bnb-4bit", 64, 0, "memory", four_bits(64, False, "fp4")[0]

    def eight_bits(rows: int, columns: int):
        layer = bnb.nn.Linear8bitLt(columns, rows, bias=False, has_fp16_weights=False)
        layer.weight.data = torch.randn(rows, columns, dtype=torch.float16)
        layer = layer.to("cpu")
        layer.weight = layer.weight._quantize(torch.device("cpu"))
        return layer

    def of_eight(rows: int, columns: int) -> Tensors:
        weight = eight_bits(rows, columns).weight
        return {"weight": weight, "SCB": weight.SCB}

    yield "bnb-8bit", 0, 0, "memory", of_eight
    yield "bnb-8bit", 0, 0, "file", lambda r, c: dict(eight_bits(r, c).state_dict())


def of_torchao() -> Iterator[Case]:
    import torchao.quantization as ao
    from torchao.prototype.mx_formats import inference_workflow as mx
    from torchao.quantization.granularity import PerAxis, PerGroup

    def by(config) -> Callable[[int, int], Tensors]:
        def make(rows: int, columns: int) -> Tensors:
            model: Any = nn.Sequential(linear(rows, columns))
            ao.quantize_(model, config)
            return parts(model[0].weight)

        return make

    four = torch.float4_e2m1fn_x2
    of_groups = ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))  # pyrefly: ignore[missing-attribute]
    of_rows = ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0))  # pyrefly: ignore[missing-attribute]
    yield "torchao-int8", 0, 0, "memory", by(ao.Int8WeightOnlyConfig())
    yield "torchao-int8", 0, 0, "memory", by(ao.Int8DynamicActivationInt8WeightConfig())
    yield "torchao-float8", 0, 0, "memory", by(ao.Float8WeightOnlyConfig())
    yield "torchao-intx4", 0, 32, "memory", by(of_groups)
    yield "torchao-intx4", 0, 0, "memory", by(of_rows)
    in_eight = mx.MXDynamicActivationMXWeightConfig()
    in_four = mx.MXDynamicActivationMXWeightConfig(activation_dtype=four, weight_dtype=four)
    yield "torchao-mxfp8", 0, 0, "memory", by(in_eight)
    yield "torchao-mxfp4", 0, 0, "memory", by(in_four)
    yield "torchao-nvfp4", 0, 0, "memory", by(mx.NVFP4WeightOnlyConfig())


def of_compressed_tensors() -> Iterator[Case]:
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )

    def by(form: str, **arguments) -> Callable[[int, int], Tensors]:
        def make(rows: int, columns: int) -> Tensors:
            model = nn.Sequential()
            model.add_module("layer", linear(rows, columns))
            weights = QuantizationArgs(**arguments)
            groups = {"all": QuantizationScheme(targets=["Linear"], weights=weights)}
            config = QuantizationConfig(
                config_groups=groups, format=form, quantization_status="frozen"
            )
            apply_quantization_config(model, config)
            for name, parameter in model.named_parameters():
                if "scale" in name:
                    parameter.data.fill_(1)
            compressor = ModelCompressor.from_pretrained_model(model, quantization_format=form)
            assert compressor is not None
            compressor.compress_model(model)
            return dict(model.state_dict())

        return make

    four = {"num_bits": 4, "type": "int", "symmetric": True}
    group = {"strategy": "group", "group_size": 32}
    eight = {"num_bits": 8, "symmetric": True}
    pack, floats = "pack-quantized", "float-quantized"
    yield "int4-group", 0, 32, "memory", by(pack, **four, **group)
    asymmetric = four | {"symmetric": False}
    yield "int4-group-asymmetric", 0, 32, "memory", by(pack, **asymmetric, **group)
    yield "int4-channel", 0, 0, "memory", by(pack, **four, strategy="channel")
    yield "int8-group", 0, 32, "memory", by(pack, **eight, type="int", **group)
    channel = eight | {"strategy": "channel"}
    yield "int8-channel", 0, 0, "memory", by("int-quantized", **channel, type="int")
    yield "fp8-channel", 0, 0, "memory", by(floats, **channel, type="float")
    yield "fp8-tensor", 0, 0, "memory", by(floats, **eight, type="float", strategy="tensor")
    blocks = {"strategy": "block", "block_structure": [128, 128]}
    yield "compressed-fp8-block", 128, 128, "memory", by(floats, **eight, type="float", **blocks)
    of_floats = {"num_bits": 4, "type": "float", "symmetric": True}
    nv = of_floats | {"strategy": "tensor_group", "group_size": 16}
    yield "compressed-nvfp4", 0, 0, "memory", by("nvfp4-pack-quantized", **nv)
    yield "compressed-mxfp4", 0, 0, "memory", by("mxfp4-pack-quantized", **of_floats, **group)


def of_hqq() -> Iterator[Case]:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    def by(bits: int, block: int | None) -> Callable[[int, int], Tensors]:
        def make(rows: int, columns: int) -> Tensors:
            config = BaseQuantizeConfig(nbits=bits, group_size=block, axis=1)
            plain = linear(rows, columns).float()
            layer = HQQLinear(plain, config, compute_dtype=torch.bfloat16, device="cpu")
            of_meta = {k: v for k, v in layer.meta.items() if isinstance(v, torch.Tensor)}
            return {"W_q": layer.W_q} | of_meta

        return make

    for bits in (1, 2, 3, 4, 8):
        for block in (32, 64):
            yield f"hqq-{bits}bit", block, 0, "memory", by(bits, block)
    for bits in (4, 8):
        yield f"hqq-{bits}bit-channel", 0, 0, "memory", by(bits, None)


def of_quanto() -> Iterator[Case]:
    from optimum.quanto import QLinear, qfloat8, qint2, qint4, qint8

    def by(kind) -> Callable[[int, int], Tensors]:
        def make(rows: int, columns: int) -> Tensors:
            layer = QLinear.from_module(linear(rows, columns), weights=kind)
            assert layer is not None
            layer.freeze()
            return parts(layer.weight)

        return make

    for word, kind in (("int8", qint8), ("int4", qint4), ("int2", qint2), ("float8", qfloat8)):
        yield f"quanto-{word}", 0, 0, "memory", by(kind)


def of_transformers() -> Iterator[Case]:
    from transformers.integrations.eetq import EetqLinear
    from transformers.integrations.fbgemm_fp8 import FbgemmFp8Linear
    from transformers.integrations.finegrained_fp8 import FP8Linear

    def on_meta(make: Callable[[int, int], nn.Module]) -> Callable[[int, int], Tensors]:
        def tensors(rows: int, columns: int) -> Tensors:
            with torch.device("meta"):
                layer = make(rows, columns)
            return dict(layer.named_parameters()) | dict(layer.named_buffers())

        return tensors

    def fp8(block: tuple[int, int] | None, scheme: str):
        return on_meta(lambda rows, columns: FP8Linear(columns, rows, block, scheme))

    for block, group in ((128, 128), (64, 32), (1, 128)):
        yield "fp8-block", block, group, "memory", fp8((block, group), "dynamic")
    yield "fp8-block-static", 128, 128, "memory", fp8((128, 128), "static")
    yield "fp8-matrix", 0, 0, "memory", fp8(None, "dynamic")
    yield "fp8-matrix-static", 0, 0, "memory", fp8(None, "static")
    fbgemm = on_meta(lambda rows, columns: FbgemmFp8Linear(columns, rows, False))
    yield "fbgemm-fp8", 0, 0, "memory", fbgemm
    yield "eetq-int8", 0, 0, "memory", on_meta(lambda rows, columns: EetqLinear(columns, rows))


LIBRARIES = (
    of_bitsandbytes, of_torchao, of_compressed_tensors, of_hqq, of_quanto, of_transformers,
)  # fmt: skip


def by_dtype(tensors: Tensors) -> str:
    """Return the bytes of tensors by dtype."""
    n_bytes: Counter[str] = Counter()
    for tensor in tensors.values():
        n_bytes[str(tensor.dtype).removeprefix("torch.")] += tensor.nbytes
    return " ".join(f"{dtype}={n}" for dtype, n in sorted(n_bytes.items()))


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["format", "block", "group", "where", "rows", "columns", "bytes", "refusal"])
    for library in LIBRARIES:
        for word, block, group, where, make in library():
            for rows, columns in SHAPES:
                n_bytes = refusal = ""
                try:
                    n_bytes = by_dtype(make(rows, columns))
                    if n_bytes == f"bfloat16={2 * rows * columns}":
                        n_bytes, refusal = "", "left in the dtype"
                except Exception as error:
                    refusal = f"{type(error).__name__}: {str(error)[:80]}".replace("\n", " ")
                out.writerow([word, block, group, where, rows, columns, n_bytes, refusal])


if __name__ == "__main__":
    main()
