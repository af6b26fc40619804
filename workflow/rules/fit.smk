# Needs: a sweep file that asks what fits, and the memory of accelerators. Makes: the largest
# batch, length or depth that each holds, solved from the formulas and held against measurements,
# which are kept in results/measurements with all others.


rule fit:
    input:
        sweep=lambda wildcards: ancient(plan.sweep_files()[wildcards.sweep]),
        accelerators=plan.ACCELERATORS,
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
        content=lambda wildcards: plan.content(SWEEPS[wildcards.sweep]),
        fields=lambda wildcards: SWEEPS[wildcards.sweep].sweep.fit,
        code=code("fit.py", "components", "families", "measure", "modules"),
        versions=versions("torch"),
    message:
        "{wildcards.sweep}: solve for what each accelerator holds, and measure it"
    script:
        "../../scripts/fit.py"
