# Needs: a sweep's comparison. Makes: its charts, each as Vega-Lite, SVG and PNG.


rule charts:
    input:
        summary="results/{sweep}/sweep.json",
        comparison="results/{sweep}/comparison.parquet",
    output:
        charts=directory("results/{sweep}/charts"),
    log:
        "results/{sweep}/logs/charts.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        code=plan.code("charts", "architecture.py", "components", "families"),
    message:
        "{wildcards.sweep}: draw the charts that its axes ask for"
    script:
        "../../scripts/charts.py"
