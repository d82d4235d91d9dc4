"""Decode and resize a batch of JPEG files on a GPU.

::

    file_table.py       the undecoded pictures of a batch, as they are sent between processes
    hybrid_decode.py    engines and CPU threads decode one batch together
    nvjpeg.py           the GPU's JPEG engines, through libnvjpeg
    resize_kernel.py    one CUDA kernel: crop, resize, mirror, normalise
    fallback_decode.py  torchcodec's decoder, for GPUs without engines
"""
