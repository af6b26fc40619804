"""A state space language model as a program: embedding, layers of a norm and a mixer, head."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import embedding, norm
from modelbudget.operations.elementwise import add, clone
from modelbudget.operations.part import make_part
from modelbudget.operations.tape import Active
from modelbudget.operations.views import narrow


def program(a: Fields, r: Run, mixer):
    """Tokens (batch, length) to logits (batch, length, n_vocab); `mixer`: the component."""
    token = make_part("embedding.token", embedding.table_program, embedding.rows(a), a.d_model)
    layers = []
    for number in range(a.n_layer):
        Active.tape.layer = number  # of the parameters
        layers.append(make_part("layer", _layer, a, r, mixer))
    Active.tape.layer = None
    final_norm = norm.make("norm.final", a, r)
    head = make_part("head", embedding.head_program, a, r, token.weight)

    def forward(tokens):
        x = stream(tokens)  # live until the logits are there
        return head(final_norm(x))

    def stream(tokens):
        x = token(tokens)
        for number, layer in enumerate(layers):
            Active.tape.layer = number
            x = layer(x)
        Active.tape.layer = None
        return x

    def next_token(tokens):
        """Return the logits of the last token, of which the head reads a copy."""
        x = stream(tokens)
        states = final_norm(x)  # both are live with the copy
        return head(clone(narrow(states, 1, 1, is_first=False)))

    forward.next_token = next_token
    return forward


def _layer(a: Fields, r: Run, mixer):
    norm_, mix = norm.make("norm", a, r), make_part("mixer", mixer.program, a, r)
    return lambda x: add(x, mix(norm_(x)))
