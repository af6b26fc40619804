# Reads comparisons and predictions. Writes every chart as Vega-Lite, SVG and PNG, on request (`snakemake chart_files`).
# One job draws the charts of all measured sweeps, because starting the renderer takes longer than
# drawing the charts of a sweep.


rule pictures:
    input:
        targets.of_charts(SWEEPS, []),
    output:
        pictures=[
            report(
                directory(f"results/{sweep}/charts"),
                patterns=["{chart}.svg"],
                category="Charts",
                subcategory=sweep,
                labels={"chart": "{chart}"},
                caption="../report/charts.rst",
            )
            for sweep in SWEEPS
        ],
    log:
        "results/logs/pictures.log",
    conda:
        "../../environment.yml"
    threads: 1
    message:
        "Save the charts of all sweeps as SVG and PNG"
    script:
        "../../scripts/pictures.py"


use rule pictures as predicted_pictures with:
    input:
        targets.of_charts({}, ["{predicted}"]),
    output:
        pictures=[
            report(
                directory("results/{predicted}/charts"),
                patterns=["{chart}.svg"],
                category="Charts",
                subcategory="{predicted}",
                labels={"chart": "{chart}"},
                caption="../report/predicted.rst",
            ),
        ],
    log:
        "results/{predicted}/logs/pictures.log",
    message:
        "{wildcards.predicted}: save the charts as SVG and PNG"
