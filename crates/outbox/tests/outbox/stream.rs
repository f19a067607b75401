//! An outbox table, and a reader of its stream.

use aws_sdk_dynamodb::{
    Client,
    types::{
        AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
        StreamSpecification, StreamViewType,
    },
};
use serde_json::{Value, json};
use support::dynamo::forwarder;

/// Creates an outbox table as examples/outbox.template.yaml has it.
pub(crate) async fn create_outbox(client: &Client, name: &str) {
    let mut create = client
        .create_table()
        .table_name(name)
        .billing_mode(BillingMode::PayPerRequest)
        .stream_specification(
            StreamSpecification::builder()
                .stream_enabled(true)
                .stream_view_type(StreamViewType::NewImage)
                .build()
                .unwrap(),
        );
    for (attribute, role) in [("group", KeyType::Hash), ("sequence", KeyType::Range)] {
        let definition = AttributeDefinition::builder()
            .attribute_name(attribute)
            .attribute_type(ScalarAttributeType::S);
        let key = KeySchemaElement::builder()
            .attribute_name(attribute)
            .key_type(role);
        create = create
            .attribute_definitions(definition.build().unwrap())
            .key_schema(key.build().unwrap());
    }
    create.send().await.unwrap();
}

/// Reads the stream of a table from its start.
pub(crate) struct Stream {
    http: reqwest::Client,
    endpoint: String,
    iterator: String,
}

impl Stream {
    pub(crate) async fn open(client: &Client, endpoint: &str, table: &str) -> Self {
        let described = client
            .describe_table()
            .table_name(table)
            .send()
            .await
            .unwrap();
        let arn = described.table.unwrap().latest_stream_arn.unwrap();
        let mut stream = Self {
            http: forwarder(),
            endpoint: endpoint.to_owned(),
            iterator: String::new(),
        };
        let described = stream
            .ask("DescribeStream", &json!({ "StreamArn": arn }))
            .await;
        let shard = &described["StreamDescription"]["Shards"][0]["ShardId"];
        let start =
            json!({ "StreamArn": arn, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON" });
        let answer = stream.ask("GetShardIterator", &start).await;
        answer["ShardIterator"]
            .as_str()
            .unwrap()
            .clone_into(&mut stream.iterator);
        stream
    }

    /// All records so far, in order.
    pub(crate) async fn read(&mut self) -> Vec<Value> {
        let mut read = Vec::new();
        loop {
            let get = json!({ "ShardIterator": self.iterator });
            let mut answer = self.ask("GetRecords", &get).await;
            answer["NextShardIterator"]
                .as_str()
                .unwrap()
                .clone_into(&mut self.iterator);
            let Value::Array(records) = answer["Records"].take() else {
                panic!("no records: {answer}");
            };
            if records.is_empty() {
                return read;
            }
            read.extend(records);
        }
    }

    async fn ask(&self, operation: &str, body: &Value) -> Value {
        let request = self
            .http
            .post(&self.endpoint)
            .header("x-amz-target", format!("DynamoDBStreams_20120810.{operation}"))
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-date", "20261122T000000Z")
            .header(
                "authorization",
                "AWS4-HMAC-SHA256 Credential=test/20261122/eu-central-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0",
            )
            .body(body.to_string());
        let answer = request.send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        assert!(status.is_success(), "{operation}: {status} {text}");
        serde_json::from_str(&text).unwrap()
    }
}
