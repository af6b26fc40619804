# Reads the logs of all measurements. Writes versions, commit, machine, time, and how many models
# were measured in this run.


rule provenance:
    input:
        expand("results/{sweep}/comparison.parquet", sweep=SWEEPS),
    output:
        provenance="results/provenance.json",
    log:
        "results/logs/provenance.log",
    conda:
        "../../environment.yml"
    params:
        shards=RUN.shards,
    message:
        "Record versions, commit, machine and time"
    script:
        "../../scripts/provenance.py"
