"""Sets of run settings by name: what they set, what overrides them, and mistakes in their files."""

import pytest

import modelbudget as mb
from modelbudget.architecture.run_config import IMPLEMENTATIONS, RunConfig
from modelbudget.catalogue import implementations as module
from modelbudget.catalogue.implementations import implementations
from modelbudget.common.errors import InputError

SWEEP = """
base: {base}
fixed: {{length: 8, dtype: bfloat16, {fixed}}}
grid: {{implementation: [{names}]}}
measure: {{device: meta, quantities: [activation_bytes]}}
"""


@pytest.fixture
def runs(sweep):
    def of(base: str, names: str, fixed: str = "batch: 1") -> list[RunConfig]:
        expanded = sweep(SWEEP.format(base=base, names=names, fixed=fixed))
        return [point.run for point in expanded.points]

    return of


def test_each_sets_what_its_file_has(runs):
    ours, theirs, nano = runs("gpt-2-124m", "modelbudget, transformers, nanogpt")
    assert ours == RunConfig(length=8, dtype="bfloat16", foreach=True, attention_kernel="flash")
    expected = implementations()["transformers"].of_class("GPT2LMHeadModel")
    assert expected.items() <= vars(theirs).items()
    assert (theirs.dropout_in, theirs.outputs, nano.outputs) == ("model", "freed", "kept")


def test_settings_depend_on_the_class(runs):
    (llama,) = runs("llama-3-8b", "transformers")
    assert (llama.activation_kernel, llama.projections, llama.dropout_in) == (
        "fused",
        "separate",
        "attention",
    )


def test_a_field_of_the_sweep_overrides_one(runs):
    (run,) = runs("llama-3-8b", "transformers", "batch: 1, loss_dtype: logits")
    assert (run.loss_dtype, run.norm_kernel) == ("logits", "written_out")


@pytest.mark.parametrize(
    ("base", "name", "words"),
    [
        ("bloom-176b", "transformers", "transformers has not been compared with BloomForCausalLM"),
        (
            "gpt-2-124m",
            "transformer",
            "must be 'megatron', 'modelbudget', 'nanogpt', 'torchtitan' or 'transformers'",
        ),
    ],
)
def test_an_unknown_class_or_name_is_refused(runs, base, name, words):
    with pytest.raises(InputError) as refusal:
        runs(base, name)
    assert words in str(refusal.value)


def test_every_file_names_its_source_and_check():
    for name, one in implementations().items():
        assert one.source, name
        assert one.checked, name
    assert implementations()["modelbudget"].settings == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("settings: {norm_kernel: slow}", "settings: norm_kernel = 'slow'"),
        (
            "settings: {}\nclasses: {LlamaForCausalLM: {settings: {norms: a}}}",
            "LlamaForCausalLM: norms",
        ),
        (
            "settings: {}\nby_key: {hidden_act: [{value: gelu, fields: {gelu: fused}}]}",
            "by_key.hidden_act: gelu",
        ),
        ("setting: {}", "setting"),
    ],
)
def test_a_mistake_in_a_file_is_one_message(tmp_path, monkeypatch, text, words):
    path = tmp_path / "other.yaml"
    path.write_text(f"title: other\nsource: here\nchecked: never\n{text}\n")
    monkeypatch.setattr(module, "IMPLEMENTATIONS", IMPLEMENTATIONS | {"other": path})
    implementations.cache_clear()
    try:
        with pytest.raises(InputError) as refusal:
            implementations()
    finally:
        implementations.cache_clear()
    assert all(mistake.startswith(f"{path}: ") for mistake in refusal.value.mistakes)
    assert words in refusal.value.mistakes[0]


@pytest.mark.parametrize("name", ["megatron", "nanogpt"])
def test_a_checkpointing_that_an_implementation_lacks_is_refused(name):
    """Else a number would be given under its name that nobody compared."""
    run = {"implementation": name, "recompute": "selective_op"}
    with pytest.raises(InputError, match=f"selective_op': implementation: {name} has none"):
        mb.model("gpt-2-124m").memory(run)
