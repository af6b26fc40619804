# Needs: everything that was made. Makes: the report in one file, its verdict, and its headline
# as a picture.


rule report:
    input:
        ledger="results/gpt-2-ledger/ledger.parquet",
        surgery="results/tying-surgery/surgery.parquet",
        provenance="results/provenance.json",
        summaries=expand("results/{sweep}/sweep.json", sweep=SWEEPS),
        points=expand("results/{sweep}/points.parquet", sweep=SWEEPS),
        comparisons=expand("results/{sweep}/comparison.parquet", sweep=SWEEPS),
        charts=expand("results/{sweep}/charts", sweep=SWEEPS),
        models=sorted(plan.MODELS.iterdir()),
    output:
        html="results/report.html",
        verdict="results/verdict.json",
        headline=directory("results/headline.charts"),
    log:
        "results/logs/report.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        code=plan.code("report", "charts", "components", "families", "readings"),
    message:
        "write the report"
    script:
        "../../scripts/report.py"
