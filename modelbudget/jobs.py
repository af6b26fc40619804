"""What every job of the pipeline does first: write its log where the rule says."""

import logging


def start_log(snakemake) -> None:
    """Send this job's log records, warnings included, to the rule's log file."""
    logging.basicConfig(
        filename=snakemake.log[0],
        filemode="w",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    logging.captureWarnings(True)
    logging.info("rule %s, wildcards %s", snakemake.rule, dict(snakemake.wildcards))
