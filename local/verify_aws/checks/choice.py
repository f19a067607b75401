"""Checks by choice: a customer key and a restored table with `SLOW=1`, a database with `POSTGRES_URL`."""

import dataclasses
import json
from typing import Any

from botocore.exceptions import WaiterError

from verify_aws.check import NotChecked, Seen, check
from verify_aws.checks.messages import DECLINED, ended, fresh, key_of, order, send
from verify_aws.checks.queues import receive
from verify_aws.scratch import DeployFailed, Scratch, begin_stack, finish_stack, policy

Json = dict[str, Any]


def make_key(scratch: Scratch) -> str:
    """Makes a key of KMS whose policy is that of docs/template.md. Returns its ARN."""
    kms, alias = scratch.client("kms"), f"alias/{scratch.name}"
    scratch.journal.intends("key", alias)
    caller = scratch.client("sts").get_caller_identity()
    partition, account, region = caller["Arn"].split(":")[1], caller["Account"], kms.meta.region_name
    of_account = {"AWS": f"arn:{partition}:iam::{account}:root"}
    of_logs = {"Service": f"logs.{region}.amazonaws.com"}
    for_logs = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:Describe*"]
    document = policy(
        {"Effect": "Allow", "Principal": of_account, "Action": "kms:*", "Resource": "*"},
        {"Effect": "Allow", "Principal": of_logs, "Action": for_logs, "Resource": "*"},
    )
    tags = [{"TagKey": tag["Key"], "TagValue": tag["Value"]} for tag in scratch.tag_list]
    made = kms.create_key(Policy=document, Tags=tags)["KeyMetadata"]
    kms.create_alias(AliasName=alias, TargetKeyId=made["KeyId"])
    return str(made["Arn"])


@check(needs_stack=True, slow=True, only_aws="MiniStack encrypts nothing, and reads no policy of a key")
def customer_key_encrypts_the_stack(scratch: Scratch) -> Seen:
    """With KmsKeyArn, queues, table, logs and the function's variables are encrypted with that key. The key's policy of
    the page is enough: an order is completed, and a declined one reaches the dead-letter queue. The key is deleted
    seven days after the run.

    Where:
    docs/template.md: ## A KMS key of your own
    template.yaml: kms:ViaService
    """
    key, name = make_key(scratch), f"{scratch.name}-key"
    begin_stack(scratch, name, KmsKeyArn=key)
    try:
        outputs = finish_stack(scratch, name)
    except DeployFailed as failed:
        return Seen(False, f"the stack was not created: {failed}")
    keyed = dataclasses.replace(scratch, outputs=outputs)
    done, declined = fresh("keyed"), fresh("declined")
    send(keyed, [order(done), order(declined, DECLINED)])
    states = [ended(keyed, done, "COMPLETED"), ended(keyed, declined, "FAILED")]
    letters = scratch.eventually(lambda: receive(scratch, outputs["DeadLetterQueueUrl"]), bool, within=60)
    sqs, wanted = scratch.client("sqs"), ["KmsMasterKeyId"]
    found = {
        which: sqs.get_queue_attributes(QueueUrl=outputs[which], AttributeNames=wanted)
        .get("Attributes", {})
        .get(*wanted)
        for which in ("QueueUrl", "DeadLetterQueueUrl")
    }
    table = scratch.client("dynamodb").describe_table(TableName=outputs["TableName"])["Table"]
    found["TableName"] = table.get("SSEDescription", {}).get("KMSMasterKeyArn")
    group = outputs["LogGroupName"]
    groups = scratch.client("logs").describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    found["LogGroupName"] = groups[0].get("kmsKeyId") if groups else None
    configuration = scratch.client("lambda").get_function_configuration(FunctionName=outputs["FunctionName"])
    found["FunctionName"] = configuration.get("KMSKeyArn")
    other = sorted(which for which, arn in found.items() if arn != key)
    text = f"{', '.join(states)}, {len(letters)} dead letter; "
    text += f"not under the key: {', '.join(other)}" if other else f"{len(found)} resources under the key"
    return Seen(states == ["COMPLETED", "FAILED"] and len(letters) == 1 and not other, text)


@check(slow=True, only_aws="MiniStack restores no table")
def restored_table_has_the_records_alone(scratch: Scratch) -> Seen:
    """A table that is restored to a point in time has the records, but no TTL, no point-in-time recovery and no
    deletion protection, until the commands of the runbook switch them on. Takes minutes to hours.

    Where:
    docs/runbook.md: A restored table has no TTL
    """
    dynamodb, source, name = scratch.client("dynamodb"), scratch.outputs["TableName"], f"{scratch.name}-restored"
    number = fresh("restored")
    send(scratch, [order(number)])
    if ended(scratch, number, "COMPLETED") != "COMPLETED":
        raise NotChecked("the order was not completed")
    # DynamoDB can restore a state that is about five minutes old.
    scratch.rest(600)
    scratch.journal.intends("table", name)
    dynamodb.restore_table_to_point_in_time(SourceTableName=source, TargetTableName=name, UseLatestRestorableTime=True)
    try:
        dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 30, "MaxAttempts": 480})
    except WaiterError:
        raise NotChecked("the table was not restored within four hours") from None

    def switched() -> tuple[bool, bool, bool]:
        ttl = dynamodb.describe_time_to_live(TableName=name)["TimeToLiveDescription"]["TimeToLiveStatus"]
        backups = dynamodb.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
        recovery = backups.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus")
        table = dynamodb.describe_table(TableName=name)["Table"]
        return ttl in ("ENABLED", "ENABLING"), recovery == "ENABLED", bool(table.get("DeletionProtectionEnabled"))

    key = scratch.key(key_of(scratch, number))
    there = "Item" in dynamodb.get_item(TableName=name, Key=key, ConsistentRead=True)
    before = switched()
    ttl = {"Enabled": True, "AttributeName": "expires_at"}
    dynamodb.update_time_to_live(TableName=name, TimeToLiveSpecification=ttl)
    recovery = {"PointInTimeRecoveryEnabled": True}
    dynamodb.update_continuous_backups(TableName=name, PointInTimeRecoverySpecification=recovery)
    dynamodb.update_table(TableName=name, DeletionProtectionEnabled=True)
    after = scratch.eventually(switched, all, within=120)
    text = f"the record is {'there' if there else 'not there'}; "
    text += f"TTL, recovery, protection: {say(before)}, then {say(after)}"
    return Seen(there and not any(before) and all(after), text)


def say(switched: tuple[bool, bool, bool]) -> str:
    return " ".join("on" if one else "off" for one in switched)


@check(needs_stack=False)
def postgres_takes_a_token_of_iam(scratch: Scratch) -> Seen:
    """A database of RDS or Aurora takes the token that the caller's credentials sign, over TLS with the root
    certificates of the URL, and has the consumer's tables. By choice, with POSTGRES_URL; the database is only read.

    Where:
    docs/effects-in-postgresql.md: IDEMPOTENCY_POSTGRES_AUTH
    docs/cli.md: `--postgres-auth iam`
    """
    if not scratch.postgres:
        raise NotChecked("no POSTGRES_URL is given")
    words = ("record", "list", "--status", "in-progress", "--output", "json")
    ended = scratch.tool(*words, "--postgres", scratch.postgres, "--postgres-auth", "iam")
    try:
        listed = isinstance(json.loads(ended.stdout), dict | list)
    except ValueError:
        listed = False
    # Not the text of the error, which may name the database.
    text = "records were listed" if listed else "no records were listed"
    return Seen(ended.returncode == 0 and listed, f"sqs-once record list ended with {ended.returncode}, {text}")
