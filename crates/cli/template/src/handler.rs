//! The business: what one message does. Replace `Order`, its checks and its effect by your own.

{% if effect == "inbox" %}
use serde::{Deserialize, Serialize};
use sqs_once::{
    Attempt, Consumer, Done, Failure, Handler, Inbox, Settings, SettingsError, Write,
    store::DynamoStore,
};
{% elif effect == "item" %}
use serde::{Deserialize, Serialize};
use sqs_once::{
    Attempt, Change, Consumer, Failure, Handler, ItemMode, Settings, SettingsError, Write,
};
{% else %}
use serde::{Deserialize, Serialize};
#[cfg(test)]
use sqs_once::testing::Ledger;
use sqs_once::{
    Attempt, Consumer, Failure, Handler, Once, Settings, SettingsError, store::AnyStore,
};
{% endif %}

/// The body of a message.
#[derive(Deserialize, Serialize)]
pub struct Order {
    #[serde(rename = "{{ field }}")]
    id: String,
    cents: u64,
}

{% if effect == "inbox" %}
pub struct PlaceOrder {
    orders: String,
}

impl Handler for PlaceOrder {
    type Message = Order;
    type Output = Done<String>;

    /// Plans the writes. All of them commit once, together with the record, or none.
    async fn handle(&self, order: Order, _: Attempt) -> Result<Done<String>, Failure> {
        if order.cents == 0 {
            return Err(Failure::permanent_no_effect("the amount is 0")); // to the dead-letter queue
        }
        // The order is kept longer than its record. A message that returns later must not replace it.
        let put = Write::put(&self.orders, &order)
            .when("attribute_not_exists(#id)")
            .name("#id", "{{ field }}")
            .label("order");
        let placed = format!("placed {}", order.id); // stored; for a duplicate, the handler doesn't run
        Ok(Done::new(placed)
            .with(put)
            .on_condition_failed(|_| Err(Failure::permanent("an order with this id exists"))))
    }
}

/// Creates the consumer from these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<Inbox<DynamoStore>, PlaceOrder>, SettingsError> {
    let orders = settings.required("ORDERS_TABLE_NAME", "table of the orders", str::parse);
    settings
        .inbox(orders.map(|orders| PlaceOrder { orders }))
        .await
}
{% elif effect == "item" %}
pub struct PlaceOrder {
    orders: String,
}

impl Handler for PlaceOrder {
    type Message = Order;
    type Output = Change<()>;

    /// Plans the item. It stores the key of its message, so that a duplicate changes nothing.
    async fn handle(&self, order: Order, _: Attempt) -> Result<Change<()>, Failure> {
        if order.cents == 0 {
            return Err(Failure::permanent_no_effect("the amount is 0")); // to the dead-letter queue
        }
        let put = Write::put(&self.orders, &order).label("order");
        // Refused only if another operation made the item; after this one, it is a duplicate.
        Ok(Change::create((), "{{ field }}", put)
            .on_condition_failed(|_| Err(Failure::permanent("an order with this id exists"))))
    }
}

/// Creates the consumer from these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<ItemMode, PlaceOrder>, SettingsError> {
    let orders = settings.required("ORDERS_TABLE_NAME", "table of the orders", str::parse);
    settings
        .item_mode(orders.map(|orders| PlaceOrder { orders }))
        .await
}
{% else %}
/// The system that the handler calls.
pub enum Gateway {
    /// Writes to the log. Put your own in its place.
    Log,
    /// The system in a test that kills the handler.
    #[cfg(test)]
    Ledger(Ledger),
}

impl Gateway {
    /// Your effect. The system recognizes a repetition by the call key, and may refuse one with another body: send only
    /// what the fingerprint covers, such as this struct, and not the body as it came.
    async fn charge(&self, order: &Order, call_key: String) -> Result<String, Failure> {
        let receipt = || format!("charged {}", order.id);
        match self {
            Self::Log => {
                tracing::info!(call_key, "charged");
                Ok(receipt())
            }
            #[cfg(test)]
            Self::Ledger(ledger) => Ok(ledger.effect(call_key, order, receipt).await?),
        }
    }
}

pub struct Charge(Gateway);

impl Handler for Charge {
    type Message = Order;
    type Output = String; // stored; for a duplicate, the handler doesn't run

    async fn handle(&self, order: Order, attempt: Attempt) -> Result<String, Failure> {
        if order.cents == 0 {
            return Err(Failure::permanent_no_effect("the amount is 0")); // to the dead-letter queue
        }
        // `?` is a retryable failure, `.no_effect()?` one before anything was sent.
        self.0.charge(&order, attempt.call_key()).await
    }
}

/// Creates the consumer from these settings.
pub async fn consumer(
    settings: Settings,
) -> Result<Consumer<Once<AnyStore>, Charge>, SettingsError> {
    settings.once(Ok(Charge(Gateway::Log))).await
}
{% endif %}

#[cfg(test)]
mod tests {
{% if effect == "outside" %}
    use sqs_once::testing::{DryRun, Message, Torture{% if key != "message-id" %}, settings{% endif %}};
{% else %}
    use sqs_once::testing::{DryRun, Message{% if key != "message-id" %}, settings{% endif %}};
{% endif %}

    use super::*;

    #[tokio::test]
    async fn order_without_amount_fails_permanently() {
        let order = Order {
            id: "o-1".into(),
            cents: 0,
        };
{% if effect == "outside" %}
        let handler = Charge(Gateway::Log);
{% else %}
        let handler = PlaceOrder {
            orders: "orders".into(),
        };
{% endif %}
        let outcome = DryRun::new()
            .run(&handler, Message::new("m-1", &order))
            .await;
        assert_eq!(outcome.name(), "permanent_failure");
    }
{% if key != "message-id" %}

    /// With the key of template.yaml.
    #[tokio::test]
    async fn order_that_is_sent_again_is_a_duplicate() {
{% if effect == "outside" %}
        let variables = [("IDEMPOTENCY_KEY", "{{ key }}")];
{% else %}
        let variables = [
            ("IDEMPOTENCY_KEY", "{{ key }}"),
            ("ORDERS_TABLE_NAME", "orders"),
        ];
{% endif %}
        let consumer = consumer(settings(&variables)).await.unwrap();
        let order = Order {
            id: "o-1".into(),
            cents: 5,
        };
        let dry_run = DryRun::new();
        for (id, outcome) in [("m-1", "completed"), ("m-2", "duplicate")] {
{% if attribute %}
            let message = Message::new(id, &order).attribute("{{ attribute }}", "o-1");
{% else %}
            let message = Message::new(id, &order);
{% endif %}
            assert_eq!(dry_run.run_in(&consumer, message).await.name(), outcome);
        }
    }
{% endif %}
{% if effect == "outside" %}

    /// Kills the handler before and after its effect and at each write of its record, freezes it, loses answers, and sends the
    /// message again.
    #[test]
    fn order_is_charged_once_whatever_crashes() {
        let order = Order {
            id: "o-1".into(),
            cents: 5,
        };
{% if key != "message-id" and not attribute %}
        let survived = Torture::new(&order).run(|world| {
            let consumer = world.consumer(Charge(Gateway::Ledger(world.ledger())));
            consumer.key("{{ key }}".parse().unwrap())
        });
{% else %}
        let survived = Torture::new(&order)
            .run(|world| world.consumer(Charge(Gateway::Ledger(world.ledger()))));
{% endif %}
        survived.unwrap();
    }
{% endif %}
}
