"""The output of a process, read while the process runs."""

import subprocess
import threading


class Output:
    """Lines that a process has written so far. `arrived` is notified of each, and of the end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.lines: list[str] = []
        self.ended = False
        self.arrived = threading.Condition()
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        with process.stdout as output:
            for line in output:
                with self.arrived:
                    self.lines.append(line.decode(errors="replace").rstrip())
                    self.arrived.notify_all()
        with self.arrived:
            self.ended = True
            self.arrived.notify_all()
