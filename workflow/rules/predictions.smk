# Reads a sweep file with `device: none` and the published models. Writes all predictions as parts of
# Parquet, summaries along each axis, and charts of the summaries for the report.


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


rule predicted_charts:
    input:
        totals="results/{predicted}/totals.parquet",
        shares="results/{predicted}/shares.parquet",
    output:
        charts="results/{predicted}/charts.json",
    log:
        "results/{predicted}/logs/charts.log",
    conda:
        "../../environment.yml"
    threads: 1
    message:
        "{wildcards.predicted}: draw the charts that the report shows"
    script:
        "../../scripts/predicted_charts.py"
