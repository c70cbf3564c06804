use proptest::prelude::*;

use super::*;

fn canonical(text: &str) -> String {
    text.parse::<Quantity>().unwrap_or_else(|error| panic!("{error}")).to_string()
}

#[test]
fn quantities_are_written_in_the_canonical_form_of_kubernetes() {
    let table = [
        ("0", "0"),
        ("-0", "0"),
        ("0n", "0"),
        ("0Gi", "0"),
        ("1", "1"),
        ("+7", "7"),
        ("-5", "-5"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("1500", "1500"),
        ("1.5", "1500m"),
        (".5", "500m"),
        ("5.", "5"),
        ("100m", "100m"),
        ("1000m", "1"),
        ("0.5m", "500u"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1.23456789012", "1234567891n"),
        ("20G", "20G"),
        ("1Ki", "1Ki"),
        ("1024Ki", "1Mi"),
        ("1.5Gi", "1536Mi"),
        ("100Gi", "100Gi"),
        ("0.5Ki", "512"),
        ("512Ki", "512Ki"),
        ("1023", "1023"),
        ("0.0001Ki", "102400u"),
        ("2e3", "2e3"),
        ("2E3", "2e3"),
        ("1500e3", "1500e3"),
        ("1e-3", "1e-3"),
        ("12e0", "12"),
        ("1E", "1E"),
        ("9223372036854775807", "9223372036854775807"),
        ("9223372036854775808", "9223372036854775807"),
        ("100E", "9223372036854775807"),
        ("8Ei", "9223372036854775807"),
        ("1e100", "9223372036854775807e0"),
        ("00100", "100"),
        ("3.000", "3"),
        ("1e-30", "1e-9"),
    ];
    for (text, expected) in table {
        let expected = expected.replace("e0", "");
        assert_eq!(canonical(text), expected, "for {text}");
    }
}

#[test]
fn nonsense_is_refused_with_what_to_write() {
    for text in [
        "", ".", "+", "abc", "1.2.3", "1 Gi", "1gi", "1KI", "--1", "1e", "1e+", "Ki", "0x10", "1,5", "½",
        "1mm", "1ee3",
    ] {
        let error = text.parse::<Quantity>().unwrap_err().to_string();
        assert!(error.contains("is not a quantity") && error.contains("1.5Gi"), "{text}: {error}");
    }
}

#[test]
fn equal_amounts_in_different_notations_are_equal() {
    let parse = |text: &str| text.parse::<Quantity>().unwrap();
    assert_eq!(parse("1Gi"), parse("1073741824"));
    assert_eq!(parse("1"), parse("1000m"));
    assert!(parse("1G") < parse("1Gi"));
    assert_eq!((parse("2Gi") - parse("512Mi")).to_string(), "1536Mi");
    assert_eq!((parse("1") + parse("500m")).to_string(), "1500m");
    assert_eq!(parse("2Gi").divided_by(parse("600Mi")), 3);
    assert_eq!((parse("1").divided_by(parse("0")), parse("-1").divided_by(parse("1"))), (0, 0));
    assert_eq!(parse("1001m").to_units(), 2);
    assert_eq!(parse("-1500m").to_units(), -1);
    assert_eq!(parse("0.5m").to_milli(), 1);
    // As in Kubernetes: without a suffix it cannot be seen that the notation was binary.
    assert_eq!(
        (parse("62.5Ki").to_string(), parse("64000").to_string()),
        ("64000".to_owned(), "64k".to_owned())
    );
}

proptest! {
    #[test]
    fn reading_what_was_written_gives_the_same_amount_and_then_the_same_text(text in "[-+]?[0-9]{0,12}(\\.[0-9]{0,9})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e[-+]?[0-9]|)") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            let written = quantity.to_string();
            let again: Quantity = written.parse().unwrap();
            prop_assert_eq!(again, quantity);
            let written = again.to_string();
            prop_assert_eq!(written.parse::<Quantity>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn any_text_is_answered_without_a_panic(text in "\\PC*") {
        let _ = text.parse::<Quantity>();
    }

    #[test]
    fn whole_units_survive(units in any::<i64>()) {
        prop_assume!(units > i64::MIN);
        prop_assert_eq!(units.to_string().parse::<Quantity>().unwrap().to_units(), units);
    }
}

#[test]
fn usage_of_a_processor_is_read_to_the_billionth() {
    for (text, nano) in [("2512343n", 2_512_343), ("1u", 1_000), ("500m", 500_000_000), ("2", 2_000_000_000)]
    {
        assert_eq!(text.parse::<Quantity>().unwrap().to_nano(), nano, "{text}");
    }
    assert_eq!("1E".parse::<Quantity>().unwrap().to_nano(), i64::MAX);
}
