# Reads the points of a sweep with `fit`, and the memory of accelerators. Writes the largest batch,
# length or depth that fits on each, solved from the formulas and compared with measurements, which
# the job that measures all sweeps has made.


rule fit:
    input:
        points=lambda wildcards: listed(wildcards, "points.parquet", "fit"),
        summary=lambda wildcards: listed(wildcards, "sweep.json", "fit"),
        incomplete=lambda wildcards: measured(wildcards, "fit"),
        accelerators=ancient(ACCELERATORS),
    output:
        parquet="results/{sweep}/fit.parquet",
        csv=report(
            "results/{sweep}/fit.csv",
            category="Tables",
            labels={"sweep": "{sweep}", "table": "largest that fits"},
            caption="../report/fit.rst",
        ),
    log:
        "results/{sweep}/logs/fit.log",
    conda:
        "../../environment.yml"
    threads: lambda wildcards: (workflow.cores + 1) // 2
    params:
        content=lambda wildcards: CONTENT.get(wildcards.sweep),
        accelerators=digest([ACCELERATORS]),
    message:
        "{wildcards.sweep}: solve for the largest models that fit on each accelerator"
    script:
        "../../scripts/fit.py"
