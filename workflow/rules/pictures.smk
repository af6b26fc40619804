# Reads charts and comparisons. Writes every chart (on request: `snakemake chart_files`), and the
# report's first one, as Vega-Lite, SVG and PNG. One job draws the charts of all measured sweeps,
# because starting the renderer takes longer than drawing the charts of a sweep.


rule pictures:
    input:
        charts=expand("results/{sweep}/charts.json", sweep=SWEEPS),
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
        charts=["results/{predicted}/charts.json"],
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


rule headline:
    input:
        summaries=expand("results/{sweep}/sweep.json", sweep=SWEEPS),
        points=expand("results/{sweep}/points.parquet", sweep=SWEEPS),
        comparisons=expand("results/{sweep}/comparison.parquet", sweep=SWEEPS),
    output:
        headline=report(
            directory("results/headline.charts"),
            patterns=["{chart}.svg"],
            category="Charts",
            subcategory="headline",
            labels={"chart": "{chart}"},
            caption="../report/headline.rst",
        ),
    log:
        "results/logs/headline.log",
    conda:
        "../../environment.yml"
    threads: 1
    message:
        "Save the first chart of the report as SVG and PNG"
    script:
        "../../scripts/headline.py"
