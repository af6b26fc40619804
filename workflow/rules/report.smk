# Reads all results except pictures. Draws the charts. Writes the report in one file, the verdict, and
# versions, commit, machine, time, and how many models were measured in this run. The page of named
# sweeps does not wait for what depends on no sweep.


rule report:
    input:
        results=targets.of_page(SWEEPS, PREDICTED, RUN.is_of_all),
        models=ancient(targets.model_files()),
    output:
        html=report(
            f"results/report{RUN.page}.html",
            category="Report",
            labels={"page": f"report{RUN.page}.html"},
            caption="../report/page.rst",
        ),
        verdict=f"results/verdict{RUN.page}.json",
        provenance="results/provenance.json",
    log:
        "results/logs/report.log",
    conda:
        "../../environment.yml"
    threads: 2
    params:
        sweeps=[*SWEEPS, *PREDICTED],  # a sweep that is gone leaves no input that is newer
        models=digest(targets.model_files()),
        shards=RUN.shards,
    message:
        "Write the report"
    script:
        "../../scripts/report.py"
