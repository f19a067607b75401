//! Creates a user once. The user's item itself stores the key of the message that created it.
//!
//! Only that item has the key, so the same user id with another address creates another user. If that can happen, use an
//! inbox as in `place_order.rs`.
//!
//! Try it on this machine: `make dev EXAMPLE=create_user` sends `events/create-user.json`. Press Enter to send it
//! again. Every message is then a duplicate.
//!
//! Deploy it for a queue and a table of yours, as README.md says. `USERS_TABLE_NAME` names a table with the
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

    /// Plans the item. `sqs_once` adds the condition that it does not exist.
    async fn handle(&self, mut user: User, _: Attempt) -> Result<Change<()>, Failure> {
        // The address is the primary key, so each spelling of it must give the same key.
        user.email = user.email.trim().to_lowercase();
        let valid = (user.email.split_once('@'))
            .is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty());
        if !valid {
            return Err(Failure::permanent("the e-mail address is none"));
        }
        let put = Write::put(&self.users, &user).label("user");
        // This runs only if another operation created the item. If this one did, the message is a duplicate.
        Ok(Change::create((), "email", put).on_condition_failed(|_| {
            Err(Failure::permanent(
                "the e-mail address is taken by another user",
            ))
        }))
    }
}

/// Creates the consumer from these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<ItemMode, impl Handler<Output = Change<()>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "users");
    // A user who is sent twice has two message ids, but one user id.
    settings.set_default("IDEMPOTENCY_KEY", "body:/userId");
    // Setting visibility timeouts would need permissions that the function's role does not have.
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
