# Reads the published models, their points, comparison and reference counts. Writes one table with all
# counts of every model.


rule zoo:
    input:
        points="results/{sweep}/points.parquet",
        comparison="results/{sweep}/comparison.parquet",
        counts="results/{sweep}/reference_counts.parquet",
        models=ancient(targets.model_files()),
    output:
        parquet="results/{sweep}/zoo.parquet",
        csv=report(
            "results/{sweep}/zoo.csv",
            category="Tables",
            labels={"sweep": "{sweep}", "table": "five counts"},
            caption="../report/zoo.rst",
        ),
    log:
        "results/{sweep}/logs/zoo.log",
    conda:
        "../../environment.yml"
    params:
        models=digest(targets.model_files()),
    message:
        "{wildcards.sweep}: compare every model with public counts"
    script:
        "../../scripts/zoo.py"
