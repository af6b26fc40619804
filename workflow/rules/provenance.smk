# Needs: all comparisons. Makes: what they were made with.


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
        code=plan.code("provenance.py"),
    message:
        "Note versions, commit, machine and time"
    script:
        "../../scripts/provenance.py"
