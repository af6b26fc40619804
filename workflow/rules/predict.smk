# Reads the points of a sweep. Writes the prediction of each component of each point.


rule predict:
    input:
        points="results/{sweep}/points.parquet",
        summary="results/{sweep}/sweep.json",
    output:
        predicted="results/{sweep}/predicted.parquet",
    log:
        "results/{sweep}/logs/predict.log",
    conda:
        "../../environment.yml"
    message:
        "{wildcards.sweep}: predict every point by formula"
    script:
        "../../scripts/predict.py"
