//! [`Change`]: the change of one item that a handler returns.

use std::{fmt, marker::PhantomData};

use aws_sdk_dynamodb::types::{ConditionCheck, Put, Update};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    dynamo::{
        condition_failed::{ConditionFailed, OnConditionFailed},
        item::Item,
        write::{IntoWrite, Write},
        writes::Refused,
    },
    handler::{Failure, HandlerOutput, to_result},
    protocol::StoredResult,
};

/// An output and a change of one item, for [`ItemMode`](crate::modes::item::ItemMode).
///
/// The change is applied exactly once, because the item itself stores the idempotency keys of its
/// changes.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use sqs_once::{Attempt, Change, Failure, Write};
///
/// #[derive(Deserialize)]
/// struct Points { customer: String, points: u32 }
///
/// async fn grant(grant: Points, _: Attempt) -> Result<Change<()>, Failure> {
///     let update = Write::update("customers", "ADD points :points")
///         .key("id", &grant.customer)
///         .when("attribute_exists(id)")
///         .value(":points", grant.points)
///         .label("customer");
///     Ok(Change::update((), update))
/// }
/// ```
#[must_use = "the change is made only if the handler returns this"]
pub struct Change<O> {
    pub(super) kind: Kind,
    pub(super) on_condition_failed: Option<OnConditionFailed<Change<O>>>,
    output: PhantomData<fn() -> O>,
}

pub(super) type Modify =
    Box<dyn FnMut(Option<&Item>) -> Result<(Item, StoredResult), Failure> + Send>;

/// A create, an update or a modification, each with its result.
pub(crate) enum Kind {
    Create {
        put: Write<Put>,
        /// An attribute of the primary key.
        key: String,
        result: StoredResult,
    },
    Update {
        update: Write<Update>,
        result: StoredResult,
    },
    Modify {
        target: Write<ConditionCheck>,
        modify: Modify,
    },
}

/// The error for a replacement that changes another item.
const OTHER_ITEM: &str = "after a failed condition check, the replacement must change the same item, and this one \
     changes another item or creates one; nothing was written (to change either of two items, use an inbox)";

impl Kind {
    /// Returns the table, and attributes of the item that include its primary key.
    fn place(&self) -> (&str, &Item) {
        match self {
            Self::Create { put, .. } => (put.table(), &put.action.item),
            Self::Update { update, .. } => (update.table(), &update.action.key),
            Self::Modify { target, .. } => (target.table(), &target.action.key),
        }
    }

    /// Returns the table and the attributes as owned values.
    pub(super) fn item(&self) -> (String, Item) {
        let (table, attributes) = self.place();
        (table.to_owned(), attributes.clone())
    }

    /// Returns whether this change applies to the given existing item. Always false for a create, because it
    /// requires that no item exists.
    fn applies_to(&self, (table, attributes): &(String, Item)) -> bool {
        let (own_table, own_key) = self.place();
        !matches!(self, Self::Create { .. })
            && own_table == table
            && (own_key.iter()).all(|(name, value)| attributes.get(name) == Some(value))
    }
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send> HandlerOutput for Change<O> {
    type Result = O;
}

impl<O> Change<O> {
    /// Asks the handler for another change of the `item`.
    pub(super) fn instead(
        refused: Refused,
        decide: Option<OnConditionFailed<Self>>,
        item: Option<&(String, Item)>,
    ) -> Result<Self, Failure> {
        let change = refused.ask(decide)?;
        match item {
            Some(item) if change.kind.applies_to(item) => Ok(change),
            _ => Err(Failure::permanent(OTHER_ITEM)),
        }
    }
}

impl<O: Serialize> Change<O> {
    /// Creates an item that must not exist yet. `key` is the name of an attribute of its primary key.
    ///
    /// If the item exists and a different operation created it, the condition check fails, just like a
    /// condition of the put.
    ///
    /// ```
    /// use sqs_once::{Change, Write};
    ///
    /// let user = serde_json::json!({ "id": "u-1", "name": "Ada" });
    /// let change = Change::create("welcome", "id", Write::put("users", &user).label("name taken"));
    /// ```
    pub fn create(output: O, key: impl Into<String>, put: impl IntoWrite<Action = Put>) -> Self {
        Self::new(Kind::Create {
            put: put.into_write(),
            key: key.into(),
            result: to_result(&output),
        })
    }

    /// Updates an item, if the update's conditions are met.
    ///
    /// The consumer stores the key with one more SET action. So if the update's expression has a SET clause, the clause
    /// must come first: `SET total = :total ADD count :one`. Otherwise the change fails permanently.
    pub fn update(output: O, update: impl IntoWrite<Action = Update>) -> Self {
        Self::new(Kind::Update {
            update: update.into_write(),
            result: to_result(&output),
        })
    }

    /// Reads the item, calls `modify`, and writes the new item with optimistic locking.
    ///
    /// `key` is the item's primary key: one attribute, or two if the table has a sort key.
    ///
    /// If another worker has changed the item in the meantime, `modify` runs again with the current item. So `modify` must
    /// have no side effects. `modify` gets `None` if no item exists. If the operation's key is already on the item,
    /// `modify` does not run.
    ///
    /// Requirements for `T`:
    ///
    /// - No `serde(deny_unknown_fields)`, because the item also has the attributes `version` and
    ///   `processed_events`. Attributes without a field in `T` stay unchanged.
    /// - A set is written as a list, unless the field uses `serde_dynamo::string_set` or a similar module.
    /// - A field that is a set needs `#[serde(default)]`. DynamoDB stores no empty sets, so an empty set
    ///   removes the attribute.
    ///
    /// The attribute `version` counts the changes. Programs that write to the item without
    /// [`ItemMode`](crate::modes::item::ItemMode) must increase it as well.
    ///
    /// ```
    /// use serde::{Deserialize, Serialize};
    /// use sqs_once::{Change, Failure};
    ///
    /// #[derive(Deserialize, Serialize)]
    /// struct Account { id: String, balance: u64 }
    ///
    /// let debit = |amount: u64| {
    ///     let key = serde_json::json!({ "id": "a-1" });
    ///     Change::modify("accounts", key, move |account: Option<Account>| {
    ///         let mut account = account.ok_or_else(|| Failure::permanent("there is no such account"))?;
    ///         account.balance = account
    ///             .balance
    ///             .checked_sub(amount)
    ///             .ok_or_else(|| Failure::permanent("the balance is too low"))?;
    ///         let left = account.balance;
    ///         Ok((account, left))
    ///     })
    /// };
    /// ```
    pub fn modify<T>(
        table: impl Into<String>,
        key: impl Serialize,
        mut modify: impl FnMut(Option<T>) -> Result<(T, O), Failure> + Send + 'static,
    ) -> Self
    where
        T: Serialize + DeserializeOwned,
    {
        let target = Write::item(table, key);
        let table = target.table().to_owned();
        Self::new(Kind::Modify {
            target,
            modify: Box::new(move |found| {
                // serde's error may quote the item, which is payload, so we drop it.
                let mismatch = |problem: &str| {
                    Failure::permanent(format!("item of table `{table}`: {problem}"))
                };
                let unreadable = || mismatch("serde can't read it as the handler's type");
                let unwritable = || mismatch("serde can't write the handler's type as an item");
                let current: Option<T> = match found {
                    None => None,
                    Some(item) => {
                        serde_dynamo::from_item(item.clone()).map_err(|_| unreadable())?
                    }
                };
                let mut item = found.cloned().unwrap_or_default();
                if let Some(current) = &current {
                    let known: Item = serde_dynamo::to_item(current).map_err(|_| unwritable())?;
                    item.retain(|name, _| !known.contains_key(name));
                }
                let (changed, output) = modify(current)?;
                let changed: Item = serde_dynamo::to_item(changed).map_err(|_| unwritable())?;
                item.extend(changed);
                Ok((item, to_result(&output)))
            }),
        })
    }

    /// Sets what to do after a failed condition check. By default, the operation fails permanently.
    ///
    /// `decide` returns a failure, or a replacement that updates or modifies the same item. The next delivery begins with
    /// the first change, and looks for its key only on the item of that change. So a replacement that changes another item
    /// fails permanently. The condition of a [`modify`](Self::modify) never fails.
    ///
    /// When the worker calls `decide`, nothing has been written. The function must have no effect, because a
    /// later delivery may call it again.
    pub fn on_condition_failed(
        self,
        decide: impl FnOnce(&ConditionFailed) -> Result<Self, Failure> + Send + 'static,
    ) -> Self {
        Self {
            on_condition_failed: Some(Box::new(decide)),
            ..self
        }
    }

    fn new(kind: Kind) -> Self {
        Self {
            kind,
            on_condition_failed: None,
            output: PhantomData,
        }
    }
}

impl<O> fmt::Debug for Change<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").finish_non_exhaustive()
    }
}
