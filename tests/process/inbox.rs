//! `examples/place_order.rs` in the release profile: processes that are killed during their commit.

use serde_json::json;
use support::{
    dynamo::number,
    event::{batch, failed, received},
    faults::Fault,
    runtime_api::{Answer, Lambda, program},
    stage::{Stage, TABLE, TIME, outcome, outcomes},
};
use tokio::{join, task::yield_now};

const COMMIT: &str = "TransactWriteItems";

/// A stage with a stock of ten cups.
async fn shop() -> Stage {
    let stage = Stage::set().await;
    for (table, key) in [("orders", "orderId"), ("stock", "product")] {
        stage.dynamo.create_table_keyed(table, &[key]).await;
    }
    let cups = serde_dynamo::to_item(json!({"product": "cup", "quantity": 10}));
    stage.dynamo.put("stock", cups.unwrap()).await;
    stage
}

async fn worker(stage: &Stage) -> Lambda {
    let tables = [
        ("ORDERS_TABLE_NAME", "orders"),
        ("STOCK_TABLE_NAME", "stock"),
    ];
    Lambda::start_binary(&program("place_order"), stage.env(&tables)).await
}

/// Waits until the commit was sent, or until DynamoDB has applied it.
async fn commit_met(stage: &Stage, fault: Fault) {
    match fault {
        Fault::HoldRequest => {
            while stage.dynamo.met(COMMIT) == 0 {
                yield_now().await;
            }
        }
        _ => while stage.dynamo.records(TABLE).await.is_empty() {},
    }
}

/// The first process is killed before DynamoDB applies its commit, or before it reads the response. In the first
/// case the commit arrives late, after that of the second process.
#[tokio::test]
async fn process_killed_at_commit_takes_stock_once() {
    let order = json!({"orderId": "o-1", "customerId": "c", "products": {"cup": 3}});
    let delivery = |receives| batch([received("m-1", &order, receives)]);
    for (fault, expected) in [
        (Fault::HoldRequest, outcome::COMPLETED),
        (Fault::HoldAnswer, outcome::DUPLICATE),
    ] {
        let stage = shop().await;
        let (victim, survivor) = join!(worker(&stage), worker(&stage));
        stage.dynamo.fail(COMMIT, fault);
        let (answer, _) = join!(victim.invoke(delivery(1), TIME), async {
            commit_met(&stage, fault).await;
            victim.kill().await
        });
        assert!(matches!(answer, Answer::Exited), "{fault:?}: {answer:?}");

        for receives in 2..=3 {
            let response = survivor.invoke(delivery(receives), TIME).await.response();
            assert!(failed(&response).is_empty(), "{fault:?}: {response}");
            stage.dynamo.heal().await;
            let stock = stage.dynamo.records("stock").await;
            assert_eq!(number(&stock[0], "quantity"), 7, "{fault:?}");
            assert_eq!(stage.dynamo.records("orders").await.len(), 1, "{fault:?}");
        }
        let seen = outcomes(&survivor, 2).await;
        assert_eq!(seen, [expected, outcome::DUPLICATE], "{fault:?}");
    }
}
