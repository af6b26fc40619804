# Reads the published models. Writes every allocation of two training steps of one of them, which the
# report draws as a timeline.


rule training_step:
    input:
        models=ancient(targets.model_files()),
    output:
        step="results/training_step/step.json",
        allocations="results/training_step/allocations.parquet",
    log:
        "results/training_step/logs/step.log",
    conda:
        "../../environment.yml"
    params:
        model="gpt-2-124m",
        run={
            "length": 1024,
            "autocast": "bfloat16",
            "attention_kernel": "flash",
            "foreach": True,
        },
        models=digest(targets.model_files()),
    message:
        "Trace every allocation of a training step"
    script:
        "../../scripts/training_step.py"
