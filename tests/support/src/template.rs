//! Templates of CloudFormation, parsed and evaluated.

#![allow(dead_code, reason = "each user has use for a part of it")]

use std::{collections::BTreeSet, fs, path::Path};

use regex_lite::{Captures, Regex};
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value, json};

/// The folder of the repository.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = here.ancestors();
    folders
        .find(|root| root.join("template.yaml").exists())
        .unwrap()
}

/// A template as JSON. CloudFormation's short forms become members: `{"!Ref": "Table"}`.
pub fn read(template: &str) -> Value {
    parse(&fs::read_to_string(root().join(template)).unwrap())
}

/// Every template that is shipped, by its path. That of the starter has the parts of all variants.
pub fn shipped() -> Vec<(String, Value)> {
    let examples = fs::read_dir(root().join("examples")).unwrap();
    let names = examples.map(|file| file.unwrap().file_name().into_string().unwrap());
    let examples = names.filter(|name| name.ends_with(".template.yaml"));
    let paths = examples.map(|name| format!("examples/{name}"));
    let paths = [CONSUMER, STARTER]
        .map(str::to_owned)
        .into_iter()
        .chain(paths);
    let jinja = Regex::new(r"(?s)\{%.*?%\}|\{\{ .*? \}\}").unwrap();
    let of = |path: String| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let text = jinja.replace_all(
            &text,
            |found: &Captures<'_>| {
                if found[0].starts_with("{%") { "" } else { "x" }
            },
        );
        (path, parse(&text))
    };
    paths.map(of).collect()
}

/// YAML with CloudFormation's short forms, as JSON.
pub fn parse(text: &str) -> Value {
    let documents = Yaml::load_from_str(text).unwrap();
    let [document] = documents.as_slice() else {
        panic!("not one document");
    };
    to_json(document)
}

fn to_json(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(truth)) => json!(truth),
        Yaml::Value(Scalar::Integer(n)) => json!(n),
        Yaml::Value(Scalar::FloatingPoint(n)) => json!(n.into_inner()),
        Yaml::Value(Scalar::String(text)) => json!(text),
        Yaml::Sequence(items) => items.iter().map(to_json).collect(),
        Yaml::Mapping(members) => members
            .iter()
            .map(|(name, value)| (name.as_str().unwrap().to_owned(), to_json(value)))
            .collect::<Map<_, _>>()
            .into(),
        Yaml::Tagged(tag, value) => json!({format!("!{}", tag.suffix): to_json(value)}),
        other => panic!("not in a template: {other:?}"),
    }
}

/// template.yaml with values of its parameters.
pub struct Template {
    parsed: Value,
    values: Vec<(String, String)>,
}

impl Template {
    pub fn with(values: &[(&str, &str)]) -> Self {
        let mut template = Self {
            parsed: read("template.yaml"),
            values: Vec::new(),
        };
        template.set(values);
        template
    }

    /// Gives the parameters these values, and all others their defaults.
    pub fn set(&mut self, values: &[(&str, &str)]) {
        let values = values.iter();
        self.values = values
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
    }

    pub fn parameter(&self, name: &str) -> &Value {
        &self.parsed["Parameters"][name]
    }

    /// The value of an expression of CloudFormation, as text. The name of a resource stands for it, and a
    /// required parameter without a value is empty.
    pub fn text(&self, expression: &Value) -> String {
        let argument = |name: &str| &expression[name];
        if let Some(name) = argument("!Ref").as_str() {
            if let Some((_, given)) = self.values.iter().find(|(given, _)| given == name) {
                return given.clone();
            }
            return match self.parameter(name) {
                Value::Null => name.to_lowercase(),
                required if required["Default"].is_null() => String::new(),
                parameter => self.text(&parameter["Default"]),
            };
        }
        if !argument("!If").is_null() {
            return self
                .chosen(expression)
                .map_or_else(String::new, |of| self.text(of));
        }
        if let Some(text) = argument("!Sub").as_str() {
            let name = Regex::new(r"\$\{(\w+)\}").unwrap();
            let value = |found: &Captures<'_>| self.text(&json!({"!Ref": found[1]}));
            return name.replace_all(text, value).into_owned();
        }
        if let Some([index, parts]) = argument("!Select").as_array().map(Vec::as_slice) {
            let [delimiter, of] = parts["!Split"].as_array().unwrap().as_slice() else {
                panic!("not evaluated here: {expression}");
            };
            let text = self.text(of);
            let index = index.as_u64().unwrap().try_into().unwrap();
            let part = text.split(delimiter.as_str().unwrap()).nth(index);
            return part.unwrap().to_owned();
        }
        if let Some([map, row, column]) = argument("!FindInMap").as_array().map(Vec::as_slice) {
            let row = self.text(row);
            let map = &self.parsed["Mappings"][map.as_str().unwrap()];
            return self.text(&map[row][column.as_str().unwrap()]);
        }
        match expression {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => panic!("not evaluated here: {other}"),
        }
    }

    /// What the conditions choose in place of a value, or `None` for `AWS::NoValue`.
    pub fn chosen<'a>(&self, mut value: &'a Value) -> Option<&'a Value> {
        while let Some([condition, yes, no]) = value["!If"].as_array().map(Vec::as_slice) {
            let condition = &self.parsed["Conditions"][condition.as_str().unwrap()];
            value = if self.is_met(condition) { yes } else { no };
        }
        (*value != json!({"!Ref": "AWS::NoValue"})).then_some(value)
    }

    fn is_met(&self, condition: &Value) -> bool {
        let arguments = |name: &str| condition[name].as_array().map(Vec::as_slice);
        if let Some([one, other]) = arguments("!Equals") {
            self.text(one) == self.text(other)
        } else if let Some([list, value]) = arguments("!Contains") {
            let value = self.text(value);
            (list.as_array().unwrap().iter()).any(|item| self.text(item) == value)
        } else if let Some(name) = condition["!Condition"].as_str() {
            self.is_met(&self.parsed["Conditions"][name])
        } else if let Some([condition]) = arguments("!Not") {
            !self.is_met(condition)
        } else if let Some(conditions) = arguments("!And") {
            conditions.iter().all(|condition| self.is_met(condition))
        } else if let Some(conditions) = arguments("!Or") {
            conditions.iter().any(|condition| self.is_met(condition))
        } else {
            panic!("not evaluated here: {condition}")
        }
    }

    /// Returns whether patterns and rules admit these values.
    pub fn admits(&self) -> bool {
        let matches = |(name, value): &(String, String)| {
            let pattern = &self.parameter(name)["AllowedPattern"];
            let pattern = pattern.as_str().map(|pattern| Regex::new(pattern).unwrap());
            pattern.is_none_or(|pattern| pattern.is_match(value))
        };
        let holds = |rule: &Value| {
            let applies = &rule["RuleCondition"];
            (!applies.is_null() && !self.is_met(applies))
                || (rule["Assertions"].as_array().unwrap().iter())
                    .all(|assertion| self.is_met(&assertion["Assert"]))
        };
        let rules = self.parsed["Rules"].as_object().unwrap();
        self.values.iter().all(matches) && rules.values().all(holds)
    }

    pub fn property(&self, path: &str) -> String {
        self.text(self.value(path))
    }

    /// The items of a property that the conditions leave in it.
    pub fn list(&self, path: &str) -> Vec<&Value> {
        let items = list(self.value(path)).into_iter();
        items.filter_map(|item| self.chosen(item)).collect()
    }

    fn value(&self, path: &str) -> &Value {
        let (resource, property) = path.split_once('/').unwrap();
        let property = format!("/Resources/{resource}/Properties/{property}");
        self.parsed.pointer(&property).unwrap()
    }
}

/// The consumer's template.
pub const CONSUMER: &str = "template.yaml";

/// Its overlays.
pub const DASHBOARD: &str = "overlays/dashboard.yaml";
pub const FIFO: &str = "overlays/fifo.yaml";
pub const LARGE_BATCHES: &str = "overlays/large-batches.yaml";
pub const S3_BODIES: &str = "overlays/s3-bodies.yaml";
pub const VPC: &str = "overlays/vpc.yaml";

/// The template of a project that `sqs-once new` makes.
pub const STARTER: &str = "crates/cli/template/template.yaml";

/// One value, or a list of values.
pub fn list(value: &Value) -> Vec<&Value> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(items) => items.iter().collect(),
        one => vec![one],
    }
}

/// The consumer's template with the alarms and the dashboard of an overlay.
pub fn with_dashboard() -> Value {
    let (mut template, mut overlay) = (read(CONSUMER), read(DASHBOARD));
    for part in ["Resources", "Outputs"] {
        let added = overlay[part].as_object_mut().unwrap();
        template[part].as_object_mut().unwrap().append(added);
    }
    template
}

pub fn of_type<'a>(template: &'a Value, kind: &str) -> Vec<(&'a str, &'a Value)> {
    let resources = template["Resources"].as_object().unwrap().iter();
    resources
        .filter(|(_, resource)| resource["Type"] == kind)
        .map(|(name, resource)| (name.as_str(), &resource["Properties"]))
        .collect()
}

/// Every statement of every policy in the template.
pub fn statements(value: &Value) -> Vec<&Value> {
    let inner = match value {
        Value::Array(items) => items.iter().flat_map(statements).collect(),
        Value::Object(members) => members.values().flat_map(statements).collect(),
        _ => Vec::new(),
    };
    let own = if value["Statement"].is_null() {
        Vec::new()
    } else {
        list(&value["Statement"])
    };
    [own, inner].concat()
}

/// A statement, or both that a condition chooses from.
pub fn variants(statement: &Value) -> Vec<&Value> {
    match statement["!If"].as_array() {
        Some(choice) => choice[1..].iter().collect(),
        None => vec![statement],
    }
}

/// The value under exactly these `conditions` of the template, or `None` for `AWS::NoValue`.
pub fn met<'a>(value: &'a Value, conditions: &[&str]) -> Option<&'a Value> {
    let Some(choice) = value["!If"].as_array() else {
        return (*value != json!({"!Ref": "AWS::NoValue"})).then_some(value);
    };
    let [condition, met_value, unmet] = choice.as_slice() else {
        panic!("{value}");
    };
    let is_met = conditions.contains(&condition.as_str().unwrap());
    met(if is_met { met_value } else { unmet }, conditions)
}

/// Pairs of an action and the resource that it is allowed on.
pub fn allowed(statement: &Value, conditions: &[&str]) -> BTreeSet<(String, String)> {
    assert_eq!(statement["Effect"], "Allow", "{statement}");
    let mut allowed = BTreeSet::new();
    for resource in list(&statement["Resource"]) {
        let resource = met(resource, conditions).unwrap();
        let mut names = ["!GetAtt", "!Ref", "!Sub"].into_iter();
        let found = names.find_map(|name| resource[name].as_str());
        let arn = found.unwrap_or_else(|| panic!("{statement}"));
        for action in list(&statement["Action"]) {
            allowed.insert((action.as_str().unwrap().to_owned(), arn.to_owned()));
        }
    }
    allowed
}

/// The condition of a table that the stack makes: it is met by default.
pub const OWN_TABLE: &str = "MakesTable";

/// The actions that the consumer's role allows under these conditions, each with its resource. The stack has a table of
/// its own.
pub fn consumer_may(conditions: &[&str]) -> BTreeSet<(String, String)> {
    function_may(CONSUMER, &[conditions, &[OWN_TABLE]].concat())
}

pub fn is_assumed_by(role: &Value, service: &str) -> bool {
    let document = role["AssumeRolePolicyDocument"].to_string();
    document.contains(&format!("{service}.amazonaws.com"))
}

pub fn function_may(template: &str, conditions: &[&str]) -> BTreeSet<(String, String)> {
    let template = read(template);
    let mut roles = of_type(&template, "AWS::IAM::Role");
    roles.retain(|(_, role)| is_assumed_by(role, "lambda"));
    let [(_, role)] = roles.as_slice() else {
        panic!("more than the function's role: {roles:?}");
    };
    let policies = list(&role["Policies"]).into_iter();
    let documents = policies.map(|policy| &policy["PolicyDocument"]);
    documents
        .flat_map(statements)
        .filter_map(|statement| met(statement, conditions))
        .flat_map(|statement| allowed(statement, conditions))
        .collect()
}
