//! Creates a user once. The user's item itself stores the key of the message that created it.
//!
//! The key is on that item only, so the same user id with another address creates another user. Where
//! that can happen, use an inbox as in `place_order.rs`.
//!
//! Try it on this machine: `make dev EXAMPLE=create_user` sends `events/create-user.json`. Press Enter to send it
//! again; then every message is a duplicate.
//!
//! Deploy it for a queue and a table that you have, as README.md says: `USERS_TABLE_NAME` is a table with the
//! partition key `email`. The role needs `dynamodb:PutItem` on it.

use serde::{Deserialize, Serialize};
use sqs_once::{
    Attempt, Change, Consumer, Failure, Handler, ItemMode, Settings, SettingsError, Write,
    telemetry,
};

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct User {
    user_id: String,
    email: String,
    name: String,
}

struct CreateUser {
    users: String,
}

impl Handler for CreateUser {
    type Message = User;
    type Output = Change<()>;

    /// Plans the item; `sqs_once` adds the condition that it does not exist.
    async fn handle(&self, mut user: User, _: Attempt) -> Result<Change<()>, Failure> {
        // The address is the primary key: however it is written, it is one user's.
        user.email = user.email.trim().to_lowercase();
        let valid = (user.email.split_once('@'))
            .is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty());
        if !valid {
            return Err(Failure::permanent("the e-mail address is none"));
        }
        let put = Write::put(&self.users, &user).label("user");
        // Refused only if another operation made the item; if this one did, it is a duplicate.
        Ok(Change::create((), "email", put).on_condition_failed(|_| {
            Err(Failure::permanent(
                "the e-mail address is taken by another user",
            ))
        }))
    }
}

/// The consumer, with these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<ItemMode, impl Handler<Output = Change<()>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "users");
    // A user that was sent twice has two message ids, and one user id.
    settings.set_default("IDEMPOTENCY_KEY", "body:/userId");
    // It would need permissions that the function's role does not have.
    settings.set_default("CONSUMER_VISIBILITY", "off");
    let users = settings.required("USERS_TABLE_NAME", "table of the users", str::parse);
    settings
        .item_mode(users.map(|users| CreateUser { users }))
        .await
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    sqs_once::run(consumer(Settings::from_env()).await?).await
}
