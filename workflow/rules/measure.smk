# Reads the points of all sweeps. Measures their models and what is solved to fit, counts and traces
# their classes of transformers, and writes what failed, which the next run tries again.
#
# One job measures all sweeps with a pool of processes, since starting a job and importing torch takes
# longer than measuring a model. All of it is cached in results/measurements, results/reference_counts
# and results/reference_traces, where the jobs of a sweep find it: a change of one sweep does
# not repeat the measurements of others. If the configuration sets the size of a shard, several jobs
# measure a part of each sweep, which a cluster can run in parallel. A job uses half of the cores, so
# that another one can start while it imports torch, or all of them to trace many models; on a cluster
# the profile sets the number.


rule measure:
    input:
        points=expand("results/{sweep}/points.parquet", sweep=SWEEPS),
        summaries=expand("results/{sweep}/sweep.json", sweep=SWEEPS),
    output:
        incomplete="results/measured/{shard}-of-{shards}.json",
    log:
        "results/logs/measure-{shard}-of-{shards}.log",
        work="results/logs/measure-{shard}-of-{shards}.json",
    wildcard_constraints:
        shard=r"\d+",
        shards=r"\d+",
    priority: 1
    conda:
        "../../environment.yml"
    threads: lambda wildcards: targets.tracing_threads(SWEEPS.values(), workflow.cores)
    resources:
        gpu=targets.gpus(SWEEPS.values()),
    params:
        last_failures=[targets.last_failure(sweep) for sweep in SWEEPS],
        traced=REFERENCED,
        counted=targets.writing(SWEEPS, "reference_counts"),
    message:
        "Instantiate and count the models of all sweeps"
    script:
        "../../scripts/measure.py"
