//! Credentials as companies give them to people.

use std::{fs, path::Path};

use crate::{Ended, dead_letters::in_a_world, tool};

/// Lists dead letters with a profile in place of keys.
async fn list(endpoint: &str, queue: &str, folder: &Path, profile: &str) -> Ended {
    let config = folder.join("config");
    fs::write(&config, format!("[profile company]\n{profile}\n")).unwrap();
    let mut command = tool(endpoint, &["dlq", "list", queue]);
    command
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY")
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", folder)
        .env("AWS_CONFIG_FILE", &config)
        .env("AWS_SHARED_CREDENTIALS_FILE", folder.join("none"))
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_PROFILE", "company");
    Ended::of(command.output().await.unwrap())
}

const OF_IDENTITY_CENTER: &str = "sso_session = company
sso_account_id = 123456789012
sso_role_name = on-call
[sso-session company]
sso_region = eu-central-1
sso_start_url = https://company.awsapps.com/start";

#[tokio::test]
async fn profile_of_a_company_works_or_says_how_to_sign_in() {
    in_a_world(false, async |world| {
        world.failed("permanent_failure", "p#1").await;
        let folder = std::env::temp_dir().join(format!("sqs-once-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&folder).unwrap();
        let keys = r#"{"Version": 1, "AccessKeyId": "test", "SecretAccessKey": "test"}"#;
        let process = format!("credential_process = echo '{keys}'");
        let listed = list(&world.endpoint, &world.dead, &folder, &process).await;
        assert_eq!(listed.code, 0, "{listed:?}");
        assert!(listed.stdout.contains("1 message received"), "{listed:?}");
        for (profile, told) in [
            (OF_IDENTITY_CENTER, "aws sso login"),
            (
                "login_session = arn:aws:iam::123456789012:user/on-call\nregion = eu-central-1",
                "aws login",
            ),
            ("credential_process = false", "check AWS_PROFILE"),
        ] {
            let refused = list(&world.endpoint, &world.dead, &folder, profile).await;
            assert_eq!(refused.code, 3, "{refused:?}");
            assert!(refused.stderr.contains(told), "{refused:?}");
            assert!(!refused.stderr.contains("feature"), "{refused:?}");
        }
        fs::remove_dir_all(&folder).unwrap();
    })
    .await;
}
