"""Write configs/vectors.json: sizes that others can hold their own functions against.

    python scripts/dev/write_vectors.py

Every value is that of a witness: a class of transformers that is counted or traced without
storage, our module of PaLM, or rows that were recorded from other programs (tests/golden). No
formula is read. Takes minutes; a test counts and traces a sample again.
"""

import csv
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from modelbudget.api.vectors import PATH, VERSION
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.common.paths import CONFIGS
from modelbudget.common.workers import Failure
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.offline import transformers
from modelbudget.measurement.build import build
from modelbudget.measurement.count import count
from modelbudget.measurement.reference.class_counts import witnesses
from modelbudget.measurement.reference.class_run import ClassRun
from modelbudget.measurement.reference.class_trace import begin_traces
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.derive import named_architecture

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
TRACED = (
    "gpt-2-124m", "llama-3.2-1b", "llama-3-8b", "qwen-2.5-0.5b", "qwen-3-4b", "gemma-3-270m",
    "gemma-3-1b", "mistral-7b-v0.1", "mixtral-8x7b", "olmoe-1b-7b", "pythia-1b", "opt-1.3b",
    "phi-2-2.7b", "falcon-7b", "deepseek-v2-lite", "gpt-oss-20b",
)  # fmt: skip
GPU = {"dtype": "bfloat16", "backend": "gpu", "attention_kernel": "flash"}
TRAINING = GPU | {"batch": 1, "length": 1024, "foreach": True, "optimizer": "adamw"}
INFERENCE = GPU | {"batch": 2, "length": 1024}
QUANTITIES = {
    "parameter_bytes": ("bytes", {"dtype": "bfloat16"}),
    "activation_bytes": ("bytes", TRAINING),
    "flops_forward": ("FLOPs", TRAINING),
    "peak_training_bytes": ("bytes", TRAINING),
    "cache_bytes": ("bytes", INFERENCE),
    "peak_inference_bytes": ("bytes", INFERENCE),
}
PLANNED = {
    "llama-3.1-8b": ("llama-3-8b", {}),
    "llama-3.1-8b fp8 cache": ("llama-3-8b", {"cache_dtype": "fp8"}),
    "llama-2-7b": ("llama-2-7b", {}),
    "qwen2.5-0.5b": ("qwen-2.5-0.5b", {}),
    "mistral-7b-v0.1 (all windows)": ("mistral-7b-v0.1", {}),
    "gemma-3-27b (52 windows of 1024 and 10 full)": ("gemma-3-27b", {}),
    "gpt-oss-20b (12 + 12)": ("gpt-oss-20b", {}),
    "deepseek-v3 mla": ("deepseek-v3", {"cache_block": 64}),
}
"""Models of vllm_blocks.csv that have a config here, and settings of their caches."""
Vector = dict[str, Any]


def main() -> None:
    """Write the file."""
    written = content()
    lines = json.dumps(written, indent=None, ensure_ascii=False)
    for mark in ('"configs": {', '"vectors": [', "}, "):
        lines = lines.replace(mark, mark.rstrip() + "\n")
    PATH.write_text(lines + "\n", encoding="utf-8")
    print(f"{PATH}: {len(written['vectors'])} vectors, {len(written['configs'])} configs")


def content() -> dict[str, Any]:
    """Count and trace what the file holds."""
    catalogue = Catalogue(CONFIGS / "models")
    bases = {base.name: base for base in catalogue.bases.values() if base.model}
    configs = {name: config_of(base) for name, base in bases.items() if base.transformers}
    vectors = [
        *counted([bases[name] for name in configs], configs), of_palm(bases["palm-540b"]),
        *traced([bases[name] for name in TRACED], configs), *planned(), *quantised(configs),
    ]  # fmt: skip
    used = dict.fromkeys(vector["config"] for vector in vectors if vector["config"])
    return {
        "version": VERSION,
        "made_with": {name: version(name) for name in ("torch", "transformers")},
        "configs": {name: configs[name] for name in used},
        "vectors": vectors,
    }


def config_of(base: Base) -> dict[str, Any]:
    """Return the config.json of a model's class, with the keys that name the class.

    Without keys that are null by default: no file of a model page has them.
    """
    kind = str(base.transformers)
    defaults = getattr(transformers, kind).config_class().to_dict()
    config = {
        key: value
        for key, value in class_config(kind, named_architecture(base), base.config).items()
        if value is not None or defaults.get(key) is not None
    }
    return {"architectures": [kind], "model_type": translations()[kind].model_type} | config


def keys_of(config: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in ("architectures", "model_type")}


def vector(name: str, base: Base, quantity: str, value: int, unit: str, **more: Any) -> Vector:
    of_model = {"name": name, "model": base.name, "config": base.name, "quantity": quantity}
    of_value = {"implementation": "transformers", "run": {}, "value": value, "unit": unit}
    return of_model | of_value | more


def counted(bases: list[Base], configs: dict[str, dict]) -> Iterator[Vector]:
    """Count each class, and say where a published count is the same number."""
    wanted = [(str(base.transformers), keys_of(configs[base.name])) for base in bases]
    for base, found in zip(bases, witnesses(wanted, 1), strict=True):
        assert base.model
        if found.parameters is None:
            raise SystemExit(f"{base.name}: {found.refusal}")
        seen = [{"how": "class", "source": f"{found.class_name}, parameters on meta"}]
        if base.model.exact == found.parameters:
            seen.append({"how": "published", "source": base.model.exact_source or ""})
        yield vector(f"{base.name}-parameters", base, "parameters", found.parameters, "parameters",
                     witness=seen)  # fmt: skip


def of_palm(base: Base) -> Vector:
    """Count our module of PaLM, which has no public class."""
    value = sum(
        part.parameters
        for part in count(build(named_architecture(base), "meta", "float32")).values()
    )
    return vector(
        f"{base.name}-parameters", base, "parameters", value, "parameters", config=None,
        implementation="modelbudget",
        witness=[{"how": "module", "source": "modelbudget's module, parameters on meta"}],
    )  # fmt: skip


def traced(bases: list[Base], configs: dict[str, dict]) -> Iterator[Vector]:
    """Trace each class in a training step and in inference."""
    runs = [RunConfig.model_validate(run) for run in (TRAINING, INFERENCE)]
    of_run = [
        frozenset(q for q, (_, run) in QUANTITIES.items() if run is not INFERENCE),
        frozenset(q for q, (_, run) in QUANTITIES.items() if run is INFERENCE),
    ]
    wanted = [
        (base, ClassRun(str(base.transformers), keys_of(configs[base.name]), run, quantities))
        for base in bases
        for run, quantities in zip(runs, of_run, strict=True)
    ]
    outcomes = dict(begin_traces([of_class for _, of_class in wanted], 1, 600, 0)())
    for i, (base, _) in enumerate(wanted):
        outcome = outcomes[i]
        if isinstance(outcome, Failure):
            print(f"{base.name}: {outcome.reason}")
            continue
        for quantity, why in outcome.missing.items():
            print(f"{base.name}: {quantity}: {why}")
        source = f"{outcome.class_name}, traced on {outcome.method} with {outcome.replaced}"
        for quantity, parts in sorted(outcome.values.items()):
            unit, run = QUANTITIES[quantity]
            values = [value for phase, value in parts.items() if phase != "setup"]
            value = max(values) if quantity.startswith("peak") else sum(values)
            yield vector(f"{base.name}-{quantity}", base, quantity, value, unit, run=run,
                         witness=[{"how": "trace", "source": source}])  # fmt: skip


def rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def planned() -> Iterator[Vector]:
    """Take what vLLM's own planner of caches answered: bytes of a block, and blocks."""
    seen = [{"how": "recorded", "source": "vLLM 0.32, v1/core/kv_cache_utils.py, run on a CPU"}]
    bases = Catalogue(CONFIGS / "models").bases
    for row in rows("vllm_blocks.csv"):
        if row["model"] not in PLANNED or row["max_model_len"] == "8191":
            continue
        name, settings = PLANNED[row["model"]]
        run = {"dtype": "bfloat16", "cache_layout": "paged", "cache_block": 16} | settings
        room = run | {"length": int(row["max_model_len"]), "cache_memory": int(row["memory"])}
        label = "-".join([name, "fp8"] if "cache_dtype" in settings else [name])
        base = bases[name]
        if row["max_model_len"] == "4096" and row["memory"] == "10000000000":
            each = int(row["bytes_per_block"])
            yield vector(f"{label}-vllm-block_bytes", base, "block_bytes", each, "bytes",
                         implementation="vllm", run=run, witness=seen)  # fmt: skip
        for quantity in ("blocks", "tokens"):
            yield vector(
                f"{label}-vllm-{quantity}-{row['max_model_len']}-{row['memory']}", base, quantity,
                int(row[quantity]), quantity, implementation="vllm", run=room, witness=seen,
            )  # fmt: skip


def quantised(configs: dict[str, dict]) -> Iterator[Vector]:
    """Take the bytes of small models that transformers has quantised."""
    for i, row in enumerate(json.loads((GOLDEN / "quantised_models.json").read_text("utf-8"))):
        method = row["config"]["quantization_config"]["quant_method"]
        name = f"small-{row['config']['model_type']}-{method}-{i}"
        configs[name] = row["config"]
        yield {
            "name": f"{name}-parameter_bytes", "model": None, "config": name,
            "quantity": "parameter_bytes", "implementation": "transformers", "run": {},
            "value": row["bytes"], "unit": "bytes",
            "witness": [{"how": "recorded", "source": f"{method} in transformers 5.23.0, "
                         "all tensors of the quantised model on a CPU"}],
        }  # fmt: skip


if __name__ == "__main__":
    main()
