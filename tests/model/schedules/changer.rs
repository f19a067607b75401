//! Handlers whose effect is one change of one item, through the real SDK: `ItemMode`.

use std::cell::RefCell;

use aws_sdk_dynamodb::config::http::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::{http::HttpConnectorFuture, result::ConnectorError};
use futures_util::future::poll_fn;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqs_once::{Attempt, Change, Failure, ItemMode, Outcome, Write, internal::Delivery};

use crate::schedules::{
    handler::{HandlerEnd, Inside, obey, operation},
    items::{self, ITEM, ItemRequest, TABLE},
    line::{Line, pause},
    request::{Answer, Request},
    wire,
    world::{Shared, World, lock},
};

/// A way to change the item.
#[derive(Clone, Copy, Debug)]
pub enum ChangeKind {
    Create,
    Update,
    /// The same of an item with a key past its retention.
    Outdated,
    Modify,
}

thread_local! {
    /// Line of the worker that is being polled.
    static LINE: RefCell<Option<Line>> = const { RefCell::new(None) };
    /// One client for all workers: making one takes longer than an execution.
    static ON_ITEM: ItemMode = ItemMode::new(wire::client(send)).clock(items::now);
}

/// One worker's request, on its line.
fn send(request: HttpRequest) -> HttpConnectorFuture {
    let line = LINE.with_borrow(Clone::clone).expect("somebody is polled");
    HttpConnectorFuture::new(answered(line, request))
}

async fn answered(line: Line, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
    let target = request.headers().get("x-amz-target").unwrap_or_default();
    let body: Value = serde_json::from_slice(request.body().bytes().unwrap()).unwrap();
    let operation = target.rsplit('.').next().unwrap_or_default();
    let request = ItemRequest::new(operation.into(), &body);
    let versioned = request.is_versioned();
    match line.call(Request::Item(request)).await {
        Ok(Answer::Item(answer)) => {
            let mut world = lock(&line.world);
            let refused = answer.is_refusal();
            world.workers[line.worker].met_its_own = refused && answer.knew;
            if refused && versioned {
                world.contended(line.worker);
            }
            Ok(wire::response(answer.said.as_ref()))
        }
        Ok(_) => unreachable!("the response matches the request"),
        Err(error) => Err(ConnectorError::io(error.into())),
    }
}

pub async fn change(world: Shared, worker: usize, delivery: Delivery, way: ChangeKind) -> Outcome {
    let item_mode = ON_ITEM.with(Clone::clone);
    let line = Line {
        world: world.clone(),
        worker,
    };
    let operation = operation(&world, worker, delivery);
    let work = async |_: Attempt| planned(world, worker, way).await;
    let mut run = Box::pin(item_mode.run(operation, work));
    poll_fn(move |context| {
        LINE.set(Some(line.clone()));
        run.as_mut().poll(context)
    })
    .await
}

async fn planned(world: Shared, worker: usize, way: ChangeKind) -> Result<Change<usize>, Failure> {
    let _inside = Inside(&world, worker);
    lock(&world).promises.begins(worker);
    lock(&world).log(worker, || "plans".into());
    pause().await;
    let word = lock(&world).plans(worker);
    obey(word)?;
    Ok(sale(&world, worker, way))
}

#[derive(Deserialize, Serialize)]
struct Stock {
    id: String,
    #[serde(default)]
    sold: u32,
}

/// Sells one more, unless nothing is for sale just now.
fn sale(world: &Shared, worker: usize, way: ChangeKind) -> Change<usize> {
    let stock = |sold| Stock {
        id: ITEM.into(),
        sold,
    };
    let change = match way {
        ChangeKind::Create => Change::create(worker, "id", Write::put(TABLE, stock(1))),
        ChangeKind::Update | ChangeKind::Outdated => {
            let update = Write::update(TABLE, "ADD sold :one").key("id", ITEM);
            let update = update.when("attribute_not_exists(sold_out)");
            Change::update(worker, update.value(":one", 1))
        }
        ChangeKind::Modify => {
            let key = serde_json::json!({ "id": ITEM });
            return Change::modify(TABLE, key, move |found: Option<Stock>| {
                Ok((stock(found.map_or(0, |found| found.sold) + 1), worker))
            });
        }
    };
    let world = world.clone();
    change.on_condition_failed(move |_| {
        let word = lock(&world).interprets_refusal(worker);
        // An existing item cannot be created, but changed.
        obey(word).map(|()| sale(&world, worker, ChangeKind::Update))
    })
}

impl World {
    /// The change was refused.
    fn interprets_refusal(&mut self, worker: usize) -> HandlerEnd {
        let own = self.workers[worker].met_its_own;
        self.promises.break_if(own, || {
            format!("P4: w{worker} must interpret a refusal that its own effect caused")
        });
        let words = [
            HandlerEnd::Permanent,
            HandlerEnd::Retryable,
            HandlerEnd::Panic,
            HandlerEnd::Done,
        ];
        let word = words[self.choose(worker, words.len())];
        self.says(worker, word);
        word
    }
}
