"""The payment gateway of `make demo`: it counts, and misbehaves where the demo asks it to.

Like a real one it honours the Idempotency-Key: a charge it has booked is answered again, not booked
again, when the key comes back.
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

import psutil

# A charge takes a moment, so that there is a middle to be killed in.
LATENCY = 0.05


class Trouble(Enum):
    """What happens to a call instead of a proper answer."""

    OUT_OF_ORDER = "answers 503"
    BOOKED_503 = "books the charge, and answers 503 all the same"
    REFUSED = "answers 400, whatever it has booked"
    KILLED_BEFORE = "the worker dies before the charge is booked"
    KILLED_AFTER = "the worker dies after the charge is booked, before it hears of it"


class Gateway:
    """The ledger, and the worker processes it may kill: descendants of `workers_of`, no others."""

    def __init__(self, workers_of: int) -> None:
        self.url = ""
        self.calls: Counter[str] = Counter()
        self.charges: Counter[str] = Counter()
        self.killed: set[int] = set()
        self._workers_of = workers_of
        self._troubles: defaultdict[str, list[Trouble]] = defaultdict(list)
        self._answers: dict[str, tuple[dict, int, dict]] = {}
        self._lock = threading.Lock()

    def plan(self, order: str, *troubles: Trouble) -> None:
        """The first calls for this order meet these troubles, one each."""
        self._troubles[order].extend(troubles)

    @property
    def unmet(self) -> list[str]:
        """The orders whose planned trouble never came, because the gateway was not called."""
        return sorted(order for order, left in self._troubles.items() if left)

    def charge(self, key: str, order: dict, caller: tuple[str, int]) -> tuple[int, dict] | None:
        """The answer to one call, or None where the caller did not live to read it."""
        name = str(order.get("orderId"))
        with self._lock:
            self.calls[name] += 1
            trouble = self._troubles[name].pop(0) if self._troubles[name] else None
        time.sleep(LATENCY)
        match trouble:
            case Trouble.OUT_OF_ORDER:
                return 503, {"error": "out of order, try again"}
            case Trouble.BOOKED_503:
                self._book(key, name, order)
                return 503, {"error": "out of order, try again"}
            case Trouble.REFUSED:
                return 400, {"error": "refused"}
            case Trouble.KILLED_BEFORE:
                self._kill(caller)
                return None
            case Trouble.KILLED_AFTER:
                self._book(key, name, order)
                self._kill(caller)
                return None
        return self._book(key, name, order)

    def _book(self, key: str, name: str, order: dict) -> tuple[int, dict]:
        with self._lock:
            if key in self._answers:
                booked, status, answer = self._answers[key]
                if booked != order:
                    return 422, {"error": "this Idempotency-Key was used for another charge"}
                return status, answer
            if order.get("paymentToken") == "tok_chargeDeclined":
                status, answer = 402, {"error": "card declined"}
            else:
                self.charges[name] += 1
                number = sum(self.charges.values())
                status, answer = 201, {"chargeId": f"ch_{number:04}", "orderId": name, "status": "succeeded"}
            self._answers[key] = (order, status, answer)
            return status, answer

    def _kill(self, caller: tuple[str, int]) -> None:
        """kill -9 for the worker at the other end of the connection."""
        with contextlib.suppress(psutil.Error):
            for worker in psutil.Process(self._workers_of).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if any(tuple(s.laddr) == caller for s in worker.net_connections("tcp4")):
                        worker.kill()
                        self.killed.add(worker.pid)
                        return


@contextlib.contextmanager
def serve(workers_of: int) -> Iterator[Gateway]:
    """The gateway on a free port of the loopback interface."""
    gateway = Gateway(workers_of)

    class Charges(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            key = self.headers.get("Idempotency-Key")
            if self.path != "/charges" or not key:
                answer = 400, {"error": "POST /charges with an Idempotency-Key"}
            else:
                answer = gateway.charge(key, json.loads(body), self.client_address)
            if answer is None:
                self.close_connection = True
                return
            status, content = answer
            payload = json.dumps(content).encode()
            # The worker may have been killed for another of its charges by now.
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

        def log_message(self, *_) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request, client_address) -> None:
            # A killed worker cuts its connections; anything else is worth reading.
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
