//! The section of benches/RESULTS.md that `benches/postgres` writes. `benches/compare` writes the rest.

pub(crate) const TITLE: &str = "\n## PostgreSQL\n";

/// The page without the section, and the section.
pub(crate) fn split(page: &str) -> (&str, &str) {
    page.split_at(page.find(TITLE).unwrap_or(page.len()))
}
