# Shared by all rules.


def state(rule, wildcards):
    """Return the state of a job's results, and warn of results that were changed afterwards."""
    results, _ = rule.expand_output(wildcards)
    for path in checksums.changed_results(results):
        logger.warning(f"{path}: was changed after it was made, and is made again")
    return checksums.state(results)


LISTED = [name for name in SWEEPS if name not in targets.solved(SWEEPS)]
CONTENT = {sweep: content(SWEEPS[sweep]) for sweep in LISTED}


def listed(wildcards, file):
    """Return a file with the points of a sweep, which may be older than what is made of it.

    They are written for all sweeps at once: what is made of one depends on its content instead.
    """
    path = f"results/{wildcards.sweep}/{file}"
    return ancient(path) if wildcards.sweep in LISTED else path


def if_needed(files, wildcards):
    """Return files that a sweep's comparison waits for; none if the comparison is current.

    They are made for all sweeps at once. A comparison that is current does not depend on them: else
    it would be made again whenever another sweep changes.
    """
    names = ("comparison",) if wildcards.sweep in LISTED else ("points", "comparison")
    made = [f"results/{wildcards.sweep}/{name}.parquet" for name in names]
    makers = [each for each in RULES if any(map(each.is_producer, made))]
    return [] if all(checksums.are_current(each, wildcards) for each in makers) else files


def inputs(wildcards, input):
    """Return a digest of the names of a job's input, without those that it has only if needed."""
    return checksums.of_names(sorted({*map(str, input)} - {*targets.incomplete(RUN.shards)}))


def written(wildcards, *names):
    """Return the tables of these names that a sweep writes."""
    return targets.tables({wildcards.sweep: SWEEPS[wildcards.sweep]}, *names)
