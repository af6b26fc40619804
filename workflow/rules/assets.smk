# Reads the published models. Writes the parts of the report that do not depend on sweeps: the
# formulas of its calculator, and the script that draws charts.


rule assets:
    input:
        models=ancient(targets.model_files()),
    output:
        calculator="results/assets/calculator.json",
        vega="results/assets/vega.js",
    log:
        "results/assets/logs/assets.log",
    conda:
        "../../environment.yml"
    params:
        models=digest(targets.model_files()),
    message:
        "Write the formulas of the report's calculator"
    script:
        "../../scripts/assets.py"
