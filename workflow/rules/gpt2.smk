# Needs: the GPT-2 series. Makes: the ledger of Hugging Face's GPT-2, and tying as surgery on it.


rule gpt2_ledger:
    input:
        models="configs/models/gpt-2.yaml",
    output:
        ledger="results/gpt-2-ledger/ledger.parquet",
    log:
        "results/gpt-2-ledger/logs/ledger.log",
    conda:
        "../../environment.yml"
    params:
        code=code("components", "families", "huggingface", "measure", "readings"),
    message:
        "GPT-2: every module of Hugging Face's model, expected beside true"
    script:
        "../../scripts/gpt2_ledger.py"


rule tying_surgery:
    input:
        models="configs/models/gpt-2.yaml",
    output:
        surgery="results/tying-surgery/surgery.parquet",
    log:
        "results/tying-surgery/logs/surgery.log",
    conda:
        "../../environment.yml"
    params:
        code=code("components", "families", "huggingface", "measure"),
    message:
        "GPT-2: cut the tie of embedding and head, and sew it again"
    script:
        "../../scripts/tying_surgery.py"
