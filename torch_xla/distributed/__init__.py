"""Feeding the devices and replicating over them."""

from torch_xla._internal.names import missing

__getattr__ = missing.getter(
    __name__,
    {
        "cluster": "torchrun, or the same command on each host",
        "xla_dist": "the same command on each host (gcloud compute tpus tpu-vm ssh NAME "
        '--worker=all --command="python train.py"), or torchrun',
    },
)
