//! DynamoDB's time to live: deletes records whose `expires_at` has passed.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use aws_sdk_dynamodb::{Client, types::AttributeValue};
use sqs_once::protocol::Timestamp;
use tokio::time::sleep;

use crate::chaos::{TABLE, faults::Wire, ledger::Event};

/// Deletes for as long as the relay exists.
pub(crate) async fn delete_expired(wire: Weak<Wire>, client: Client) {
    loop {
        sleep(Duration::from_millis(500)).await;
        let Some(wire) = wire.upgrade() else { return };
        let now = Timestamp::now().as_secs();
        for key in wire.over(now) {
            delete(&wire, &client, &key, now).await;
        }
    }
}

/// A record that was claimed again meanwhile stays.
async fn delete(wire: &Arc<Wire>, client: &Client, key: &str, now: u64) {
    let _turn = wire.row(key).0.lock_owned().await;
    let delete = client.delete_item().table_name(TABLE);
    let delete = delete.key("id", AttributeValue::S(key.to_owned()));
    let delete = delete.condition_expression("expires_at < :now");
    let delete = delete.expression_attribute_values(":now", AttributeValue::N(now.to_string()));
    match delete.send().await {
        Ok(_) => {
            let key = key.to_owned();
            wire.ledger.note(Event::Expired { key: key.clone() });
            wire.lives_until(&key, None);
        }
        Err(refused) => {
            let refused = refused.into_service_error();
            assert!(
                refused.is_conditional_check_failed_exception(),
                "{refused:?}"
            );
        }
    }
}
