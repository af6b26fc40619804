"""Gradients in the buckets of torch's DistributedDataParallel, on meta.

Its reducer copies each gradient into a bucket, and back or not. Collectives move nothing.
"""

from functools import partial

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.parallel.fake_process_group import reduce_on_meta
from modelbudget.measurement.step.train import Pass, one_pass, texts
from modelbudget.measurement.trace.bytes_at_peak import BUFFERS
from modelbudget.measurement.trace.module_trace import Trace


def make_pass(mesh: DeviceMesh, trace: Trace, model: nn.Module, run: RunConfig) -> Pass:
    """Return the pass of one of the data-parallel devices of a mesh."""
    is_meta = next(model.parameters()).is_meta
    wrapped = DistributedDataParallel(
        model,
        process_group=mesh.get_group(),
        gradient_as_bucket_view=run.gradient_buckets == "views",
        init_sync=not is_meta,  # it reads values
    )
    if is_meta:
        reduce_on_meta(wrapped, lambda bucket: trace.mark(BUFFERS, [bucket]))
    return partial(one_pass, trace, model, run, *texts(model, run), wrapped)
