"""Every model in configs/models, found by its presence, against what others have counted."""

import pytest
import torch
from helpers.catalogue import CATALOGUE
from helpers.tiers import ALL

from modelbudget.architecture.terms import total
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.common.errors import InputError
from modelbudget.measurement.count import count
from modelbudget.modules.initialise import uninitialised
from modelbudget.sweeps.derive import named_architecture
from modelbudget.workflow.chosen_sweeps import check_models

BASES = [base for base in CATALOGUE.bases.values() if base.model]


@pytest.fixture(params=BASES, ids=lambda base: base.name)
def base(request) -> Base:
    return request.param


def test_predicted_and_measured_agree_with_the_known_count(base):
    a = named_architecture(base)
    with uninitialised(), torch.device("meta"):
        counts = count(a.build())
    measured = {name: c.parameters for name, c in counts.items() if c.parameters}
    predicted = {name: term.total for name, term in a.parameters(a).items() if term.total}
    assert predicted == measured
    known = base.model.exact or base.model.independent
    assert known in (sum(measured.values()), None)


CHECKED = [base for base in BASES if base.model.published_value is not None]


@pytest.mark.parametrize("base", CHECKED, ids=lambda base: base.name)
def test_printed_size_agrees_or_a_reason_is_given(base):
    model, a = base.model, named_architecture(base)
    difference = total(a.parameters(a)) - model.published_value
    agrees = abs(difference) <= (model.published_tolerance or 0)
    allowed = "within published_tolerance, or with a reason"
    assert agrees == (model.reason is None), f"{difference:+,} from published_value: {allowed}"


ACTIVE = [base for base in BASES if base.model.published_active]


@pytest.mark.parametrize("base", ACTIVE, ids=lambda base: base.name)
def test_printed_active_size_is_one_of_two_conventions(base):
    """With the input embedding (Mixtral, OLMoE, Qwen 3) or without (DeepSeek, gpt-oss)."""
    a = named_architecture(base)
    terms = a.active_parameters(a)
    embedding = terms["embedding.token"].total
    off = [abs(total(terms) - without - base.model.published_active) for without in (0, embedding)]
    assert min(off) / base.model.published_active < 0.025


@pytest.mark.parametrize(
    ("name", "active"),
    [("mixtral-8x7b", 12_879_925_248), ("gpt-oss-120b", 5_711_982_912),
     ("deepseek-v3", 37_552_297_472), ("olmoe-1b-7b", 1_282_017_280)],
)  # fmt: skip
def test_active_parameters(name, active):
    """Counts from closed forms that others have written, input embedding included."""
    a = named_architecture(next(base for base in BASES if base.name == name))
    assert total(a.active_parameters(a)) == active


def test_a_model_without_a_source_is_refused(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "title: Mine\nfamily: decoder\nmodels:\n  mine-1b: {label: Mine 1B, fields: {}}\n"
    )
    with pytest.raises(InputError, match=r"mine\.yaml: models\.mine-1b\.source: missing"):
        Catalogue(tmp_path)


def test_a_series_speaks_for_its_models(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "title: Mine\nfamily: decoder\nsource: a notebook\npublished_tolerance: 7\nmodels:\n"
        "  mine-1b: {label: Mine 1B, fields: {}}\n"
        "  mine-2b: {label: Mine 2B, fields: {}, source: a letter}\n"
    )
    catalogue = Catalogue(tmp_path)
    assert catalogue["mine-1b"].model.source == "a notebook"
    assert catalogue["mine-1b"].model.published_tolerance == 7
    assert catalogue["mine-2b"].model.source == "a letter"


def test_a_file_that_is_edited_is_read_again(tmp_path):
    """Also in the process that has read it: a notebook stays open."""
    path = tmp_path / "mine.yaml"
    for label in ("Mine 1B", "Mine 1B again"):
        path.write_text(
            f"title: Mine\nfamily: decoder\nsource: s\nmodels: {{mine-1b: {{label: {label}}}}}\n"
        )
        assert Catalogue(tmp_path)["mine-1b"].label == label


MINE = """title: Mine
family: decoder
source: a notebook
fields: {n_vocab: 50, n_ctx: 8, d_model: 8, n_layer: 1, n_head: 2, d_ff: 16}
models:
  mine-1b: {label: Mine 1B, fields: {n_kv_head: 3}}
  mine-2b: {label: Mine 2B, fields: {d_ff: -4}}
  mine-3b: {label: Mine 3B, fields: {d_ff: -4, positoin: rotary}}
"""


def test_the_class_of_every_named_model_is_checked(tmp_path):
    """By the run that reads them, and not by each of its jobs again."""
    path = tmp_path / "mine.yaml"
    path.write_text(MINE.replace("family", "transformers: GPT2LMHeadMode\nfamily"))
    with pytest.raises(InputError) as refusal:
        check_models(Catalogue(tmp_path))
    start = (
        f"{path}: models.mine-1b and 2 more: transformers = 'GPT2LMHeadMode': no class that is a "
    )
    (line,) = (line for line in refusal.value.mistakes if "transformers" in line)
    assert line.startswith(f"{start}decoder; did you mean GPT2LMHeadModel?")


def test_every_named_model_is_checked(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    with pytest.raises(InputError) as refusal:
        check_models(Catalogue(tmp_path))
    divides, negative, unknown = refusal.value.mistakes
    assert divides.startswith(f"{path}: models.mine-1b: n_kv_head = 3 does not divide n_head = 2")
    assert negative == f"{path}: models.mine-2b and 1 more: d_ff = -4: must be at least 1"
    assert unknown.startswith(f"{path}: models.mine-3b: positoin: unknown key; did you mean posit")


def test_a_mistake_in_a_model_that_no_sweep_uses_is_reported_before_any_work(make_project):
    project = make_project()
    project.write_sweep("small.yaml", "base: mlp\ngrid: {d_model: [5]}\n")
    models = project.folder / "configs" / "models"
    (models / "mine.yaml").write_text(MINE)
    if ALL:  # test_the_mistakes_of_all_model_files_are_reported_together
        (models / "other.yaml").write_text("title: Other\nfamily: decodr\n")
        run = project.snakemake("-n")
        output = run.stdout + run.stderr
        assert run.returncode == 1
        assert "configs/models/other.yaml: family = 'decodr': unknown family" in output
        (models / "other.yaml").unlink()
    run = project.snakemake("-n")
    output = run.stdout + run.stderr
    assert run.returncode == 1
    assert "Nothing was started. 3 mistakes:" in output
    assert "configs/models/mine.yaml: models.mine-2b and 1 more: d_ff = -4" in output
    assert "Traceback" not in output
    assert not (project.folder / "results").exists()


def test_the_mistakes_of_all_model_files_are_reported_together(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"title: {name}\nfamily: decodr\n")
    with pytest.raises(InputError) as refusal:
        Catalogue(tmp_path)
    first, second = refusal.value.mistakes
    assert first.startswith(str(tmp_path / "one.yaml"))
    assert second.startswith(str(tmp_path / "two.yaml"))
