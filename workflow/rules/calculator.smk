# Writes, from the published models, the formulas of the report's calculator, and what is predicted of
# readings of GPUs. Both depend on no sweep.


rule calculator:
    input:
        models=ancient(targets.model_files()),
    output:
        calculator="results/assets/calculator.json",
        readings="results/assets/readings.json",
    log:
        "results/assets/logs/calculator.log",
    priority: 1
    conda:
        "../../environment.yml"
    params:
        models=digest(targets.model_files()),
    message:
        "Write the report's calculator, and predict readings of GPUs"
    script:
        "../../scripts/calculator.py"
