use std::{collections::BTreeSet, fs, path::Path};

use super::*;

/// The documents of the contract for providers.
const CONTRACT: [&str; 10] = [
    "crates/provider/src/provider.rs",
    "crates/provider/src/pod.rs",
    "crates/provider/src/node.rs",
    "crates/provider/src/error.rs",
    "crates/provider/src/resolve.rs",
    "crates/provider/src/ability.rs",
    "crates/provider/src/ability/logs.rs",
    "crates/provider/src/ability/session.rs",
    "crates/provider/src/ability/stats.rs",
    "crates/provider/src/ability/fit.rs",
];

/// The text of a document without comment marks and line ends.
fn text_of(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join(path)).unwrap();
    let words = text.lines().flat_map(|line| {
        let line = line.trim_start().trim_start_matches("///").trim_start_matches("//!");
        line.split_whitespace()
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn every_case_quotes_the_contract() {
    let contract = CONTRACT.map(text_of);
    for case in cases() {
        assert!(
            contract.iter().any(|text| text.contains(case.rule)),
            "{}: not in the contract: {:?}",
            case.name,
            case.rule
        );
    }
}

#[test]
fn case_names_are_unique() {
    let names: BTreeSet<&str> = cases().iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases().len());
    assert!(names.len() >= 40);
    assert!(Case::named("a_second_create_adopts").is_some());
}
