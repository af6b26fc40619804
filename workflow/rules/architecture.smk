# Needs: the named models. Makes: a few of them as module trees, down to the shape of every tensor.


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
