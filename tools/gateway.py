"""The payment gateway of `make demo`: it counts charges, and fails for the orders that the demo names.

Like a real gateway it honours the Idempotency-Key: a second call with a key gets the first response,
and no second charge.
"""

import contextlib
import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil
from cloud import Json

# A charge takes some time, so that a worker can be killed during it.
LATENCY = 0.05


class Trouble(Enum):
    """A fault that replaces the proper response to a call."""

    OUT_OF_ORDER = "responds 503"
    BOOKED_503 = "books the charge, and responds 503"
    REFUSED = "responds 400, even after a booked charge, until the order is accepted"
    KILLED_BEFORE = "the worker is killed before the charge is booked"
    KILLED_AFTER = "the worker is killed after the charge is booked, before it reads the response"


class Gateway:
    """The ledger of charges. It kills worker processes that descend from `workers_of`, no others."""

    def __init__(self, workers_of: int) -> None:
        self.url = ""
        self.calls: Counter[str] = Counter()
        self.charges: Counter[str] = Counter()
        self.killed: set[int] = set()
        self._workers_of = workers_of
        self._troubles: defaultdict[str, list[Trouble]] = defaultdict(list)
        self._refused: set[str] = set()
        self._responses: dict[str, tuple[bytes, int, Json]] = {}
        self._lock = threading.Lock()

    def plan(self, order: str, *troubles: Trouble) -> None:
        """Plans one fault for each of the first calls for this order. A refusal also applies to all later calls."""
        self._troubles[order].extend(troubles)

    def accept(self, order: str) -> None:
        """Ends the refusals of an order, as a support team does before the order is redriven."""
        with self._lock:
            if order in self._refused:
                self._troubles[order].remove(Trouble.REFUSED)

    @property
    def unmet(self) -> list[str]:
        """The orders with a planned fault that did not occur, because the gateway was not called."""
        return sorted(
            order
            for order, left in self._troubles.items()
            if left and not (left == [Trouble.REFUSED] and order in self._refused)
        )

    def charge(self, key: str, body: bytes, caller: tuple[str, int]) -> tuple[int, Json] | None:
        """The response to one call, or None if the caller was killed."""
        name = str(json.loads(body).get("orderId"))
        with self._lock:
            self.calls[name] += 1
            trouble = self._next_trouble(name)
        time.sleep(LATENCY)
        match trouble:
            case Trouble.OUT_OF_ORDER:
                return 503, {"error": "out of order, try again"}
            case Trouble.BOOKED_503:
                self._book(key, name, body)
                return 503, {"error": "out of order, try again"}
            case Trouble.REFUSED:
                return 400, {"error": "refused"}
            case Trouble.KILLED_BEFORE:
                self._kill(caller, name, trouble)
                return None
            case Trouble.KILLED_AFTER:
                self._book(key, name, body)
                self._kill(caller, name, trouble)
                return None
        return self._book(key, name, body)

    def _next_trouble(self, order: str) -> Trouble | None:
        match self._troubles[order]:
            case []:
                return None
            case [Trouble.REFUSED, *_]:
                # The response may be lost, so it is the same for the next call.
                self._refused.add(order)
                return Trouble.REFUSED
            case troubles:
                return troubles.pop(0)

    def _book(self, key: str, name: str, body: bytes) -> tuple[int, Json]:
        with self._lock:
            if key in self._responses:
                booked, status, response = self._responses[key]
                # Some gateways compare the bytes.
                if booked != body:
                    return 422, {"error": "this Idempotency-Key was used for another charge"}
                return status, response
            if json.loads(body).get("paymentToken") == "tok_chargeDeclined":
                status, response = 402, {"error": "card declined"}
            else:
                self.charges[name] += 1
                number = sum(self.charges.values())
                status, response = 201, {"chargeId": f"ch_{number:04}", "orderId": name, "status": "succeeded"}
            self._responses[key] = (body, status, response)
            return status, response

    def _kill(self, caller: tuple[str, int], order: str, trouble: Trouble) -> None:
        """Kills the worker at the other end of the connection, with SIGKILL.

        On a slow machine the worker may already have hung up. The next call for the order then kills its worker.
        """
        with contextlib.suppress(psutil.Error):
            for worker in psutil.Process(self._workers_of).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if any(tuple(s.laddr) == caller for s in worker.net_connections("tcp4")):
                        worker.kill()
                        self.killed.add(worker.pid)
                        return
        with self._lock:
            self._troubles[order].insert(0, trouble)


@contextlib.contextmanager
def serve(workers_of: int) -> Iterator[Gateway]:
    """Serves a gateway on a free port of the loopback interface."""
    gateway = Gateway(workers_of)

    class Charges(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            key = self.headers.get("Idempotency-Key")
            response: tuple[int, Json] | None
            if self.path != "/charges" or not key:
                response = 400, {"error": "POST /charges with an Idempotency-Key"}
            else:
                host, port = self.client_address[:2]
                response = gateway.charge(key, body, (str(host), port))
            if response is None:
                self.close_connection = True
                return
            status, content = response
            payload = json.dumps(content).encode()
            # The worker may have been killed in the meantime, because of another of its charges.
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            # A killed worker closes its connections. Every other error is printed.
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)

    with Server(("127.0.0.1", 0), Charges) as server:
        gateway.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield gateway
        finally:
            server.shutdown()
