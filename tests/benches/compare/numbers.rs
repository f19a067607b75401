//! Numbers as the pages and the data files write them.

pub(crate) fn batch_of(messages: usize) -> String {
    format!("batch of {}", thousands(messages as f64))
}

/// Without decimals, and with commas.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let left = digits.len() - index;
        if index > 0 && left.is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits or more. Nothing where nothing was measured.
pub(crate) fn digits(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}
