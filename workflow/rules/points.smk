# Needs: a sweep file and the named models. Makes: the table of its points, and what it says.


rule points:
    input:
        sweep=lambda wildcards: plan.sweep_files()[wildcards.sweep],
        models=sorted(plan.MODELS.iterdir()),
    output:
        points="results/{sweep}/points.parquet",
        summary="results/{sweep}/sweep.json",
    log:
        "results/{sweep}/logs/points.log",
    conda:
        "../../environment.yml"
    params:
        code=plan.code(
            "architecture.py", "catalogue.py", "components", "expand.py", "families", "run.py"
        ),
    message:
        "{wildcards.sweep}: write out the points"
    script:
        "../../scripts/points.py"
