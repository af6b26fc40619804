"""What every job of the pipeline does first."""

import atexit
import gc
import logging
import os
import sys

from modelbudget import checksums
from modelbudget.errors import InputError


def start_log(snakemake) -> None:
    """Send this job's log records to the rule's log file, with warnings and what ends the job. When
    it ends, write the checksums of its results.

    A job ends within minutes: looking for garbage among all that it imports and makes, again and
    again and once more at its end, takes up to two fifths of its time and frees next to nothing.
    """
    gc.freeze()
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    atexit.register(checksums.save, snakemake.output, snakemake.params.state)
    logging.basicConfig(
        filename=snakemake.log[0],
        filemode="w",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    logging.captureWarnings(True)
    sys.excepthook = _log_and_show
    logging.info("rule %s, wildcards %s", snakemake.rule, dict(snakemake.wildcards))


def give_way() -> None:
    """For a job that nothing waits for, or only the report: where cores are few, the others go
    first. Said before torch and the like are imported, which takes seconds.
    """
    os.nice(5)


def _log_and_show(kind, error, traceback) -> None:
    """What the disk or the input refuses is told in a line; anything else with its traceback."""
    if isinstance(error, OSError | InputError) or "os error" in str(error):
        line = f"the job failed: {error}. Nothing half-written was left; mend that and run again."
        logging.critical(line)
        print(line, file=sys.stderr)
    else:
        logging.critical("the job failed", exc_info=(kind, error, traceback))
        sys.__excepthook__(kind, error, traceback)
