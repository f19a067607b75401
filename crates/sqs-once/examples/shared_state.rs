//! A handler that shares state with the others: clients, pools, settings. It borrows the state, or captures a clone of it.

use std::{collections::HashMap, sync::Arc};

use serde::Deserialize;
use sqs_once::{Attempt, Consumer, Failure, Handler, handler_fn, handler_with};

#[derive(Deserialize)]
pub(crate) struct Order {
    product: String,
    pieces: u64,
}

pub(crate) struct State {
    pub(crate) cents: HashMap<String, u64>,
}

async fn price(state: &State, order: Order, _: Attempt) -> Result<u64, Failure> {
    let cents = state.cents.get(&order.product);
    let cents = cents.ok_or_else(|| Failure::permanent_no_effect("an unknown product"))?;
    Ok(cents * order.pieces)
}

/// The function borrows the state.
pub(crate) fn borrowing(state: State) -> impl Handler<Message = Order, Output = u64> {
    handler_with(state, price)
}

/// The closure captures a clone of the state.
#[allow(dead_code, reason = "one of the two is enough")]
pub(crate) fn capturing(state: Arc<State>) -> impl Handler<Message = Order, Output = u64> {
    handler_fn(move |order: Order, attempt: Attempt| {
        let state = Arc::clone(&state);
        async move { price(&state, order, attempt).await }
    })
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    sqs_once::telemetry::init();
    let cents = HashMap::from([("book".to_owned(), 1250)]);
    sqs_once::run(Consumer::from_env(borrowing(State { cents })).await?).await
}
