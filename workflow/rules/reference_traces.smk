# Reads the points of the sweeps that measure training or inference. Writes the traces of their
# classes in transformers.
#
# One job traces the classes of all sweeps, because importing transformers takes longer than tracing a
# class. Traces are cached in results/reference_traces, where the jobs of the sweeps find them; these trace
# what is missing there. A change of one sweep does not repeat the jobs of the others.


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


rule reference_traces:
    input:
        points="results/{sweep}/points.parquet",
        summary="results/{sweep}/sweep.json",
        failures=ancient("results/reference_traces/failures.json"),
    output:
        traces="results/{sweep}/reference_traces.parquet",
    log:
        "results/{sweep}/logs/reference_traces.log",
    conda:
        "../../environment.yml"
    params:
        last_failure=lambda wildcards: targets.last_failure(wildcards.sweep),
    message:
        "{wildcards.sweep}: collect the traces of its classes"
    script:
        "../../scripts/reference_traces.py"
