-- One request, and so one transaction. Concurrent migrations wait for each other.
SELECT pg_advisory_xact_lock(8390891638214061135);

-- Claims wait behind a request that waits for a table, so it waits for a second at most.
SELECT set_config('lock_timeout', '1s', true);

CREATE TABLE IF NOT EXISTS sqs_once_records (
    id                 text COLLATE "C" PRIMARY KEY,
    status             text NOT NULL CHECK (status IN ('IN_PROGRESS', 'COMPLETED', 'FAILED')),
    owner              text,
    lease_until        bigint,          -- epoch milliseconds
    expires_at         bigint NOT NULL, -- epoch seconds
    fingerprint        text,
    message_id         text,
    attempts           bigint NOT NULL,
    first_claimed_at   bigint,          -- epoch milliseconds; 0: unknown
    last_end           text,
    error              text,
    failed_message_ids text[] NOT NULL,
    result             text,            -- JSON
    result_omitted     text,
    result_in_s3       text,            -- JSON: bucket, key, digest and length
    created_at         bigint,          -- epoch milliseconds
    updated_at         bigint,          -- epoch milliseconds
    fingerprint_scheme text,
    exclusive_attempts bigint
);

-- ALTER TABLE waits for all open claims, also IF the columns EXIST.
DO $$ BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_attribute
        WHERE attrelid = to_regclass('sqs_once_records') AND attname = 'exclusive_attempts'
    ) THEN
        ALTER TABLE sqs_once_records
            ADD COLUMN fingerprint_scheme text, ADD COLUMN exclusive_attempts bigint;
    END IF;
END $$;

-- For the deletion of expired records. CREATE INDEX waits for all open claims, also IF it EXISTS.
DO $$ BEGIN
    IF to_regclass('sqs_once_records_expires_at') IS NULL THEN
        CREATE INDEX sqs_once_records_expires_at ON sqs_once_records (expires_at);
    END IF;
END $$;

-- Published events, until a relay has sent them.
CREATE TABLE IF NOT EXISTS sqs_once_outbox (
    sequence        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id              text NOT NULL,
    group_id        text COLLATE "C" NOT NULL,
    name            text NOT NULL,
    body            text NOT NULL,             -- JSON
    published_at    bigint NOT NULL,           -- epoch milliseconds
    attempts        integer NOT NULL DEFAULT 0, -- failed ones
    next_attempt_at bigint NOT NULL DEFAULT 0  -- epoch milliseconds, by the server's clock
);

-- For the first events of a group.
CREATE INDEX IF NOT EXISTS sqs_once_outbox_group ON sqs_once_outbox (group_id, sequence);

COMMENT ON TABLE sqs_once_records IS 'sqs-once 3';
