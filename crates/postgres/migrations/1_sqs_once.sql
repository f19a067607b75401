-- The tables of sqs-once: its records, and the events that no relay has sent yet.
-- A table anywhere on the search path is used: an empty one in front of it would run each message again. One
-- migration at a time.

DO $$ BEGIN
PERFORM pg_advisory_xact_lock(hashtext('sqs_once'));
IF to_regclass('sqs_once_records') IS NULL THEN
    CREATE TABLE sqs_once_records (
        id          text COLLATE "C" PRIMARY KEY,
        status      text NOT NULL CHECK (status IN ('IN_PROGRESS', 'COMPLETED', 'FAILED')),
        owner       text NOT NULL,
        version     bigint NOT NULL,
        lease_until bigint,          -- epoch milliseconds
        expires_at  bigint NOT NULL, -- epoch seconds
        failures    text,            -- JSON, one for each payload
        result      text,            -- JSON
        attributes  text NOT NULL    -- JSON: all others
    );

    -- For the deletion of expired records.
    CREATE INDEX sqs_once_records_expires_at ON sqs_once_records (expires_at);
END IF;

IF to_regclass('sqs_once_outbox') IS NULL THEN
    CREATE TABLE sqs_once_outbox (
        sequence        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id              text NOT NULL,
        group_id        text COLLATE "C" NOT NULL,
        name            text NOT NULL,
        body            text NOT NULL,              -- JSON
        published_at    bigint NOT NULL,            -- epoch milliseconds
        attempts        integer NOT NULL DEFAULT 0, -- failed ones
        next_attempt_at bigint NOT NULL DEFAULT 0   -- epoch milliseconds, by the server's clock
    );

    -- For the first events of a group.
    CREATE INDEX sqs_once_outbox_group ON sqs_once_outbox (group_id, sequence);
END IF;
END $$;
