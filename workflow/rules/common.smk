# Shared by all rules.


def state(rule, wildcards):
    """Return the state of a job's results, and warn of results that were changed afterwards."""
    results, _ = rule.expand_output(wildcards)
    for path in checksums.changed_results(results):
        logger.warning(f"{path}: was changed after it was made, and is made again")
    return checksums.state(results)


def if_needed(files, wildcards):
    """Return files that a sweep's comparison waits for; none if the comparison is current.

    They are made for all sweeps at once. A comparison that is current does not depend on them: else
    it would be made again whenever another sweep changes.
    """
    made = [f"results/{wildcards.sweep}/{name}.parquet" for name in ("points", "comparison")]
    makers = [each for each in RULES if any(map(each.is_producer, made))]
    return [] if all(checksums.are_current(each, wildcards) for each in makers) else files


def inputs(wildcards, input):
    """Return a digest of the names of a job's input, without those that it has only if needed."""
    needed = {*targets.incomplete(SHARDS), *targets.failed_traces(True)}
    return checksums.of_names(sorted({*map(str, input)} - needed))
