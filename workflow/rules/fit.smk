# Needs: the points of a sweep that asks what fits, and the memory of accelerators. Makes: the
# largest batch, length or depth that each holds, solved from the formulas and compared with
# measurements, which are kept in results/measurements with all others.


rule fit:
    input:
        points="results/{sweep}/points.parquet",
        summary="results/{sweep}/sweep.json",
        accelerators=ancient(plan.ACCELERATORS),
    output:
        parquet="results/{sweep}/fit.parquet",
        csv=report(
            "results/{sweep}/fit.csv",
            category="Tables",
            labels={"sweep": "{sweep}", "table": "what fits"},
            caption="../report/fit.rst",
        ),
    log:
        "results/{sweep}/logs/fit.log",
    conda:
        "../../environment.yml"
    threads: lambda wildcards: (workflow.cores + 1) // 2
    params:
        accelerators=digest([plan.ACCELERATORS]),
    message:
        "{wildcards.sweep}: solve for what each accelerator holds"
    script:
        "../../scripts/fit.py"
