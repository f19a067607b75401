//! [`Change`]: what a handler wants of one item.

use std::{fmt, marker::PhantomData};

#[cfg(feature = "testing")]
use aws_sdk_dynamodb::types::TransactWriteItem;
use aws_sdk_dynamodb::types::{ConditionCheck, Put, Update};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    dynamodb::{
        item::Item,
        refused::Refused,
        write::{IntoWrite, Write},
    },
    handler::{Answer, Failure, OnRefused, to_result},
    protocol::StoredResult,
};

/// An output, and the change of one item that it stands for: made exactly once, because the item
/// itself remembers the idempotency keys of its changes. For [`OnItem`](crate::OnItem).
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
    pub(super) on_refused: Option<OnRefused<Change<O>>>,
    output: PhantomData<fn() -> O>,
}

pub(super) type Modify =
    Box<dyn FnMut(Option<&Item>) -> Result<(Item, StoredResult), Failure> + Send>;

pub(super) enum Kind {
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

/// The failure of a change that takes the place of a refused one, and is of another item.
pub(super) const OTHER_ITEM: &str = "a change that was refused may become another of the same item, and this one is of \
                           another; nothing was written (where either of two items may change, use an inbox)";

impl Kind {
    /// A table, and attributes of the item there, its whole key among them.
    fn place(&self) -> (&str, &Item) {
        match self {
            Self::Create { put, .. } => (put.table(), &put.action.item),
            Self::Update { update, .. } => (update.table(), &update.action.key),
            Self::Modify { target, .. } => (target.table(), &target.action.key),
        }
    }

    /// The same, for later.
    pub(super) fn item(&self) -> (String, Item) {
        let (table, attributes) = self.place();
        (table.to_owned(), attributes.clone())
    }

    /// Returns whether it changes that item. An existing item can't be created, so no create does.
    pub(super) fn is_of(&self, (table, attributes): &(String, Item)) -> bool {
        let (its_table, its_key) = self.place();
        !matches!(self, Self::Create { .. })
            && its_table == table
            && (its_key.iter()).all(|(name, value)| attributes.get(name) == Some(value))
    }
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send> Answer for Change<O> {
    type Result = O;
}

impl<O: Serialize> Change<O> {
    /// Makes an item that must not be there yet. `key` is an attribute of its primary key.
    ///
    /// If it is there, and this operation did not make it, that is refused like a condition of
    /// the put's own.
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

    /// Updates an item, under whatever condition the update has.
    pub fn update(output: O, update: impl IntoWrite<Action = Update>) -> Self {
        Self::new(Kind::Update {
            update: update.into_write(),
            result: to_result(&output),
        })
    }

    /// Reads the item of `table` under `key`, has `modify` make another of it, and writes that if
    /// nobody changed the item meanwhile; else it begins anew with the item as it is then.
    ///
    /// `key` is the item's primary key: one attribute, or two where the table has a sort key.
    ///
    /// `modify` gets `None` where there is no item, and is not called for an operation that the
    /// item has seen. It may be called several times, so it must have no effect of its own.
    /// Attributes that `T` does not know stay as they are. There will be some, so `T` must let
    /// them pass: no `serde(deny_unknown_fields)`. A set that `T` knows is written as a list, unless
    /// `T` says otherwise (`serde_dynamo::string_set` and its like). DynamoDB stores no empty set, so
    /// an attribute whose set became empty is removed: mark the field `#[serde(default)]`.
    ///
    /// An attribute `version` counts the changes; what writes to the item without an
    /// [`OnItem`](crate::OnItem) must count too.
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
                // serde's own words may quote the item.
                let strange =
                    |what: &str| Failure::permanent(format!("an item of table `{table}` {what}"));
                let current: Option<T> = match found {
                    None => None,
                    Some(item) => serde_dynamo::from_item(item.clone())
                        .map_err(|_| strange("is not of the handler's type"))?,
                };
                let mut item = found.cloned().unwrap_or_default();
                if let Some(current) = &current {
                    let known: Item = serde_dynamo::to_item(current)
                        .map_err(|_| strange("can't be made of the handler's type"))?;
                    item.retain(|name, _| !known.contains_key(name));
                }
                let (changed, output) = modify(current)?;
                let changed: Item = serde_dynamo::to_item(changed)
                    .map_err(|_| strange("can't be made of the handler's type"))?;
                item.extend(changed);
                Ok((item, to_result(&output)))
            }),
        })
    }

    /// Decides what follows from a condition that is not met: a failure, or an update or modification of
    /// the same item in place of this one. Without it, the operation has failed permanently. So it has
    /// where the change in its place is of another item: that would not be looked at when the
    /// message is delivered again. A [`modify`](Self::modify) is never refused.
    ///
    /// Nothing was written when this is asked. It is for deciding, not for effects: it may be
    /// asked again for the same message.
    pub fn on_refused(
        self,
        decide: impl FnOnce(&Refused) -> Result<Self, Failure> + Send + 'static,
    ) -> Self {
        Self {
            on_refused: Some(Box::new(decide)),
            ..self
        }
    }

    fn new(kind: Kind) -> Self {
        Self {
            kind,
            on_refused: None,
            output: PhantomData,
        }
    }
}

/// A change as the write that would be sent, without the item's memory of keys.
#[cfg(feature = "testing")]
pub(crate) struct PlannedChange<O> {
    pub(crate) write: Write<TransactWriteItem>,
    pub(crate) result: StoredResult,
    item: (String, Item),
    on_refused: Option<OnRefused<Change<O>>>,
}

#[cfg(feature = "testing")]
impl<O> Change<O> {
    /// Plans the change. `item` reads an item of a table by its key.
    pub(crate) fn plan(
        self,
        item: impl FnOnce(&str, &Item) -> Option<Item>,
    ) -> Result<PlannedChange<O>, Failure> {
        let of = self.kind.item();
        let table = of.0.clone();
        let (write, result) = match self.kind {
            Kind::Create { put, key, result } => {
                if put.fault.is_none() && !put.action.item.contains_key(&key) {
                    return Err(Failure::permanent(format!(
                        "the item to create has no attribute `{key}`, which is said to be of its primary key; nothing was written"
                    )));
                }
                (put.into_item(), result)
            }
            Kind::Update { update, result } => (update.into_item(), result),
            Kind::Modify { target, mut modify } => {
                let found = item(&table, &target.action.key);
                let (mut changed, result) = modify(found.as_ref())?;
                changed.extend(target.action.key.clone());
                let mut put = Write::put_item(&table, changed);
                put.fault = target.fault;
                (put.into_item(), result)
            }
        };
        if let Some(fault) = &write.fault {
            return Err(Failure::permanent(format!("{fault}; nothing was written")));
        }
        Ok(PlannedChange {
            write,
            result,
            item: of,
            on_refused: self.on_refused,
        })
    }
}

#[cfg(feature = "testing")]
impl<O> PlannedChange<O> {
    /// Decides what follows from a refused condition.
    pub(crate) fn refused(self, refused: &Refused) -> Result<Change<O>, Failure> {
        let Some(decide) = self.on_refused else {
            return Err(Failure::permanent(refused.to_string()));
        };
        let next = decide(refused)?;
        if next.kind.is_of(&self.item) {
            Ok(next)
        } else {
            Err(Failure::permanent(OTHER_ITEM))
        }
    }
}

impl<O> fmt::Debug for Change<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").finish_non_exhaustive()
    }
}
