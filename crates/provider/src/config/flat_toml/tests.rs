use proptest::prelude::*;
use serde_json::json;

use super::*;

fn values(text: &str) -> Value {
    let entries = read(text).unwrap();
    Value::Object(entries.into_iter().map(|entry| (entry.key, entry.value)).collect())
}

#[test]
fn the_file_of_the_go_provider_is_read() {
    let text = "\u{feff}# the virtual node\r\nRegion = \"cn-hangzhou\"  # where\r\n\r\nOperatingSystem = 'Linux'\nCPU = \"1000\"\nMemory=\"4Ti\"\n\tPods = 1_000\nVSwitch = \"vsw-1\"";
    assert_eq!(
        values(text),
        json!({"Region": "cn-hangzhou", "OperatingSystem": "Linux", "CPU": "1000", "Memory": "4Ti", "Pods": 1000, "VSwitch": "vsw-1"})
    );
}

#[test]
fn lists_booleans_escapes_and_quoted_keys_are_read() {
    let text = "Subnets = [\n  \"a\", # first\n  'b\\n',\n]\nNone = []\nPublic = true\n\"a key\" = -3\nText = \"a # \\\"b\\\"\\t\\u00e9\\U0001F600\"\n";
    assert_eq!(
        values(text),
        json!({"Subnets": ["a", "b\\n"], "None": [], "Public": true, "a key": -3, "Text": "a # \"b\"\té😀"})
    );
    assert_eq!(values(""), json!({}));
}

#[test]
fn errors_name_the_line_and_the_key_but_no_value() {
    for (text, line, words) in [
        ("Region = cn-hidden", 1, "Region: is not an integer; write text in quotes"),
        ("\nRegion", 2, "expected `=` after `Region`"),
        ("Region =\nCPU = 1", 1, "Region: the value is missing"),
        ("Region = \"hidden\nCPU = 1", 1, "no closing quote"),
        ("Region = \"\"\"hidden\"\"\"", 1, "several lines"),
        ("Region = \"hidden\" hidden", 1, "more text after the value"),
        ("Region = \"\\q\"", 1, "unknown escape"),
        ("Region = \"\\u00zz\"", 1, "4 hexadecimal digits"),
        ("Region = \"\\ud800\"", 1, "4 hexadecimal digits"),
        ("# a\n[provider]\nRegion = 1", 2, "tables are not supported"),
        ("a.b = 1", 1, "key with dots"),
        ("a = {b = 1}", 1, "tables are not supported"),
        ("a = [[1]]", 1, "lists in lists"),
        ("a = [1\n\n", 3, "has no end"),
        ("a = [1 2]", 1, "expected `,` or `]`"),
        ("a = 1.5", 1, "not an integer"),
        ("a = 1__0", 1, "not an integer"),
        ("a = 99999999999999999999", 1, "not an integer"),
        ("a = 1\nb = 2\na = 3", 3, "`a` is already in line 1"),
        ("= 1", 1, "expected `Key = value`"),
        (": 1", 1, "expected `Key = value`"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.starts_with(&format!("line {line}: ")), "{text:?}: {error}");
        assert!(error.contains(words) && !error.contains("hidden"), "{text:?}: {error}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[ -~\\n\\t\\r\u{e9}]{0,60}") {
        drop(read(&text));
    }

    #[test]
    fn a_text_in_quotes_is_read_back(value in "\\PC{0,40}") {
        let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
        let entries = read(&format!("Key = \"{quoted}\" # end\n")).unwrap();
        prop_assert_eq!(&entries[0].value, &Value::from(value));
    }
}
