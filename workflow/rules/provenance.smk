# Needs: all comparisons. Makes: what they were made with, and what of it was measured this time.


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
        sweeps=SHARDS,
    message:
        "Record versions, commit, machine and time"
    script:
        "../../scripts/provenance.py"
