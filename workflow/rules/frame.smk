# Needs: the named models. Makes: what the report has whatever the sweeps are: the explorer of the
# formulas, and the script that draws charts.


rule frame:
    input:
        models=sorted(plan.MODELS.iterdir()),
    output:
        explorer="results/frame/explorer.json",
        vega="results/frame/vega.js",
    log:
        "results/frame/logs/frame.log",
    conda:
        "../../environment.yml"
    params:
        code=code(
            "architecture.py",
            "catalogue.py",
            "charts",
            "components",
            "expand.py",
            "families",
            "operations.py",
            "readings",
            "record.py",
            "report",
            "run.py",
        ),
        versions=versions("vl-convert-python"),
    message:
        "Write the formulas of all named models for the report to compute"
    script:
        "../../scripts/frame.py"
