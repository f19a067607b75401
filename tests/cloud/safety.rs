//! What would lose messages, money or secrets: in every template, in the Makefiles, and in the workflows that deploy.

use std::{fs, process::Command};

use serde_json::{Value, json};

use support::template::{
    CONSUMER, DASHBOARD, LARGE_BATCHES, STARTER, Template, list, of_type, parse, read, root,
    shipped, statements, variants,
};

const QUEUE: &str = "AWS::SQS::Queue";
const ALARM: &str = "AWS::CloudWatch::Alarm";

/// What is in them is nowhere else, and a replacement such as that of the overlay `fifo` would lose it too. A rolled back
/// creation deletes what it made, so that the next attempt finds the names free; a table is protected from deletion, so
/// the rollback itself would fail.
#[test]
fn queues_tables_and_logs_outlive_replacement_and_stack() {
    let mut found = 0;
    for (path, template) in shipped() {
        for (name, resource) in template["Resources"].as_object().unwrap() {
            let on_deletion = match resource["Type"].as_str().unwrap() {
                "AWS::DynamoDB::Table" => "Retain",
                QUEUE | "AWS::SQS::QueuePolicy" | "AWS::Logs::LogGroup" => "RetainExceptOnCreate",
                _ => {
                    assert!(resource["DeletionPolicy"].is_null(), "{path}: {name}");
                    continue;
                }
            };
            assert_eq!(resource["UpdateReplacePolicy"], "Retain", "{path}: {name}");
            assert_eq!(resource["DeletionPolicy"], on_deletion, "{path}: {name}");
            // A new stack can have it beside the old. The dead-letter queue names the other queue as its source.
            for fixed in ["QueueName", "TableName", "LogGroupName"] {
                let is_source = ["OrdersQueue", "Queue"].contains(&name.as_str());
                let free = is_source || resource["Properties"][fixed].is_null();
                assert!(free, "{path}: {name}");
            }
            found += 1;
        }
    }
    assert!(found >= 20, "{found} resources");
}

/// DynamoDB takes TLS only (Amazon SQS Developer Guide, "Security best practices", for queues).
#[test]
fn queues_refuse_purges_and_requests_without_tls() {
    let mut found = 0;
    for (path, template) in shipped() {
        let policies = of_type(&template, "AWS::SQS::QueuePolicy");
        for (queue, _) in of_type(&template, QUEUE) {
            let arn = json!({"!GetAtt": format!("{queue}.Arn")});
            let own = policies
                .iter()
                .filter(|(_, policy)| list(&policy["Queues"]).contains(&&json!({"!Ref": queue})));
            let statements: Vec<_> = own
                .flat_map(|(_, policy)| statements(&policy["PolicyDocument"]))
                .collect();
            let insecure = json!({"Bool": {"aws:SecureTransport": "false"}});
            for (action, condition) in [("sqs:PurgeQueue", Value::Null), ("sqs:*", insecure)] {
                let refuses = |statement: &&Value| {
                    statement["Effect"] == "Deny"
                        && statement["Principal"] == "*"
                        && list(&statement["Action"]).contains(&&json!(action))
                        && list(&statement["Resource"]).contains(&&arn)
                        && statement["Condition"] == condition
                };
                assert!(statements.iter().any(refuses), "{path}: {queue}, {action}");
            }
            found += 1;
        }
    }
    assert!(found >= 10, "{found} queues");
}

#[test]
fn statements_allow_no_wildcard() {
    for (path, template) in shipped() {
        let statements = statements(&template);
        assert!(statements.len() >= 4, "{path}: {statements:?}");
        for statement in statements.into_iter().flat_map(variants) {
            for never in ["NotAction", "NotResource", "NotPrincipal"] {
                assert!(statement[never].is_null(), "{path}: {statement}");
            }
            if statement["Effect"] == "Allow" {
                for part in ["Action", "Resource", "Principal"] {
                    assert!(
                        !statement[part].to_string().contains('*'),
                        "{path}: {statement}"
                    );
                }
            }
        }
    }
}

/// `sam deploy --guided` cannot leave a `NoEcho` parameter empty, and every other way to pass one shows it: in the
/// recipe that `make` echoes, in the list of processes, in a log of CI.
#[test]
fn no_parameter_holds_a_secret() {
    for (path, template) in shipped() {
        for (name, parameter) in template["Parameters"].as_object().unwrap() {
            assert!(parameter["NoEcho"].is_null(), "{path}: {name}");
        }
    }
}

#[test]
fn api_key_comes_from_a_named_secret_only() {
    let key = |values: &[_]| {
        Template::with(values).property("Consumer/Environment/Variables/PAYMENT_GATEWAY_API_KEY")
    };
    assert_eq!(key(&[]), "");
    assert_eq!(
        key(&[("PaymentGatewaySecret", "payments/gateway")]),
        "{{resolve:secretsmanager:payments/gateway:SecretString:apiKey}}"
    );
    let outputs = read(CONSUMER)["Outputs"].to_string();
    assert!(!outputs.contains("PaymentGatewaySecret"));
}

/// DynamoDB refuses a warm throughput below what the table has, so that a first deployment, a later and smaller number, or a
/// rollback would fail.
#[test]
fn tables_take_no_warm_throughput() {
    for (path, template) in shipped() {
        for (name, table) in of_type(&template, "AWS::DynamoDB::Table") {
            assert!(table["WarmThroughput"].is_null(), "{path}: {name}");
        }
    }
}

/// AWS: six function timeouts, plus the batching window. Every example has a literal, or the template's map.
#[test]
fn visibility_timeout_covers_timeouts_and_window() {
    let window = &read(LARGE_BATCHES)["Parameters"]["BatchingWindow"]["MaxValue"];
    let window = window.as_u64().unwrap();
    for (path, template) in shipped() {
        let number = |value: &Value| -> u64 {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            text.parse().unwrap()
        };
        for (name, queue) in of_type(&template, QUEUE) {
            let visibility = &queue["VisibilityTimeout"];
            if visibility.is_null() {
                continue; // a dead-letter queue
            }
            let parameter = &template["Parameters"]["FunctionTimeout"]["AllowedValues"];
            let functions = of_type(&template, "AWS::Serverless::Function");
            let timeouts = match &functions[0].1["Timeout"] {
                literal @ Value::Number(_) => vec![literal],
                _ => list(parameter),
            };
            for timeout in timeouts {
                let visibility = if visibility["!FindInMap"].is_null() {
                    number(visibility)
                } else {
                    let timeout = timeout.as_str().unwrap();
                    let template = Template::with(&[("FunctionTimeout", timeout)]);
                    number(&json!(template.property("OrdersQueue/VisibilityTimeout")))
                };
                let least = 6 * number(timeout) + window;
                assert!(
                    visibility >= least,
                    "{path}: {name}, {timeout}: {visibility} s"
                );
            }
        }
    }
}

/// Whether one event begins the alarm, such as a crash. It ends a minute later, when nothing was repaired.
fn is_of_an_event(alarm: &Value) -> bool {
    alarm["Statistic"] == "Sum"
        && alarm["EvaluationPeriods"] == 1
        && alarm["ComparisonOperator"] == "GreaterThanThreshold"
}

#[test]
fn alarms_of_events_do_not_notify_their_end() {
    let (mut events, mut others) = (0, 0);
    let overlay = (DASHBOARD.to_owned(), read(DASHBOARD));
    for (path, template) in shipped().into_iter().chain([overlay]) {
        for (name, alarm) in of_type(&template, ALARM) {
            let is_event = is_of_an_event(alarm);
            assert_eq!(alarm["OKActions"].is_null(), is_event, "{path}: {name}");
            *(if is_event { &mut events } else { &mut others }) += 1;
        }
    }
    assert!(events >= 6 && others >= 10, "{events}, {others}");
}

/// What somebody reads at three in the morning is the description.
#[test]
fn alarms_of_consumers_name_their_section_of_the_runbook() {
    let runbook = fs::read_to_string(root().join("docs/runbook.md")).unwrap();
    for path in [CONSUMER, STARTER] {
        let (_, template) = shipped().into_iter().find(|(of, _)| of == path).unwrap();
        for (name, alarm) in of_type(&template, ALARM) {
            let section = format!("/docs/runbook.md#{}", name.to_lowercase());
            let description = alarm["AlarmDescription"].as_str().unwrap();
            assert!(description.ends_with(&section), "{path}: {name}");
            assert!(runbook.contains(&format!("\n### {name}\n")), "{name}");
        }
    }
}

/// Own parameters may hold secrets, and SAM CLI shows the others.
#[test]
fn deploy_verbs_do_not_echo_parameters() {
    for path in ["Makefile", "crates/cli/template/Makefile"] {
        let makefile = fs::read_to_string(root().join(path)).unwrap();
        let recipes = makefile.lines().filter(|line| line.starts_with('\t'));
        let with_parameters: Vec<_> = recipes
            .filter(|line| line.contains("$(OVERRIDES)") || line.contains("$(PARAMETERS)"))
            .collect();
        assert!(with_parameters.len() >= 2, "{path}");
        for line in with_parameters {
            assert!(line.starts_with("\t@"), "{path}: {line}");
        }
    }
}

/// The jobs of all workflows, and of the example.
fn jobs() -> Vec<(String, Value)> {
    let files = fs::read_dir(root().join(".github/workflows")).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.push(root().join("examples/deploy.workflow.yaml"));
    let mut jobs = Vec::new();
    for path in paths {
        let workflow = parse(&fs::read_to_string(&path).unwrap());
        let path = path.display();
        assert!(
            !workflow["permissions"].to_string().contains("write"),
            "{path}: a permission of all jobs"
        );
        for (name, job) in workflow["jobs"].as_object().unwrap() {
            jobs.push((format!("{path}: {name}"), job.clone()));
        }
    }
    jobs
}

/// The job with the role takes the program from the job that ran every build script, and nothing else. `tar` could replace its
/// Makefile, and a template could name another account.
#[test]
fn deploying_job_takes_only_the_program() {
    let text = fs::read_to_string(root().join("examples/deploy.workflow.yaml")).unwrap();
    let workflow = parse(&text);
    let step = |job: &str, action: &str| {
        let steps = workflow["jobs"][job]["steps"].as_array().unwrap();
        let uses = |step: &Value| {
            step["uses"]
                .as_str()
                .unwrap_or_default()
                .starts_with(action)
        };
        let at = steps.iter().position(uses).unwrap();
        (at, steps[at]["with"].clone())
    };
    let (_, sent) = step("build", "actions/upload-artifact@");
    let program = ".aws-sam/build/Consumer/bootstrap";
    assert_eq!(sent["path"], program);
    let (received, to) = step("deploy", "actions/download-artifact@");
    assert_eq!(to["name"], sent["name"]);
    let folder = to["path"].as_str().unwrap();
    assert!(folder.starts_with("${{ runner.temp }}/"), "{folder}");
    let (credentials, _) = step("deploy", "aws-actions/configure-aws-credentials@");
    let steps = workflow["jobs"]["deploy"]["steps"].as_array().unwrap();
    let installs = steps.iter().position(|step| {
        let run = step["run"].as_str().unwrap_or_default();
        run.starts_with("install ") && run.ends_with(program)
    });
    // A link in the artifact could name a file, but here there is no secret yet.
    assert!(installs.is_some_and(|at| received < at && at < credentials));
    assert!(!text.contains("tar "), "unpacks an archive");
    for (makefile, overlay) in [
        ("Makefile", "tools/overlay.py"),
        (
            "crates/cli/template/Makefile",
            "'$(SQS_ONCE)/tools/overlay.py'",
        ),
    ] {
        let text = fs::read_to_string(root().join(makefile)).unwrap();
        let writes = format!("$(if $(BUILT),@python {overlay} --built template.yaml");
        assert!(text.contains(&writes), "{makefile}");
    }
}

/// GitHub refuses a workflow without an event, or with a job or step of another form.
#[test]
fn workflows_have_what_github_requires() {
    let mut found = 0;
    for (name, job) in jobs() {
        let path = name.split(": ").next().unwrap();
        let workflow = parse(&fs::read_to_string(path).unwrap());
        assert!(workflow["on"].is_object(), "{path}: no event");
        assert!(workflow["name"].is_string(), "{path}");
        let Some(steps) = job["steps"].as_array() else {
            continue;
        };
        assert!(job["runs-on"].is_string(), "{name}");
        for step in steps {
            assert!(
                step["uses"].is_string() != step["run"].is_string(),
                "{name}"
            );
        }
        for needed in list(&job["needs"]).into_iter().filter(|job| !job.is_null()) {
            assert!(
                workflow["jobs"][needed.as_str().unwrap()].is_object(),
                "{name}: {needed}"
            );
        }
        found += 1;
    }
    assert!(found >= 12, "{found} jobs");
}

/// A red CI must not leave programs with an attestation.
#[test]
fn release_needs_a_green_ci() {
    let release = parse(&fs::read_to_string(root().join(".github/workflows/release.yml")).unwrap());
    let waits = |job: &str, on: &str| list(&release["jobs"][job]["needs"]).contains(&&json!(on));
    for (job, on) in [
        ("publish", "ci"),
        ("publish", "tag"),
        ("release", "ci"),
        ("release", "tag"),
    ] {
        assert!(waits(job, on), "{job} does not wait for {on}");
    }
    assert_eq!(release["jobs"]["publish"]["environment"], "registry");
    let built = release["jobs"]["build"]["strategy"]["matrix"]["include"].as_array();
    assert_eq!(built.unwrap().len(), 2);
    let dist = expanded("make dist ARCH=x86_64");
    let tool = "--package sqs-once-cli --bin sqs-once --target x86_64-unknown-linux-gnu";
    assert!(dist.contains(tool), "{dist}");
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    for protection in ["required reviewers", "tag ruleset"] {
        assert!(page.contains(protection), "{protection}");
    }
}

/// The commands that a `make` command would run, one a line.
fn expanded(command: &str) -> String {
    let mut words = command.split_whitespace();
    assert_eq!(words.next(), Some("make"), "{command}");
    let make = Command::new("make")
        .arg("--dry-run")
        .args(words)
        .current_dir(root())
        .output();
    let make = make.unwrap();
    assert!(make.status.success(), "{command}: {make:?}");
    String::from_utf8(make.stdout).unwrap()
}

/// A build script of any dependency could use a job's token. The Python tools are pinned by hash.
#[test]
fn jobs_with_a_token_compile_nothing() {
    let mut with_token = 0;
    for (name, job) in jobs() {
        let Some(steps) = job["steps"].as_array() else {
            let workflow = job["uses"].as_str().unwrap(); // its jobs are among these
            assert!(workflow.starts_with("./.github/workflows/"), "{name}");
            continue;
        };
        for step in steps {
            let uses = step["uses"].as_str().unwrap_or_default();
            if uses.starts_with("actions/checkout@") {
                assert_eq!(step["with"]["persist-credentials"], false, "{name}");
            }
        }
        let has_role = steps
            .iter()
            .any(|step| step["uses"].to_string().contains("credentials@"));
        assert!(
            !has_role || job["permissions"]["id-token"] == "write",
            "{name}"
        );
        if job["permissions"]["id-token"] != "write" {
            continue;
        }
        with_token += 1;
        for command in steps.iter().filter_map(|step| step["run"].as_str()) {
            for line in command.lines() {
                let commands = if line.starts_with("make ") {
                    expanded(line)
                } else {
                    line.to_owned()
                };
                // It would compile without this option.
                let commands =
                    commands.replace("cargo publish --workspace --locked --no-verify", "");
                for compiles in ["cargo", "rustc", "sam build", "npm "] {
                    assert!(!commands.contains(compiles), "{name}: {line}: {commands}");
                }
            }
        }
    }
    assert!(
        with_token >= 3,
        "{with_token}: two of a release, and the deployment of the example"
    );
}
