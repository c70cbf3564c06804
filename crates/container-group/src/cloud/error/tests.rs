use super::*;

fn all() -> Vec<Class> {
    vec![
        Class::NotFound,
        Class::Conflict,
        Class::Invalid { field: None },
        Class::Quota,
        Class::Capacity(Shortage::Zone),
        Class::Throttled { after: Some(Duration::from_secs(3)) },
        Class::Auth,
        Class::ExpiredToken,
        Class::ClockSkew,
        Class::Transient,
        Class::Ambiguous,
    ]
}

/// The code must match the table in the doc comment of `Class`.
#[test]
fn the_documented_table_matches_the_code() {
    let source = include_str!("../error.rs");
    let rows = source.lines().filter(|line| line.starts_with("/// | `")).count();
    assert_eq!(rows, all().len());
    for class in all() {
        let row = source
            .lines()
            .find(|line| line.starts_with(&format!("/// | `{}` |", class.name())))
            .unwrap_or_else(|| panic!("no row for {class:?}"));
        assert!(row.ends_with(&format!("| `{}` |", class.kind().name())), "{row}");
    }
}

#[test]
fn the_delay_of_the_cloud_reaches_the_core() {
    let error =
        Error::new(Class::Throttled { after: Some(Duration::from_secs(3)) }, "List", "too many calls");
    let error = vk_provider::Error::from(error);
    assert_eq!(error.kind().retry_after(), Some(Duration::from_secs(3)));
    assert_eq!(error.report(), "List: too many calls");
}

#[test]
fn a_lost_answer_is_ambiguous_only_for_a_create() {
    let of = |effect| Error::without_answer("Call", effect, "no answer").class().clone();
    assert_eq!(of(Effect::Create), Class::Ambiguous);
    assert_eq!(of(Effect::Repeatable), Class::Transient);
}

#[test]
fn the_text_names_operation_code_and_request() {
    let error = Error::new(Class::Quota, "CreateContainerGroup", "no more groups");
    assert_eq!(error.to_string(), "CreateContainerGroup: no more groups");
    let error = error.with_code("QuotaExceeded", Some("1-2".to_owned()));
    assert_eq!(error.to_string(), "CreateContainerGroup: no more groups (QuotaExceeded, request 1-2)");
    let error = error.within("create group a");
    assert_eq!(
        error.to_string(),
        "create group a: CreateContainerGroup: no more groups (QuotaExceeded, request 1-2)"
    );
}
