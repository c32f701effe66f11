"""A child for `run_helper`, with every way to end: `python -m support.helper_program`."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from triolet.errors import ConfigError
from triolet.model_source.helper import Report, helper_main


def work(request: Mapping[str, Any], report: Report) -> Mapping[str, Any]:
    match request["do"]:
        case "answer":
            report("half 50%")
            return {"echo": request["value"]}
        case "print":
            print("noise from a library")  # noqa: T201
            subprocess.run(["/bin/echo", "noise from its child"], check=True)
            return {"echo": "clean"}
        case "refuse":
            raise ConfigError("no such thing; take another")
        case "crash":
            raise ZeroDivisionError("a bug of ours")
        case "exit":
            sys.exit(3)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            report(str(os.getpid()))
            threading.Event().wait()
    return {}


if __name__ == "__main__":
    helper_main(work)
