# Reads a sweep file with `device: none` and the published models. Writes all predictions as parts of
# Parquet, and summaries along each axis.


rule predictions:
    input:
        sweep=lambda wildcards: ancient(PREDICTED[wildcards.predicted].path),
        models=ancient(targets.model_files()),
        configs=lambda wildcards: ancient(PREDICTED[wildcards.predicted].files),
    output:
        predictions=directory("results/{predicted}/predictions"),
        totals="results/{predicted}/totals.parquet",
        shares="results/{predicted}/shares.parquet",
        summary="results/{predicted}/sweep.json",
    log:
        "results/{predicted}/logs/predictions.log",
    conda:
        "../../environment.yml"
    threads: lambda wildcards: (workflow.cores + 1) // 2
    params:
        content=lambda wildcards: digest(targets.source_files(PREDICTED[wildcards.predicted])),
    message:
        "{wildcards.predicted}: predict every point of the grid"
    script:
        "../../scripts/predictions.py"
