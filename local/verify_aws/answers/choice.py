"""Answers to `checks/choice.py`."""

import datetime
from typing import Any

from verify_aws.answers.deployed import table as switches
from verify_aws.answers.messages import record, sent
from verify_aws.answers.queues import received
from verify_aws.answers.stub import ACCOUNT, NAME, OUTPUTS, REGION, Given, Tool, ok, pair

Json = dict[str, Any]

KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/0c0c0c0c-0000-4000-8000-000000000000"
STACK: Json = {
    "StackName": f"{NAME}-key",
    "StackStatus": "CREATE_COMPLETE",
    "CreationTime": datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC),
    "Outputs": [{"OutputKey": name, "OutputValue": value} for name, value in OUTPUTS.items()],
}


def keyed(of_the_logs: str) -> list[Given]:
    queue = ok("sqs.get_queue_attributes", Attributes={"KmsMasterKeyId": KEY})
    return [
        ok("sts.get_caller_identity", Account=ACCOUNT, Arn=f"arn:aws:iam::{ACCOUNT}:user/tester"),
        ok("kms.create_key", KeyMetadata={"KeyId": KEY.rsplit("/", 1)[-1], "Arn": KEY}),
        ok("kms.create_alias"),
        ok("cloudformation.create_stack"),
        *[ok("cloudformation.describe_stacks", Stacks=[STACK])] * 2,
        sent,
        record("COMPLETED"),
        record("FAILED"),
        received("{}"),
        *[queue] * 2,
        ok("dynamodb.describe_table", Table={"SSEDescription": {"KMSMasterKeyArn": KEY}}),
        ok("logs.describe_log_groups", logGroups=[{"kmsKeyId": of_the_logs}]),
        ok("lambda.get_function_configuration", KMSKeyArn=KEY),
    ]


pair("customer_key_encrypts_the_stack", holds=keyed(KEY), differs=keyed("another"))


def off() -> list[Given]:
    return [
        ok("dynamodb.describe_time_to_live", TimeToLiveDescription={"TimeToLiveStatus": "DISABLED"}),
        ok(
            "dynamodb.describe_continuous_backups",
            ContinuousBackupsDescription={"ContinuousBackupsStatus": "ENABLED"},
        ),
        ok("dynamodb.describe_table", Table={}),
    ]


def restored(before: list[Given]) -> list[Given]:
    return [
        sent,
        record("COMPLETED"),
        ok("dynamodb.restore_table_to_point_in_time"),
        ok("dynamodb.describe_table", Table={"TableStatus": "ACTIVE"}),
        record("COMPLETED"),
        *before,
        ok("dynamodb.update_time_to_live"),
        ok("dynamodb.update_continuous_backups"),
        ok("dynamodb.update_table"),
        *switches("ENABLED"),
    ]


pair("restored_table_has_the_records_alone", holds=restored(off()), differs=restored(switches("ENABLED")))
pair("postgres_takes_a_token_of_iam", holds=[Tool("[]")], differs=[Tool("", status=3)])
