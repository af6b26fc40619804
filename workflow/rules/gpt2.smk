# Reads the GPT-2 series. Writes the parameters of every module of Hugging Face's GPT-2, and the
# counts before and after untying its head.


rule gpt2:
    input:
        models=ancient(targets.model_files()),
    output:
        ledger="results/gpt-2-ledger/ledger.parquet",
        surgery="results/tying-surgery/surgery.parquet",
    log:
        "results/logs/gpt-2.log",
    conda:
        "../../environment.yml"
    params:
        models=digest(targets.model_files()),
    message:
        "Count Hugging Face's GPT-2, tied and untied"
    script:
        "../../scripts/gpt2.py"
