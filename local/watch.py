"""`make watch`: the consumer under `cargo lambda watch`, on a local table.

The table is in what AWS_ENDPOINT_URL names, or in a MiniStack started for it. What is set in the
environment (PAYMENT_GATEWAY_URL, IDEMPOTENCY_KEY, RUST_LOG, ...) reaches the consumer as it is.
"""

import contextlib
import os
import socket
import sys

from rich.console import Console

from cloud import STATE, Unavailable, cloud, create_table, free_port, run, unwind_on_signals

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


def main() -> int:
    unwind_on_signals()
    # Now, so that the first invocation does not wait for it.
    if status := run(["cargo", "build", "--bin", "consumer"], os.environ):
        return status
    with cloud("watch") as up:
        environment = DEFAULTS | up.environment()
        table = environment["IDEMPOTENCY_TABLE_NAME"]
        made = create_table(up, table)
        port = choose_port()
        with remembered(port):
            console.print(f"[bold]==>[/] table {table} {'created' if made else 'found'} at {up.endpoint}")
            console.print(f"[bold]==>[/] payment gateway: {environment['PAYMENT_GATEWAY_URL']}")
            console.print("[bold]==>[/] from another terminal: [bold]make invoke EVENT=events/new-orders.json[/]")
            return run(["cargo", "lambda", "watch", "-A", "127.0.0.1", "-P", str(port)], environment)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as problem:
        sys.exit(f"make watch: {problem}")
