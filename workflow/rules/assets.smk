# Writes the parts of the report that do not depend on sweeps: the script that draws charts and, from
# the published models, the formulas of the calculator.


rule vega:
    output:
        vega="results/assets/vega.js",
    log:
        "results/assets/logs/vega.log",
    conda:
        "../../environment.yml"
    message:
        "Write the script that draws the report's charts"
    script:
        "../../scripts/vega.py"


rule calculator:
    input:
        models=ancient(targets.model_files()),
    output:
        calculator="results/assets/calculator.json",
    log:
        "results/assets/logs/calculator.log",
    conda:
        "../../environment.yml"
    params:
        models=digest(targets.model_files()),
    message:
        "Write the formulas of the report's calculator"
    script:
        "../../scripts/calculator.py"
