"""Runs a command whose standard input and standard error are a pseudo-terminal.

    python3 terminal.py COMMAND...

Types its own standard input on the terminal, and the end of the input as Control-D. Copies the terminal's output to
its own standard error. Ends with the exit code of the command.
"""

import os
import pty
import subprocess
import sys
import threading

controller, terminal = pty.openpty()
command = subprocess.Popen(sys.argv[1:], stdin=terminal, stderr=terminal)
os.close(terminal)


def type_input() -> None:
    while text := os.read(sys.stdin.fileno(), 1024):
        os.write(controller, text)
    os.write(controller, b"\x04")


threading.Thread(target=type_input, daemon=True).start()
try:
    while output := os.read(controller, 1024):
        os.write(sys.stderr.fileno(), output)
except OSError:
    pass  # Linux reports a terminal without a program as an I/O error.
sys.exit(command.wait())
