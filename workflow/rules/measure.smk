# Reads the points of a sweep. Writes the measurements of each model, and what could not be measured,
# which the next run tries again.
#
# One job measures a whole sweep with a pool of processes, since starting a job takes longer than
# measuring a model. If the configuration sets the size of a shard, a larger sweep is measured in
# several jobs, which a cluster can run in parallel. Measurements are cached in results/measurements.
# A job uses half of the cores, so that another one can start while it imports torch, or all of them
# to trace many models; on a cluster the profile sets the number.


rule measure:
    input:
        points="results/{sweep}/points.parquet",
        summary="results/{sweep}/sweep.json",
    output:
        measured="results/{sweep}/measured.parquet",
        failures="results/{sweep}/failures.json",
    log:
        "results/{sweep}/logs/measure.log",
        work="results/{sweep}/logs/measure-1-of-1.json",
    wildcard_constraints:
        sweep=targets.one_of(name for name in SWEEPS if SHARDS[name] == 1),
    priority: 1
    conda:
        "../../environment.yml"
    threads: lambda wildcards: targets.tracing_threads([SWEEPS[wildcards.sweep]], workflow.cores)
    resources:
        gpu=lambda wildcards: targets.gpus(SWEEPS[wildcards.sweep]),
    params:
        shard=1,
        shards=1,
        last_failure=lambda wildcards: targets.last_failure(wildcards.sweep),
    message:
        "{wildcards.sweep}: instantiate and count every model"
    script:
        "../../scripts/measure.py"


use rule measure as measure_shard with:
    output:
        measured=temp("results/.shards/{sweep}/{shard}-of-{shards}.parquet"),
        failures=temp("results/.shards/{sweep}/{shard}-of-{shards}.json"),
    log:
        "results/{sweep}/logs/measure-{shard}-of-{shards}.log",
        work="results/{sweep}/logs/measure-{shard}-of-{shards}.json",
    wildcard_constraints:
        sweep=targets.one_of(name for name in SWEEPS if SHARDS[name] > 1),
    params:
        shard=lambda wildcards: int(wildcards.shard),
        shards=lambda wildcards: int(wildcards.shards),
    message:
        "{wildcards.sweep}: measure shard {wildcards.shard} of {wildcards.shards}"


rule gather:
    input:
        measured=lambda wildcards: targets.shards_of(wildcards.sweep, SHARDS, "parquet"),
        failures=lambda wildcards: targets.shards_of(wildcards.sweep, SHARDS, "json"),
    output:
        measured="results/{sweep}/measured.parquet",
        failures="results/{sweep}/failures.json",
    log:
        "results/{sweep}/logs/gather.log",
    wildcard_constraints:
        sweep=targets.one_of(name for name in SWEEPS if SHARDS[name] > 1),
    conda:
        "../../environment.yml"
    message:
        "{wildcards.sweep}: merge the shards"
    script:
        "../../scripts/gather.py"
