# Needs: named models, sweeps. Makes: module trees, and modules as torch prints them where a sweep
# can be counted on paper.


rule architecture:
    input:
        models=sorted(plan.MODELS.iterdir()),
        sweeps=[ancient(plan.sweep_files()[name]) for name in SWEEPS],
    output:
        trees="results/architecture/trees.json",
        swept="results/architecture/swept.json",
        modules="results/architecture/modules.json",
    log:
        "results/architecture/logs/trees.log",
    conda:
        "../../environment.yml"
    params:
        models=["gpt-2-124m", "llama-3-8b", "mixtral-8x7b", "palm-540b"],
        printed=[name for name in SWEEPS if plan.counted_by_hand(SWEEPS[name])],
        content=[plan.content(expanded) for expanded in SWEEPS.values()],
        code=code("measure/tree.py", "modules", "report/chosen.py"),
    message:
        "Walk the module trees of GPT-2, Llama, Mixtral, PaLM and the models of all sweeps"
    script:
        "../../scripts/architecture.py"
