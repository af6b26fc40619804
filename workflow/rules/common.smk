# What all rules have in common.


def state(rule, wildcards):
    """What has become of a job's results since they were made."""
    results, _ = rule.expand_output(wildcards)
    for path in checksums.changed_results(results):
        logger.warning(f"{path}: was changed after it was made, and is made again")
    return checksums.state(results)
