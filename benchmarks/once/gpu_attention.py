"""Which kernel torch runs for calls of attention on a CUDA device, and the blocks that it takes."""

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = ("flash", "efficient", "cudnn")


def calls() -> list[dict]:
    """Read which kernel torch runs for calls of attention, with all kernels and without cuDNN."""
    return [
        _call(dtype, width, mode, cudnn)
        for dtype in ("float32", "bfloat16", "float16", "float64")
        for width in (32, 60, 64, 80, 128, 192, 256, 320)
        for mode in ("causal", "none", "mask", "grouped", "value", "dropout", "decode")
        for cudnn in (True, False)
    ]


def _call(dtype: str, width: int, mode: str, cudnn: bool) -> dict:
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    make = {"dtype": getattr(torch, dtype), "device": "cuda"}
    n_kv, d_value = (2 if mode == "grouped" else 4), (width // 2 if mode == "value" else width)
    n_query = 1 if mode == "decode" else 128
    q = torch.randn(2, 4, n_query, width, **make, requires_grad=True)
    k = torch.randn(2, n_kv, 128, width, **make, requires_grad=True)
    v = torch.randn(2, n_kv, 128, d_value, **make, requires_grad=True)
    arguments: dict[str, Any] = {"is_causal": mode not in ("none", "mask", "decode")}
    if mode == "mask":
        arguments["attn_mask"] = torch.ones(n_query, 128, dtype=torch.bool, device="cuda").tril()
    arguments |= {"enable_gqa": True} if mode == "grouped" else {}
    arguments |= {"dropout_p": 0.1} if mode == "dropout" else {}
    row = {"dtype": dtype, "width": width, "mode": mode, "cudnn": cudnn}
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, **arguments)
        names = {event.name for event in profiler.events()}
        row["kernel"] = next(
            (
                kernel
                for kernel in KERNELS
                if f"aten::_scaled_dot_product_{kernel}_attention" in names
            ),
            "math",
        )
        out.sum().backward()
    except RuntimeError as error:
        row["error"] = str(error)[:200]
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
    return row


def blocks() -> Iterator[dict]:
    """Read the blocks that a call and its backward pass allocate and free, in order."""
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    backends.append(SDPBackend.EFFICIENT_ATTENTION)
    shapes: list[dict[str, Any]] = [
        {},
        {"batch": 1},
        {"n_head": 1},
        {"length": 96},
        {"length": 1000},
        {"length": 1024},
        {"width": 128},
        {"width": 40},
        {"width": 256},
        {"dtype": torch.float16},
        {"n_kv": 2},
        {"n_kv": 1},
        {"n_kv": 2, "width": 128, "length": 1024},
        {"by_token": True},
        {"by_token": True, "n_kv": 2},
        {"d_value": 32},
        {"width": 192, "d_value": 128},
        {"mask": "bool"},
        {"mask": "dtype"},
        {"mask": "heads"},
        {"mask": "trained"},
        {"mask": "bool", "length": 1000},
        {"mask": "window"},
        {"dropout": True},
        {"causal": False},
        {"n_key": 512, "causal": False},
        {"length": 1, "n_key": 512, "causal": False},
        {"length": 1, "n_key": 32768, "causal": False, "n_kv": 2, "width": 128},
        {"batch": 8, "n_head": 16, "length": 2048, "width": 128},
        {"batch": 8, "n_head": 16, "n_kv": 4, "length": 2048, "width": 128},
        {"batch": 1, "n_head": 32, "length": 8192, "width": 128},
    ]
    for backend in backends:
        for shape in shapes:
            for is_trained in (True, False):
                yield _blocks(backend, shape, is_trained)


def _blocks(backend: SDPBackend, shape: dict[str, Any], is_trained: bool) -> dict:
    sizes = {"batch": 2, "n_head": 4, "length": 256, "width": 64, "dtype": torch.bfloat16}
    sizes |= {"n_kv": shape.get("n_head", 4), "causal": True, "dropout": False} | shape
    batch, n_head, length, width = (sizes[k] for k in ("batch", "n_head", "length", "width"))
    n_key, d_value = sizes.get("n_key", length), sizes.get("d_value", width)
    make = {"dtype": sizes["dtype"], "device": "cuda"}

    def heads(n, of, channels):
        if sizes.get("by_token"):
            x = torch.randn(batch, of, n, channels, **make).transpose(1, 2)
        else:
            x = torch.randn(batch, n, of, channels, **make)
        return x.requires_grad_(is_trained)

    q = heads(n_head, length, width)
    k, v = heads(sizes["n_kv"], n_key, width), heads(sizes["n_kv"], n_key, d_value)
    mask: Any = sizes.get("mask")
    if mask is not None:
        seen = torch.ones(length, n_key, dtype=torch.bool, device="cuda").tril()
        bias = torch.zeros(length, n_key, **make).masked_fill(~seen, -torch.inf)
        masks = {"bool": seen, "dtype": bias, "window": seen.triu(-64)[None, None]}
        masks["heads"] = bias.expand(batch, n_head, -1, -1).contiguous()
        masks["trained"] = torch.zeros(1, n_head, length, n_key, **make).requires_grad_(is_trained)
        mask = masks[mask]
    arguments = {"attn_mask": mask, "is_causal": sizes["causal"] and mask is None}
    arguments |= {"dropout_p": 0.1 if sizes["dropout"] else 0.0, "enable_gqa": "n_kv" in shape}
    row: dict[str, Any] = {"backend": backend.name, "trained": is_trained}
    row |= {
        name: value if value.__class__ in (int, bool, str) else str(value)
        for name, value in shape.items()
    }
    try:
        with sdpa_kernel(backend):
            _attend(q, k, v, arguments, is_trained)  # its first call may keep a workspace
            row |= _attend(q, k, v, arguments, is_trained)
    except RuntimeError as error:
        row["error"] = str(error).splitlines()[0][:200]
    return row


def _attend(q, k, v, arguments: dict, is_trained: bool) -> dict[str, Any]:
    names = {x.data_ptr(): name for name, x in (("q", q), ("k", k), ("v", v))}
    for x in (q, k, v):
        x.grad = None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=10**5)
    saved: list[tuple] = []

    def pack(x):
        saved.append((x.data_ptr(), tuple(x.shape), tuple(x.stride()), str(x.dtype), str(x.device)))
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = torch.nn.functional.scaled_dot_product_attention(q, k, v, **arguments)
    torch.cuda.synchronize()
    n_forward = len(torch.cuda.memory._snapshot()["device_traces"][0])
    layouts = {"result": [list(result.shape), list(result.stride())]}
    if is_trained:
        gradient = torch.empty_like(result)
        result.backward(gradient)
        torch.cuda.synchronize()
        layouts |= {
            name: [list(x.grad.shape), list(x.grad.stride())]
            for name, x in (("q", q), ("k", k), ("v", v))
        }
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    numbers: dict[int, int] = {}
    listed: list[list] = [[], []]
    for i, event in enumerate(events):
        if event["action"] == "alloc":
            numbers[event["addr"]] = len(numbers)
            change = [numbers[event["addr"]], event["size"]]
        elif event["action"] == "free_requested" and event["addr"] in numbers:
            change = [numbers[event["addr"]], -event["size"]]
        else:
            continue
        listed[i >= n_forward].append(change)
    kept = [[names.get(address, "other"), *rest] for address, *rest in saved]
    return {"forward": listed[0], "backward": listed[1], "saved": kept, "layouts": layouts}
