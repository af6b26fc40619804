# Needs: a sweep file. Makes: what torch counts in each instantiated model, and what could not be
# measured, which the next run tries again.
#
# One job measures a whole sweep with a pool of processes: a job costs more than a model. The
# words of a sweep may change without measuring again, so the file is `ancient` and what is
# measured stands in `params`. What any sweep has measured before is taken from
# results/measurements. Half of the cores each, so that another job can start while this one loads
# torch.


rule measure:
    input:
        sweep=lambda wildcards: ancient(plan.sweep_files()[wildcards.sweep]),
    output:
        measured="results/{sweep}/measured.parquet",
        failures="results/{sweep}/failures.json",
    log:
        "results/{sweep}/logs/measure.log",
    conda:
        "../../environment.yml"
    threads: (workflow.cores + 1) // 2
    params:
        content=lambda wildcards: plan.content(SWEEPS[wildcards.sweep]),
        code=code("measure", "modules"),
        versions=plan.versions("torch", "transformers"),
        last_failure=lambda wildcards: plan.last_failure(wildcards.sweep),
    message:
        "{wildcards.sweep}: instantiate and count every model"
    script:
        "../../scripts/measure.py"
