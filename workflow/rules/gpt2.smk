# Reads the GPT-2 series. Writes the parameters of every module of Hugging Face's GPT-2, the counts
# before and after untying its head, and every allocation of two training steps of Llama 3 8B, alone and
# on one of several devices that share it, which the report draws as timelines.


rule gpt2:
    input:
        models=ancient(targets.model_files()),
    output:
        ledger="results/gpt-2-ledger/ledger.parquet",
        surgery="results/tying-surgery/surgery.parquet",
        step="results/training_step/step.json",
        allocations="results/training_step/allocations.parquet",
        shared="results/training_step/shared_step.json",
        shared_allocations="results/training_step/shared_allocations.parquet",
    log:
        "results/logs/gpt-2.log",
    conda:
        "../../environment.yml"
    params:
        run={
            "length": 8192,
            "dtype": "bfloat16",
            "attention_kernel": "flash",
            "foreach": True,
        },
        shared={
            "length": 8192,
            "dtype": "bfloat16",
            "attention_kernel": "flash",
            "foreach": True,
            "data_parallel": 8,
            "zero": 3,
        },
        models=digest(targets.model_files()),
    message:
        "Count GPT-2, and trace a training step of Llama 3 8B"
    script:
        "../../scripts/gpt2.py"
