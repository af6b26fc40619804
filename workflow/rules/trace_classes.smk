# Reads the points of the sweeps that measure training or inference. Traces their classes in
# transformers, and writes what could not be traced.
#
# One job traces the classes of all sweeps, because importing transformers takes longer than tracing a
# class. Traces are cached in results/reference_traces, where the job that compares a sweep finds
# them. A change of one sweep does not repeat the traces of the others.


rule trace_classes:
    input:
        summaries=expand("results/{sweep}/sweep.json", sweep=REFERENCED),
        points=expand("results/{sweep}/points.parquet", sweep=REFERENCED),
    output:
        failures="results/reference_traces/failures.json",
    log:
        "results/logs/trace-classes.log",
    priority: 1
    conda:
        "../../environment.yml"
    threads: lambda wildcards: targets.tracing_threads(map(SWEEPS.get, REFERENCED), workflow.cores)
    params:
        last_failures=[targets.last_failure(sweep) for sweep in REFERENCED],
    message:
        "Trace the classes of transformers"
    script:
        "../../scripts/trace_classes.py"
