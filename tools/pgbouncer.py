"""PgBouncer, a pooler of PostgreSQL, for the tests.

    python tools/pgbouncer.py install
    python tools/pgbouncer.py PORT [NAME=VALUE ...]

`install` takes the package from Debian's archive with apt, and unpacks it into .venv/pgbouncer. It needs no root. If
the lists of packages are old, it gets its own. Where apt is missing, or Debian does not answer, it says so and
succeeds: the tests then look for an installed `pgbouncer`.

The second form starts PgBouncer on a free port of the loopback interface, in front of the PostgreSQL server at PORT. It
prints `ready PORT`, and PgBouncer ends with its caller. Each NAME=VALUE is a setting of PgBouncer. PGBOUNCER names
another program.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from postgres import end_with_parent, free_port, unprivileged

INSTALLED = Path(__file__).resolve().parent.parent / ".venv/pgbouncer"
# With the libraries that a small system may lack.
PACKAGES = ["pgbouncer", "libc-ares2", "libevent-2.1-7"]

SETTINGS = {
    "listen_addr": "127.0.0.1",
    "unix_socket_dir": "",
    "pool_mode": "transaction",
    "auth_type": "any",
    "logfile": "",
}


def libraries(folder: Path) -> str:
    return ":".join(str(path) for path in folder.glob("usr/lib/*/"))


def run(command: list[str], folder: Path) -> str | None:
    """Returns the output of a command that failed, else `None`."""
    ended = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"{' '.join(command)}:\n{ended.stdout}" if ended.returncode else None


def download(folder: Path) -> str | None:
    """Downloads the packages. Returns the reason if that is impossible."""
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={folder}", "-o", "APT::Sandbox::User=root"]
    if run(["apt-get", "download", *PACKAGES], folder) is None:
        return None
    # The lists of the machine are old, or there are none.
    return run(["apt-get", *own, "update"], folder) or run(["apt-get", *own, "download", *PACKAGES], folder)


def install() -> str | None:
    """Installs the package. Returns the reason if that is impossible."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        return "this machine has no apt-get and dpkg"
    with tempfile.TemporaryDirectory(prefix="sqs-once-pgbouncer-") as folder:
        if failed := download(Path(folder)):
            return failed
        shutil.rmtree(INSTALLED, ignore_errors=True)
        for package in Path(folder).glob("*.deb"):
            if failed := run(["dpkg", "--extract", str(package), str(INSTALLED)], Path(folder)):
                return failed
    program = ["env", f"LD_LIBRARY_PATH={libraries(INSTALLED)}", str(INSTALLED / "usr/sbin/pgbouncer"), "--version"]
    return run(program, INSTALLED)


def program(folder: Path) -> tuple[str, str]:
    """The program, and the folders of its libraries. Another user gets a copy, as it may be unable to read .venv."""
    if named := os.environ.get("PGBOUNCER") or (None if INSTALLED.is_dir() else shutil.which("pgbouncer")):
        return named, ""
    if not INSTALLED.is_dir():
        sys.exit("tools/pgbouncer.py: PgBouncer is not installed: see the message of `make .venv/pgbouncer`")
    copy = folder / "program"
    shutil.copytree(INSTALLED / "usr", copy / "usr", ignore=shutil.ignore_patterns("share"))
    return str(copy / "usr/sbin/pgbouncer"), libraries(copy)


def start(folder: Path, server: int, settings: dict[str, str]) -> tuple["subprocess.Popen[str]", int]:
    """Starts PgBouncer. Returns when it accepts connections."""
    port = free_port()
    lines = [f"{name} = {value}" for name, value in (SETTINGS | {"listen_port": str(port)} | settings).items()]
    config = folder / "pgbouncer.ini"
    database = f"* = host=127.0.0.1 port={server} user=postgres"
    config.write_text("\n".join(["[databases]", database, "[pgbouncer]", *lines, ""]))
    path, library_path = program(folder)
    identity = unprivileged()
    if identity:
        folder.chmod(0o755)
    user_id, group_id = identity or (None, None)
    process = subprocess.Popen(
        [path, str(config)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": library_path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=user_id,
        group=group_id,
        extra_groups=None if user_id is None else [],
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    assert process.stdout
    before = []
    for line in process.stdout:
        before.append(line)
        if "process up" in line:
            break
    else:
        sys.exit("tools/pgbouncer.py: PgBouncer ended:\n" + "".join(before))
    return process, port


def main() -> None:
    if sys.argv[1:] == ["install"]:
        if failed := install():
            print(f"PgBouncer was not installed, so its tests fail or are skipped: {failed}", file=sys.stderr)
        return
    server, *settings = sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="sqs-once-pgbouncer-"))
    process = None
    try:
        process, port = start(folder, int(server), dict(setting.split("=", 1) for setting in settings))
        print(f"ready {port}", flush=True)
        # PgBouncer stops when it cannot write its log.
        threading.Thread(target=process.communicate, daemon=True).start()
        sys.stdin.read()
    finally:
        if process:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
