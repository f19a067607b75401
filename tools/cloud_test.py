"""A test of the signals that stop a tool.

python tools/cloud_test.py [-v] [TEST...]     a part of `make test`
"""

import contextlib
import signal
import unittest
from typing import Any

from botocore.awsrequest import AWSResponse, HTTPHeaders
from cloud import Cloud, unwind_on_signals


class Signals(unittest.TestCase):
    def test_call_that_swallows_exceptions_ends_with_the_signal(self) -> None:
        unwind_on_signals()

        def answer(**_: Any) -> Any:
            with contextlib.suppress(BaseException):
                signal.raise_signal(signal.SIGTERM)
            response: Any = AWSResponse("http://none", 200, HTTPHeaders(), None)
            response._content = b"{}"
            return response

        queues = Cloud("http://none").client("sqs")
        queues.meta.events.register("before-send.sqs", answer)
        code = None
        try:
            queues.list_queues()
        except SystemExit as stop:
            code = stop.code
        assert code == 128 + signal.SIGTERM


if __name__ == "__main__":
    unittest.main()
