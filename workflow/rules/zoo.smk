# Needs: named models, their points and comparison. Makes: what the classes of transformers hold,
# and every model's counts beside each other.


rule witness:
    input:
        sweep=lambda wildcards: ancient(plan.sweep_files()[wildcards.sweep]),
    output:
        witness="results/{sweep}/witness.parquet",
    log:
        "results/{sweep}/logs/witness.log",
    conda:
        "../../environment.yml"
    threads: lambda wildcards: (workflow.cores + 1) // 2
    params:
        content=lambda wildcards: plan.content(SWEEPS[wildcards.sweep]),
        classes=lambda wildcards: plan.classes(SWEEPS[wildcards.sweep]),
        code=code("huggingface", "measure"),
        last_failure=lambda wildcards: plan.last_failure(wildcards.sweep),
    message:
        "{wildcards.sweep}: count the classes of transformers that are the same models"
    script:
        "../../scripts/witness.py"


rule zoo:
    input:
        points="results/{sweep}/points.parquet",
        comparison="results/{sweep}/comparison.parquet",
        witness="results/{sweep}/witness.parquet",
        models=sorted(plan.MODELS.iterdir()),
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
        code=code(
            "zoo.py", "spreadsheet.py", "catalogue.py", "huggingface", "components", "families"
        ),
    message:
        "{wildcards.sweep}: hold every model against what others count and print"
    script:
        "../../scripts/zoo.py"
