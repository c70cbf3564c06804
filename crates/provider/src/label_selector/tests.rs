//! Selectors are read and written as by apimachinery.

use proptest::{prelude::*, sample::select};

use super::*;

fn shown(text: &str) -> Vec<String> {
    parse(text).unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn every_operator_is_read() {
    assert_eq!(shown("disk=ssd,gpu in (a100,h100),!old"), ["disk=ssd", "gpu in (a100,h100)", "!old"]);
    assert_eq!(shown("a==b,c!=d,e notin (f),g,h>5,i<6"), ["a=b", "c!=d", "e notin (f)", "g", "h>5", "i<6"]);
    assert_eq!(shown(" example.com/a  in ( x , y ) ,\t!b "), ["example.com/a in (x,y)", "!b"]);
    assert_eq!(shown(""), [""; 0]);
    assert_eq!(shown("  "), [""; 0]);
}

#[test]
fn values_may_be_empty_and_may_be_keywords() {
    assert_eq!(shown("a=,b!="), ["a=", "b!="]);
    assert_eq!(shown("a in (),b in (,),c in (x,,y)"), ["a in ()", "b in ()", "c in (x,,y)"]);
    assert_eq!(shown("in in (in,notin),notin=in,!in"), ["in in (in,notin)", "notin=in", "!in"]);
}

#[test]
fn text_that_is_not_a_selector_is_refused_with_a_reason() {
    for (text, words) in [
        (",", "a label was expected"),
        ("a,", "a label was expected"),
        ("!", "a label was expected"),
        ("a b", "after label a"),
        ("a in b", "no '('"),
        ("a in (b", "no ')'"),
        ("a in (b c)", "among the values of label a"),
        ("a in (b),,c", "a label was expected"),
        ("a=b=c", "expected ','"),
        ("!a=b", "expected ','"),
        ("a>", "a whole number"),
        ("a>b", "a whole number"),
        ("a<1.5", "a whole number"),
        ("a>9999999999999999999", "a whole number"),
        ("a=ä", "not a value of label a"),
        ("a=-b", "not a value of label a"),
        ("-a=b", "not a label"),
        ("a/b/c", "not a label"),
        ("/a", "not a label"),
        ("{\"disk\": \"ssd\"}", "not a label"),
    ] {
        let why = parse(text).unwrap_err().to_string();
        assert!(why.contains(words), "{text:?}: {why}");
    }
}

#[test]
fn keys_and_values_are_those_of_labels() {
    let long = |length: usize| "a".repeat(length);
    for good in ["a", "A.b_c-9", "example.com/a", "a-b.c/d", &long(63), &format!("{}/a", long(253))] {
        assert!(is_key(good), "{good}");
    }
    for bad in ["", "a/", "/a", "a b", "Example.com/a", "a_b/c", "a./b", "-a", "a-", &long(64)] {
        assert!(!is_key(bad), "{bad}");
    }
    assert!(!is_key(&format!("{}/a", long(254))));
    for (text, is_good) in
        [("", true), ("a", true), ("a.b", true), (".a", false), ("a/b", false), ("ä", false)]
    {
        assert_eq!(is_value(text), is_good, "{text}");
    }
}

const OPERATORS: [Operator; 8] = [
    Operator::Equals,
    Operator::NotEquals,
    Operator::In,
    Operator::NotIn,
    Operator::Exists,
    Operator::DoesNotExist,
    Operator::GreaterThan,
    Operator::LessThan,
];

fn requirements() -> impl Strategy<Value = Requirement> {
    let values = prop::collection::btree_set("[a-c]{0,2}|in", 1..4);
    (select(&["disk", "in", "example.com/gpu"][..]), select(&OPERATORS[..]), values, "[0-9]{1,3}").prop_map(
        |(key, operator, values, number)| {
            let mut values: Vec<String> = values.into_iter().collect();
            match operator {
                Operator::Equals | Operator::NotEquals => values.truncate(1),
                Operator::Exists | Operator::DoesNotExist => values.clear(),
                Operator::GreaterThan | Operator::LessThan => values = vec![number],
                Operator::In | Operator::NotIn => {}
            }
            Requirement::new(key, operator, values).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(all in prop::collection::vec(requirements(), 0..5)) {
        let text = all.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        prop_assert_eq!(parse(&text).unwrap(), all);
    }

    #[test]
    fn a_requirement_of_node_affinity_keeps_its_meaning(one in requirements()) {
        let expression = NodeSelectorRequirement::from(one.clone());
        let again = Requirement::try_from(&expression).unwrap();
        prop_assert_eq!(NodeSelectorRequirement::from(again), expression);
    }

    #[test]
    fn no_text_is_a_panic(text in "[a-c=!(),<> in/.-]{0,20}") {
        if let Ok(all) = parse(&text) {
            let again = all.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(parse(&again).unwrap(), all);
        }
    }
}
