"""GPT-2 module by module: the smallest size with its formulas."""

from modelbudget.report.section import Page, Section

ID = "gpt-2-ledger"
LEDGER = "gpt-2-ledger/ledger.parquet"


def _contents(page: Page) -> dict:
    verdict, ledger = page.verdicts[ID], page.results.parts[LEDGER]
    first = ledger["model"][0]
    return {
        "short": verdict.title,
        "verdict": verdict,
        "model": first,
        "modules": ledger.filter(model=first).to_dicts(),
    }


SECTION = Section(130, ID, "", _contents, (LEDGER,))
