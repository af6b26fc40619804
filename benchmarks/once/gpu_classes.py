"""What classes of `transformers` take on a CUDA device: PEFT, Trainer, generate, torch.compile."""

from collections.abc import Callable
from typing import Any

import torch
from gpu_step import Meter, build_on_device, train

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.catalogue.named_models import Base
from modelbudget.measurement.process.allocator import statistics
from modelbudget.sweeps.derive import resolved


def of_class(read: Callable) -> Callable:
    """Return a reader of a model as its class computes it, with the settings of the class."""

    def reads(base: Base, settings: dict) -> dict:
        of_class = dict(implementations()[TRANSFORMERS].of_class(base.transformers))
        return read(base, of_class | settings, base.transformers)

    return reads


def fine_tuning(base: Base, settings: dict, kind: str) -> dict:
    """Read two training steps of a class with the adapters of PEFT, quantised by bitsandbytes."""
    import peft

    a, run = resolved(base, settings)
    is_prepared = run.prepare_for_kbit_training
    own = {"adapter": "none", "weights": "dtype", "prepare_for_kbit_training": False}
    plain = run.model_copy(update=own)

    def wrapped():
        model: Any = build_on_device(a, plain, kind)
        if run.weights != "dtype":
            quantise(model, run)
        if is_prepared:
            arguments = {"use_reentrant": False}
            model = peft.prepare_model_for_kbit_training(
                model, run.recompute == "full", gradient_checkpointing_kwargs=arguments
            )
        roles = {"query": "q_proj", "value": "v_proj"}
        targets: Any = [roles.get(name, name) for name in run.adapter_targets.split()]
        targets = "all-linear" if run.adapter_targets == "all-linear" else targets
        is_dora = run.adapter == "dora"
        config = peft.LoraConfig(
            r=run.adapter_rank, target_modules=targets, lora_dropout=0.0, use_dora=is_dora
        )
        if run.input_gradient and not is_prepared:
            model.enable_input_require_grads()
        made = peft.get_peft_model(model, config)
        return made.base_model.model

    return train(wrapped, plain)


def quantise(model: Any, run: RunConfig) -> None:
    """Replace the linear layers of a class but its head, as transformers does on loading."""
    import bitsandbytes

    is_double = run.weights == "bnb-4bit-double"
    for name, layer in list(model.named_modules()):
        if not isinstance(layer, torch.nn.Linear) or name == "lm_head":
            continue
        sizes = layer.in_features, layer.out_features, layer.bias is not None
        if run.weights == "bnb-8bit":
            made = bitsandbytes.nn.Linear8bitLt(
                *sizes, has_fp16_weights=False, threshold=6.0, device="meta"
            )
            made.weight = bitsandbytes.nn.Int8Params(
                layer.weight.data.cpu(), requires_grad=False, has_fp16_weights=False
            ).cuda(0)
        else:
            made = bitsandbytes.nn.Linear4bit(
                *sizes, layer.weight.dtype, is_double, "nf4", device="meta"
            )
            made.weight = bitsandbytes.nn.Params4bit(
                layer.weight.data, False, compress_statistics=is_double, quant_type="nf4",
                module=made,
            ).cuda(0)  # fmt: skip
        made.bias = layer.bias
        model.set_submodule(name, made)
        layer.weight = None
    model.is_loaded_in_4bit, model.is_quantized = run.weights != "bnb-8bit", True
    model.is_loaded_in_8bit = run.weights == "bnb-8bit"
    model.requires_grad_(False)


def generation(base: Base, settings: dict, kind: str) -> dict:
    """Read `generate` of a class: a prompt of `length` tokens, and `n_new` greedily chosen."""
    n_new = settings.pop("n_new")
    a, run = resolved(base, settings)
    meter = Meter(statistics())
    model: Any = build_on_device(a, run, kind).eval()
    tokens = torch.randint(vocabulary_size(model), (run.batch, run.length), device="cuda")
    mask, choose = torch.ones_like(tokens), {"do_sample": False, "use_cache": True}
    meter.read("setup")
    with torch.no_grad():
        made = model.generate(
            tokens, attention_mask=mask, max_new_tokens=n_new, min_new_tokens=n_new,
            pad_token_id=0, **choose,
        )  # fmt: skip
    meter.read("generate")
    return {"run": run.model_dump(), "n_new": made.shape[1] - run.length, "peaks": meter.peaks}


def vocabulary_size(model: Any) -> int:
    """Return the number of tokens of a class."""
    return model.get_input_embeddings().weight.shape[0]


def compiled(base: Base, settings: dict, kind: str) -> dict:
    """Read two steps of a class whose forward pass torch.compile has made."""
    a, run = resolved(base, settings)

    def made():
        model = build_on_device(a, run, kind)
        model.compile()
        return model

    return train(made, run)


def trainer(base: Base, settings: dict, kind: str) -> dict:
    """Read three steps of the Trainer of transformers, with its defaults for what no run sets."""
    import transformers

    a, run = resolved(base, settings)
    meter = Meter(statistics())
    model: Any = build_on_device(a, run, kind)
    n_vocab = vocabulary_size(model)

    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            tokens = torch.randint(n_vocab, (run.length,))
            return {"input_ids": tokens, "labels": tokens}

    class Reader(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            meter.read(f"{state.global_step}.before")

        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            meter.read(f"{state.global_step}.forward_backward")

        def on_step_end(self, args, state, control, **kwargs):
            meter.read(f"{state.global_step - 1}.optimizer")

    arguments = transformers.TrainingArguments(
        output_dir="/tmp/trainer", per_device_train_batch_size=run.batch, max_steps=3,
        bf16=run.autocast == "bfloat16", gradient_checkpointing=run.recompute == "full",
        gradient_accumulation_steps=run.n_microbatch, save_strategy="no", report_to=[],
        logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    of_steps = transformers.Trainer(model, arguments, train_dataset=Texts(), callbacks=[Reader()])
    of_steps.train()
    return {"run": run.model_dump(), "optim": arguments.optim, "peaks": meter.peaks}
