# Reads a sweep's comparison, and the zoo table of a sweep of all models. Writes the sweep's charts
# for the report.


rule charts:
    input:
        summary="results/{sweep}/sweep.json",
        points="results/{sweep}/points.parquet",
        comparison="results/{sweep}/comparison.parquet",
        accelerators=ancient(ACCELERATORS),
        zoo=lambda wildcards: targets.zoo_tables({wildcards.sweep: SWEEPS[wildcards.sweep]}),
        traces=lambda wildcards: targets.reference_traces(
            {wildcards.sweep: SWEEPS[wildcards.sweep]}
        ),
        layouts=lambda wildcards: targets.layout_tables({wildcards.sweep: SWEEPS[wildcards.sweep]}),
        solved=lambda wildcards: targets.solve_tables({wildcards.sweep: SWEEPS[wildcards.sweep]}),
    output:
        charts="results/{sweep}/charts.json",
    log:
        "results/{sweep}/logs/charts.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        accelerators=digest([ACCELERATORS]),
    message:
        "{wildcards.sweep}: draw the charts that the report shows"
    script:
        "../../scripts/charts.py"
