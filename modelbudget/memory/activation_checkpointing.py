"""What a backward pass computes again, where activations are recomputed instead of kept.

Torch stops computing as soon as it has all that backward needs, so the last product of a
recomputed stretch, whose value nobody saves, is left out.
"""

from modelbudget.components import attention, mla, mlp, moe


def flops(a, r) -> dict[str, dict]:
    """Operations of one more forward pass, in parts (Korthikanti et al. 2022, §5).

    Selective: attention's core; written out, the second of its two products is left out. Full: the
    whole layer; what comes last is left out, unless dropout or a norm follows and saves something,
    or the experts' outputs are weighed.
    """
    if r.recompute == "selective":
        products = {"math": 2, "flash": 4, "efficient": 4}[r.attention_kernel]
        of_latent = mla.flops(a, r, 2, products - 2)
        return {
            "attention": {"core": attention.flops(a, r, products)["core"]},
            "latent": {"core": of_latent["core"]},
        }
    if r.recompute == "full":
        again = 1 - int(a.norm_placement == "pre") * (1 - r.dropout)
        of_mlp, of_experts = mlp.flops(a, r), moe.flops(a, r)
        of_mlp["down"] *= again
        of_experts["shared.down"] *= 1 - (1 - again) * (1 - a.shared_gate)
        mixers = {"attention": attention.flops(a, r), "latent": mla.flops(a, r)}
        return mixers | {"mlp": of_mlp, "experts": of_experts}
    return {}
