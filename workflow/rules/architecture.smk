# Needs: named models, small sweeps. Makes: module trees, and modules as torch prints them.


rule architecture:
    input:
        models=sorted(plan.MODELS.iterdir()),
    output:
        trees="results/architecture/trees.json",
    log:
        "results/architecture/logs/trees.log",
    conda:
        "../../environment.yml"
    params:
        models=["gpt-2-124m", "llama-3-8b", "mixtral-8x7b", "palm-540b"],
        code=code("measure/tree.py", "modules"),
    message:
        "Walk the module trees of GPT-2, Llama, Mixtral and PaLM"
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
