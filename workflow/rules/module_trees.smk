# Reads published models and points of sweeps. Writes module trees, and for sweeps of small models
# the modules as torch prints them, their shapes, their parameters at a real size, and torch's own.


rule module_trees:
    input:
        models=ancient(targets.model_files()),
        points=[f"results/{name}/points.parquet" for name in targets.printed(SWEEPS)],
    output:
        trees="results/module_trees/trees.json",
        modules="results/module_trees/modules.json",
        walkthroughs="results/module_trees/walkthroughs.json",
    log:
        "results/module_trees/logs/trees.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        named=["gpt-2-124m", "llama-3-8b", "mixtral-8x7b", "palm-540b"] if RUN.is_of_all else [],
        timeouts=targets.printed(SWEEPS),
        models=digest(targets.model_files()),
    message:
        "Build the module trees that the report shows"
    script:
        "../../scripts/module_trees.py"
