"""A layer as a program: a mixer and a feed-forward part with their norms and residual sums."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import norm
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.layer import has_output_norm
from modelbudget.components.mixers import mixers
from modelbudget.operations.activation_checkpoint import checkpoint, every_second_product
from modelbudget.operations.elementwise import dropout
from modelbudget.operations.part import NoProgramError, Part, make_part


def program(a: Fields, r: Run, mixer: str, mlp: str):
    """States (batch, length, d_model) to states of the same shape; a part may be `none`.

    `positions` of the forward function: the bias of scores and the tables of RoPE, or None.
    """
    parts = {
        getattr(file, "NAME", name): _make(getattr(file, "NAME", name), file, a, r)
        for files, name in ((mixers(), mixer), (feed_forward(), mlp))
        if (file := files.get(name)) is not None
    }
    names = ["shared"] if a.parallel and a.shared_norm else list(parts)
    names += [f"{name}_output" for name in parts if has_output_norm(a, name)]
    norms = {name: norm.make(f"norm.{name}", a, r) for name in names}
    has_dropout = r.dropout and r.dropout_in != "attention"
    drop = make_part("dropout", lambda: lambda x: dropout(x, has_dropout, r.backend))

    def compute(x, *positions):
        if not a.parallel:
            for name in parts:
                x = with_part(name, x, *positions)
            return x
        mixer_name, mlp_name = parts
        if "shared" in norms:
            for_mixer = for_mlp = norms["shared"](x)
        else:
            for_mixer, for_mlp = norms[mixer_name](x), norms[mlp_name](x)
        return (
            x
            + drop(run(mixer_name, for_mixer, *positions))
            + drop(run(mlp_name, for_mlp, *positions))
        )

    def with_part(name, x, *positions):
        """Return the residual sum with one part, with norms according to `norm_placement`."""
        match a.norm_placement:
            case "post":
                return norms[name](x + drop(run(name, x, *positions)))
            case "output":
                return x + norms[name](drop(run(name, x, *positions)))
            case _:
                of_output = norms.get(f"{name}_output", unchanged)
                return x + of_output(drop(run(name, norms[name](x), *positions)))

    def run(name, x, *positions):
        part = parts[name]
        return part(x, *positions) if getattr(part.forward, "reads_positions", False) else part(x)

    def forward(x, bias=None, rotation=None):
        if r.recompute == "full" and r.mask_argument == "saved" and isinstance(bias, tuple):
            return checkpoint(lambda x, mask: compute(x, (mask,), rotation), x, *bias)
        if r.recompute == "full":
            return checkpoint(compute, x, bias, rotation)
        if r.recompute == "selective_op":
            return checkpoint(compute, x, bias, rotation, keeps=every_second_product)
        return compute(x, bias, rotation)

    return forward


def unchanged(x):
    return x


def _make(name: str, file, a: Fields, r: Run) -> Part:
    if not hasattr(file, "program"):
        raise NoProgramError(name)
    for setting, known in getattr(file, "ONLY_WITH", {}).items():
        if getattr(r, setting) != known:
            raise NoProgramError(f"{setting}: {getattr(r, setting)} of {name}")
    return make_part(name, file.program, a, r)
