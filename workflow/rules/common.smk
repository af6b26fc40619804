# Shared by all rules.


def state(rule, wildcards):
    """Return the state of a job's results, and warn of results that were changed afterwards."""
    results, _ = rule.expand_output(wildcards)
    for path in checksums.changed_results(results):
        logger.warning(f"{path}: was changed after it was made, and is made again")
    return checksums.state(results)


LISTED = [name for name in SWEEPS if name not in targets.writing(SWEEPS, "solutions")]
CONTENT = {sweep: content(SWEEPS[sweep]) for sweep in LISTED}


def is_current(wildcards, *names):
    """Whether the tables of these names of a sweep, and what is made with them, are current."""
    made = [f"results/{wildcards.sweep}/{name}.parquet" for name in names]
    makers = [each for each in RULES if any(map(each.is_producer, made))]
    return all(checksums.are_current(each, wildcards) for each in makers)


def listed(wildcards, file, made):
    """Return a file with the points of a sweep, which may be older than a table made of it.

    They are written for all sweeps at once: the table depends on the sweep's content instead. One
    that is not current depends on the file: of jobs after one that runs, Snakemake looks for no
    other reason.
    """
    path = f"results/{wildcards.sweep}/{file}"
    return ancient(path) if wildcards.sweep in LISTED and is_current(wildcards, made) else path


def measured(wildcards, made):
    """Return the files of the measuring jobs, for which a table of a sweep waits; none if it is current.

    They measure all sweeps at once. A table that is current does not depend on them: else it would
    be made again whenever another sweep changes.
    """
    names = (made,) if wildcards.sweep in LISTED else ("points", made)
    return [] if is_current(wildcards, *names) else targets.incomplete(RUN.shards)


def inputs(wildcards, input):
    """Return a digest of the names of a job's input, without those that it has only if needed."""
    return checksums.of_names(sorted({*map(str, input)} - {*targets.incomplete(RUN.shards)}))


def written(wildcards, *names):
    """Return the tables of these names that a sweep writes."""
    return targets.tables({wildcards.sweep: SWEEPS[wildcards.sweep]}, *names)
