"""The allocator of a service process."""

import subprocess
import sys
from typing import Final

ALLOCATE_IN_THREADS: Final = """
import ctypes, sys, tempfile, threading
from stele.runtime.service import share_arenas

assert share_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
ready = threading.Barrier(17)

def allocate():
    libc.malloc(ctypes.c_size_t(4096))
    ready.wait()

for _ in range(16):
    threading.Thread(target=allocate, daemon=True).start()
ready.wait()
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(file.read().count(b"<heap nr="))
"""


def test_sixteen_threads_share_two_arenas() -> None:
    found = subprocess.run(
        [sys.executable, "-c", ALLOCATE_IN_THREADS],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert int(found.stdout) <= 2
