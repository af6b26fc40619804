# Reads the points of a sweep. Writes the parameters of their classes in transformers, which the job
# that measures all sweeps has counted.


rule reference_counts:
    input:
        points=lambda wildcards: listed(wildcards, "points.parquet", "reference_counts"),
        incomplete=lambda wildcards: measured(wildcards, "reference_counts"),
    output:
        counts="results/{sweep}/reference_counts.parquet",
    log:
        "results/{sweep}/logs/reference_counts.log",
    conda:
        "../../environment.yml"
    threads: lambda wildcards: (workflow.cores + 1) // 2
    params:
        content=lambda wildcards: CONTENT.get(wildcards.sweep),
        last_failure=lambda wildcards: targets.last_failure(wildcards.sweep),
    message:
        "{wildcards.sweep}: count the same models in transformers"
    script:
        "../../scripts/reference_counts.py"
