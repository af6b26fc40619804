# Reads predictions and measurements. Writes the comparison as Parquet and CSV.


rule compare:
    input:
        points="results/{sweep}/points.parquet",
        summary="results/{sweep}/sweep.json",
        predicted="results/{sweep}/predicted.parquet",
        measured="results/{sweep}/measured.parquet",
        failures="results/{sweep}/failures.json",
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
