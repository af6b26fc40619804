"""Memory of a process in huge pages, whose addresses the processor translates sooner."""

import ctypes
from pathlib import Path

MADV_COLLAPSE = 25
"""Linux 6.1 and later (include/uapi/asm-generic/mman-common.h); an earlier one refuses it."""
MAPS = Path("/proc/self/maps")
HEAP = "[heap]"


def collapse() -> None:
    """Move what is allocated now into pages of 2 MB, where Linux can.

    What is allocated later has pages as before: it is measured as in a process of a user.
    """
    if not MAPS.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in MAPS.read_text().splitlines():
        addresses, rights, _, _, _, *name = line.split(maxsplit=5)
        if rights.startswith("rw") and name in ([], [HEAP]):
            start, end = (int(address, 16) for address in addresses.split("-"))
            madvise(start, end - start, MADV_COLLAPSE)
