"""A process for tests that prints its properties and waits for SIGTERM."""

import json
import os
import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("it has ended"))
    what = {
        "arguments": sys.argv[1:],
        "greeting": os.environ.get("STELE_GREETING"),
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "parent": os.getppid(),
        "hash": hash("stele"),
    }
    print(json.dumps(what), flush=True)
    signal.pause()
