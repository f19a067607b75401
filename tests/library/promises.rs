//! The table of docs/testing.md: each guarantee, and flaws against it that docs/flaws.md has.

const TESTING: &str = include_str!("../../docs/testing.md");
const GUARANTEES: &str = include_str!("../../docs/concepts.md");
const FLAWS: &str = include_str!("../../docs/flaws.md");

/// The numbered guarantees, by the bold words with which each begins on the page.
fn guarantees() -> impl Iterator<Item = String> {
    let (_, chapter) = GUARANTEES.split_once("\n## Guarantees\n").unwrap();
    chapter.lines().filter_map(|line| {
        let (number, rest) = line.split_once(". **")?;
        let (name, _) = rest.split_once(".**")?;
        number.parse::<usize>().ok()?;
        Some(format!("| {number}. {name} | "))
    })
}

#[test]
fn each_guarantee_names_flaws_against_it() {
    assert_eq!(guarantees().count(), 7);
    for guarantee in guarantees() {
        let mut rows = TESTING.lines();
        let row = rows
            .find_map(|line| line.strip_prefix(&guarantee))
            .unwrap_or_else(|| panic!("no row {guarantee}"));
        let flaws: Vec<_> = row.split('`').skip(1).step_by(2).collect();
        assert!(!flaws.is_empty(), "{guarantee}");
        for flaw in flaws {
            assert!(FLAWS.contains(&format!("\n| {flaw} | ")), "{flaw}");
        }
    }
}
