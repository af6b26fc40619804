# Writes, from the published models, the formulas of the report's calculator, which depend on no sweep.


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
