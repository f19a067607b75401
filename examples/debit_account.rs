//! Debits an account once, with optimistic locking: reads the item, decides in Rust, and writes the
//! item if it did not change meanwhile. The item itself stores the keys of processed messages. Other
//! programs that write to the item must add 1 to its `version`.
//!
//! Try it on this machine: `make dev EXAMPLE=debit_account` sends `events/debit-account.json`. Press Enter to send it
//! again; then every message is a duplicate.
//!
//! Deploy it for a queue and a table that you have, as README.md says: `ACCOUNTS_TABLE_NAME` is a table with the
//! partition key `accountId`, where an account has a number `balance`, in cents. The role needs `dynamodb:GetItem` and
//! `dynamodb:PutItem` on it.

use serde::{Deserialize, Serialize};
use serde_json::json;
use sqs_once::{
    Attempt, Change, Consumer, Failure, Handler, ItemMode, Settings, SettingsError, telemetry,
};

/// Retention of the key of a debit. A message may wait 14 days in the queue, and after a redrive from
/// the dead-letter queue 14 days more.
const REMEMBERED: &str = "30d";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Debit {
    account_id: String,
    cents: u64,
}

/// The attributes that a debit reads and writes. Others stay unchanged.
#[derive(Deserialize, Serialize)]
struct Account {
    balance: u64,
}

struct DebitAccount {
    accounts: String,
}

impl Handler for DebitAccount {
    type Message = Debit;
    type Output = Change<u64>;

    /// Says how the account changes; `sqs_once` reads it, and tries again where it was changed by
    /// somebody else before it is written.
    async fn handle(&self, debit: Debit, _: Attempt) -> Result<Change<u64>, Failure> {
        if debit.account_id.is_empty() || debit.cents == 0 {
            return Err(Failure::permanent(
                "a debit without an account, or of 0 cents",
            ));
        }
        let key = json!({ "accountId": debit.account_id });
        Ok(Change::modify(
            &self.accounts,
            key,
            move |account: Option<Account>| {
                let Account { balance } =
                    account.ok_or_else(|| Failure::permanent("there is no such account"))?;
                let balance = (balance.checked_sub(debit.cents))
                    .ok_or_else(|| Failure::permanent("the balance is lower than the debit"))?;
                // The account as it is to be, and the output.
                Ok((Account { balance }, balance))
            },
        ))
    }
}

/// The consumer, with these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<ItemMode, impl Handler<Output = Change<u64>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "debits");
    // A debit that was sent twice has two message ids, and one debit id.
    settings.set_default("IDEMPOTENCY_KEY", "body:/debitId");
    settings.set_default("IDEMPOTENCY_RETENTION", REMEMBERED);
    // It would need permissions that the function's role does not have.
    settings.set_default("CONSUMER_VISIBILITY", "off");
    let accounts = settings.required("ACCOUNTS_TABLE_NAME", "table of the accounts", str::parse);
    settings
        .item_mode(accounts.map(|accounts| DebitAccount { accounts }))
        .await
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    sqs_once::run(consumer(Settings::from_env()).await?).await
}
