"""Records of Snakemake beside the results: what happens where one is lost."""

from base64 import urlsafe_b64encode

import pytest

from modelbudget.workflow import checksums, records


@pytest.mark.parametrize(
    ("checksum", "has_record", "is_result", "stays"),
    [("other", False, True, False), (None, False, True, False), ("same", False, True, True),
     ("other", True, True, True), (None, False, False, True)],
)  # fmt: skip
def test_a_changed_result_without_record_is_removed(
    monkeypatch, tmp_path, checksum, has_record, is_result, stays
):
    """Snakemake sees no change where it has no record: nothing else would make the result again.

    A file that no job makes is its owner's.
    """
    monkeypatch.chdir(tmp_path)
    result = records.RECORDS.parent / "sweep" / "table.csv"
    result.parent.mkdir(parents=True)
    result.write_text("1")
    if checksum:
        checksums.save([result], {"state": checksums.MADE}, [])
    if has_record:
        records.RECORDS.mkdir()
        name = urlsafe_b64encode(str(result).encode()).decode()
        (records.RECORDS / name).write_text("{}")
    if checksum == "other":
        result.write_text("2")
    records.remove_changed_without_record(lambda path: is_result and path == str(result))
    assert result.exists() == stays
