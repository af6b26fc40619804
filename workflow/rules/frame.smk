# Reads the published models. Writes the parts of the report that do not depend on sweeps: the
# formulas of its calculator, and the script that draws charts.


rule frame:
    input:
        models=ancient(targets.model_files()),
    output:
        explorer="results/frame/explorer.json",
        vega="results/frame/vega.js",
    log:
        "results/frame/logs/frame.log",
    conda:
        "../../environment.yml"
    params:
        models=digest(targets.model_files()),
    message:
        "Write the formulas of the report's calculator"
    script:
        "../../scripts/frame.py"
