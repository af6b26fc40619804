"""Terms of the page with their definitions, shown where a text first uses them."""

import re

from markupsafe import Markup, escape

GLOSSARY = {
    "activation checkpointing": "Most activations are dropped in the forward pass and computed "
    "again in the backward pass.",
    "activations": "Tensors that the forward pass keeps for the backward pass.",
    "AdamW": "The optimizer; it keeps two moments for each parameter, usually in float32.",
    "attention": "The part of a layer in which each token reads the others: projections to "
    "queries, keys and values, and one of the result.",
    "autocast": "torch.autocast: matrix products in bfloat16 on float32 parameters.",
    "communication buffers": "What is gathered from other devices, or summed over them, while it "
    "is neither a gradient nor kept for the backward pass.",
    "decode": "Computing one more token with the KV cache of all tokens before it.",
    "FlashAttention": "A kernel that computes attention without keeping its scores in memory.",
    "FLOPs": "Floating-point operations of matrix products; a multiplication and an addition are "
    "two.",
    "FSDP": "Fully sharded data parallelism: each device keeps a part of parameters, gradients "
    "and optimizer states.",
    "gathered parameters": "Parameters of which each device keeps a shard, whole while they "
    "compute.",
    "GB": "10⁹ bytes; a GiB has 2³⁰.",
    "GQA": "Grouped-query attention: several query heads share one key and value head.",
    "gradients": "Derivatives of the loss, one number for each parameter.",
    "head of the vocabulary": "The matrix that turns the last hidden state into one logit for "
    "each token; tied, it is the token embedding.",
    "KV cache": "Keys and values of all tokens so far, kept in inference for the next one.",
    "logits": "One number for each token of the vocabulary, at each position.",
    "master weights": "A float32 copy of bfloat16 parameters, which the optimizer updates.",
    "meta": "torch’s device without storage: tensors have shapes and types, but no bytes.",
    "MLA": "Multi-head latent attention: keys and values are cached as one small vector.",
    "MLP": "The feed-forward part of a layer: two or three matrices with an activation function "
    "between them.",
    "MoE": "Mixture of experts: a router sends each token to a few of many MLPs.",
    "MQA": "Multi-query attention: all query heads share one key and value head.",
    "norms": "Layers that normalise hidden states; few parameters.",
    "optimizer states": "What the optimizer keeps from step to step: AdamW two moments, and "
    "master weights.",
    "parameter": "A trained number of a model; a shared matrix is counted once.",
    "prefill": "Computing all tokens of a prompt at once.",
    "received states": "Buffers of one stage of a pipeline for what the neighbouring stages send.",
    "token embedding": "A vector for each token of the vocabulary.",
}

_LONGEST_FIRST = sorted(GLOSSARY, key=len, reverse=True)
"""“token embedding” before a term that it contains."""
_TERMS = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, _LONGEST_FIRST))})(?![\w-])")
_TAGS = re.compile(r"(<[^>]*>)")
_CLOSED_TO_TERMS = ("a", "code", "pre", "h2", "h3")


def anchor(term: str) -> str:
    """Return the id of a term in the glossary."""
    return f"term-{term.lower().replace(' ', '-')}"


def terms(text: str | Markup) -> Markup:
    """Link the first use of each term to the glossary; `text` is escaped."""
    seen: set[str] = set()

    def linked(match: re.Match) -> str:
        term = match[1]
        if term in seen:
            return term
        seen.add(term)
        return Markup('<a class="term" href="#{}">{}</a>').format(anchor(term), term)

    pieces, inside = [], []
    for piece in _TAGS.split(str(escape(text))):
        tag = re.match(r"<(/?)(\w+)", piece)
        if tag and tag[2] in _CLOSED_TO_TERMS:
            inside = inside[:-1] if tag[1] else [*inside, tag[2]]
        pieces.append(piece if tag or inside else _TERMS.sub(linked, piece))
    return Markup("".join(pieces))


def glossary_section() -> list[tuple[str, str, str]]:
    """Return the id, the term and the definition of each term in alphabetical order."""
    return [(anchor(term), term, GLOSSARY[term]) for term in sorted(GLOSSARY, key=str.casefold)]
