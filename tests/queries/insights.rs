//! As much of the query language of CloudWatch Logs Insights as the documents use. An unknown command
//! or function is an error, as in CloudWatch.

use std::collections::BTreeSet;

use regex_lite::Regex;
use serde_json::Value;

/// Fields that CloudWatch adds to each line.
const ADDED: [&str; 4] = ["@timestamp", "@message", "@logStream", "@requestId"];
/// Functions of one field's value, with their number of arguments.
const FUNCTIONS: [(&str, usize); 4] = [("ispresent", 1), ("isempty", 1), ("strlen", 1), ("bin", 1)];
const AGGREGATES: [(&str, usize); 7] = [
    ("count", 1),
    ("count_distinct", 1),
    ("sum", 1),
    ("avg", 1),
    ("min", 1),
    ("max", 1),
    ("pct", 2),
];

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Number(f64),
    Pattern(String),
    Sign(&'static str),
}

/// A query, ready to be applied to lines.
#[derive(Debug)]
pub(crate) struct Query {
    filters: Vec<Expression>,
    /// Fields of lines that the query shows, groups or filters by.
    pub(crate) fields: BTreeSet<String>,
}

#[derive(Debug)]
enum Expression {
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    Not(Box<Self>),
    IsPresent(String),
    Compare(String, &'static str, Vec<Value>),
    Like(String, Regex),
}

/// A reason why a query is invalid, or cannot be applied to a line.
pub(crate) type Problem = String;

impl Query {
    pub(crate) fn parse(text: &str) -> Result<Self, Problem> {
        let mut parser = Parser {
            tokens: tokens(text)?,
            at: 0,
            filters: Vec::new(),
            fields: BTreeSet::new(),
            names: BTreeSet::new(),
        };
        parser.command()?;
        while parser.takes("|") {
            parser.command()?;
        }
        match parser.peek() {
            None => Ok(Self {
                filters: parser.filters,
                fields: parser.fields,
            }),
            Some(token) => Err(format!("unexpected {token:?}")),
        }
    }

    /// Returns whether a line passes the filters.
    pub(crate) fn matches(&self, line: &Value) -> Result<bool, Problem> {
        for filter in &self.filters {
            if !filter.holds(line)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The value of a field: `span.requestId` is a member of a member.
pub(crate) fn field<'a>(line: &'a Value, name: &str) -> Option<&'a Value> {
    let found = name
        .split('.')
        .try_fold(line, |value, member| value.get(member));
    found.filter(|value| !value.is_null())
}

impl Expression {
    fn holds(&self, line: &Value) -> Result<bool, Problem> {
        match self {
            Self::And(left, right) => Ok(left.holds(line)? && right.holds(line)?),
            Self::Or(left, right) => Ok(left.holds(line)? || right.holds(line)?),
            Self::Not(inner) => inner.holds(line).map(|holds| !holds),
            Self::IsPresent(name) => Ok(field(line, name).is_some()),
            Self::Like(name, pattern) => {
                let value = field(line, name).map(shown);
                Ok(value.is_some_and(|value| pattern.is_match(&value)))
            }
            Self::Compare(name, sign, values) => {
                let Some(found) = field(line, name) else {
                    // AWS does not say whether a missing field differs from a value.
                    return match *sign {
                        "!=" => Err(format!("`{name} !=` on a line without {name}: {line}")),
                        _ => Ok(false),
                    };
                };
                Ok(match *sign {
                    "=" => values.iter().any(|value| shown(value) == shown(found)),
                    "!=" => values.iter().all(|value| shown(value) != shown(found)),
                    sign => {
                        let (Some(found), Some(limit)) = (found.as_f64(), values[0].as_f64())
                        else {
                            return Err(format!("{name} {sign} needs numbers"));
                        };
                        match sign {
                            "<" => found < limit,
                            "<=" => found <= limit,
                            ">" => found > limit,
                            _ => found >= limit,
                        }
                    }
                })
            }
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, Problem> {
    const SIGNS: [&str; 11] = ["!=", "<=", ">=", "=", "<", ">", "|", ",", "(", ")", "*"];
    let token = Regex::new(
        r#"(?x) ^ (?: "(?P<text>[^"]*)" | /(?P<pattern>(?:[^/\\]|\\.)+)/
        | (?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>[a-z]*) | (?P<word>[@A-Za-z_][\w@.]*) )"#,
    );
    let token = token.map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let length = if let Some(captured) = token.captures(rest) {
            let part = |name| captured.name(name).map(|part| part.as_str().to_owned());
            found.push(match (part("text"), part("pattern"), part("word")) {
                (Some(text), _, _) => Token::Text(text),
                (_, Some(pattern), _) => Token::Pattern(pattern),
                (_, _, Some(word)) => Token::Word(word),
                _ => match (part("number"), part("unit").filter(|u| !u.is_empty())) {
                    (Some(number), None) => Token::Number(number.parse().unwrap_or_default()),
                    (number, unit) => Token::Word(format!(
                        "{}{}",
                        number.unwrap_or_default(),
                        unit.unwrap_or_default()
                    )),
                },
            });
            captured[0].len()
        } else if let Some(bracket) = ["[", "]"].into_iter().find(|sign| rest.starts_with(sign)) {
            found.push(Token::Sign(bracket));
            1
        } else if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            found.push(Token::Sign(sign));
            sign.len()
        } else {
            return Err(format!("unknown character at `{rest}`"));
        };
        rest = rest[length..].trim_start();
    }
    Ok(found)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    filters: Vec<Expression>,
    fields: BTreeSet<String>,
    /// Names given by `as`.
    names: BTreeSet<String>,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Result<Token, Problem> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token.ok_or_else(|| "the query ends too early".into())
    }

    fn takes(&mut self, sign: &str) -> bool {
        let takes = matches!(self.peek(), Some(Token::Sign(found)) if *found == sign);
        self.at += usize::from(takes);
        takes
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let takes = matches!(self.peek(), Some(Token::Word(found)) if found == word);
        self.at += usize::from(takes);
        takes
    }

    fn expect(&mut self, sign: &'static str) -> Result<(), Problem> {
        if self.takes(sign) {
            return Ok(());
        }
        Err(format!("expected `{sign}`, found {:?}", self.peek()))
    }

    fn word(&mut self) -> Result<String, Problem> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            other => Err(format!("expected a name, found {other:?}")),
        }
    }

    fn count(&mut self) -> Result<usize, Problem> {
        match self.next()? {
            Token::Number(number) if number >= 1.0 => Ok(number as usize),
            other => Err(format!("expected a number, found {other:?}")),
        }
    }

    /// A field of a line, of CloudWatch, or a name given before.
    fn field(&mut self) -> Result<String, Problem> {
        let name = self.word()?;
        if name.starts_with('@') {
            if !ADDED.contains(&name.as_str()) {
                return Err(format!("unknown field {name}"));
            }
        } else if !self.names.contains(&name) {
            self.fields.insert(name.clone());
        }
        Ok(name)
    }

    fn list(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        item(self)?;
        while self.takes(",") {
            item(self)?;
        }
        Ok(())
    }

    fn command(&mut self) -> Result<(), Problem> {
        match self.word()?.as_str() {
            "fields" | "display" => self.list(|parser| parser.field().map(drop)),
            "filter" => {
                let filter = self.either()?;
                self.filters.push(filter);
                Ok(())
            }
            "stats" => {
                self.list(Self::aggregate)?;
                match self.takes_word("by") {
                    true => self.list(Self::group),
                    false => Ok(()),
                }
            }
            "sort" => self.list(|parser| {
                parser.field()?;
                let _ = parser.takes_word("asc") || parser.takes_word("desc");
                Ok(())
            }),
            "limit" => self.count().map(drop),
            other => Err(format!("unknown command {other}")),
        }
    }

    fn call(&mut self, known: &[(&str, usize)]) -> Result<String, Problem> {
        let name = self.word()?;
        let arity = known.iter().find(|(known, _)| *known == name);
        let (_, arity) = arity.ok_or_else(|| format!("unknown function {name}"))?;
        self.expect("(")?;
        if name == "bin" {
            let period = self.word()?;
            let periods = Regex::new("^[1-9][0-9]*[smhd]$").map_err(|error| error.to_string())?;
            if !periods.is_match(&period) {
                return Err(format!("unknown period {period}"));
            }
        } else if !(name == "count" && self.takes("*")) {
            self.field()?;
        }
        for _ in 1..*arity {
            self.expect(",")?;
            self.count()?;
        }
        self.expect(")")?;
        Ok(name)
    }

    fn aggregate(&mut self) -> Result<(), Problem> {
        self.call(&AGGREGATES)?;
        if self.takes_word("as") {
            let name = self.word()?;
            self.names.insert(name);
        }
        Ok(())
    }

    fn group(&mut self) -> Result<(), Problem> {
        match self.tokens.get(self.at + 1) {
            Some(Token::Sign("(")) => self.call(&FUNCTIONS).map(drop),
            _ => self.field().map(drop),
        }
    }

    fn either(&mut self) -> Result<Expression, Problem> {
        let mut left = self.both()?;
        while self.takes_word("or") {
            left = Expression::Or(Box::new(left), Box::new(self.both()?));
        }
        Ok(left)
    }

    fn both(&mut self) -> Result<Expression, Problem> {
        let mut left = self.condition()?;
        while self.takes_word("and") {
            left = Expression::And(Box::new(left), Box::new(self.condition()?));
        }
        Ok(left)
    }

    fn condition(&mut self) -> Result<Expression, Problem> {
        if self.takes_word("not") {
            return Ok(Expression::Not(Box::new(self.condition()?)));
        }
        if self.takes("(") {
            let inner = self.either()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.tokens.get(self.at + 1) == Some(&Token::Sign("(")) {
            let start = self.at;
            return match self.call(&FUNCTIONS)?.as_str() {
                "ispresent" => match &self.tokens[start + 2] {
                    Token::Word(name) => Ok(Expression::IsPresent(name.clone())),
                    other => Err(format!("expected a name, found {other:?}")),
                },
                other => Err(format!("{other} alone is no condition")),
            };
        }
        let name = self.field()?;
        let negated = self.takes_word("not");
        let condition = match self.next()? {
            Token::Word(word) if word == "in" => {
                self.expect("[")?;
                let mut values = Vec::new();
                self.list(|parser| {
                    values.push(parser.literal()?);
                    Ok(())
                })?;
                self.expect("]")?;
                Expression::Compare(name, "=", values)
            }
            Token::Word(word) if word == "like" => {
                let pattern = match self.next()? {
                    Token::Pattern(pattern) => pattern,
                    Token::Text(text) => regex_lite::escape(&text),
                    other => return Err(format!("expected a pattern, found {other:?}")),
                };
                let pattern = Regex::new(&pattern).map_err(|error| error.to_string())?;
                Expression::Like(name, pattern)
            }
            Token::Sign(sign @ ("=" | "!=" | "<" | "<=" | ">" | ">=")) if !negated => {
                Expression::Compare(name, sign, vec![self.literal()?])
            }
            other => return Err(format!("expected a comparison, found {other:?}")),
        };
        Ok(match negated {
            true => Expression::Not(Box::new(condition)),
            false => condition,
        })
    }

    fn literal(&mut self) -> Result<Value, Problem> {
        match self.next()? {
            Token::Text(text) => Ok(text.into()),
            Token::Number(number) => Ok(number.into()),
            other => Err(format!("expected a value, found {other:?}")),
        }
    }
}
