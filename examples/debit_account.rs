//! Debits an account once, with optimistic locking: reads the item, decides in Rust, and writes the item if nobody has changed
//! it in the meantime. The item itself stores the keys of processed messages. Other programs that write to the item must add 1
//! to its `version`.
//!
//! Try it on this machine: `make dev EXAMPLE=debit_account` sends `events/debit-account.json`. Press Enter to send it
//! again. Every message is then a duplicate.
//!
//! Deploy it for a queue and a table of yours, as README.md says. `ACCOUNTS_TABLE_NAME` names a table with the
//! partition key `accountId`, in which each account has a number `balance`, in cents. The role needs `dynamodb:GetItem` and
//! `dynamodb:PutItem` on it.

use serde::{Deserialize, Serialize};
use serde_json::json;
use sqs_once::{
    Attempt, Change, Consumer, Failure, Handler, ItemMode, Settings, SettingsError, telemetry,
};

/// How long the account remembers a debit's key. A message may wait 14 days in the queue, and 14 more after a redrive from
/// the dead-letter queue.
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

    /// Says how the account changes. `sqs_once` reads the account, and tries again if somebody else changes it before the write.
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
                // The account after the debit, and the output.
                Ok((Account { balance }, balance))
            },
        ))
    }
}

/// Creates the consumer from these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<ItemMode, impl Handler<Output = Change<u64>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "debits");
    // A debit that is sent twice has two message ids, but one debit id.
    settings.set_default("IDEMPOTENCY_KEY", "body:/debitId");
    settings.set_default("IDEMPOTENCY_RETENTION", REMEMBERED);
    // Setting visibility timeouts would need permissions that the function's role does not have.
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
