# Reads a sweep file and the published models. Writes the table of its points, and a summary.


rule points:
    input:
        sweep=lambda wildcards: ancient(SWEEPS[wildcards.sweep].path),
        models=ancient(targets.model_files()),
        configs=lambda wildcards: ancient(SWEEPS[wildcards.sweep].files),
    output:
        points="results/{sweep}/points.parquet",
        summary="results/{sweep}/sweep.json",
    log:
        "results/{sweep}/logs/points.log",
    wildcard_constraints:
        sweep=targets.one_of(SWEEPS.keys() - targets.solved(SWEEPS)),
    conda:
        "../../environment.yml"
    params:
        content=lambda wildcards: content(SWEEPS[wildcards.sweep]),
    message:
        "{wildcards.sweep}: write out the points"
    script:
        "../../scripts/points.py"
