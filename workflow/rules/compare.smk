# Reads predictions, measurements, and traces and counts of classes in transformers. Writes the
# comparison as Parquet and CSV.


rule compare:
    input:
        points="results/{sweep}/points.parquet",
        summary="results/{sweep}/sweep.json",
        predicted="results/{sweep}/predicted.parquet",
        measured="results/{sweep}/measured.parquet",
        failures="results/{sweep}/failures.json",
        traces=lambda wildcards: targets.reference_traces(
            {wildcards.sweep: SWEEPS[wildcards.sweep]}
        ),
        counts=lambda wildcards: targets.reference_counts(
            {wildcards.sweep: SWEEPS[wildcards.sweep]}
        ),
    output:
        parquet="results/{sweep}/comparison.parquet",
        csv=report(
            "results/{sweep}/comparison.csv",
            category="Tables",
            labels={"sweep": "{sweep}", "table": "comparison"},
            caption="../report/comparison.rst",
        ),
    log:
        "results/{sweep}/logs/compare.log",
    conda:
        "../../environment.yml"
    message:
        "{wildcards.sweep}: compare predictions and measurements"
    script:
        "../../scripts/compare.py"
