"""What was measured is kept by content, and what it is made of decides whether it still holds."""

import polars as pl
import pytest
from helpers.project import ROOT

from modelbudget.common import code_digests, store
from modelbudget.families import families


def table(**values_by_key: int) -> pl.DataFrame:
    return pl.DataFrame({"measured": values_by_key.values(), "key": values_by_key.keys()})


def test_what_was_saved_is_not_missing_and_is_loaded(tmp_path):
    store.save(tmp_path, table(a=1, b=2))
    store.save(tmp_path, table(c=3))
    assert store.missing(tmp_path, {"a": 1, "c": 3, "d": 4}) == {"d": 4}
    assert sorted(store.load(tmp_path, ["a", "c", "d"])["measured"]) == [1, 3]
    assert store.load(tmp_path, ["d"]).is_empty()
    assert store.missing(tmp_path / "nothing", {"a": 1}) == {"a": 1}


def test_files_are_plain_parquet(tmp_path):
    store.save(tmp_path, table(a=1))
    (path,) = tmp_path.iterdir()
    assert pl.read_parquet(path).to_dicts() == [{"measured": 1, "key": "a"}]


@pytest.mark.parametrize(("seconds", "files"), [(0, 2), (30, 1)])
def test_a_long_job_saves_before_its_end(tmp_path, monkeypatch, seconds, files):
    monkeypatch.setattr(store, "SAVED_EVERY_S", seconds)
    with store.adding(tmp_path) as add:
        add("b", pl.DataFrame({"measured": [2, 3]}))
        add("a", pl.DataFrame({"measured": [1]}))
        assert len(list(tmp_path.iterdir())) == (files if files > 1 else 0)
    assert len(list(tmp_path.iterdir())) == files
    assert sorted(store.load(tmp_path, ["a", "b"])["measured"]) == [1, 2, 3]


@pytest.mark.parametrize("spoil", ["truncated", "other columns", "empty", "changed"])
def test_a_file_that_is_no_table_of_measurements_is_as_good_as_none(tmp_path, spoil):
    store.save(tmp_path, table(a=1))
    (path,) = tmp_path.iterdir()
    match spoil:
        case "truncated":
            path.write_bytes(path.read_bytes()[:-20])
        case "other columns":
            pl.DataFrame({"other": [1]}).write_parquet(path)
        case "changed":
            table(a=7).write_parquet(path)
        case "empty":
            path.write_bytes(b"")
    store.save(tmp_path, table(b=2))
    assert store.missing(tmp_path, {"a": 1, "b": 2}) == {"a": 1}


def test_a_key_depends_on_every_part():
    parts = ("digest", {"dtype": "float32"}, "code", {"torch": "1"})
    other = ("digest", {"dtype": "float32"}, "code", {"torch": "2"})
    assert store.key(*parts) == store.key(*parts) != store.key(*other)


def test_a_changed_module_concerns_the_families_that_are_made_of_it(monkeypatch, tmp_path):
    """With another recurrent cell only what has that cell is measured again."""

    def digests() -> dict[str, str]:
        code_digests.code_of_model.cache_clear()
        return {name: code_digests.code_of_model(family) for name, family in families().items()}

    before = digests()
    changed = ROOT / "modelbudget" / "modules" / "rwkv.py"
    content = code_digests._content
    monkeypatch.setattr(code_digests, "_content", lambda p: content(p) + b"#" * (p == changed))
    after = digests()
    code_digests.code_of_model.cache_clear()
    assert {name for name in before if before[name] != after[name]} == {
        "rwkv", "rwkv5", "rwkv6", "rwkv7",
    }  # fmt: skip
