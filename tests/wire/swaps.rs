//! The page of cases of a store, for each store and each form in which a swap is sent.

use std::{collections::HashMap, convert::identity};

use aws_sdk_dynamodb::{
    Client,
    operation::transact_write_items::TransactWriteItemsError,
    types::{AttributeValue, BatchStatementErrorCodeEnum as Code},
};
use sqs_once::{
    Done, Write,
    internal::{Refused, Writes, statement, transact_item},
    protocol::{Expect, Key, Record, Swap},
    store::{
        AnyStore, Batched, DynamoStore, Layout, MemoryStore, RequestContext, Store, StoreError,
        Swapped,
    },
    testing::conformance,
};
use support::{
    CONTEXT, NOTHING,
    dynamo::{Table, number, record as item},
};

/// How a swap is sent.
#[derive(Clone, Copy, Debug)]
enum Form {
    Single,
    Statement,
    Transaction,
}

const FORMS: [Form; 3] = [Form::Single, Form::Statement, Form::Transaction];

/// A store that sends every swap in one form.
struct Forms {
    form: Form,
    client: Client,
    table: String,
    layout: Layout,
    store: DynamoStore,
}

const NATIVE: &[&str] = &["id"];
/// The primary key of [`renamed`].
const RENAMED: &[&str] = &["size", "SK"];

impl Forms {
    async fn new(form: Form, primary_key: &[&str], layout: Layout) -> Self {
        let Table { client, name, .. } = Table::create(primary_key).await;
        Self {
            form,
            store: DynamoStore::new(client.clone(), name.as_str()).layout(layout.clone()),
            client,
            table: name,
            layout,
        }
    }

    /// A store with native names.
    async fn native(form: Form) -> Self {
        Self::new(form, NATIVE, Layout::native()).await
    }

    /// A store with other names and a sort key.
    async fn renamed(form: Form) -> Self {
        Self::new(form, RENAMED, renamed()).await
    }

    /// The store, which sends every swap that it may in a batch.
    fn batched(self) -> Batched {
        Batched::with_lone_calls(self.store)
    }

    async fn found(&self, swap: &Swap) -> Result<Swapped<Refused>, StoreError> {
        let found = self.store.get(&swap.key, &CONTEXT).await?;
        Ok(Swapped::Found(found))
    }

    /// `None` if another transaction is in progress.
    async fn in_transaction(&self, swap: &Swap) -> Option<Result<Swapped<Refused>, StoreError>> {
        let transaction = self.client.transact_write_items();
        let item = transact_item(&self.layout, &self.table, swap);
        let error = match transaction.transact_items(item).send().await {
            Ok(_) => return Some(Ok(Swapped::Applied)),
            Err(error) => error.into_service_error(),
        };
        let TransactWriteItemsError::TransactionCanceledException(cancelled) = &error else {
            panic!("{error:?}");
        };
        match cancelled.cancellation_reasons()[0].code() {
            Some("ConditionalCheckFailed") => Some(self.found(swap).await),
            Some("TransactionConflict") => None,
            _ => panic!("{error:?}"),
        }
    }
}

impl Store for Forms {
    type With = Writes;

    async fn get(&self, key: &Key, context: &RequestContext) -> Result<Option<Record>, StoreError> {
        self.store.get(key, context).await
    }

    async fn swap(
        &self,
        swap: &Swap,
        with: &Writes,
        context: &RequestContext,
    ) -> Result<Swapped<Refused>, StoreError> {
        match self.form {
            Form::Single => self.store.swap(swap, with, context).await,
            Form::Statement => {
                let batch = self.client.batch_execute_statement();
                let statement = statement(&self.layout, &self.table, swap);
                let answer = batch.statements(statement).send().await.unwrap();
                match &answer.responses()[0].error {
                    None => Ok(Swapped::Applied),
                    Some(error) => {
                        let code = error.code.as_ref();
                        let refused = [Code::ConditionalCheckFailed, Code::DuplicateItem];
                        assert!(code.is_some_and(|code| refused.contains(code)), "{error:?}");
                        self.found(swap).await
                    }
                }
            }
            Form::Transaction => loop {
                if let Some(answer) = self.in_transaction(swap).await {
                    return answer;
                }
            },
        }
    }
}

/// A sort key, and other names: a reserved word, and a name that an expression cannot hold.
fn renamed() -> Layout {
    let names = [("id", "size"), ("expires_at", "the \"end\"")];
    let names = Layout::native().rename(names).unwrap();
    names.sort_key("SK", "idempotency").unwrap()
}

/// Makes a module with the tests of the store that `$new` makes.
macro_rules! conformance {
    ($backend:ident, $new:expr $(, $limit:ident)?) => {
        mod $backend {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn every_case_passes() {
                conformance::all(&$new.await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn one_of_several_is_applied() {
                conformance::one_of_several_is_applied(&$new.await).await;
            }

            $(#[tokio::test]
            async fn $limit() {
                conformance::$limit(&$new.await).await;
            })?
        }
    };
}

// `make test-aws` runs these by their names.
conformance!(
    dynamodb,
    Forms::native(Form::Single),
    claim_leaves_room_for_a_result
);
conformance!(
    batched,
    async { Forms::native(Form::Single).await.batched() },
    claim_leaves_room_for_a_result
);
conformance!(renamed_single, Forms::renamed(Form::Single));
conformance!(renamed_batched, async {
    Forms::renamed(Form::Single).await.batched()
});
conformance!(statement_form, Forms::native(Form::Statement));
conformance!(renamed_statement, Forms::renamed(Form::Statement));
conformance!(transaction_form, Forms::native(Form::Transaction));
conformance!(renamed_transaction, Forms::renamed(Form::Transaction));
conformance!(memory, async { MemoryStore::default() });

/// Adds one to a count that is an item of the table.
fn one_more(table: &str) -> Done<()> {
    let count = Write::update(table, "ADD n :one").key("id", "count");
    Done::new(()).with(count.value(":one", 1))
}

// Every store that commits writes with a record.
macro_rules! all_or_nothing {
    ($($name:ident: $new:expr),+) => {$(
        #[tokio::test]
        async fn $name() {
            let Table { client, name, .. } = Table::create(NATIVE).await;
            let store = ($new)(DynamoStore::new(client.clone(), name.as_str()));
            let count = || one_more(&name).into();
            let refused = || {
                let check = Write::check(&name, "attribute_exists(id)").key("id", "none");
                one_more(&name).with(check).into()
            };
            let counted = async || match item(&client, &name, "count").await {
                Some(item) => usize::try_from(number(&item, "n")).unwrap(),
                None => 0,
            };
            conformance::all_or_nothing(&store, count, refused, counted).await;
        }
    )+};
}

all_or_nothing!(
    dynamodb_commits_all_or_nothing: identity,
    batched_commits_all_or_nothing: Batched::new,
    any_store_commits_all_or_nothing: AnyStore::DynamoDb
);

/// A store that forgets a record before a first claim.
#[derive(Default)]
struct Forgetful(MemoryStore);

impl Store for Forgetful {
    type With = ();

    async fn get(&self, key: &Key, context: &RequestContext) -> Result<Option<Record>, StoreError> {
        self.0.get(key, context).await
    }

    async fn swap(
        &self,
        swap: &Swap,
        (): &(),
        context: &RequestContext,
    ) -> Result<Swapped, StoreError> {
        if swap.expect == Expect::Absent {
            self.0.put(&swap.key, None);
        }
        self.0.swap(swap, &(), context).await
    }
}

#[tokio::test]
#[should_panic(expected = "left == right")]
async fn suite_fails_store_that_forgets() {
    conformance::all(&Forgetful::default()).await;
}

#[tokio::test]
async fn memory_store_counts_its_records() {
    let store = MemoryStore::default();
    assert_eq!((store.len(), store.is_empty()), (0, true));
    let swap = Swap {
        key: key(),
        expect: Expect::Absent,
        to: record(&serde_json::json!({})),
    };
    let applied = store.clone().swap(&swap, &(), &CONTEXT).await.unwrap();
    assert_eq!(applied, Swapped::Applied);
    assert_eq!(store.record(&swap.key), Some(swap.to));
    assert_eq!((store.len(), store.is_empty()), (1, false));
}

/// A record, as JSON, with some attributes replaced.
fn record(changes: &serde_json::Value) -> Record {
    let mut json = serde_json::json!({
        "status": "IN_PROGRESS", "owner": "o-1", "version": 1, "lease_until": 1, "expires_at": 9,
        "message_id": "m-1", "updated_at": 1,
    });
    for (name, value) in changes.as_object().unwrap() {
        json[name] = value.clone();
    }
    serde_json::from_value(json).unwrap()
}

fn key() -> Key {
    let namespace = sqs_once::protocol::Namespace::new("orders").unwrap();
    Key::new(&namespace, ["o-1"]).unwrap()
}

#[tokio::test]
async fn swaps_leave_foreign_attributes() {
    for form in FORMS {
        let store = Forms::native(form).await;
        let first = record(&serde_json::json!({}));
        let swap = |expect, to: &Record| Swap {
            key: key(),
            expect,
            to: to.clone(),
        };
        let applied = store
            .swap(&swap(Expect::Absent, &first), &NOTHING, &CONTEXT)
            .await;
        assert_eq!(applied.unwrap(), Swapped::Applied);
        let note = (store.client.update_item().table_name(&store.table))
            .key("id", AttributeValue::S(key().to_string()))
            .update_expression("SET note = :note")
            .expression_attribute_values(":note", AttributeValue::S("theirs".into()));
        note.send().await.unwrap();
        let failed = serde_json::json!({
            "status": "FAILED", "version": 2,
            "failures": r#"[{"at": 5, "error": "declined", "message_id": "m-1"}]"#,
        });
        let next = record(&failed);
        let applied = store
            .swap(&swap(Expect::Unchanged(first), &next), &NOTHING, &CONTEXT)
            .await;
        assert_eq!(applied.unwrap(), Swapped::Applied, "{form:?}");
        let read = (store.client.get_item().table_name(&store.table))
            .key("id", AttributeValue::S(key().to_string()));
        let item = read.send().await.unwrap().item.unwrap();
        assert_eq!(item["note"], AttributeValue::S("theirs".into()), "{form:?}");
        assert!(!item.contains_key("lease_until"), "{form:?}: {item:?}");
        assert_eq!(store.get(&key(), &CONTEXT).await.unwrap(), Some(next));
    }
}

/// An item that is no record is never absent, and its error has no value of it.
#[tokio::test]
async fn unreadable_record_is_an_error() {
    let store = Forms::native(Form::Single).await;
    let text = |text: &str| AttributeValue::S(text.into());
    let good: HashMap<_, _> = [
        ("status", text("COMPLETED")),
        ("owner", text("o")),
        ("version", AttributeValue::N("1".into())),
        ("expires_at", AttributeValue::N("9".into())),
        ("message_id", text("m")),
        ("attempts", AttributeValue::N("1".into())),
        ("updated_at", AttributeValue::N("1".into())),
    ]
    .into();
    for (name, value, why) in [
        ("status", text("SECRET"), "`status` must be IN_PROGRESS"),
        ("version", text("SECRET"), "`version` must be a number"),
        (
            "owner",
            AttributeValue::N("5".into()),
            "`owner` must be a string",
        ),
        (
            "last_end",
            text("SECRET"),
            "`last_end` has an unknown value",
        ),
        (
            "expires_at",
            AttributeValue::N("-1.5".into()),
            "`expires_at`",
        ),
        (
            "result",
            AttributeValue::Bool(true),
            "`result` must be a string",
        ),
    ] {
        let mut item = good.clone();
        item.insert(name, value);
        item.insert("id", text(key().as_str()));
        let item = item
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        let put = store.client.put_item().table_name(&store.table);
        put.set_item(Some(item.collect())).send().await.unwrap();
        let error = store.get(&key(), &CONTEXT).await.unwrap_err().to_string();
        assert!(error.contains(why), "{name}: {error}");
        assert!(!error.contains("SECRET"), "{error}");
        let swap = Swap {
            key: key(),
            expect: Expect::Absent,
            to: record(&serde_json::json!({})),
        };
        let error = store.swap(&swap, &NOTHING, &CONTEXT).await.unwrap_err();
        assert!(matches!(error, StoreError::Unreadable { .. }), "{error}");
    }
}
