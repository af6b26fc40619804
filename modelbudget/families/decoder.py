"""The composable decoder: GPT-2, Llama, PaLM, DeepSeek and relatives as options of one record."""

from typing import Any, ClassVar

from modelbudget.architecture.arithmetic import is_nothing, positive
from modelbudget.architecture.base import Depth, Size
from modelbudget.architecture.constraint import Check, Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_pattern import pattern
from modelbudget.architecture.memoised_run import once
from modelbudget.architecture.optimizers import optimizer_named
from modelbudget.architecture.run_rules import content
from modelbudget.architecture.run_values import (
    accumulates,
    bytes_of,
    computed_again,
    computes_as_megatron,
    divides,
    divides_context,
    exchanges_context,
    gradient_number,
    has_part_of_experts,
    has_part_of_states,
    is_divided,
    is_pipelined,
    is_sharded,
    of_states,
    own_tokens,
    stays_gathered,
    stored,
)
from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.architecture.terms import Term, Terms, join, merged, part, plus, scaled, total
from modelbudget.components import embedding, embedding_step, layer, norm
from modelbudget.components.contract import flops_backward_of
from modelbudget.components.decoder import decoder_program, decoder_step
from modelbudget.components.decoder.decoder_conditions import (
    OF_ONE_DEVICE,
    OF_STEP,
    OF_TENSORS,
    has_closed_products,
    has_closed_step,
    is_of_stages,
    knows_optimizer,
    knows_shards,
)
from modelbudget.components.decoder.decoder_constraints import (
    constraints_of_parts,
    constraints_of_run,
    empty_layer,
)
from modelbudget.components.decoder.decoder_terms import (
    around_layers,
    flops_of,
    in_own_rows,
    in_shards,
    of_tensors,
    parameters_of,
    saved_by_layers,
)
from modelbudget.components.embedding import HeadFields, InputFields, PositionFields
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.layer import LayerFields
from modelbudget.components.mixers import mixers
from modelbudget.components.multi_token_prediction import MultiTokenFields, is_absent, own_layers
from modelbudget.components.parallel import (
    expert_parallel,
    pipeline_stage,
    tensor_parallel,
)
from modelbudget.components.parallel.device_share import share
from modelbudget.components.weight_formats import (
    HEAD,
    MTP,
    TOKEN,
    Matrix,
    by_format,
    converts,
    converts_vocabulary,
    fit,
    misfit,
    names_of_nothing,
)
from modelbudget.memory import optimizer_states

PartFields: Any = layer.fields_of_parts()


Mixers, MLPs = pattern(*mixers(), "none"), pattern(*feed_forward(), "none")


OF_KIND_OF_PRODUCTS = (*OF_ONE_DEVICE[1:], "peak_inference_bytes")
"""Quantities that the kind of products and of embedding decides."""
OF_PRODUCTS = ("flops_forward", "flops_backward")
OF_OTHERS = {"target_length", "padding"}
"""Settings of a run that need an encoder, or a class of `transformers`."""


class Decoder(HeadFields, PositionFields, PartFields, LayerFields, MultiTokenFields, InputFields):
    """A decoder-only language model.

    Embedding, n_layer layers of a mixer and a feed-forward part, final norm, head.
    """

    switches_of_run: ClassVar[tuple[str, ...]] = (*sorted({*content()["switches"]} - OF_OTHERS),)
    constraints_of_run: ClassVar[tuple[Constraint, ...]] = (*constraints_of_run(),)
    lists_matrices: ClassVar[bool] = True
    has_cache: ClassVar[bool] = True

    n_layer: Depth
    # Types made from the files of a folder, which no type checker can read.
    mixers: Mixers = "attention"
    mlps: MLPs = "mlp"
    n_dense_layer: Size = 0
    moe_output_norm: bool = False
    embedding_norm: bool = False
    final_norm: bool = True

    constraints: ClassVar[tuple[Check, ...]] = (
        *constraints_of_parts(),
        Constraint(
            "n_dense_layer <= n_layer",
            "n_dense_layer = {n_dense_layer} is more than n_layer = {n_layer}",
        ),
        Constraint(
            "'none' not in mixers and 'none' not in mlps",
            "parallel = true needs a mixer and an MLP in each layer, not none",
            when="parallel",
        ),
        empty_layer,
    )

    @classmethod
    def _holds(cls, quantity: str, a: Fields, r: Run):
        """1 where all parts of the layers provide the formula, else 0."""
        if quantity == "cache_bytes":
            if (r.cache_dtype, r.cache_layout) != ("dtype", "contiguous"):
                return 0
        elif [*layer.joins(r)]:
            return 0
        optimizer_is_known = knows_optimizer(quantity, a, r)
        if is_nothing(optimizer_is_known):
            return 0
        whole, a, r = a, share(a, r), own_tokens(r)
        holds = 1
        if quantity in OF_STEP:
            holds = has_closed_step(a, r)
        elif quantity in OF_PRODUCTS:
            holds = has_closed_products(quantity, a, r)
        if is_nothing(holds):
            return 0
        holds = holds * layer.has_formula(quantity, a, r)
        if quantity in OF_KIND_OF_PRODUCTS:
            holds = holds * (1 - computes_as_megatron(r))
        if is_divided(r):
            holds = holds * (1 - divides(r) * (1 - tensor_parallel.known(quantity, a, r)))
        if has_part_of_experts(r):
            known = int(quantity in OF_ONE_DEVICE)
            holds = holds * (1 - expert_parallel.exchanges(r) * (1 - known))
        if divides_context(r):
            known = OF_ONE_DEVICE if r.context_exchange == "all_to_all" else OF_TENSORS
            holds = holds * (1 - exchanges_context(r) * (1 - int(quantity in known)))
        if is_pipelined(r) and not is_of_stages(quantity, a, r):
            return 0
        if is_sharded(r):
            holds = holds * knows_shards(quantity, a, r)
            if stays_gathered(r) and computed_again(r) and quantity == "peak_training_bytes":
                lower = decoder_step.forward_of_shards_is_lower
                holds = holds if is_nothing(holds) else holds * lower(cls, whole, r)
        return holds * optimizer_is_known

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """All parameters: those of every expert."""
        return parameters_of(a, "parameters")

    @staticmethod
    def active_parameters(a: Fields) -> Terms:
        """Count the parameters that one token uses: of the routed experts, only the selected ones.

        The input embedding counts in full, as in Mixtral's and Qwen 3's figures; DeepSeek's and
        gpt-oss's leave it out.
        """
        return parameters_of(a, "active_parameters")

    @staticmethod
    def trained_parameters(a: Fields) -> Terms:
        """Count the parameters that get a gradient."""
        return of_tensors(a, lambda tensor: tensor.numbers)

    @classmethod
    @pipeline_stage.by_stage
    def parameter_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes of the parameters in the run's dtype, and of quantised matrices in their format."""
        a = share(a, r)
        if is_sharded(r):
            return scaled(in_shards(a, r), bytes_of(stored(r).dtype))
        dense = super().parameter_bytes(a, r)
        if is_divided(r):
            return layer.packed(r, dense)
        return cls._in_format(a, r, dense)

    @classmethod
    def file_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes of the tensors in a file, which may differ from those in memory."""
        return cls._in_format(a, r, super().parameter_bytes(a, r), in_file=True)

    @classmethod
    def _in_format(cls, a: Fields, r: Run, dense: Terms, in_file: bool = False) -> Terms:
        """Return bytes of parameters, with matrices in the run's format and vocabulary's dtype."""
        if r.vocabulary_dtype == "int8":
            token, size = "embedding.token", bytes_of(r.dtype)
            n_row = embedding.rows(a) + a.n_input_token
            more = (1 - size) * cls.parameters(a)[token].each + (size + 1) * n_row
            dense = dense | {token: plus(dense[token], Term(more))}
        elif r.vocabulary_dtype != "dtype":
            wider = bytes_of(r.vocabulary_dtype) - bytes_of(r.dtype)
            is_stored = r.weights in FORMATS and r.weights_of == "all"
            head = (1 - a.tied) * (not is_stored) * embedding.rows(a) * embedding.width(a)
            numbers = {"embedding.token": cls.parameters(a)["embedding.token"].each, HEAD: head}
            ends = {n: plus(dense.get(n, Term(0)), Term(wider * k)) for n, k in numbers.items()}
            dense = dense | ends
        if r.weights in ("dtype", "unknown"):
            return dense
        dense = layer.packed(r, dense)
        change = merged(
            *(
                part(place, by_format(matrices, r, in_file), n_layer)
                for place, matrices, n_layer in cls._matrices(a, r)
            )
        )
        return dense | {name: plus(dense.get(name, Term(0)), term) for name, term in change.items()}

    def _matrices(self: Fields, r: Run) -> list[tuple[str, list[Matrix], Any]]:
        """Return the matrices that a format may store: place, matrices of a layer, layers."""
        sizes = embedding.width(self), embedding.rows(self)
        head = Matrix(HEAD, *sizes, 1 - self.tied, 0, self.head_bias)
        is_factorised = positive(self.d_emb)
        ends = [
            head,
            Matrix("embedding.projection", self.d_emb, self.d_model, is_factorised),
            Matrix("head.projection", self.d_model, self.d_emb, is_factorised),
        ]
        if converts_vocabulary(r):
            ends.append(Matrix(TOKEN, sizes[0], sizes[1] + self.n_input_token))
        all_matrices = [("", ends, 1), *layer.all_matrices(self, r)]
        if is_absent(self):
            return all_matrices
        for place, matrices, n_layer in layer.all_matrices(own_layers(self), r):
            ahead = [matrix._replace(part=join(MTP, matrix.part)) for matrix in matrices]
            all_matrices.append((join(MTP, place), ahead, n_layer))
        return all_matrices

    def why_not_quantised(self: Fields, r: Run) -> str:
        """Return why the bytes of a format of quantised weights are not known; empty if they are.

        The part whose matrices are not listed, the first matrix that the format cannot store, or
        that it converts none.
        """
        if r.vocabulary_dtype == "int8" and self.tied:
            return "vocabulary_dtype = int8: the head has the same matrix; allowed: tied: false"
        if r.weights_of == "all" and not self.tied and "head" in r.modules_to_save:
            return "modules_to_save = head: it is quantised; allowed: weights_of: layers"
        if self.n_expert and "routers" in FORMATS[r.weights].library.converts:
            return "experts: in which format their routers are is not known"
        for name, component in layer.parts(self).items():
            if not hasattr(component, "matrices"):
                return f"{name}: which of its matrices are converted is not known"
        of_parts = Decoder._matrices(self, r)
        for place, matrices, n_layer in of_parts:
            if n_layer and (line := misfit(matrices, r)):
                return join(place, line)
        paths = [m.path for _, matrices, n_layer in of_parts for m in matrices if n_layer * m.n]
        if unknown := names_of_nothing(r, paths):
            return f"kept_in_dtype = {unknown}: no such matrices; allowed: {', '.join(paths)}"
        if not Decoder._n_converted(self, r):
            return f"weights_of = {r.weights_of}: all matrices would stay in the dtype"
        return ""

    def _n_converted(self: Fields, r: Run):
        """Count the matrices that the run's format stores."""
        return sum(
            n_layer * sum(m.n * converts(r, m.routed, m.path) for m in matrices)
            for place, matrices, n_layer in Decoder._matrices(self, r)
        )

    @classmethod
    def stores_all(cls, a: Fields, r: Run):
        is_listed = all(hasattr(component, "matrices") for component in layer.parts(a).values())
        if r.weights == "unknown" or not is_listed or is_sharded(r):
            return 0
        result = positive(cls._n_converted(a, r))
        for _, matrices, _ in cls._matrices(a, r):
            result = result * fit(matrices, r)
        return result

    @classmethod
    @pipeline_stage.by_stage
    def gradient_bytes(cls, a: Fields, r: Run) -> Terms:
        a = share(a, r)
        if is_sharded(r):
            return scaled(in_shards(a, r), bytes_of(stored(r).dtype))
        terms = scaled(cls.trained_parameters(a), gradient_number(r))
        is_whole = is_divided(r) and not accumulates(r)
        return tensor_parallel.with_whole_embedding(a, r, terms) if is_whole else terms

    @classmethod
    def optimizer_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes of the states of all parameters that a device trains, or of its part of them."""
        if has_part_of_states(r):
            # One tensor: its float32 copy and the moments (Rajbhandari et al. 2020, §5.1).
            numbers = optimizer_states.of_part(r, cls._trained_by_device(a, r))
            return optimizer_states.states(r, {"model": Term(numbers)}, {"model": Term(1)})
        return cls._states_of_each(a, r)

    @classmethod
    def _trained_by_device(cls, a: Fields, r: Run):
        """Count the parameters of a device's stage and share that get a gradient."""
        if not is_pipelined(r):
            return total(cls.trained_parameters(share(a, r)))
        layers, _ = pipeline_stage.layers_of_stage(a, r)
        return total(pipeline_stage.without_ends(r, cls.trained_parameters(share(layers, r))))

    @classmethod
    @pipeline_stage.by_stage
    def _states_of_each(cls, a: Fields, r: Run) -> Terms:
        if not optimizer_named(r.optimizer).follows_numbers:
            return optimizer_states.states_by_sizes(a, r, lambda value: of_tensors(a, value))
        a = share(a, r)
        if is_sharded(r):
            return optimizer_states.states(stored(r), in_own_rows(a, r), cls.trained_tensors(a))
        terms = optimizer_states.states(r, cls.trained_parameters(a), cls.trained_tensors(a))
        # A momentum begins as a copy of the gradient; AdamW's moments, as zeros like the parameter.
        copies = optimizer_named(r.optimizer).copies_gradients
        is_copy = is_divided(r) and copies and not accumulates(r)
        return tensor_parallel.with_whole_embedding(a, r, terms) if is_copy else terms

    @staticmethod
    def trained_tensors(a: Fields) -> Terms:
        return of_tensors(a, lambda tensor: 1)

    @staticmethod
    @once
    def activation_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass."""
        r = own_tokens(r)
        if is_pipelined(r):
            of_stage, alone = pipeline_stage.layers_of_stage(a, r)
            of_microbatch = Decoder.activation_bytes(of_stage, pipeline_stage.microbatch(alone))
            return pipeline_stage.activations(r, of_microbatch)
        a = share(a, r)
        ends = around_layers(a, embedding_step.saved(a, r), norm.saved(a, of_states(r)))
        return ends | saved_by_layers(a, r)

    @staticmethod
    @pipeline_stage.by_stage
    def flops_forward(a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        a, r = share(a, r), own_tokens(r)
        return flops_of(a, r, 1, lambda component: component.flops(a, r))

    @staticmethod
    @pipeline_stage.by_stage
    def flops_backward(a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients, and of what full checkpointing repeats."""
        a, r = share(a, r), own_tokens(r)
        return flops_of(a, r, 2, lambda component: flops_backward_of(component, a, r))

    @classmethod
    def peak_training_bytes(cls, a: Fields, r: Run) -> Terms:
        """Return the largest number of bytes live at once, for each phase of two steps."""
        return decoder_step.peaks(cls, a, r)

    @staticmethod
    def cache_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the parts keep of `length` tokens."""
        a, n_layer = share(a, r), layer.n_layers(a)
        of_parts = {
            name: part(f"layer.{layer.component_name(name)}", component.cache(a, r), n_layer[name])
            for name, component in layer.parts(a).items()
        }
        return merged(*of_parts.values())

    model_program = staticmethod(decoder_program.program)

    def build(self):
        from modelbudget.modules.decoder import DecoderModel

        return DecoderModel(self)
