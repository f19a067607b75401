//! `sqs-once new`: creates a function's project from the template that the program contains.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{
    Args, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser as _},
};
use minijinja::{Environment, UndefinedBehavior, context, syntax::SyntaxConfig};

/// The commit of these sources. Empty if the build found none.
const COMMIT: &str = env!("SQS_ONCE_COMMIT");

/// Creates your own project: a handler with its tests, and the template that deploys it.
#[derive(Debug, Args)]
pub(crate) struct New {
    /// Name of the project, of its folder, and of the namespace of its keys.
    #[arg(value_parser = valid_name)]
    name: String,
    /// What a message changes.
    #[arg(long, value_enum, default_value_t = ChosenEffect::Outside)]
    effect: ChosenEffect,
    /// What names an operation: body:/FIELD of the JSON body, attribute:NAME of the message, or message-id.
    #[arg(long, default_value = "body:/orderId", value_parser = valid_key)]
    key: String,
    /// Makes the queue a FIFO queue.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "no", default_missing_value = "yes",
          value_parser = PossibleValuesParser::new(["yes", "no"]).map(|fifo| fifo == "yes"))]
    fifo: bool,
    /// Folder in which to create the project's folder.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Where Cargo finds the crate sqs-once: git, registry, or the path of a checkout.
    ///
    /// Version 0.1.0 is not yet published, so `registry` does not work yet.
    #[arg(long, default_value = "git")]
    source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ChosenEffect {
    /// Another system, which the handler calls.
    Outside,
    /// Up to 99 writes to DynamoDB, which commit together with the record.
    Inbox,
    /// One DynamoDB item, which stores the key itself.
    Item,
}

/// Where the project's Cargo finds the crate.
#[derive(Clone, Debug)]
enum Source {
    Git,
    Registry,
    /// The absolute path of a checkout.
    Checkout(String),
}

/// Why there is no project.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NewError {
    #[error("{0} exists; choose another name, or another folder with --dir")]
    Exists(PathBuf),
    #[error("could not write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "this program doesn't know its commit, from which a project gets its library and tools; build it from a clone or \
         a published package, or name a clone with --source"
    )]
    NoCommit,
    #[error("the template cannot be rendered: {0}")]
    Render(#[from] minijinja::Error),
}

macro_rules! files {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("../template/", $name)))),*] };
}

/// The template's files. Cargo.lock, a link to the workspace's, has the versions with which the crate was tested.
/// The name of Cargo.toml has a suffix, because Cargo doesn't package a folder that contains a Cargo.toml.
const FILES: [(&str, &str); 13] = files![
    ".gitignore" "AGENTS.md" "Cargo.lock" "Cargo.toml.jinja" "Makefile" "README.md" "events/orders.json" "events/rejected.json"
    "samconfig.toml" "src/end_to_end.rs" "src/handler.rs" "src/main.rs" "template.yaml"
];

impl New {
    /// Creates the project, and returns its folder.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder exists or can't be written. After a failed write, removes the project's folder.
    pub(crate) fn run(self) -> Result<PathBuf, NewError> {
        if COMMIT.is_empty() && !matches!(self.source, Source::Checkout(_)) {
            return Err(NewError::NoCommit);
        }
        let project = self.dir.join(&self.name);
        let files = self.render()?;
        fs::create_dir(&project).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => NewError::Exists(project.clone()),
            _ => NewError::Write {
                path: project.clone(),
                source,
            },
        })?;
        for (name, text) in files {
            let path = project.join(name);
            if let Err(source) = write(&path, &text) {
                // We report the first error, whether or not the rest can be removed.
                let _removed = fs::remove_dir_all(&project);
                return Err(NewError::Write { path, source });
            }
        }
        Ok(project)
    }

    fn render(&self) -> Result<Vec<(&'static str, String)>, minijinja::Error> {
        let mut jinja = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        jinja.set_syntax(syntax.keep_trailing_newline(true).build()?);
        jinja.set_undefined_behavior(UndefinedBehavior::Strict);
        let checkout = match &self.source {
            Source::Checkout(path) => Some(path.as_str()),
            Source::Git | Source::Registry => None,
        };
        let answers = context! {
            name => self.name.as_str(),
            // A stack's name can't have underscores.
            stack => self.name.replace('_', "-"),
            effect => self.effect.to_string(),
            key => self.key.as_str(),
            field => self.key.strip_prefix("body:/").unwrap_or("orderId"),
            attribute => self.key.strip_prefix("attribute:"),
            fifo => self.fifo,
            suffix => if self.fifo { ".fifo" } else { "" },
            dependency => self.source.to_string(),
            checkout,
            commit => COMMIT,
            version => env!("CARGO_PKG_VERSION"),
        };
        let render = |(name, text): (&'static str, &str)| {
            let rendered = jinja.render_str(text, &answers)?;
            Ok((name.strip_suffix(".jinja").unwrap_or(name), rendered))
        };
        FILES.into_iter().map(render).collect()
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}

impl fmt::Display for ChosenEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outside => "outside",
            Self::Inbox => "inbox",
            Self::Item => "item",
        })
    }
}

/// Writes the source as Cargo.toml names it.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Git => write!(
                f,
                r#"git = "https://github.com/sqs-once/sqs-once", rev = "{COMMIT}""#
            ),
            Self::Registry => f.write_str(r#"version = "0.1""#),
            Self::Checkout(path) => write!(f, r#"path = "{path}/crates/sqs-once""#),
        }
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "git" => return Ok(Self::Git),
            "registry" => return Ok(Self::Registry),
            _ => {}
        }
        let path = fs::canonicalize(text).map_err(|error| {
            format!("neither git nor registry, and no checkout of sqs-once: {error}")
        })?;
        if !path.join("crates/sqs-once/Cargo.toml").is_file() {
            return Err("no checkout of sqs-once: it has no crates/sqs-once".to_owned());
        }
        // The path is quoted in Cargo.toml and in the shell, but not in the Makefile.
        let is_plain = |c: char| !c.is_control() && !r#"'"\$#:"#.contains(c);
        let path = path.to_str().filter(|path| path.chars().all(is_plain));
        path.map(|path| Self::Checkout(path.to_owned()))
            .ok_or_else(|| r#"the path has one of ' " \ $ # :, which make reads"#.to_owned())
    }
}

/// Names that Cargo would confuse with a dependency or a build folder. Here, Cargo doesn't distinguish `_` and `-`.
const TAKEN: [&str; 9] = [
    "build",
    "deps",
    "examples",
    "incremental",
    "serde",
    "serde-json",
    "sqs-once",
    "tokio",
    "tracing",
];

fn valid_name(name: &str) -> Result<String, String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if !begins || name.len() < 2 || !name.chars().all(is_allowed) {
        return Err(
            "a name has two or more letters, digits, - and _, and begins with a letter".to_owned(),
        );
    }
    if TAKEN.contains(&&*name.replace('_', "-")) {
        return Err("Cargo uses this name; choose another one".to_owned());
    }
    Ok(name.to_owned())
}

fn valid_key(key: &str) -> Result<String, String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_valid = if let Some(field) = key.strip_prefix("body:/") {
        field.chars().all(is_word)
            && !field.is_empty()
            && !field.starts_with(|c: char| c.is_ascii_digit())
    } else if let Some(name) = key.strip_prefix("attribute:") {
        name.chars().all(|c| is_word(c) || ".-".contains(c)) && !name.is_empty()
    } else {
        key == "message-id"
    };
    is_valid.then(|| key.to_owned()).ok_or_else(|| {
        "a key is body:/FIELD, attribute:NAME or message-id; set others in template.yaml afterwards"
            .to_owned()
    })
}
