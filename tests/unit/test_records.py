"""Records of Snakemake beside the results: what happens where one is lost."""

from base64 import urlsafe_b64encode

import pytest

from modelbudget.plan import checksums, records


@pytest.mark.parametrize(
    ("is_changed", "has_record", "stays"),
    [(True, False, False), (True, True, True), (False, False, True)],
)
def test_a_changed_result_without_record_is_removed(
    monkeypatch, tmp_path, is_changed, has_record, stays
):
    """Snakemake sees no change where it has no record: nothing else would make the result again."""
    monkeypatch.chdir(tmp_path)
    result = records.RECORDS.parent / "sweep" / "table.csv"
    result.parent.mkdir(parents=True)
    result.write_text("1")
    checksums.save([result], {"state": checksums.MADE}, [])
    if has_record:
        records.RECORDS.mkdir()
        name = urlsafe_b64encode(str(result).encode()).decode()
        (records.RECORDS / name).write_text("{}")
    if is_changed:
        result.write_text("2")
    records.remove_changed_without_record()
    assert result.exists() == stays
