//! The records of an S3 event notification, with decoded object keys.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::value::RawValue;

use super::content::{Content, Raw, object, text};
use crate::handler::{EnvelopeMetadata, InvalidMessage};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct S3Record<'a> {
    #[serde(rename = "eventSource")]
    _source: S3,
    #[serde(borrow)]
    event_name: Raw<'a>,
    #[serde(borrow)]
    event_time: Raw<'a>,
    #[serde(borrow, deserialize_with = "only_object")]
    s3: S3Entity<'a>,
}

#[derive(Deserialize)]
enum S3 {
    #[serde(rename = "aws:s3")]
    S3,
}

#[derive(Deserialize)]
struct S3Entity<'a> {
    #[serde(borrow)]
    bucket: Option<S3Bucket<'a>>,
    #[serde(borrow)]
    object: Option<S3Object<'a>>,
}

#[derive(Deserialize)]
struct S3Bucket<'a> {
    #[serde(borrow)]
    arn: Raw<'a>,
}

#[derive(Deserialize)]
struct S3Object<'a> {
    #[serde(borrow)]
    key: Raw<'a>,
}

/// Returns the list of records with decoded object keys, or `None` if these are not S3 records. Everything else stays as S3
/// wrote it.
pub(super) fn content(records: &RawValue) -> Option<Result<Content, InvalidMessage>> {
    let list = records.get();
    let records: Vec<&RawValue> = serde_json::from_str(list).ok()?;
    let records: Vec<S3Record<'_>> = (records.into_iter())
        .map(|record| object(record.get()))
        .collect::<Option<_>>()?;
    let first = records.first()?;
    let bucket = first.s3.bucket.as_ref();
    let facts = EnvelopeMetadata {
        id: None,
        source: bucket.and_then(|bucket| text(bucket.arn)),
        detail_type: text(first.event_name),
        time: text(first.event_time),
    };
    Some(with_decoded_keys(list, &records).map(|body| Content {
        body,
        attributes: HashMap::new(),
        facts,
    }))
}

fn only_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(value: D) -> Result<T, D::Error> {
    let value = <&RawValue>::deserialize(value)?;
    object(value.get()).ok_or_else(|| D::Error::custom("not an object"))
}

/// Decodes the object key of each record. The keys are parts of `list`.
fn with_decoded_keys(list: &str, records: &[S3Record<'_>]) -> Result<String, InvalidMessage> {
    let (mut decoded, mut rest) = (String::with_capacity(list.len()), list);
    for (index, record) in records.iter().enumerate() {
        let Some(raw) = record.s3.object.as_ref().and_then(|object| object.key) else {
            continue;
        };
        let key = text(Some(raw)).as_deref().and_then(decode_object_key);
        let key = key.and_then(|key| serde_json::to_string(&key).ok());
        let key = key.ok_or_else(|| {
            InvalidMessage(format!(
                "the object key of record {index} of the S3 event notification is not URL-encoded UTF-8"
            ))
        })?;
        let (before, from_key) = rest.split_at(raw.get().as_ptr().addr() - rest.as_ptr().addr());
        decoded.extend([before, &key]);
        rest = &from_key[raw.get().len()..];
    }
    decoded.push_str(rest);
    Ok(decoded)
}

/// Decodes an object key of an S3 event notification: `+` is a space, and `%XX` a byte of UTF-8.
fn decode_object_key(key: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn decoded(list: &str) -> Result<String, InvalidMessage> {
        let content = content(serde_json::from_str(list).unwrap());
        content.unwrap().map(|content| content.body)
    }

    #[test]
    fn object_keys_are_decoded_as_s3_encodes_them() {
        for (encoded, key) in [
            ("plain.txt", Some("plain.txt")),
            ("my+photo%281%29.jpg", Some("my photo(1).jpg")),
            ("Bestellungen/%C3%A4.csv", Some("Bestellungen/ä.csv")),
            ("a%2Bb", Some("a+b")),
            ("a%22%5Cb", Some("a\"\\b")),
            ("%", None),
            ("%4", None),
            ("%GG", None),
            ("%FF", None),
        ] {
            let list = json!([{"eventSource": "aws:s3", "s3": {"object": {"key": encoded}}}]);
            let found = decoded(&list.to_string()).ok().map(|list| {
                let list: Value = serde_json::from_str(&list).unwrap();
                list[0]["s3"]["object"]["key"].as_str().unwrap().to_owned()
            });
            assert_eq!(found.as_deref(), key, "{encoded}");
        }
    }

    #[test]
    fn records_of_s3_stay_as_written_but_for_keys() {
        let list = r#"[ {"s3":{"object":{ "key" : "a+b","size":1E3},"x":[{}]}, "eventSource":"aws:s3"},
            {"eventSource":"aws:s3","s3":{}},{"eventSource":"aws:s3","s3":{"object":{"key":"%41"}}} ]"#;
        let expected = list.replace("a+b", "a b").replace("%41", "A");
        assert_eq!(decoded(list), Ok(expected));
    }
}
