# Reads a sweep file with `layouts`, and the published models. Writes all ways in which these numbers
# of devices can share each base, with the bytes that each device needs.


rule layouts:
    input:
        sweep=lambda wildcards: ancient(SWEEPS[wildcards.sweep].path),
        models=ancient(targets.model_files()),
        configs=lambda wildcards: ancient(SWEEPS[wildcards.sweep].files),
    output:
        parquet="results/{sweep}/layouts.parquet",
        csv=report(
            "results/{sweep}/layouts.csv",
            category="Tables",
            labels={"sweep": "{sweep}", "table": "layouts of devices"},
            caption="../report/layouts.rst",
        ),
    log:
        "results/{sweep}/logs/layouts.log",
    conda:
        "../../environment.yml"
    params:
        content=lambda wildcards: content(SWEEPS[wildcards.sweep]),
    message:
        "{wildcards.sweep}: predict all layouts of devices"
    script:
        "../../scripts/layouts.py"
