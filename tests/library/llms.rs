//! `docs/llms.txt`, by which assistants find the pages, lists those of the book.

use std::{fs, path::Path};

use regex_lite::Regex;

#[test]
fn pages_for_assistants_are_those_of_the_book() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let links = |file: &str| -> Vec<(String, String)> {
        let page = Regex::new(
            r"(?m)^- \[(.+)\]\((?:https://github.com/sqs-once/sqs-once/blob/main/docs/)?([\w-]+\.md)\)",
        )
        .unwrap();
        let text = fs::read_to_string(docs.join(file)).unwrap();
        page.captures_iter(&text)
            .map(|link| (link[1].to_owned(), link[2].to_owned()))
            .collect()
    };
    let book = links("SUMMARY.md");
    assert!(book.len() > 20, "{book:?}");
    assert_eq!(links("llms.txt"), book);
}
