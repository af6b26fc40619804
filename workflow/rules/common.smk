# Shared by all rules.


def state(rule, wildcards):
    """Return the state of a job's results, and warn of results that were changed afterwards."""
    results, _ = rule.expand_output(wildcards)
    for path in checksums.changed_results(results):
        logger.warning(f"{path}: was changed after it was made, and is made again")
    return checksums.state(results)
