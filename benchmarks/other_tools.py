"""What other tools say of `modelbudget vectors`: how many are right, and where the others are off.

    python benchmarks/other_tools.py docs/other-tools.md

Needs benchmarks/requirements.txt, which `make bench` installs in a separate environment. A tool
gets a config.json, the class of transformers built without storage, or the header of its
safetensors file, as its documentation shows; no tool is corrected. All run in turn, so quote the
ratios of their speeds: a slow machine slows all of them.
"""

import contextlib
import io
import math
import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch

import modelbudget as mb
from modelbudget.api.vectors import Vector, predicted
from modelbudget.architecture.terms import total
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import CONFIGS
from modelbudget.files.gguf_header import read_header
from modelbudget.huggingface.offline import transformers
from modelbudget.measurement.reference.class_counts import witness
from modelbudget.sweeps.derive import named_architecture

INTRODUCTION = """# Other tools

What {tools} other packages say of [vectors](how-to/test-another-tool.md), sizes that were counted
or traced of classes of transformers, never taken from our formulas: {of}; of parameters those
of one model of each class that had vectors when this was written. Written
by `make bench` (`benchmarks/other_tools.py`). *right* is equal in every digit; *off* has the worst
three, as a factor of the vector, or as the difference where it is small; *no answer* is a refusal
or an error. A tool gets a module without storage, the header of a safetensors file or a config,
as its documentation shows. Of modelbudget, formulas alone answer: the command traces the class for
the rest. Caches are those of transformers' DynamicCache, 2 × 1,024 tokens in bfloat16; FLOPs are
of matrix products, a multiplication and an addition each, without a causal discount.
"""
SPEED = """
Medians of three on one machine ({machine}), in turn; only ratios carry over. What a
tool needs to build the class is counted.
"""
ROUNDS = 3
LIMIT = 600
"""Seconds that a tool may take for all vectors of a quantity."""
TIMED = "llama-3-8b-parameters"
META = torch.device("meta")
SMALL = ("gpt-2-124m", "llama-3.2-1b", "qwen-2.5-0.5b", "pythia-1b", "opt-1.3b", "gemma-3-270m")
"""Models whose forward pass is counted."""
KEYS = ("architectures", "model_type")
DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32"}


def made(vector: Vector) -> Any:
    """Build the class of a config without storage."""
    config = vector.config or {}
    kind = getattr(transformers, config["architectures"][0])
    keys = {name: value for name, value in config.items() if name not in KEYS}
    with META:
        return kind(kind.config_class(**keys | {"pad_token_id": None}))


def tokens(vector: Vector) -> torch.Tensor:
    return torch.zeros(vector.run["batch"], vector.run["length"], dtype=torch.long, device=META)


@cache
def header(name: str) -> dict[str, dict[str, Any]]:
    """Return the header of the file that a class of bfloat16 would be saved in, tied once."""
    vector = next(one for one in mb.vectors() if one.name == name)
    model = made(vector).to(torch.bfloat16)
    names = {id(tensor): key for key, tensor in reversed(model.state_dict(keep_vars=True).items())}
    return {
        key: {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [0, 0]}
        for key, tensor in model.state_dict(keep_vars=True).items()
        if names[id(tensor)] == key
    }


def plain_torch(vector: Vector) -> int:
    return sum(parameter.numel() for parameter in made(vector).parameters())


def by_transformers(vector: Vector) -> int:
    return made(vector).num_parameters()


def by_accelerate(vector: Vector) -> int:
    import accelerate
    from accelerate.utils import compute_module_sizes

    config = vector.config or {}
    kind = getattr(transformers, config["architectures"][0])
    with accelerate.init_empty_weights():
        model = kind(kind.config_class(**{k: v for k, v in config.items() if k not in KEYS}))
    model.tie_weights()  # its context has cut the ties
    return int(compute_module_sizes(model)[""]) // 4


def by_torchinfo(vector: Vector) -> int:
    import torchinfo

    if vector.quantity == "parameters":
        return torchinfo.summary(made(vector), verbose=0).total_params
    found = torchinfo.summary(
        made(vector), input_data={"input_ids": tokens(vector)}, device=META, verbose=0
    )
    return 2 * found.total_mult_adds


def by_fvcore(vector: Vector) -> int:
    from fvcore.nn import parameter_count

    return parameter_count(made(vector))[""]


def by_mem_tracker(vector: Vector) -> int:
    from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType

    model, tracker = made(vector), MemTracker()
    tracker.track_external(model)
    with tracker:
        pass  # it counts external modules when it is entered
    return tracker.get_tracker_snapshot()[META][_MemRefType.PARAM] // 4


def by_flop_counter(vector: Vector) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        made(vector)(input_ids=tokens(vector))
    return counter.get_total_flops()


def by_thop(vector: Vector) -> int:
    from thop import profile

    model = made(vector)
    length = 1 if vector.quantity == "parameters" else vector.run["length"]
    ids = torch.zeros(1, length, dtype=torch.long, device=META)
    products, parameters = profile(model, inputs=(ids,), verbose=False)
    return int(parameters if vector.quantity == "parameters" else 2 * products)


def by_calflops(vector: Vector) -> int:
    from calflops import calculate_flops

    flops, _, parameters = calculate_flops(
        made(vector), kwargs={"input_ids": tokens_or_one(vector)},
        print_results=False, output_as_string=False,
    )  # fmt: skip
    return int(parameters if vector.quantity == "parameters" else flops)


def by_flops_profiler(vector: Vector) -> int:
    from flops_profiler.profiler import get_model_profile

    flops, _, parameters = get_model_profile(
        made(vector), kwargs={"input_ids": tokens_or_one(vector)},
        print_profile=False, as_string=False, warm_up=0,
    )  # fmt: skip
    return int(parameters if vector.quantity == "parameters" else flops)


def tokens_or_one(vector: Vector) -> torch.Tensor:
    return tokens(vector) if vector.run else torch.zeros(1, 1, dtype=torch.long, device=META)


def by_torchprofile(vector: Vector) -> int:
    from torchprofile import profile_macs

    model = made(vector)
    model.config.use_cache = False
    return 2 * profile_macs(model, (tokens(vector),))


def by_vram_check(vector: Vector) -> int:
    from vram_check.inspector import inspect

    return inspect(made(vector)).total_params


def by_vramcalc(vector: Vector) -> int:
    from vramcalc import memory
    from vramcalc.loaders import load_arch

    a = load_arch(dict(vector.config or {}))
    if vector.quantity == "parameters":
        return a.param_count()
    if vector.quantity == "parameter_bytes":
        return memory.weights(a, 2)
    if vector.quantity == "peak_inference_bytes":
        batch, length = vector.run["batch"], vector.run["length"]
        kept = memory.weights(a, 2) + memory.kv_cache(a, batch, length, 2)
        return kept + memory.inference_activations(a, batch, length, "sdpa", 2)
    return memory.kv_cache(a, vector.run["batch"], vector.run["length"], 2)


def by_llm_mem_planner(vector: Vector) -> int | None:
    from llm_mem_planner.cli import estimate_kv_cache_gib, estimate_params, load_dims

    if "kv_lora_rank" not in (vector.config or {}):
        return None  # meant for DeepSeek's MLA
    dims = load_dims(dict(vector.config or {}))
    if vector.quantity == "parameters":
        return estimate_params(dims).total
    run = {"batch": vector.run["batch"], "seq_len": vector.run["length"], "kv_dtype_bytes": 2}
    return round(estimate_kv_cache_gib(dims, **run) * 2**30)


def by_hf_vram_calc(vector: Vector) -> int:
    from hf_vram_calc.calculator import VRAMCalculator
    from hf_vram_calc.config import ConfigManager
    from hf_vram_calc.models import ModelConfig

    c = vector.config or {}
    sizes = ModelConfig(
        "", c["vocab_size"], c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"],
        num_key_value_heads=c.get("num_key_value_heads"),
    )  # fmt: skip
    calculator = VRAMCalculator(ConfigManager())
    batch, length = vector.run["batch"], vector.run["length"]
    return round(calculator.calculate_kv_cache_memory(sizes, "bf16", batch, length) * 2**30)


def by_vramscout(vector: Vector) -> int:
    from vramscout.model import _estimate_dense_params

    return _estimate_dense_params(dict(vector.config or {}))


def by_modelinfo(vector: Vector) -> int:
    from modelinfo.calculator import calculate_footprint

    config = dict(vector.config or {})
    found = calculate_footprint(
        header(f"{vector.model}-parameters"), vector.run.get("length", 0),
        vector.run.get("batch", 1), config,
    )  # fmt: skip
    key = {"parameters": "total_params", "parameter_bytes": "base_memory_bytes"}
    return int(found[key.get(vector.quantity, "kv_cache_bytes")])


def by_hf_mem(vector: Vector) -> int:
    from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size
    from hf_mem.safetensors.metadata import parse_safetensors_metadata

    if vector.quantity == "cache_bytes":
        return compute_safetensors_kv_cache_size(
            config=dict(vector.config or {}), cache_dtype="BF16",
            max_model_len=vector.run["length"], batch_size=vector.run["batch"],
        )  # fmt: skip
    found = parse_safetensors_metadata({"Transformer": header(f"{vector.model}-parameters")})
    return found.param_count if vector.quantity == "parameters" else found.bytes_count


def by_llm_analysis(vector: Vector) -> int:
    from llm_analysis.analysis import LLMAnalysis
    from llm_analysis.config import (
        ModelConfig,
        get_dtype_config_by_name,
        get_gpu_config_by_name,
    )

    c = vector.config or {}
    sizes = ModelConfig(
        name="", num_layers=c["num_hidden_layers"], n_head=c["num_attention_heads"],
        hidden_dim=c["hidden_size"], vocab_size=c["vocab_size"], model_type=c["model_type"],
        max_seq_len=c.get("max_position_embeddings"),
        num_key_value_heads=c.get("num_key_value_heads"),
    )  # as its own reader of a config.json does  # fmt: skip
    gpu, dtype = get_gpu_config_by_name("a100-sxm-80gb"), get_dtype_config_by_name("w16a16e16")
    analysis = LLMAnalysis(sizes, gpu, dtype)
    if vector.quantity == "parameters":
        return int(analysis.get_num_params_total())
    batch, length = vector.run["batch"], vector.run["length"]
    if vector.quantity == "flops_forward":
        return int(analysis.get_num_flops_fwd_total(batch, length))
    return int(sizes.num_layers * analysis.get_memory_kv_cache_per_layer(batch, length, 2))


@cache
def shape(name: str) -> Any:
    return named_architecture(Catalogue(CONFIGS / "models")[name])


def measured(vector: Vector) -> int:
    config = {name: value for name, value in (vector.config or {}).items() if name not in KEYS}
    return witness((vector.config or {})["architectures"][0], config).parameters or 0


class Tool(NamedTuple):
    """One function of a package: what it reads and answers, and why it is off where it is."""

    package: str
    reads: str
    answers: dict[str, str]
    function: Callable[[Vector], int | None]


P, W, C, F = "parameters", "parameter_bytes", "cache_bytes", "flops_forward"
PEAK = "peak_inference_bytes"
OTHER = "counts what is no matrix product too"
NO_ATTENTION = "leaves out fused attention"
HEADS = "takes hidden size / heads for the size of a head"
TOOLS = (
    Tool("torch", "module", {P: ""}, plain_torch),
    Tool("transformers", "module", {P: ""}, by_transformers),
    Tool("accelerate", "module", {P: "counts buffers"}, by_accelerate),
    Tool("torchinfo", "module", {P: "counts tied matrices twice",
         F: "no products of attention; each matrix once, not for each token"}, by_torchinfo),
    Tool("fvcore", "module", {P: ""}, by_fvcore),
    Tool("torch: MemTracker", "module", {P: ""}, by_mem_tracker),
    Tool("torch: FlopCounterMode", "module", {F: ""}, by_flop_counter),
    Tool("ultralytics-thop", "module", {P: "", F: "not Conv1D of GPT-2; norms too"}, by_thop),
    Tool("calflops", "module", {P: "", F: NO_ATTENTION}, by_calflops),
    Tool("flops-profiler", "module", {P: "", F: ""}, by_flops_profiler),
    Tool("torchprofile", "module", {F: OTHER}, by_torchprofile),
    Tool("vram-check", "module", {P: ""}, by_vram_check),
    Tool("hf-mem", "safetensors", {P: "the file has a buffer that is no parameter", W: "",
         C: "a window holds all tokens; transformers keeps a count in each"}, by_hf_mem),
    Tool("modelinfo-cli", "safetensors", {P: "the file has a buffer that is no parameter", W: "",
         C: HEADS}, by_modelinfo),
    Tool("vramcalc", "config", {P: "", W: "", C: "transformers keeps a count in each window",
         PEAK: "is meant as an estimate"}, by_vramcalc),
    Tool("vramscout", "config", {P: "a gated MLP without biases in every model"}, by_vramscout),
    Tool("hf-vram-calc", "config", {C: HEADS}, by_hf_vram_calc),
    Tool("llm-analysis", "config", {P: "one table, two matrices of 4 × hidden size in an MLP",
         C: HEADS, F: "the same"}, by_llm_analysis),
    Tool("llm-mem-planner", "config", {P: "", C: ""}, by_llm_mem_planner),
    Tool("modelbudget, measured", "config", {P: ""}, measured),
    Tool("modelbudget", "config", {P: "", W: "", C: "", F: ""}, predicted),
)  # fmt: skip


class Row(NamedTuple):
    """How many vectors of a quantity a tool answers and has right, and the others by name."""

    tool: Tool
    quantity: str
    right: int
    off: dict[str, tuple[int, int]]
    refused: int


def wanted(quantity: str) -> list[Vector]:
    """Return vectors of published models; of parameters, those of one model of each class."""
    found = [one for one in mb.vectors(quantity) if one.config and one.model]
    if quantity == P:
        classes = {one.config["architectures"][0]: one for one in reversed(found) if one.config}
        return [one for one in found if one in classes.values()]
    return [one for one in found if one.model in SMALL] if quantity == F else found


def row(tool: Tool, quantity: str) -> Row:
    right, refused, off = 0, 0, {}
    for vector in wanted(quantity):
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                answer = tool.function(vector)
        except Exception:  # what a tool cannot read is a result too
            answer = None
        if answer is None:
            refused += 1
        elif answer == vector.value:
            right += 1
        else:
            off[str(vector.model)] = (answer, vector.value)
    return Row(tool, quantity, right, off, refused)


def alone(tool: Tool, quantity: str) -> Row:
    """Return a row made in a process of its own: some tools leave torch patched behind them.

    A tool whose process ends, or that takes longer than LIMIT, has no answer to any vector.
    """
    start, result = time.perf_counter(), (0, {}, len(wanted(quantity)))
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        job = pool.submit(_numbers, TOOLS.index(tool), quantity)
        try:
            result = job.result(LIMIT)
        except (TimeoutError, BrokenProcessPool) as error:
            print(f"{tool.package}, {quantity}: {error!r}", file=sys.stderr)
            for process in pool._processes.values():
                process.kill()
    taken = time.perf_counter() - start
    print(f"{tool.package}, {quantity}: {taken:.0f} s", file=sys.stderr, flush=True)
    return Row(tool, quantity, *result)


def _numbers(i: int, quantity: str) -> tuple[int, dict[str, tuple[int, int]], int]:
    torch.set_num_threads(1)
    return row(TOOLS[i], quantity)[2:]


def named(package: str) -> str:
    distribution = package.partition(":")[0].partition(",")[0]
    return f"{package} {version(distribution) if distribution != 'modelbudget' else ''}".strip()


def worst(off: dict[str, tuple[int, int]]) -> str:
    """Return the models that are furthest off, each with its factor, or the difference if small."""
    far = sorted(off, key=lambda name: -abs(off[name][0] / off[name][1] - 1))[:3]
    shown = ", ".join(f"{name} {_off(*off[name])}" for name in far)
    return shown + (f" and {len(off) - 3} more" if len(off) > 3 else "")


def _off(answer: int, value: int) -> str:
    ratio = answer / value
    return f"{answer - value:+,}" if abs(ratio - 1) < 0.005 else f"{ratio:.3g} ×"


def seconds(tool: Tool) -> float | None:
    """Return the median seconds for the count of one model; None if the tool does not count it."""
    vector = next(one for one in mb.vectors("parameters") if one.name == TIMED)
    if "parameters" not in tool.answers:
        return None
    times = []
    by_formula = tool.package == "modelbudget"
    for _ in range(ROUNDS):
        header.cache_clear()
        start = time.perf_counter()
        try:
            if by_formula:
                total(shape(str(vector.model)).parameters(shape(str(vector.model))))
            else:
                tool.function(vector)
        except Exception:
            return None
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def lines() -> Iterator[str]:
    rows = [alone(tool, quantity) for tool in TOOLS for quantity in tool.answers]
    yield "| tool | reads | answers | right | off | no answer | where it is off |"
    yield "| --- | --- | --- | --: | --: | --: | --- |"
    for one in rows:
        reason = one.tool.answers[one.quantity]
        why = f"{worst(one.off)}: {reason}" if one.off and reason else worst(one.off)
        yield (
            f"| {named(one.tool.package)} | {one.tool.reads} | {one.quantity} | {one.right} "
            f"| {len(one.off)} | {one.refused} | {why} |"
        )
    yield "\n## Speed: the parameters of Llama 3 8B\n"
    yield "| tool | models/s | × plain torch |\n| --- | --: | --: |"
    times = {tool.package: seconds(tool) for tool in TOOLS}
    floor = times["torch"] or 1
    for package, taken in times.items():
        if taken:
            yield f"| {package} | {1 / taken:,.1f} | {floor / taken:,.1f} |"


def of_gguf_files() -> Iterator[str]:
    """Yield what tools say of files that llama.cpp's package writes here, in ten formats."""
    yield "\n## Local .gguf files\n"
    yield "| tool | parameters | bytes of tensors | more |\n| --- | --: | --: | --- |"
    with tempfile.TemporaryDirectory() as folder:
        paths = [gguf_file(Path(folder) / f"{name}.gguf", name) for name in OF_GGUF]
        truth = [by_gguf(path) for path in paths]
        for tool, more, function in GGUF_TOOLS:
            answers = [function(path) for path in paths]
            right = [
                sum(a[i] == t[i] for a, t in zip(answers, truth, strict=True)) for i in range(2)
            ]
            shown = [f"{n} of {len(paths)}" if n else "none" for n in right]
            yield f"| {named(tool)} | {shown[0]} | {shown[1]} | {more} |"


def gguf_file(path: Path, name: str) -> Path:
    """Write a llama of two layers whose matrices have one type."""
    kind = gguf.GGMLQuantizationType[name]
    numbers, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_embedding_length, 256), (writer.add_block_count, 2),
        (writer.add_feed_forward_length, 512), (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2), (writer.add_context_length, 512),
    ):  # fmt: skip
        add(value)
    shapes = {"token_embd.weight": (300, 256), "output_norm.weight": (256,)}
    for i in range(2):
        shapes |= {
            f"blk.{i}.{part}.weight": shape
            for part, shape in (
                ("attn_norm", (256,)), ("ffn_norm", (256,)), ("attn_q", (256, 256)),
                ("attn_k", (128, 256)), ("attn_v", (128, 256)), ("attn_output", (256, 256)),
                ("ffn_gate", (512, 256)), ("ffn_up", (512, 256)), ("ffn_down", (256, 512)),
            )
        }  # fmt: skip
    for tensor, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor(tensor, np.zeros(shape, np.float32))
        else:
            rows = np.zeros((*shape[:-1], shape[-1] // numbers * n_bytes), np.uint8)
            writer.add_tensor(tensor, rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def by_gguf(path: Path) -> tuple[int, int]:
    tensors = gguf.GGUFReader(path).tensors
    return sum(int(t.n_elements) for t in tensors), sum(int(t.n_bytes) for t in tensors)


def gguf_by_hf_mem(path: Path) -> tuple[int, int | None]:
    from hf_mem.gguf.metadata import parse_gguf_metadata

    found = parse_gguf_metadata(path.read_bytes())
    return found.param_count, found.bytes_count


def gguf_by_gguf_parser(path: Path) -> tuple[int, None]:
    from gguf_parser import GGUFParser

    parser = GGUFParser(str(path))
    try:
        parser.parse()
    except ValueError:
        return 0, None
    return sum(math.prod(tensor["dimensions"]) for tensor in parser.tensors_info), None


def gguf_by_modelbudget(path: Path) -> tuple[int, int]:
    stored = mb.model(str(path)).checkpoint()
    assert stored
    n = sum(one.stored for one in stored.parts)
    return n, sum(tensor.n_bytes for tensor in read_header(path).tensors)


OF_GGUF = (
    "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "Q2_K", "Q4_K", "Q6_K", "IQ4_NL", "IQ3_S",
)  # fmt: skip
GGUF_TOOLS = (
    ("gguf", "the writer's own reader", by_gguf),
    ("hf-mem", "cache; IQ3_S has 3.4375 bits, taken as 3.44", gguf_by_hf_mem),
    ("gguf-parser", "no bytes; the program of that name in Go was not run", gguf_by_gguf_parser),
    ("modelbudget", "by component, and its difference to the formula; cache; what fits",
     gguf_by_modelbudget),
)  # fmt: skip


def main(path: str) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    of = ", ".join(f"{len(wanted(q))} of {q}" for q in (P, W, C, F, PEAK))
    tools = len({tool.package.partition(":")[0].partition(",")[0] for tool in TOOLS}) - 1
    cores, python = torch.get_num_threads(), platform.python_version()
    machine = f"{platform.machine()}, {cores} cores, Python {python}"
    text = (
        INTRODUCTION.format(tools=tools, of=of), *lines(), SPEED.format(machine=machine),
        *of_gguf_files(),
    )  # fmt: skip
    Path(path).write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main(*sys.argv[1:])
