# Reads the published models, their points and comparison. Writes the parameters of their classes in
# transformers, and one table with all counts of every model.


rule witness:
    input:
        points="results/{sweep}/points.parquet",
    output:
        witness="results/{sweep}/witness.parquet",
    log:
        "results/{sweep}/logs/witness.log",
    conda:
        "../../environment.yml"
    threads: lambda wildcards: (workflow.cores + 1) // 2
    params:
        last_failure=lambda wildcards: targets.last_failure(wildcards.sweep),
    message:
        "{wildcards.sweep}: count the same models in transformers"
    script:
        "../../scripts/witness.py"


rule zoo:
    input:
        points="results/{sweep}/points.parquet",
        comparison="results/{sweep}/comparison.parquet",
        witness="results/{sweep}/witness.parquet",
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
