"""Answers to `checks/doctor.py`."""

import json

from verify_aws.answers.deployed import mapping
from verify_aws.answers.fifo import described
from verify_aws.answers.stub import Given, Tool, ok, pair


def found(*checks: str) -> Tool:
    return Tool(json.dumps({"findings": [{"check": check} for check in checks]}))


pair("doctor_finds_nothing_in_a_clean_stack", holds=[found()], differs=[found("permissions")])

OF_VARIABLES = (
    *(
        "settings",
        "unknown-variables",
        "time-to-start",
        "crash-waits",
        "record-retention",
        "table",
        "key-schema",
        "ttl",
    ),
)
OF_QUEUES = ("visibility-timeout", "receives", "dead-letter-queue", "queue-retention", "dead-letter-retention")
OF_THE_MAPPING = ("mapping-enabled", "partial-responses", "filter-criteria")

configuration = ok(
    "lambda.get_function_configuration",
    Environment={"Variables": {"A": "b"}},
    LoggingConfig={"LogFormat": "JSON", "ApplicationLogLevel": "INFO"},
)
updated: list[Given] = [
    ok("lambda.update_function_configuration"),
    ok("lambda.get_function", Configuration={"LastUpdateStatus": "Successful"}),
]
changed: list[Given] = [ok("lambda.update_event_source_mapping"), mapping("ReportBatchItemFailures")]
NOW = {
    "VisibilityTimeout": "360",
    "RedrivePolicy": json.dumps({"maxReceiveCount": "130"}),
    "MessageRetentionPeriod": "1209600",
}


def faults(*silent: str) -> list[Given]:
    """Each fault made and corrected, and found unless it is named here."""
    names = (*OF_VARIABLES, "log-level", *OF_QUEUES, *OF_THE_MAPPING, "permissions")
    read = ok("sqs.get_queue_attributes", Attributes=NOW)
    return [
        configuration,
        *[configuration, *updated] * 2 * len(OF_VARIABLES),
        *updated * 2,
        *[read] * (1 + len(OF_QUEUES)),
        *[ok("sqs.set_queue_attributes")] * 2 * len(OF_QUEUES),
        *changed * 2 * len(OF_THE_MAPPING),
        ok("iam.list_role_policies", PolicyNames=["charge-orders-once"]),
        ok(
            "iam.get_role_policy",
            RoleName="consumer",
            PolicyName="charge-orders-once",
            PolicyDocument=json.dumps({"Statement": [{"Action": ["dynamodb:DeleteItem"]}]}),
        ),
        *[ok("iam.put_role_policy")] * 2,
        *(found() if name in silent else found(name) for name in names),
        found(),
        *[described] * 2,
        found("alarm-actions"),
    ]


pair("doctor_finds_each_fault", holds=faults(), differs=faults("partial-responses"))
