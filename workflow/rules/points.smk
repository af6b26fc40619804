# Needs: a sweep file and the named models. Makes: the table of its points, and what it says.


rule points:
    input:
        sweep=lambda wildcards: plan.sweep_files()[wildcards.sweep],
        models=sorted(plan.MODELS.iterdir()),
        configs=lambda wildcards: SWEEPS[wildcards.sweep].files,
    output:
        points="results/{sweep}/points.parquet",
        summary="results/{sweep}/sweep.json",
    log:
        "results/{sweep}/logs/points.log",
    conda:
        "../../environment.yml"
    params:
        code=code(
            "architecture.py",
            "catalogue.py",
            "components",
            "expand.py",
            "families",
            "huggingface",
            "record.py",
            "run.py",
        ),
    message:
        "{wildcards.sweep}: write out the points"
    script:
        "../../scripts/points.py"
