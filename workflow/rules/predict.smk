# Needs: the points of a sweep. Makes: what the formulas say of each, component by component.


rule predict:
    input:
        points="results/{sweep}/points.parquet",
    output:
        predicted="results/{sweep}/predicted.parquet",
    log:
        "results/{sweep}/logs/predict.log",
    conda:
        "../../environment.yml"
    params:
        quantities=lambda wildcards: SWEEPS[wildcards.sweep].sweep.measure.quantities,
        code=code("architecture.py", "components", "families", "predict.py", "readings", "run.py"),
    message:
        "{wildcards.sweep}: predict every point from the formulas"
    script:
        "../../scripts/predict.py"
