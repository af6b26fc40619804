# Needs: the points of a sweep. Makes: what torch counts in each instantiated model, and what could
# not be measured, which the next run tries again.
#
# One job measures a whole sweep with a pool of processes: a job costs more than a model. Where the
# configuration says how many points make a shard, a larger sweep is measured in several jobs, for
# a cluster to run side by side. What any sweep has measured before is taken from
# results/measurements. Half of the cores each, so that another job can start while this one loads
# torch; elsewhere than here a profile says how many.


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
        sweep=plan.one_of(name for name in SWEEPS if SHARDS[name] == 1),
    conda:
        "../../environment.yml"
    threads: lambda wildcards: (workflow.cores + 1) // 2
    resources:
        gpu=lambda wildcards: plan.gpus(SWEEPS[wildcards.sweep]),
    params:
        shard=1,
        shards=1,
        last_failure=lambda wildcards: plan.last_failure(wildcards.sweep),
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
        sweep=plan.one_of(name for name in SWEEPS if SHARDS[name] > 1),
    params:
        shard=lambda wildcards: int(wildcards.shard),
        shards=lambda wildcards: int(wildcards.shards),
    message:
        "{wildcards.sweep}: measure shard {wildcards.shard} of {wildcards.shards}"


rule gather:
    input:
        measured=lambda wildcards: plan.shards_of(wildcards.sweep, SHARDS, "parquet"),
        failures=lambda wildcards: plan.shards_of(wildcards.sweep, SHARDS, "json"),
    output:
        measured="results/{sweep}/measured.parquet",
        failures="results/{sweep}/failures.json",
    log:
        "results/{sweep}/logs/gather.log",
    wildcard_constraints:
        sweep=plan.one_of(name for name in SWEEPS if SHARDS[name] > 1),
    conda:
        "../../environment.yml"
    message:
        "{wildcards.sweep}: merge the shards"
    script:
        "../../scripts/gather.py"
