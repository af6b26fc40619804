"""Classes of `transformers` as PEFT wraps them, and our runs that are the same."""

import warnings
from typing import Any

import torch

from helpers.small_classes import SMALL
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.families.decoder import Decoder
from modelbudget.huggingface.construct import config_object
from modelbudget.measurement.build import build_class
from modelbudget.sweeps.class_config import _architecture

DOWN = ("down_proj", "mlp.c_proj", "down")
ROLES = {
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj", "gate": "gate_proj",
    "up": "up_proj", "down": "down_proj",
}  # fmt: skip


def architecture_of(kind: str) -> Decoder:
    return _architecture(kind, Decoder, SMALL[kind])


def run_of(kind: str, **fields) -> RunConfig:
    """Return a run of our modules that compute as the class."""
    of_class = implementations()[TRANSFORMERS].of_class(kind, SMALL[kind])
    own = {"batch": 2, "length": 16, "dtype": "bfloat16", "attention_kernel": "efficient"}
    return RunConfig(**{**own, **of_class, **fields})


def class_of(kind: str, run: RunConfig):
    """Return a class on meta, without adapters."""
    plain = RunConfig(batch=run.batch, length=run.length, dtype=run.dtype, dropout=run.dropout)
    return build_class(kind, config_object(kind, SMALL[kind]), plain, "meta")


def linear_paths(model, roles: str = "all-linear") -> list[str]:
    """Return the paths of the linear layers that PEFT's all-linear takes, or of some."""
    from transformers.pytorch_utils import Conv1D

    names = [ROLES[role] for role in roles.split()] if roles != "all-linear" else None
    return [
        path
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D)
        and path != "lm_head"
        and (names is None or path.rpartition(".")[2] in names)
    ]


def config_of(run: RunConfig, model, names: list[str] | None = None):
    """Return PEFT's config of the adapter of a run; `names`: its targets, if not of a class."""
    import peft

    paths = linear_paths(model, run.adapter_targets) if names is None else names
    r, block, n = run.adapter_rank, run.adapter_block, run.adapter_frequencies
    of: Any = {"target_modules": paths}
    tokens: Any = {"task_type": "CAUSAL_LM", "num_virtual_tokens": run.virtual_tokens}
    reaches_experts = run.adapter in ("lora", "rslora") and run.adapter_targets == "all-linear"
    drop = 0.1 * run.adapter_dropout
    lora: Any = {"r": r, "lora_dropout": drop}
    lora |= {"target_modules": "all-linear"} if reaches_experts and not names else of
    down = [path for path in paths if path.endswith(DOWN)]
    configs = {
        "lora": lambda: peft.LoraConfig(**lora),
        "rslora": lambda: peft.LoraConfig(**lora, use_rslora=True),
        "lora_fa": lambda: peft.LoraConfig(**lora),
        "dora": lambda: peft.LoraConfig(**lora, use_dora=True),
        "vera": lambda: peft.VeraConfig(r=r, vera_dropout=drop, **of),
        "loha": lambda: peft.LoHaConfig(r=r, **of),
        "ia3": lambda: peft.IA3Config(feedforward_modules=down, **of),
        "adalora": lambda: peft.AdaLoraConfig(init_r=r, total_step=10, lora_dropout=drop, **of),
        "hira": lambda: peft.HiraConfig(r=r, hira_dropout=drop, **of),
        "delora": lambda: peft.DeloraConfig(r=r, module_dropout=drop, **of),
        "shira": lambda: peft.ShiraConfig(r=r, **of),
        "pvera": lambda: peft.PveraConfig(r=r, pvera_dropout=drop, **of),
        "lokr": lambda: peft.LoKrConfig(r=r, decompose_factor=block, **of),
        "oft": lambda: peft.OFTConfig(oft_block_size=block, **of),
        "boft": lambda: peft.BOFTConfig(boft_block_size=block, **of),
        "hra": lambda: peft.HRAConfig(r=r, **of),
        "c3a": lambda: peft.C3AConfig(block_size=block, **of),
        "miss": lambda: peft.MissConfig(r=r, miss_dropout=drop, **of),
        "road": lambda: peft.RoadConfig(group_size=8, **of),
        "fourierft": lambda: peft.FourierFTConfig(n_frequency=n, **of),
        "waveft": lambda: peft.WaveFTConfig(n_frequency=n, **of),
        "prompt": lambda: peft.PromptTuningConfig(**tokens),
        "prefix": lambda: peft.PrefixTuningConfig(**tokens),
        "p_tuning": lambda: peft.PromptEncoderConfig(**tokens),
    }
    return configs[run.adapter]()


def with_dtype(model, run: RunConfig):
    """Give adapters their dtype. On meta PEFT leaves C3A's float32, which it moves elsewhere."""
    from peft.tuners.tuners_utils import cast_adapter_dtype

    if run.adapter_dtype == "float32":
        cast_adapter_dtype(model, "default")
    elif run.adapter == "c3a":
        for module in model.modules():
            if kernels := getattr(module, "c3a_kernel", None):
                kernels.to(getattr(torch, run.dtype))
    return model


def wrapped(kind: str, run: RunConfig, injected: bool = False):
    """Return a class as PEFT wraps it; `injected`: of the same type as before."""
    import peft

    model = class_of(kind, run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not injected:
            is_float32 = run.adapter_dtype == "float32"
            config = config_of(run, model)
            return with_dtype(
                peft.get_peft_model(model, config, autocast_adapter_dtype=is_float32), run
            )
        model = peft.inject_adapter_in_model(config_of(run, model), model)
    return with_dtype(model, run)
