# Reads the published models. Writes every allocation of two training steps of one of them, and of the
# same on one of several devices that share it, which the report draws as timelines.


rule training_step:
    input:
        models=ancient(targets.model_files()),
    output:
        step="results/training_step/step.json",
        allocations="results/training_step/allocations.parquet",
        shared="results/training_step/shared_step.json",
        shared_allocations="results/training_step/shared_allocations.parquet",
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
        shared={
            "length": 1024,
            "dtype": "bfloat16",
            "master_weights": True,
            "attention_kernel": "flash",
            "foreach": True,
            "data_parallel": 8,
            "zero": 3,
        },
        models=digest(targets.model_files()),
    message:
        "Trace every allocation of a training step"
    script:
        "../../scripts/training_step.py"
