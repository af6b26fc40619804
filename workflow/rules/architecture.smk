# Needs: named models, sweeps. Makes: module trees, and modules as torch prints them.


rule architecture:
    input:
        models=sorted(plan.MODELS.iterdir()),
        sweeps=[ancient(plan.sweep_files()[name]) for name in SWEEPS],
    output:
        trees="results/architecture/trees.json",
        swept="results/architecture/swept.json",
    log:
        "results/architecture/logs/trees.log",
    conda:
        "../../environment.yml"
    params:
        models=["gpt-2-124m", "llama-3-8b", "mixtral-8x7b", "palm-540b"],
        content=[plan.content(expanded) for expanded in SWEEPS.values()],
        code=code("measure/tree.py", "modules", "report/inside.py"),
    message:
        "Walk the module trees of GPT-2, Llama, Mixtral, PaLM and the models of all sweeps"
    script:
        "../../scripts/architecture.py"


WALKS = [name for name, expanded in SWEEPS.items() if plan.counted_by_hand(expanded)]


rule printed_modules:
    input:
        sweeps=[ancient(plan.sweep_files()[name]) for name in WALKS],
    output:
        modules="results/architecture/modules.json",
    log:
        "results/architecture/logs/modules.log",
    conda:
        "../../environment.yml"
    params:
        content=[plan.content(SWEEPS[name]) for name in WALKS],
        code=code("modules"),
    message:
        "Print the modules of sweeps that can be counted on paper"
    script:
        "../../scripts/printed_modules.py"
