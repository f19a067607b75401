"""`make watch`: runs the consumer under `cargo lambda watch`, on a local table.

    python tools/watch.py [EXAMPLE]     or an example, on tables with the items that its sample event needs

The tables are in the cloud at AWS_ENDPOINT_URL, or in a new MiniStack. Those of place_order_postgres are in a
new PostgreSQL server, whose data is deleted at the end. The consumer inherits the environment
(PAYMENT_GATEWAY_URL, IDEMPOTENCY_KEY, IDEMPOTENCY_NAMESPACE, RUST_LOG, ...).
"""

import contextlib
import functools
import os
import socket
import sys
from collections.abc import Callable, Iterator

from cloud import CREDENTIALS, STATE, Cloud, Unavailable, cloud, create_table, free_port, run, unwind_on_signals
from deployment import say
from postgres import server

from examples import ON_POSTGRES, TABLES, create_tables, sql_of_tables

PORT = 9000  # the default of cargo-lambda
DEFAULTS = {
    "PAYMENT_GATEWAY_URL": "sandbox",
    "IDEMPOTENCY_TABLE_NAME": "sqs-once",
    "IDEMPOTENCY_NAMESPACE": "payments",
    "IDEMPOTENCY_KEY": "body:/orderId",
    "CONSUMER_VISIBILITY": "off",  # no queue holds the messages of an event file
}


def choose_port() -> int:
    with socket.socket() as probe:
        # As cargo-lambda does: the port is free while a closed connection to it lingers.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return free_port()
    return PORT


@contextlib.contextmanager
def remembered(port: int) -> Iterator[None]:
    """Names the port for `make invoke`."""
    file = STATE / "watch.port"
    file.parent.mkdir(exist_ok=True)
    file.write_text(str(port))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def consumer(up: Cloud) -> dict[str, str]:
    """Creates the table of the consumer, and returns the environment of the consumer."""
    environment = DEFAULTS | up.environment()
    table = environment["IDEMPOTENCY_TABLE_NAME"]
    created = create_table(up, table)
    say(f"table {table} {'created' if created else 'found'} at {up.endpoint}")
    say(f"payment gateway: {environment['PAYMENT_GATEWAY_URL']}")
    return environment


def example(up: Cloud, name: str) -> dict[str, str]:
    """Creates the tables of an example, and returns the environment of the example."""
    tables = create_tables(up, name)
    say(f"tables at {up.endpoint}: {', '.join(tables.values())}")
    return up.environment() | tables


@contextlib.contextmanager
def on_cloud(prepare: Callable[[Cloud], dict[str, str]]) -> Iterator[dict[str, str]]:
    with cloud("watch") as up:
        yield prepare(up)


@contextlib.contextmanager
def on_postgres() -> Iterator[dict[str, str]]:
    """Starts a PostgreSQL server with the tables of the example. Yields the environment of the example."""
    with server() as postgres:
        postgres.start()
        postgres.run_sql(sql_of_tables())
        say(f"tables at {postgres.url}")
        settings = {"DATABASE_URL": postgres.url, "CONSUMER_VISIBILITY": "off"}
        yield dict(os.environ) | CREDENTIALS | settings


def main() -> int:
    unwind_on_signals()
    # Examples are programs of tests/programs: cargo-lambda runs no examples.
    programs = ["--package", "programs", "--bin"]
    surroundings: contextlib.AbstractContextManager[dict[str, str]]
    match sys.argv[1:]:
        case []:
            target, event, surroundings = ["--bin", "consumer"], "new-orders", on_cloud(consumer)
        case [name] if name == ON_POSTGRES:
            target = [*programs, name, "--features", "postgres"]
            event, surroundings = "place-order", on_postgres()
        case [name] if name in TABLES:
            target = [*programs, name]
            event, surroundings = name.replace("_", "-"), on_cloud(functools.partial(example, name=name))
        case _:
            sys.exit(f"make watch: EXAMPLE is one of {', '.join([*TABLES, ON_POSTGRES])}")
    # Builds now, so that the first invocation does not wait for the build.
    if status := run(["cargo", "build", *target], os.environ):
        return status
    with surroundings as environment:
        port = choose_port()
        with remembered(port):
            say(f"from another terminal: [bold]make invoke EVENT=events/{event}.json[/]")
            return run(["cargo", "lambda", "watch", *target, "-A", "127.0.0.1", "-P", str(port)], environment)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as problem:
        sys.exit(f"make watch: {problem}")
