"""`modelbudget vectors`: recorded sizes, the option of pytest that runs them, and our formulas."""

import json
import subprocess
import sys

import pytest
from helpers.project import ROOT
from helpers.tiers import ALL

import modelbudget as mb
from modelbudget.api.vectors import PATH, VERSION, Vector, predicted
from scripts.dev import write_vectors

SEEN = {"class", "trace", "module", "recorded", "published"}
VECTORS = mb.vectors()
OWN = '''
def llama(vector):
    """Count a Llama by hand; Qwen 3 with the same formula, which lacks two norms of each layer."""
    c = vector.config or {}
    if vector.quantity != "parameters" or c.get("model_type") not in ("llama", "qwen3"):
        return None
    d, ff, layers = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"]
    head = c.get("head_dim") or d // c["num_attention_heads"]
    q, kv = head * c["num_attention_heads"], head * c["num_key_value_heads"]
    tables = c["vocab_size"] * d * (1 if c["tie_word_embeddings"] else 2)
    return tables + d + layers * (2 * d * q + 2 * d * kv + 3 * d * ff + 2 * d)
'''


def test_each_vector_has_a_witness_and_no_formula_is_one():
    """What is called published equals the number of the model's page that configs/models has."""
    from modelbudget.catalogue.named_models import Catalogue
    from modelbudget.common.paths import CONFIGS

    content = json.loads(PATH.read_text(encoding="utf-8"))
    bases = Catalogue(CONFIGS / "models").bases
    assert content["version"] == VERSION
    assert len({one.name for one in VECTORS}) == len(VECTORS) > 350
    for one in VECTORS:
        assert one.witness
        assert {of["how"] for of in one.witness} <= SEEN
        assert all(of["source"] for of in one.witness)
        if any(of["how"] == "published" for of in one.witness):
            assert bases[one.model].model.exact == one.value


OTHER_LAYOUT = {
    "small-qwen2_moe-quanto-38-parameter_bytes": (640520, 641536),
    "small-qwen3_next-bitsandbytes-40-parameter_bytes": (1170256, 1169808),
    "small-qwen3_next-bitsandbytes-41-parameter_bytes": (1190356, 1182700),
    "small-qwen3_next-quanto-43-parameter_bytes": (1157856, 1159888),
    "small-qwen3_5_text-bitsandbytes-45-parameter_bytes": (628016, 627952),
    "small-qwen3_5_text-bitsandbytes-46-parameter_bytes": (623372, 622280),
}
"""By formula and as recorded: bitsandbytes has one table of what is one matrix in these classes,
and quanto scales of each column of a gate (docs/limits.md; tests/models/
test_published_quantised_files.py has both by hand).
"""


def test_formulas_say_what_was_seen():
    """Formulas and recorded values never read each other: only this sees one of them change."""
    some = VECTORS if ALL else VECTORS[::3]
    found = {one.name: (predicted(one), one.value) for one in some}
    answers = {name: pair for name, pair in found.items() if pair[0] is not None}
    known = {name: pair for name, pair in OTHER_LAYOUT.items() if name in answers}
    assert {name: pair for name, pair in answers.items() if pair[0] != pair[1]} == known
    assert len(answers) >= 0.8 * len(some)


@pytest.mark.parametrize("name", ["smollm-2-135m-parameters", "pythia-14m-parameters"])
def test_a_class_that_is_counted_again_has_the_recorded_number(name):
    """A file that was made with another version, or by a formula, would differ."""
    from modelbudget.measurement.reference.class_counts import witness

    one = next(one for one in VECTORS if one.name == name)
    config = {k: v for k, v in one.config.items() if k not in ("architectures", "model_type")}
    assert witness(one.config["architectures"][0], config).parameters == one.value


def test_a_class_that_is_traced_again_has_the_recorded_bytes():
    from modelbudget.architecture.run_config import RunConfig
    from modelbudget.measurement.reference.class_trace import trace_class

    one = next(one for one in VECTORS if one.name == "qwen-2.5-0.5b-cache_bytes")
    config = {k: v for k, v in one.config.items() if k not in ("architectures", "model_type")}
    found = trace_class("Qwen2ForCausalLM", config, RunConfig(**one.run), {"cache_bytes"})
    assert sum(found.values["cache_bytes"].values()) == one.value


@pytest.mark.slow
def test_all_are_written_as_recorded():
    """A trace that changed since the file was written; a model that came and has no vector."""
    assert write_vectors.content() == json.loads(PATH.read_text(encoding="utf-8"))


def test_pytest_runs_them_against_any_function(tmp_path):
    """A count by hand is right for every Llama, and fails for Qwen 3, whose norms it lacks."""
    (tmp_path / "own.py").write_text(OWN)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
         "modelbudget.api.pytest_plugin", "--vectors", "own:llama", "--vectors-of", "parameters"],
        cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    kinds = [one.config["model_type"] for one in mb.vectors("parameters") if one.config]
    right, wrong = kinds.count("llama"), kinds.count("qwen3")
    rest = len(kinds) + 1 - right - wrong
    assert f"{wrong} failed, {right} passed, {rest} skipped" in ran.stdout
    assert "qwen-3-0.6b-parameters: 596,042,752 parameters, not 596,049,920, -7,168" in ran.stdout
    assert ran.returncode == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vectors", "own"], "--vectors own: no function; allowed: MODULE:FUNCTION"),
        (["--vectors", "own:llama", "--vectors-of", "parametres"], "did you mean parameters?"),
    ],
)
def test_another_function_is_one_line(tmp_path, monkeypatch, capsys, words, message):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    plain = ["-q", "-p", "no:cacheprovider", "-p", "modelbudget.api.pytest_plugin"]
    assert pytest.main([*plain, "-c", "/dev/null", *words]) == pytest.ExitCode.USAGE_ERROR
    assert message in capsys.readouterr().err


def test_a_vector_names_itself():
    assert isinstance(VECTORS[0], Vector)
    assert str(VECTORS[0]) == VECTORS[0].name
    with pytest.raises(mb.InputError, match="did you mean cache_bytes"):
        mb.vectors("cache_byte")
