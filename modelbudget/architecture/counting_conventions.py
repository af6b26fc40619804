"""Conventions by which papers and training code count parameters, and FLOPs per training token.

A convention is a sum over named components, or an expression in fields, or both. It takes the terms
of a formula or those counted on a module, in every reading of `architecture/readings`.

A source that is second hand was read in code or threads that cite the paper, not in the paper.
Others were read in the code, or in the paper or a transcription of it.

`n_vocab` is the rows of the embedding, padding included. Components are those of one token where a
convention is of FLOPs (`active_parameters`), and all that are stored where it is of parameters.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from modelbudget.architecture.formula_arguments import Fields
from modelbudget.architecture.operations import ceil_div
from modelbudget.architecture.terms import Term, Terms, total

PARAMETERS, FLOPS = "parameters", "FLOPs per token"


class Convention(NamedTuple):
    """How one number is counted.

    `value` takes terms of parameters, fields, and the sequence length, by which only conventions of
    FLOPs depend. `fields`: what the architecture must have.
    """

    name: str
    unit: Literal["parameters", "FLOPs per token"]
    rule: str
    source: str
    value: Callable[[Terms, Fields, Any], Any]
    fields: tuple[str, ...] = ()

    def why_not(self, family: Any) -> str | None:
        """Return why the convention says nothing about a family, None if it does."""
        missing = [name for name in self.fields if name not in family.model_fields]
        if not family.has_formula:
            return f"{family.name()} names its components in other ways"
        return f"{family.name()} has no {missing[0]}" if missing else None

    def terms(self, family: Any, a: Fields, length) -> Terms:
        """Return the count as the only term, in the reading of the fields."""
        of_token = getattr(family, "active_parameters", family.parameters)
        components = (family.parameters if self.unit == PARAMETERS else of_token)(a)
        return {"model": Term(self.value(components, a, length))}


def _is_input(component: str) -> bool:
    return component == "embedding.token" or component.startswith("embedding.token.")


def _is_head(component: str) -> bool:
    return component == "head" or component.startswith("head.")


def _is_vocabulary(component: str) -> bool:
    return _is_input(component) or _is_head(component)


def _is_position(component: str) -> bool:
    return component == "embedding.position"


def _is_embedding(component: str) -> bool:
    return component.startswith("embedding.") or _is_head(component)


def _is_outside_products(component: str) -> bool:
    return not component.startswith("layer.") or component.startswith("layer.norm")


def without(leave_out: Callable[[str], bool], terms: Terms):
    """Return the sum over the components that are not left out."""
    return total({name: term for name, term in terms.items() if not leave_out(name)})


def _rows(a: Fields):
    return a.vocab_multiple * ceil_div(a.n_vocab, a.vocab_multiple)


def _kaplan(a: Fields):
    return 12 * a.n_layer * a.d_model * a.d_model


def _attention(a: Fields, length):
    """FLOPs of scores and weighted values for one token, forward and backward, without a mask."""
    return 12 * a.n_layer * a.n_head * a.d_head * length


def _chinchilla(a: Fields, length):
    """FLOPs for one token: forward, and twice as many backward."""
    width = a.n_head * a.d_head
    vocabulary = 2 * _rows(a) * a.d_model
    projections = 8 * a.d_model * width
    core = 4 * length * width + 3 * a.n_head * length
    return 3 * (2 * vocabulary + a.n_layer * (projections + core + 4 * a.d_model * a.d_ff))


def _megatron(a: Fields, length, passes: int):
    """FLOPs for one token: the layers `passes` times, the head three times."""
    d = a.d_model
    layers = passes * a.n_layer * (24 * d * d + 4 * length * d)
    return layers + 6 * d * _rows(a)


OF_SIZE = ("n_layer", "d_model", "n_head")
OF_ATTENTION = ("n_layer", "n_head", "d_head")
OF_PRODUCTS = ("n_layer", "d_model", "n_head", "d_head", "d_ff", "n_vocab", "vocab_multiple")
KAPLAN = "Kaplan et al. 2020, §2.1"
DEEPSEEK = "DeepSeek-AI 2024 (DeepSeek LLM), §3.2"
OLMO = "github.com/allenai/OLMo, olmo/model.py"
NANOGPT = "github.com/karpathy/nanoGPT, model.py"
NANOCHAT = "github.com/karpathy/nanochat, nanochat/gpt.py: estimate_flops"

CONVENTIONS = (
    Convention(
        "total", PARAMETERS, "every stored parameter; a tied matrix once",
        "Hoffmann et al. 2022, Table A9; most model cards", lambda n, a, t: total(n),
    ),
    Convention(
        "without_input_embedding", PARAMETERS, "without the token embedding; an untied head stays",
        f"{OLMO}: num_params(include_embedding=False); params_no_embed of Gadre et al. 2024",
        lambda n, a, t: without(_is_input, n),
    ),
    Convention(
        "without_positions", PARAMETERS, "without learned positions; the token embedding stays",
        f"{NANOGPT}: get_num_params", lambda n, a, t: without(_is_position, n),
    ),
    Convention(
        "without_vocabulary", PARAMETERS, "without token embedding and head; positions stay",
        "Tao et al. 2024 (N without vocabulary); model cards of Pythia (Biderman et al. 2023)",
        lambda n, a, t: without(_is_vocabulary, n),
    ),
    Convention(
        "without_embeddings", PARAMETERS, "without token and position embeddings and head",
        f"{KAPLAN}: non-embedding parameters", lambda n, a, t: without(_is_embedding, n),
    ),
    Convention(
        "without_embeddings_and_norms", PARAMETERS,
        "attention and feed-forward parts of the layers alone",
        "Li et al. 2025 (Step Law), table of runs: n_layer·(4·d_model² + 3·d_model·d_ff)",
        lambda n, a, t: without(_is_outside_products, n),
    ),
    Convention(
        "kaplan", PARAMETERS, "12·n_layer·d_model², exact where d_ff = 4·d_model",
        f"{KAPLAN}, eq. 2.1", lambda n, a, t: _kaplan(a), OF_SIZE,
    ),
    Convention(
        "6n", FLOPS, "6·N, N total", "Hoffmann et al. 2022, Appendix F: the approximation 6·N·D",
        lambda n, a, t: 6 * total(n),
    ),
    Convention(
        "6n_without_input_embedding", FLOPS, "6·N, N without the token embedding",
        f"{OLMO}: num_params(include_embedding=False), six times",
        lambda n, a, t: 6 * without(_is_input, n),
    ),
    Convention(
        "6n_without_embeddings", FLOPS, "6·N, N without embeddings and head",
        f"{KAPLAN}: C = 6·N·B·S", lambda n, a, t: 6 * without(_is_embedding, n),
    ),
    Convention(
        "8n", FLOPS, "8·N, N total: every layer recomputed",
        "Narayanan et al. 2021, §5.1, eq. 4", lambda n, a, t: 8 * total(n),
    ),
    Convention(
        "deepseek_n1", FLOPS, "6·N₁ = 72·n_layer·d_model²", f"{DEEPSEEK}, N₁",
        lambda n, a, t: 6 * _kaplan(a), OF_SIZE,
    ),
    Convention(
        "deepseek_n2", FLOPS, "6·N₂ = 72·n_layer·d_model² + 6·n_vocab·d_model", f"{DEEPSEEK}, N₂",
        lambda n, a, t: 6 * _kaplan(a) + 6 * _rows(a) * a.d_model,
        (*OF_SIZE, "n_vocab", "vocab_multiple"),
    ),
    Convention(
        "deepseek_m", FLOPS, "72·n_layer·d_model² + 12·n_layer·d_model·length", f"{DEEPSEEK}, M",
        lambda n, a, t: 6 * _kaplan(a) + 12 * a.n_layer * a.d_model * t, OF_SIZE,
    ),
    Convention(
        "palm", FLOPS, "6·N + 12·n_layer·n_head·d_head·length, N total",
        "Chowdhery et al. 2022 (PaLM), Appendix B (second hand)",
        lambda n, a, t: 6 * total(n) + _attention(a, t), OF_ATTENTION,
    ),
    Convention(
        "nanogpt", FLOPS, "as palm, N without learned positions", f"{NANOGPT}: estimate_mfu",
        lambda n, a, t: 6 * without(_is_position, n) + _attention(a, t), OF_ATTENTION,
    ),
    Convention(
        "nanochat", FLOPS, "as palm, N without the token embedding", NANOCHAT,
        lambda n, a, t: 6 * without(_is_input, n) + _attention(a, t), OF_ATTENTION,
    ),
    Convention(
        "olmo", FLOPS, "2·N without the token embedding, 4·N total, 12·n_layer·d_model·length: "
        "the look-up's backward pass as a product",
        f"{OLMO}: num_fwd_flops, num_bck_flops",
        lambda n, a, t: 2 * without(_is_input, n) + 4 * total(n) + 12 * a.n_layer * a.d_model * t,
        OF_SIZE,
    ),
    Convention(
        "chinchilla", FLOPS,
        "all products, the look-up as one too, and softmax; backward twice forward",
        "Hoffmann et al. 2022, Appendix F",
        lambda n, a, t: _chinchilla(a, t), OF_PRODUCTS,
    ),
    Convention(
        "megatron", FLOPS, "72·n_layer·d_model² + 12·n_layer·d_model·length + 6·n_vocab·d_model",
        "github.com/NVIDIA/Megatron-LM, issue 995; Korthikanti et al. 2022 (second hand)",
        lambda n, a, t: _megatron(a, t, 3), (*OF_SIZE, "n_vocab", "vocab_multiple"),
    ),
    Convention(
        "megatron_recomputed", FLOPS, "96·n_layer·d_model² + 16·n_layer·d_model·length + "
        "6·n_vocab·d_model: layers recomputed", "Narayanan et al. 2021, §5.1, eq. 3",
        lambda n, a, t: _megatron(a, t, 4), (*OF_SIZE, "n_vocab", "vocab_multiple"),
    ),
)  # fmt: skip
"""All conventions, those of parameters first."""

BY_NAME = {one.name: one for one in CONVENTIONS}
