# Reads sweep files and the published models. Writes the table of the points of each sweep, and a
# summary. One job for all sweeps, since it takes less time than to start a job.


rule points:
    input:
        sweeps=ancient([SWEEPS[sweep].path for sweep in LISTED]),
        models=ancient(targets.model_files()),
        configs=ancient([path for sweep in LISTED for path in SWEEPS[sweep].files]),
    output:
        points=expand("results/{sweep}/points.parquet", sweep=LISTED),
        summaries=expand("results/{sweep}/sweep.json", sweep=LISTED),
    log:
        "results/logs/points.log",
    priority: 1
    conda:
        "../../environment.yml"
    params:
        content=CONTENT,
    message:
        "Write out the points of all sweeps"
    script:
        "../../scripts/points.py"
