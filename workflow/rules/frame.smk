# Needs: the named models. Makes: what the report has whatever the sweeps are: the explorer of the
# formulas, and the script that draws charts.


rule frame:
    input:
        models=ancient(plan.model_files()),
    output:
        explorer="results/frame/explorer.json",
        vega="results/frame/vega.js",
    log:
        "results/frame/logs/frame.log",
    conda:
        "../../environment.yml"
    params:
        models=digest(plan.model_files()),
    message:
        "Write the formulas for the explorer of the report"
    script:
        "../../scripts/frame.py"
