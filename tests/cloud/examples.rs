//! Each example with its sample event, and with messages that it must refuse.

macro_rules! example {
    ($name:ident $path:literal) => {
        #[path = $path]
        #[allow(dead_code, unreachable_pub, reason = "an example has its own main")]
        mod $name;
    };
}

example!(add_order_item "../../examples/add_order_item.rs");
example!(create_user "../../examples/create_user.rs");
example!(debit_account "../../examples/debit_account.rs");
example!(gzip "../../examples/gzip.rs");
example!(order_events "../../examples/order_events.rs");
example!(place_order "../../examples/place_order.rs");

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use sqs_once::{Consumer, Handler, Inbox, ItemMode, Mode, Settings, store::DynamoStore};
use support::{
    PATIENCE,
    consumer::within,
    dynamo::{Dynamo, Item},
    event,
};

/// Sample event that ships with an example.
pub fn sample(name: &str) -> Value {
    let path = format!("{}/events/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// An example's settings in this DynamoDB: these tables, and defaults.
pub fn settings<const N: usize>(dynamo: &Dynamo, tables: [(&str, &str); N]) -> Settings {
    let runtime_api = ("AWS_LAMBDA_RUNTIME_API", "unused");
    let variables = tables.into_iter().chain([runtime_api]);
    Settings::from_vars(variables).sdk_config(dynamo.sdk_config())
}

/// Number of messages of an event reported as failed.
pub async fn process<M: Mode<H::Output>, H: Handler>(
    consumer: &Arc<Consumer<M, H>>,
    event: Value,
) -> usize {
    support::consumer::process(consumer, event, within(PATIENCE))
        .await
        .len()
}

/// Logged outcome and reason of one message, which must be reported as failed.
pub async fn rejection<M: Mode<H::Output>, H: Handler>(
    consumer: &Arc<Consumer<M, H>>,
    body: &Value,
) -> (String, String) {
    refusal_of(consumer, event::record("m-1", body)).await
}

async fn refusal_of<M: Mode<H::Output>, H: Handler>(
    consumer: &Arc<Consumer<M, H>>,
    record: Value,
) -> (String, String) {
    let log = Log::default();
    let lines = tracing_subscriber::fmt().json().flatten_event(true);
    let writer = log.clone();
    let lines = lines.with_writer(move || writer.clone()).finish();
    // Logs of this thread, the only one of the test's runtime.
    let _until_dropped = tracing::subscriber::set_default(lines);
    let event = event::batch([record]);
    assert_eq!(process(consumer, event).await, 1);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let mut lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let line = lines.find(|line| line["message_id"] == "m-1").unwrap();
    let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    (text("outcome"), text("detail"))
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub fn permanent(why: &str) -> (String, String) {
    let outcome = "permanent_failure".to_owned();
    (outcome, format!("permanent failure: {why}"))
}

/// Items of a table as JSON, by primary key.
async fn items(dynamo: &Dynamo, table: &str, key: &str) -> BTreeMap<String, Value> {
    let records = dynamo.records(table).await.into_iter();
    let items = records.map(|item| serde_dynamo::from_item::<_, Value>(item).unwrap());
    items
        .map(|item| (item[key].as_str().unwrap().to_owned(), item))
        .collect()
}

async fn put(dynamo: &Dynamo, table: &str, item: Value) {
    let item: Item = serde_dynamo::to_item(item).unwrap();
    dynamo.put(table, item).await;
}

mod creating_a_user {
    use super::*;

    async fn start() -> (
        Dynamo,
        Arc<Consumer<ItemMode, impl Handler<Output = sqs_once::Change<()>>>>,
    ) {
        let dynamo = Dynamo::start().await;
        dynamo.create_table_keyed("users", &["email"]).await;
        let consumer = create_user::consumer(settings(&dynamo, [("USERS_TABLE_NAME", "users")]));
        let consumer = consumer.await.unwrap();
        (dynamo, Arc::new(consumer))
    }

    #[tokio::test]
    async fn sample_creates_each_user_once() {
        let (dynamo, consumer) = start().await;
        assert_eq!(process(&consumer, sample("create-user")).await, 0);
        let users = items(&dynamo, "users", "email").await;
        let ada = &users["ada@example.com"];
        assert_eq!(ada["processed_events"][1], "users#usr-0001");
        assert_eq!(
            (&ada["userId"], &ada["name"]),
            (&json!("usr-0001"), &json!("Ada Lovelace"))
        );
        assert_eq!(users.len(), 2);
        // The change that the user made meanwhile stays.
        let mut changed = users["ada@example.com"].clone();
        changed["name"] = json!("Augusta Ada King");
        put(&dynamo, "users", changed.clone()).await;
        assert_eq!(process(&consumer, sample("create-user")).await, 0);
        let users = items(&dynamo, "users", "email").await;
        assert_eq!(users["ada@example.com"], changed);
        assert_eq!(users.len(), 2);
    }

    #[tokio::test]
    async fn taken_address_keeps_its_user() {
        let (dynamo, consumer) = start().await;
        process(&consumer, sample("create-user")).await;
        let before = items(&dynamo, "users", "email").await;
        let other = json!({"userId": "usr-0003", "email": " ADA@example.com", "name": "Eve"});
        let taken = permanent("the e-mail address is taken by another user");
        assert_eq!(rejection(&consumer, &other).await, taken);
        assert_eq!(items(&dynamo, "users", "email").await, before);
    }

    #[tokio::test]
    async fn invalid_address_creates_no_user() {
        let (dynamo, consumer) = start().await;
        for email in ["", " ", "ada", "@example.com", "ada@"] {
            let user = json!({"userId": "usr-0004", "email": email, "name": "Ada"});
            let none = permanent("the e-mail address is none");
            assert_eq!(rejection(&consumer, &user).await, none, "{email:?}");
        }
        assert!(dynamo.records("users").await.is_empty());
    }
}

mod adding_an_item_to_an_order {
    use super::*;

    const ORDER: &str = "ord-2026-000061";

    async fn start() -> (
        Dynamo,
        Arc<Consumer<ItemMode, impl Handler<Output = sqs_once::Change<()>>>>,
    ) {
        let dynamo = Dynamo::start().await;
        dynamo.create_table_keyed("orders", &["orderId"]).await;
        let consumer =
            add_order_item::consumer(settings(&dynamo, [("ORDERS_TABLE_NAME", "orders")]));
        let consumer = consumer.await.unwrap();
        (dynamo, Arc::new(consumer))
    }

    fn item(quantity: u32) -> Value {
        json!({"orderId": ORDER, "itemId": "itm-0003", "product": "tray", "quantity": quantity})
    }

    #[tokio::test]
    async fn sample_adds_each_item_once() {
        let (dynamo, consumer) = start().await;
        put(
            &dynamo,
            "orders",
            json!({"orderId": ORDER, "status": "open"}),
        )
        .await;
        for _ in 0..2 {
            assert_eq!(process(&consumer, sample("add-order-item")).await, 0);
            let order = &items(&dynamo, "orders", "orderId").await[ORDER];
            let mut added: Vec<_> = order["items"].as_array().unwrap().clone();
            added.sort_by_key(|item| item["itemId"].to_string());
            assert_eq!(
                added,
                [
                    json!({"itemId": "itm-0001", "product": "cup", "quantity": 2}),
                    json!({"itemId": "itm-0002", "product": "teapot", "quantity": 1}),
                ]
            );
            assert_eq!(order["processed_events"].as_array().unwrap().len(), 4);
        }
    }

    #[tokio::test]
    async fn closed_order_is_not_changed() {
        let (dynamo, consumer) = start().await;
        put(
            &dynamo,
            "orders",
            json!({"orderId": ORDER, "status": "shipped"}),
        )
        .await;
        let before = items(&dynamo, "orders", "orderId").await;
        let closed = permanent("the order is not open any more");
        assert_eq!(rejection(&consumer, &item(1)).await, closed);
        assert_eq!(items(&dynamo, "orders", "orderId").await, before);
    }

    #[tokio::test]
    async fn item_before_its_order_is_added_later() {
        let (dynamo, consumer) = start().await;
        let (outcome, _) = rejection(&consumer, &item(1)).await;
        assert_eq!(outcome, "retryable_failure");
        assert!(dynamo.records("orders").await.is_empty());
        put(
            &dynamo,
            "orders",
            json!({"orderId": ORDER, "status": "open"}),
        )
        .await;
        let again = event::batch([event::received("m-1", &item(1), 2)]);
        assert_eq!(process(&consumer, again).await, 0);
        let order = &items(&dynamo, "orders", "orderId").await[ORDER];
        assert_eq!(order["items"].as_array().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn item_without_pieces_is_refused() {
        let (dynamo, consumer) = start().await;
        put(
            &dynamo,
            "orders",
            json!({"orderId": ORDER, "status": "open"}),
        )
        .await;
        let none = permanent("an item without an order, or of 0 pieces");
        assert_eq!(rejection(&consumer, &item(0)).await, none);
        let order = &items(&dynamo, "orders", "orderId").await[ORDER];
        assert_eq!(*order, json!({"orderId": ORDER, "status": "open"}));
    }
}

mod debiting_an_account {
    use super::*;

    const ACCOUNT: &str = "acc-0001";

    async fn start() -> (
        Dynamo,
        Arc<Consumer<ItemMode, impl Handler<Output = sqs_once::Change<u64>>>>,
    ) {
        let dynamo = Dynamo::start().await;
        dynamo.create_table_keyed("accounts", &["accountId"]).await;
        let account = json!({"accountId": ACCOUNT, "owner": "Ada", "balance": 10_000});
        put(&dynamo, "accounts", account).await;
        let consumer =
            debit_account::consumer(settings(&dynamo, [("ACCOUNTS_TABLE_NAME", "accounts")]));
        let consumer = consumer.await.unwrap();
        (dynamo, Arc::new(consumer))
    }

    #[tokio::test]
    async fn sample_debits_each_amount_once() {
        let (dynamo, consumer) = start().await;
        for _ in 0..2 {
            assert_eq!(process(&consumer, sample("debit-account")).await, 0);
            let account = &items(&dynamo, "accounts", "accountId").await[ACCOUNT];
            assert_eq!(account["balance"], 10_000 - 1250 - 4000);
            assert_eq!(account["version"], 2);
            assert_eq!(account["owner"], "Ada");
            assert_eq!(account["processed_events"].as_array().unwrap().len(), 4);
        }
    }

    #[tokio::test]
    async fn concurrent_debits_never_overdraw() {
        let (dynamo, consumer) = start().await;
        let debits = (0..20).map(|n| {
            let body = json!({"debitId": format!("d-{n}"), "accountId": ACCOUNT, "cents": 1500});
            event::record(&format!("m-{n}"), &body)
        });
        // The balance covers six debits.
        assert_eq!(process(&consumer, event::batch(debits)).await, 14);
        let account = &items(&dynamo, "accounts", "accountId").await[ACCOUNT];
        assert_eq!(account["balance"], 1000);
        assert_eq!(account["version"], 6);
    }

    #[tokio::test]
    async fn refused_debit_changes_no_account() {
        let (dynamo, consumer) = start().await;
        let before = items(&dynamo, "accounts", "accountId").await;
        for (account, cents, why) in [
            (ACCOUNT, 10_001, "the balance is lower than the debit"),
            ("acc-0002", 1, "there is no such account"),
            (ACCOUNT, 0, "a debit without an account, or of 0 cents"),
            ("", 1, "a debit without an account, or of 0 cents"),
        ] {
            let body = json!({"debitId": "d-1", "accountId": account, "cents": cents});
            assert_eq!(rejection(&consumer, &body).await, permanent(why));
        }
        let negative = json!({"debitId": "d-1", "accountId": ACCOUNT, "cents": -5});
        assert_eq!(rejection(&consumer, &negative).await.0, "invalid");
        assert_eq!(items(&dynamo, "accounts", "accountId").await, before);
    }
}

mod placing_an_order {
    use super::*;

    type Placing<H> = Arc<Consumer<Inbox<DynamoStore>, H>>;

    async fn start() -> (
        Dynamo,
        Placing<impl Handler<Output = sqs_once::Done<Value>>>,
    ) {
        let dynamo = Dynamo::start().await;
        dynamo.create_table_keyed("orders", &["orderId"]).await;
        dynamo.create_table_keyed("stock", &["product"]).await;
        for (product, quantity) in [("cup", 10), ("teapot", 2), ("tray", 5)] {
            let item = json!({"product": product, "quantity": quantity});
            put(&dynamo, "stock", item).await;
        }
        dynamo.create_table("records").await;
        let consumer = remembering_in(&dynamo, "records").await;
        (dynamo, consumer)
    }

    async fn remembering_in(
        dynamo: &Dynamo,
        records: &str,
    ) -> Placing<impl Handler<Output = sqs_once::Done<Value>> + use<>> {
        let tables = [
            ("IDEMPOTENCY_TABLE_NAME", records),
            ("ORDERS_TABLE_NAME", "orders"),
            ("STOCK_TABLE_NAME", "stock"),
        ];
        let consumer = place_order::consumer(settings(dynamo, tables));
        Arc::new(consumer.await.unwrap())
    }

    async fn stock(dynamo: &Dynamo) -> Vec<(String, Value)> {
        let stock = items(dynamo, "stock", "product").await.into_iter();
        stock
            .map(|(name, item)| (name, item["quantity"].clone()))
            .collect()
    }

    fn pieces(cups: u32, teapots: u32, trays: u32) -> Vec<(String, Value)> {
        let stock = [("cup", cups), ("teapot", teapots), ("tray", trays)];
        stock
            .map(|(name, pieces)| (name.to_owned(), json!(pieces)))
            .into()
    }

    /// Status and content of an order's record.
    async fn recorded(dynamo: &Dynamo, order: &str) -> (String, Value) {
        let record = dynamo
            .record("records", &format!("orders#{order}"))
            .await
            .unwrap();
        let text = |name: &str| support::dynamo::text(&record, name).to_owned();
        let status = text("status");
        let said = if status == "FAILED" {
            support::dynamo::error(&record)
        } else {
            text("result")
        };
        (
            status,
            serde_json::from_str(&said).unwrap_or(Value::String(said)),
        )
    }

    #[tokio::test]
    async fn sample_takes_stock_once_and_declines_shortage() {
        let (dynamo, consumer) = start().await;
        for _ in 0..2 {
            assert_eq!(process(&consumer, sample("place-order")).await, 0);
            assert_eq!(stock(&dynamo).await, pieces(4, 1, 5));
            let orders = items(&dynamo, "orders", "orderId").await;
            assert_eq!(
                orders.into_values().collect::<Vec<_>>(),
                [json!({
                    "orderId": "ord-2026-000071", "customerId": "cus-0071",
                    "products": {"cup": 6, "teapot": 1},
                })]
            );
            let placed = ("COMPLETED".to_owned(), json!({"status": "placed"}));
            assert_eq!(recorded(&dynamo, "ord-2026-000071").await, placed);
            let declined = json!({"status": "declined", "outOfStock": ["samovar"]});
            let declined = ("COMPLETED".to_owned(), declined);
            assert_eq!(recorded(&dynamo, "ord-2026-000072").await, declined);
        }
    }

    #[tokio::test]
    async fn concurrent_orders_never_oversell() {
        let (dynamo, consumer) = start().await;
        let orders = (0..20).map(|n| {
            let (id, cups) = (format!("o-{n}"), json!({"cup": 3}));
            let body = json!({"orderId": id, "customerId": "c", "products": cups});
            event::record(&format!("m-{n}"), &body)
        });
        assert_eq!(process(&consumer, event::batch(orders)).await, 0);
        assert_eq!(stock(&dynamo).await, pieces(1, 2, 5));
        assert_eq!(dynamo.records("orders").await.len(), 3);
        assert_eq!(dynamo.records("records").await.len(), 20);
    }

    #[tokio::test]
    async fn invalid_order_fails_and_takes_no_stock() {
        let (dynamo, consumer) = start().await;
        let order = |id: &str, products: Value| json!({"orderId": id, "customerId": "c", "products": products});
        for (id, less) in [
            ("none", json!(0)),
            ("negative", json!(-1)),
            ("half", json!(0.5)),
        ] {
            let order = order(id, json!({"cup": less}));
            assert_eq!(rejection(&consumer, &order).await.0, "invalid");
        }
        let why = "the order has no products";
        assert_eq!(
            rejection(&consumer, &order("o-1", json!({}))).await,
            permanent(why)
        );
        let failed = ("FAILED".to_owned(), json!(why));
        assert_eq!(recorded(&dynamo, "o-1").await, failed);
        assert_eq!(stock(&dynamo).await, pieces(10, 2, 5));
        assert!(dynamo.records("orders").await.is_empty());
    }

    #[tokio::test]
    async fn order_without_record_takes_no_stock_again() {
        let (dynamo, consumer) = start().await;
        assert_eq!(process(&consumer, sample("place-order")).await, 0);
        dynamo.create_table("emptied").await;
        let consumer = remembering_in(&dynamo, "emptied").await;
        // The order and its duplicate in the same batch.
        assert_eq!(process(&consumer, sample("place-order")).await, 2);
        assert_eq!(stock(&dynamo).await, pieces(4, 1, 5));
    }
}

mod several_types_of_messages {
    use super::*;

    async fn start() -> (
        Dynamo,
        Arc<Consumer<ItemMode, impl Handler<Output = sqs_once::Change<()>>>>,
    ) {
        let dynamo = Dynamo::start().await;
        dynamo.create_table_keyed("orders", &["orderId"]).await;
        let consumer = order_events::consumer(settings(&dynamo, [("ORDERS_TABLE_NAME", "orders")]));
        let consumer = consumer.await.unwrap();
        (dynamo, Arc::new(consumer))
    }

    #[tokio::test]
    async fn sample_applies_each_event_once() {
        let (dynamo, consumer) = start().await;
        for _ in 0..2 {
            // The message of an unknown type.
            assert_eq!(process(&consumer, sample("order-events")).await, 1);
            let mut orders = items(&dynamo, "orders", "orderId").await;
            for order in orders.values_mut() {
                let events = order["processed_events"].take();
                assert_eq!(events.as_array().unwrap().len(), 4, "{events}");
            }
            let order = |id: &str, customer: &str, status: &str, detail: &str| {
                json!({
                    "orderId": id, "customerId": customer, "status": status, "detail": detail,
                    "processed_events": null,
                })
            };
            assert_eq!(
                orders.into_values().collect::<Vec<_>>(),
                [
                    order("ord-2026-000081", "cus-0081", "shipped", "DHL"),
                    order("ord-2026-000082", "cus-0082", "cancelled", "customer"),
                ]
            );
        }
    }

    #[tokio::test]
    async fn unknown_type_is_named_in_the_log() {
        let (dynamo, consumer) = start().await;
        let unknown = json!({"type": "order.refunded", "eventId": "e-1", "orderId": "SECRET"});
        let (outcome, detail) = rejection(&consumer, &unknown).await;
        assert_eq!(outcome, "invalid");
        let expected = "unknown variant `order.refunded`, expected one of `order.placed`, \
                        `order.shipped`, `order.cancelled`";
        assert!(detail.contains(expected), "{detail}");
        assert!(!detail.contains("SECRET"), "{detail}");
        let untyped = json!({"eventId": "e-2", "orderId": "SECRET"});
        let (outcome, detail) = rejection(&consumer, &untyped).await;
        assert_eq!(outcome, "invalid");
        assert!(detail.contains("missing field `type`"), "{detail}");
        assert!(dynamo.records("orders").await.is_empty());
    }

    #[tokio::test]
    async fn event_before_its_order_is_applied_later() {
        let (dynamo, consumer) = start().await;
        let cancelled = json!({
            "type": "order.cancelled", "eventId": "e-1", "orderId": "o-1", "reason": "customer",
        });
        let (outcome, _) = rejection(&consumer, &cancelled).await;
        assert_eq!(outcome, "retryable_failure");
        let placed = json!({
            "type": "order.placed", "eventId": "e-2", "orderId": "o-1", "customerId": "c-1",
        });
        let event = event::batch([event::record("m-2", &placed)]);
        assert_eq!(process(&consumer, event).await, 0);
        let event = event::batch([event::record("m-1", &cancelled)]);
        assert_eq!(process(&consumer, event).await, 0);
        let shipped = json!({
            "type": "order.shipped", "eventId": "e-3", "orderId": "o-1", "carrier": "DHL",
        });
        let ended = permanent("the order is shipped or cancelled already");
        assert_eq!(rejection(&consumer, &shipped).await, ended);
        let orders = items(&dynamo, "orders", "orderId").await;
        assert_eq!(orders["o-1"]["status"], "cancelled");
    }
}

mod compressed_orders {
    use std::io::Write as _;

    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    async fn start() -> (
        Dynamo,
        Arc<Consumer<ItemMode, impl Handler<Output = sqs_once::Change<()>>>>,
    ) {
        let dynamo = Dynamo::start().await;
        dynamo.create_table_keyed("orders", &["orderId"]).await;
        let consumer = gzip::consumer(settings(&dynamo, [("ORDERS_TABLE_NAME", "orders")]));
        let consumer = consumer.await.unwrap();
        (dynamo, Arc::new(consumer))
    }

    fn base64_of_gzip(text: &str) -> String {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        BASE64_STANDARD.encode(encoder.finish().unwrap())
    }

    #[tokio::test]
    async fn sample_keeps_each_order_once() {
        let (dynamo, consumer) = start().await;
        for _ in 0..2 {
            assert_eq!(process(&consumer, sample("gzip")).await, 0);
            let orders = items(&dynamo, "orders", "orderId").await;
            let pieces = orders.values().map(|order| &order["pieces"]);
            assert_eq!(pieces.collect::<Vec<_>>(), [&json!(24), &json!(1)]);
        }
    }

    #[tokio::test]
    async fn body_that_is_no_order_is_refused() {
        let (dynamo, consumer) = start().await;
        let whole = base64_of_gzip(r#"{"orderId":"SECRET","product":"cup","pieces":1}"#);
        for (body, why) in [
            ("{}", "the body is not base64"),
            ("e30=", "the body is not gzip, or is not complete"),
            (&whole[..40], "the body is not gzip, or is not complete"),
            (
                &base64_of_gzip(r#"{"orderId":"SECRET","product":"cup"}"#),
                "the body can't be read: missing field `pieces`",
            ),
            (
                &base64_of_gzip(&" ".repeat(2 << 20)),
                "the body has more than 1048576 bytes",
            ),
        ] {
            let mut record = event::record("m-1", body);
            let order = json!({"stringValue": "ord-1", "dataType": "String"});
            record["messageAttributes"]["orderId"] = order;
            let (outcome, detail) = refusal_of(&consumer, record).await;
            assert_eq!(outcome, "invalid", "{body}");
            assert!(detail.starts_with(why), "{detail}");
            assert!(!detail.contains("SECRET"), "{detail}");
        }
        assert!(dynamo.records("orders").await.is_empty());
    }
}
