# Reads all results except pictures. Writes the report in one file, and the verdict.


rule report:
    input:
        ledger="results/gpt-2-ledger/ledger.parquet",
        surgery="results/tying-surgery/surgery.parquet",
        modules="results/module_trees/modules.json",
        walkthroughs="results/module_trees/walkthroughs.json",
        trees="results/module_trees/trees.json",
        swept="results/module_trees/swept.json",
        calculator="results/assets/calculator.json",
        vega="results/assets/vega.js",
        step="results/training_step/step.json",
        allocations="results/training_step/allocations.parquet",
        shared_step="results/training_step/shared_step.json",
        shared_allocations="results/training_step/shared_allocations.parquet",
        provenance="results/provenance.json",
        summaries=expand("results/{sweep}/sweep.json", sweep=SWEEPS),
        points=expand("results/{sweep}/points.parquet", sweep=SWEEPS),
        comparisons=expand("results/{sweep}/comparison.parquet", sweep=SWEEPS),
        charts=expand("results/{sweep}/charts.json", sweep=SWEEPS),
        predicted=expand("results/{predicted}/sweep.json", predicted=PREDICTED),
        predicted_charts=expand("results/{predicted}/charts.json", predicted=PREDICTED),
        zoos=targets.zoo_tables(SWEEPS),
        fits=targets.fit_tables(SWEEPS),
        layouts=targets.layout_tables(SWEEPS),
        frontiers=targets.frontiers(SWEEPS),
        published=[path.replace("frontier", "published") for path in targets.frontiers(SWEEPS)],
        traces=targets.reference_traces(SWEEPS),
        counts=targets.reference_counts(SWEEPS),
        models=ancient(targets.model_files()),
    output:
        html=report(
            f"results/report{PAGE}.html",
            category="Report",
            labels={"page": f"report{PAGE}.html"},
            caption="../report/page.rst",
        ),
        verdict=f"results/verdict{PAGE}.json",
    log:
        "results/logs/report.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        on_request=[list(one) for one in on_request()],
        models=digest(targets.model_files()),
    message:
        "Write the report"
    script:
        "../../scripts/report.py"
