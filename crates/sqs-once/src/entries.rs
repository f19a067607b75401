//! [`entries`]: splits the lists in settings.

/// Splits a list at its commas, and trims each entry.
///
/// Each entry begins with `start`, and a comma that `start` doesn't follow is part of an entry. So with `/`, names in JSON
/// pointers may have commas. With an empty `start`, every comma separates two entries.
#[must_use]
pub fn entries<'t>(list: &'t str, start: &str) -> Vec<&'t str> {
    let mut ends: Vec<_> = list
        .match_indices(',')
        .map(|(comma, _)| comma)
        .filter(|comma| list[comma + 1..].trim_start().starts_with(start))
        .collect();
    ends.push(list.len());
    let mut begin = 0;
    let entry = |end| list[std::mem::replace(&mut begin, end + 1)..end].trim();
    ends.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_no_part_of_an_entry() {
        for (list, start, expected) in [
            ("", "", &[""][..]),
            ("a", "", &["a"]),
            (" a b ,\tc,, d\n", "", &["a b", "c", "", "d"]),
            (" /a , /b,\t/c ", "/", &["/a", "/b", "/c"]),
            (
                "/first name,/a, b ,é,/ü",
                "/",
                &["/first name", "/a, b ,é", "/ü"],
            ),
            ("/a,", "/", &["/a,"]),
        ] {
            assert_eq!(entries(list, start), expected, "{list:?}");
        }
    }
}
