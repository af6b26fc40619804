# Reads published models and points of sweeps. Writes module trees, and for sweeps of small models
# the modules as torch prints them, their shapes, their parameters at a real size, and torch's own.


rule module_trees:
    input:
        models=ancient(targets.model_files()),
        points=expand("results/{sweep}/points.parquet", sweep=SWEEPS),
    output:
        trees="results/module_trees/trees.json",
        swept="results/module_trees/swept.json",
        modules="results/module_trees/modules.json",
        walkthroughs="results/module_trees/walkthroughs.json",
    log:
        "results/module_trees/logs/trees.log",
    conda:
        "../../environment.yml"
    threads: lambda wildcards: (workflow.cores + 1) // 2
    params:
        named=["gpt-2-124m", "llama-3-8b", "mixtral-8x7b", "palm-540b"] if RUN.is_of_all else [],
        printed=[name for name in SWEEPS if targets.counted_by_hand(SWEEPS[name])],
        timeouts={name: SWEEPS[name].sweep.measure.timeout_s for name in SWEEPS},
        models=digest(targets.model_files()),
    message:
        "Build the module trees that the report shows"
    script:
        "../../scripts/module_trees.py"
