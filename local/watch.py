"""`make watch`: the consumer under `cargo lambda watch`, on a local table.

    python local/watch.py [EXAMPLE]     or an example, on tables that hold what its sample event needs

The tables are in what AWS_ENDPOINT_URL names, or in a MiniStack started for it. What is set in the
environment (PAYMENT_GATEWAY_URL, IDEMPOTENCY_KEY, RUST_LOG, ...) reaches the consumer as it is.
"""

import contextlib
import os
import socket
import sys

from rich.console import Console

from cloud import STATE, Cloud, Unavailable, cloud, create_table, free_port, run, unwind_on_signals
from examples import TABLES, create_tables

PORT = 9000  # cargo-lambda's own
PORT_FILE = STATE / "watch.port"
DEFAULTS = {
    "PAYMENT_GATEWAY_URL": "sandbox",
    "IDEMPOTENCY_TABLE_NAME": "sqs-once",
    # cargo-lambda names the function "_".
    "IDEMPOTENCY_NAMESPACE": "payments",
    "CONSUMER_VISIBILITY": "off",  # an event from a file is in no queue
}

console = Console(highlight=False, soft_wrap=True)


def choose_port() -> int:
    with socket.socket() as probe:
        # As cargo-lambda will: a connection of an earlier watch that lingers is not in the way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return free_port()
    return PORT


@contextlib.contextmanager
def remembered(port: int):
    """Tells `make invoke` where to find us."""
    PORT_FILE.parent.mkdir(exist_ok=True)
    PORT_FILE.write_text(f"{port}\n")
    try:
        yield
    finally:
        PORT_FILE.unlink(missing_ok=True)


def consumer(up: Cloud) -> dict[str, str]:
    """The consumer's environment; its table is made on the way."""
    environment = DEFAULTS | up.environment()
    table = environment["IDEMPOTENCY_TABLE_NAME"]
    made = create_table(up, table)
    console.print(f"[bold]==>[/] table {table} {'created' if made else 'found'} at {up.endpoint}")
    console.print(f"[bold]==>[/] payment gateway: {environment['PAYMENT_GATEWAY_URL']}")
    return environment


def example(up: Cloud, name: str) -> dict[str, str]:
    """The example's environment; its tables are made on the way."""
    tables = create_tables(up, name)
    console.print(f"[bold]==>[/] tables at {up.endpoint}: {', '.join(tables.values())}")
    return up.environment() | tables


def main() -> int:
    unwind_on_signals()
    match sys.argv[1:]:
        case []:
            target, event = ["--bin", "consumer"], "new-orders"
        case [name] if name in TABLES:
            target, event = ["--example", name], name.replace("_", "-")
        case _:
            sys.exit(f"make watch: EXAMPLE is one of {', '.join(TABLES)}")
    # Now, so that the first invocation does not wait for it.
    if status := run(["cargo", "build", *target], os.environ):
        return status
    with cloud("watch") as up:
        environment = example(up, name) if "--example" in target else consumer(up)
        port = choose_port()
        with remembered(port):
            console.print(f"[bold]==>[/] from another terminal: [bold]make invoke EVENT=events/{event}.json[/]")
            return run(["cargo", "lambda", "watch", *target, "-A", "127.0.0.1", "-P", str(port)], environment)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as problem:
        sys.exit(f"make watch: {problem}")
