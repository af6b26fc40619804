# Reads the points of a sweep. Predicts them, collects their measurements and the traces of their
# classes in transformers from the caches, and writes the comparison. Measures and traces what is
# missing in the caches. One job, since each of these takes less time than to start a job.


rule compare:
    input:
        points=lambda wildcards: listed(wildcards, "points.parquet", "comparison"),
        summary=lambda wildcards: listed(wildcards, "sweep.json", "comparison"),
        incomplete=lambda wildcards: measured(wildcards, "comparison"),
        counts=lambda wildcards: written(wildcards, "reference_counts"),
    output:
        predicted="results/{sweep}/predicted.parquet",
        measured="results/{sweep}/measured.parquet",
        failures="results/{sweep}/failures.json",
        traces="results/{sweep}/reference_traces.parquet",
        parquet="results/{sweep}/comparison.parquet",
        csv=report(
            "results/{sweep}/comparison.csv",
            category="Tables",
            labels={"sweep": "{sweep}", "table": "comparison"},
            caption="../report/comparison.rst",
        ),
    log:
        "results/{sweep}/logs/compare.log",
    wildcard_constraints:
        sweep=targets.one_of(name for name in SWEEPS if not targets.is_zoo(SWEEPS[name])),
    conda:
        "../../environment.yml"
    params:
        content=lambda wildcards: CONTENT.get(wildcards.sweep),
        last_failure=lambda wildcards: targets.last_failure(wildcards.sweep),
        is_traced=lambda wildcards: wildcards.sweep in REFERENCED,
    message:
        "{wildcards.sweep}: predict and compare"
    script:
        "../../scripts/compare.py"


# A sweep of all published models, which has one more table: all counts of every model.
use rule compare as compare_zoo with:
    output:
        predicted="results/{sweep}/predicted.parquet",
        measured="results/{sweep}/measured.parquet",
        failures="results/{sweep}/failures.json",
        traces="results/{sweep}/reference_traces.parquet",
        parquet="results/{sweep}/comparison.parquet",
        csv=report(
            "results/{sweep}/comparison.csv",
            category="Tables",
            labels={"sweep": "{sweep}", "table": "comparison"},
            caption="../report/comparison.rst",
        ),
        zoo="results/{sweep}/zoo.parquet",
        zoo_csv=report(
            "results/{sweep}/zoo.csv",
            category="Tables",
            labels={"sweep": "{sweep}", "table": "five counts"},
            caption="../report/zoo.rst",
        ),
    wildcard_constraints:
        sweep=targets.one_of(targets.writing(SWEEPS, "zoo")),
    params:
        content=lambda wildcards: CONTENT.get(wildcards.sweep),
        last_failure=lambda wildcards: targets.last_failure(wildcards.sweep),
        is_traced=lambda wildcards: wildcards.sweep in REFERENCED,
        models=digest(targets.model_files()),
