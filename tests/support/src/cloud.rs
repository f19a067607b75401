//! Services outside of this process: an emulator at `AWS_ENDPOINT_URL`, or with `make test-aws` AWS itself.
//!
//! No test reaches AWS unless `SQS_ONCE_TEST_ACCOUNT` is set, also with credentials in the environment. Before a
//! test gets the services, the account of the credentials is compared with that variable.

use std::env;

use aws_config::{
    BehaviorVersion, Region, SdkConfig, environment::EnvironmentVariableCredentialsProvider,
};
use aws_sdk_dynamodb::config::SharedCredentialsProvider;
use tokio::sync::OnceCell;

/// The account that the tests may write to. `make test-aws` sets it.
const ACCOUNT: &str = "SQS_ONCE_TEST_ACCOUNT";
/// The prefix of all names in that account. At its end, `make test-aws` deletes all that has the prefix.
const RUN: &str = "SQS_ONCE_TEST_RUN";
const ENDPOINT: &str = "AWS_ENDPOINT_URL";

/// The variables that lead `make test-aws`, and a consumer of its tests, to the account.
const OF_ACCOUNT: [&str; 5] = [
    "AWS_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    ENDPOINT,
];

/// DynamoDB and SQS at one endpoint, or of one account.
pub struct Cloud {
    pub config: SdkConfig,
    /// Variables with which a function uses the same services.
    pub environment: Vec<(String, String)>,
    prefix: String,
    /// Reads of an empty queue's length after which it is empty. AWS counts with a delay.
    pub empty_reads: usize,
}

impl Cloud {
    /// The services of `make test-aws`, or those at `AWS_ENDPOINT_URL`. `None` if neither is set.
    pub async fn named() -> Option<Self> {
        if let Some(cloud) = Self::of_test_aws().await {
            return Some(cloud);
        }
        let endpoint = variable(ENDPOINT)?;
        Some(Self {
            config: super::sdk_config(&endpoint),
            environment: [
                ("AWS_REGION", super::REGION),
                ("AWS_ACCESS_KEY_ID", super::ACCESS_KEY),
                ("AWS_SECRET_ACCESS_KEY", super::ACCESS_KEY),
                (ENDPOINT, &endpoint),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
            prefix: "sqs-once".to_owned(),
            empty_reads: 1,
        })
    }

    /// The services of `make test-aws`, for tests that run in this process otherwise.
    ///
    /// # Panics
    ///
    /// If the credentials are those of an account other than the one in `SQS_ONCE_TEST_ACCOUNT`.
    pub async fn of_test_aws() -> Option<Self> {
        static COMPARED: OnceCell<()> = OnceCell::const_new();

        let account = variable(ACCOUNT)?;
        let prefix = variable(RUN).expect("`make test-aws` sets SQS_ONCE_TEST_RUN");
        let region = variable("AWS_REGION").expect("`make test-aws` sets AWS_REGION");
        let credentials = EnvironmentVariableCredentialsProvider::new();
        let mut config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(region))
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .http_client(super::http_client());
        let endpoint = variable(ENDPOINT);
        config.set_endpoint_url(endpoint.clone());
        let config = config.build();
        COMPARED
            .get_or_init(|| async {
                let sts = aws_sdk_sts::Client::new(&config);
                let caller = sts.get_caller_identity().send().await.unwrap();
                assert_eq!(caller.account(), Some(&*account), "{ACCOUNT}");
            })
            .await;
        let environment = OF_ACCOUNT
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), variable(name)?)));
        Some(Self {
            config,
            environment: environment.collect(),
            prefix,
            empty_reads: if endpoint.is_some() { 1 } else { 10 },
        })
    }

    /// A name that nothing else has.
    pub fn new_name(&self) -> String {
        format!("{}-{}", self.prefix, uuid::Uuid::new_v4())
    }
}

/// The value of a variable; `None` if it is empty, too.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
