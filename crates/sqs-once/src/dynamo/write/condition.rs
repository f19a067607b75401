//! Joins the conditions of a write.

pub(super) fn and(first: Option<&str>, second: &str) -> String {
    let second = without_outer_parentheses(second);
    match first.map(without_outer_parentheses) {
        None => second.to_owned(),
        Some(first) => format!("({first}) AND ({second})"),
    }
}

/// Removes parentheses around a whole condition.
///
/// DynamoDB rejects two pairs of parentheses around the same condition as redundant.
fn without_outer_parentheses(condition: &str) -> &str {
    let condition = condition.trim();
    parenthesised(condition).map_or(condition, without_outer_parentheses)
}

/// Returns the text between a first `(` and a last `)` that match each other.
fn parenthesised(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    let mut depth = 0_usize;
    for c in inner.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    (depth == 0).then_some(inner)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::dynamo::write::Write;

    #[test]
    fn condition_is_joined_to_existing_one() {
        let write = Write::put("t", HashMap::from([("id", "1")]));
        let write = write.when("a = :a OR b = :b").when("c = :c");
        let condition = write.action.condition_expression.unwrap();
        assert_eq!(condition, "(a = :a OR b = :b) AND (c = :c)");
        let check = Write::check("t", "a = :a").when("b = :b");
        assert_eq!(check.action.condition_expression, "(a = :a) AND (b = :b)");
    }

    #[test]
    fn parenthesised_condition_is_not_wrapped_again() {
        for (first, second, both) in [
            ("(a OR b)", "(c)", "(a OR b) AND (c)"),
            (" ( a OR b ) ", "((c))", "(a OR b) AND (c)"),
            (
                "(a) OR (b)",
                "((a) OR (b))",
                "((a) OR (b)) AND ((a) OR (b))",
            ),
            ("((a)) OR b", "f(a)", "(((a)) OR b) AND (f(a))"),
        ] {
            assert_eq!(and(Some(first), second), both);
        }
        for (alone, bare) in [("(a)", "a"), ("((a))", "a"), ("(a) OR (b)", "(a) OR (b)")] {
            assert_eq!(and(None, alone), bare);
        }
    }
}
