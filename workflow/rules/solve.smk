# Reads a sweep file with `solve`, and the published models. Writes all shapes of its grid within
# bounds, the frontier of the best of them, whose shapes are the points of the sweep, and the same
# quantities of published models.


rule solve:
    input:
        sweep=lambda wildcards: ancient(SWEEPS[wildcards.sweep].path),
        models=ancient(targets.model_files()),
        configs=lambda wildcards: ancient(SWEEPS[wildcards.sweep].files),
        accelerators=ancient(ACCELERATORS),
    output:
        points="results/{sweep}/points.parquet",
        summary="results/{sweep}/sweep.json",
        solutions="results/{sweep}/solutions.parquet",
        frontier="results/{sweep}/frontier.parquet",
        csv=report(
            "results/{sweep}/frontier.csv",
            category="Tables",
            labels={"sweep": "{sweep}", "table": "frontier"},
            caption="../report/solve.rst",
        ),
        published="results/{sweep}/published.parquet",
    log:
        "results/{sweep}/logs/solve.log",
    wildcard_constraints:
        sweep=targets.one_of(targets.writing(SWEEPS, "solutions")),
    priority: 1
    conda:
        "../../environment.yml"
    threads: lambda wildcards: (workflow.cores + 1) // 2
    params:
        content=lambda wildcards: digest(targets.source_files(SWEEPS[wildcards.sweep])),
    message:
        "{wildcards.sweep}: evaluate every shape of the grid"
    script:
        "../../scripts/solve.py"
