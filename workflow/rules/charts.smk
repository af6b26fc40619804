# Needs: a sweep's comparison, and of all named models what others count. Makes: its charts, each
# as Vega-Lite, SVG and PNG.


rule charts:
    input:
        summary="results/{sweep}/sweep.json",
        comparison="results/{sweep}/comparison.parquet",
        zoo=lambda wildcards: plan.zoo_tables({wildcards.sweep: SWEEPS[wildcards.sweep]}),
    output:
        charts=directory("results/{sweep}/charts"),
    log:
        "results/{sweep}/logs/charts.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        code=code("charts", "architecture.py", "components", "families", "zoo.py"),
    message:
        "{wildcards.sweep}: draw the charts that its axes ask for"
    script:
        "../../scripts/charts.py"
